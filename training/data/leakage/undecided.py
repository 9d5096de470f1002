"""Questions that no check on these data can decide.

They are reported openly, and a declaration is asked for if it would help.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.config import Declaration
from schemas.records import TableSpec

ORDERED = ("time", "group_time")


def undecided(
    spec: TableSpec,
    declaration: Declaration,
    hints: Mapping[str, tuple[str, str]] | None = None,
    *,
    files: bool = False,
) -> tuple[str, ...]:
    """Return the open questions; those that a declared role would close come first.

    Args:
        spec: the roles that were declared.
        declaration: how the rows were split.
        hints: role → column that looks like it and why, if the role was not declared.
        files: True if finished files were audited, so that fits before they were
            written cannot be seen.
    """
    hinted = {
        role: f" {column!r} looks like one ({why})."
        for role, (column, why) in (hints or {}).items()
    }
    found = []
    if spec.group:
        found.append(
            "Whether rows belong together in a way that is not declared. Declared:"
            f" {', '.join(spec.group)}."
        )
    else:
        found.append(
            "Whether several rows belong to one person, device or site: no group is declared, so"
            " each row counts as independent." + hinted.get("group", "")
        )
    if not spec.id:
        found.append(
            "Whether a row of train is in a held-out split under the same id: no id is declared."
            + hinted.get("id", "")
        )
    found += [
        (
            "Whether the same entity appears again under a new id: only rows that resemble each"
            " other in their features are recognised."
        ),
        (
            "Whether each feature is known at the moment of prediction in real use; a column filled"
            " in afterwards looks like a good feature."
        ),
        (
            "Whether the labels are right. The test labels share any systematic error of the train"
            " labels."
        ),
        "Whether the test rows are drawn from the population that the model will serve.",
    ]
    if files:
        found.append(
            "What was fitted on all rows before the files were written, apart from the traces that"
            " the checks name; the poison test of `bulkhead audit FILE` needs the declaration."
        )
    if spec.time is None:
        found.append(
            "Whether the model holds up later: no time is declared, so the test rows may be as old"
            " as the train rows." + hinted.get("time", "")
        )
    elif declaration.split.kind not in ORDERED:
        found.append(
            f"Whether the model holds up later: the split ({declaration.split.kind}) does not put"
            " the test rows after the train rows."
        )
    return tuple(found)
