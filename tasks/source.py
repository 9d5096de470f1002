"""Read a source URI into a validated table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from prefect import State, task
from prefect.cache_policies import NO_CACHE

from schemas.config import Declaration
from schemas.errors import BulkheadError, counted, shortened
from schemas.records import SourceRef, ValidatedTable
from schemas.references import Snapshot
from tasks.say import say
from tasks.store import stored, stored_task
from training.data.sources.source import fingerprint
from training.data.table.validate import validate

NOTES = 10  # most notes to show


def transient(_task: Any, _run: Any, state: Any) -> bool:
    """Return True if a retry can help: the operating system failed, not one of our checks."""
    failure = state.result(raise_on_failure=False)
    return isinstance(failure, OSError) and not isinstance(failure, BulkheadError)


@task(
    name="fingerprint source",
    description="List the source's files and take the SHA-256 of each.",
    tags=["data"],
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=2,
    retry_condition_fn=transient,
)
def fingerprint_source(declaration: Declaration) -> SourceRef:
    """Return the fingerprint of the current source."""
    source = fingerprint(declaration.data)
    megabytes = sum(f.num_bytes for f in source.files) / 1e6
    one = source.files[0].sha256 if len(source.files) == 1 else ""
    digest = f"sha256 {one[:12]}" if one else f"digest of all files {source.sha256[:12]}"
    for copy in source.snapshots:
        say("", read_words(copy))
    say(
        "source",
        f"{len(source.files)} {source.format} file{'s'[: len(source.files) > 1]}, {megabytes:,.1f}"
        f" MB, {digest}",
    )
    return source


def read_words(copy: Snapshot) -> str:
    """Return one sentence on rows of a database, or on a file that was converted."""
    names = {"table": copy.table, "query": copy.query, "sheet": copy.sheet}
    names["encoding"] = copy.encoding
    what = ", ".join(f"{n} {shortened(v, 60, plain=True)}" for n, v in names.items() if v)
    if copy.rows is None:
        return f"{copy.uri}: {what}, converted once"
    return f"{copy.uri}: {what}, {counted(copy.rows, 'row')} as of {copy.moment}"


@stored_task(
    name="validate table",
    description=(
        "Resolve roles and kinds, check types, nulls, ranges, values and uniqueness (pandera),"
        " write the typed table."
    ),
    tags=["data"],
)
def validate_table(source: SourceRef, declaration: Declaration) -> Any:
    """Return the typed table, its columns' meaning and the dropped rows."""
    inputs = {
        "source": source.sha256,
        "data": declaration.data.model_dump(mode="json", exclude={"uri", "memory_limit"}),
        "task": declaration.task,
    }
    inputs["constant_features"] = declaration.checks.constant_features
    if positive := declaration.non_negative_labels:
        inputs["non_negative"] = positive

    def make(folder: Path) -> ValidatedTable:
        made = validate(source, declaration, folder)
        spec = made.spec
        kinds = (
            f"text in {spec.text!r}"
            if spec.text
            else f"{len(spec.numeric)} numeric, {len(spec.categorical)} categorical"
        )
        kinds += f", {len(spec.tensor)} tensor" if spec.tensor else ""
        kinds += f", {counted(len(spec.windows), 'window')}" if spec.windows else ""
        bags = list(spec.bags.values())
        for kind in ("text", "set"):
            kinds += f", {bags.count(kind)} {kind}" if kind in bags else ""
        left_out = (
            f"; left out: {made.filtered_rows:,} by filter, {made.unlabelled_rows:,} without label"
            if made.filtered_rows or made.unlabelled_rows
            else ""
        )
        left_out += (
            f"; {counted(sum(made.ignored_labels.values()), 'label', 'means', 'mean')} unknown"
            " (task.ignore)"
            if made.ignored_labels
            else ""
        )
        say("validate", f"{counted(made.table.rows, 'row')}, {kinds}{left_out}")
        _warn(made)
        return made

    validated = stored("validate", inputs, ValidatedTable, make)
    if isinstance(validated, State):
        _warn(cast(ValidatedTable, validated.data))
    return validated


def _warn(validated: ValidatedTable) -> None:
    for note in validated.notes[:NOTES]:
        say("", note, "warn")
    if more := validated.notes[NOTES:]:
        say("", f"{len(more)} more such columns", "warn")
