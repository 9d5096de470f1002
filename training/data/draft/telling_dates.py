"""Days between two dates that tell the label: a person must say whether both are known in time."""

from __future__ import annotations

from training.data.draft.guesses import Draft, Table
from training.data.draft.profile import SAMPLE, plain
from training.data.draft.sparse import label_number
from training.data.draft.yaml_lines import quoted
from training.data.engine.engine import row

STRONG = 0.9  # of the label told by one feature; the check label_proxy stops a run at 0.98


def allow_telling_dates(table: Table, draft: Draft) -> Draft:
    """Allow the check `label_proxy` for days between dates that tell the label, with the figure.

    The dates are the user's columns, so the run would stop over a feature that the draft derived.
    """
    number = None if draft.labels else label_number(table, draft.label)
    if number is None or draft.label.name in draft.derive:
        return draft
    allowed = []
    for name, (expression, _) in draft.derive.items():
        if not expression.startswith("date_diff('day', cast("):
            continue
        strength = _strength(table, expression, number, draft.label.distinct == 2)
        if strength >= STRONG:
            reason = f"{plain(name)} counts the days between two given dates"
            allowed.append(
                (
                    f"{{check: label_proxy, column: {quoted(name)}, reason: {quoted(reason)}}}",
                    f"{plain(name)} alone tells {strength:.0%} of the label",
                )
            )
    if not allowed:
        return draft
    words = "; ".join(why for _, why in allowed)
    line = f"allow: [{', '.join(text for text, _ in allowed)}]"
    why = f"{words}: remove it if a date is known only afterwards"
    return draft._replace(checks=(*draft.checks, (line, why)))


def _strength(table: Table, expression: str, label: str, is_binary: bool) -> float:
    """Return |2 AUROC - 1| of a feature for two classes, else the squared correlation of ranks."""
    ranked = (
        "select l, rank() over (order by x) + (count(*) over (partition by x) - 1) / 2.0 as rx,"
        " rank() over (order by l) + (count(*) over (partition by l) - 1) / 2.0 as rl from"
        f" (select {expression} as x, {label} as l from {SAMPLE})"
        " where x is not null and l is not null"
    )
    if not is_binary:
        found = row(table.connection, f"select corr(rx, rl) from ({ranked})")[0]
        return float(found or 0.0) ** 2
    total, high, ranks = row(
        table.connection,
        "select count(*), count(*) filter (where l = top), sum(rx) filter (where l = top) from"
        f" (select *, max(l) over () as top from ({ranked}))",
    )
    if not high or high == total:
        return 0.0
    area = (ranks - high * (high + 1) / 2) / (high * (total - high))
    return float(abs(2 * area - 1))
