"""Run only the checks, over the splits of a run or over two or three files from anywhere.

Nothing is fitted, nothing stops.
"""

from __future__ import annotations

import time
from contextlib import closing

from schemas.audit import AuditReport, FilesToAudit
from schemas.config import Declaration
from schemas.digest import verify
from schemas.records import (
    CheckReport,
    CheckResult,
    SourceRef,
    SplitTables,
    TableSpec,
    ValidatedTable,
)
from training.data.engine.engine import connect, engine_for
from training.data.leakage import hard_results, leak_results, window_results
from training.data.leakage.file_order import file_order_results
from training.data.leakage.files import Opened, open_files
from training.data.leakage.overlap import find_missing_rows, judge_rows
from training.data.leakage.side_by_side import rows_beside
from training.data.leakage.sides import Sides, places_of, sides_of
from training.data.leakage.undecided import undecided
from training.data.leakage.verdict import judged


def audit_files(request: FilesToAudit, memory_limit: str | None = None) -> AuditReport:
    """Run every check over files from anywhere.

    Args:
        request: the files and known facts about their columns.
        memory_limit: such as "2GB"; beyond it, the engine spills to disk.

    Raises:
        SourceError: a file cannot be found or read.
        ConfigError: a column or setting that does not exist was named.
        SchemaError: a type does not fit the role that was given.
    """
    with closing(connect(memory_limit)) as connection:
        opened: Opened = open_files(connection, request)
        started = time.perf_counter()
        in_order = file_order_results(opened.sides) if opened.sides.spec.text is None else []
        results = [*hard_results(opened.sides), *leak_results(opened.sides), *in_order]
        if not opened.sides.spec.id:
            results = [r for r in results if r.name != "id_overlap"]  # a row number is no id
        sources = {str(side): tuple(uris) for side, uris in request.uris.items()}
        open_questions = undecided(
            opened.sides.spec, opened.sides.declaration, opened.hints, files=True
        )
        return _report(
            opened.sides,
            results,
            time.perf_counter() - started,
            sources,
            opened.sha256,
            open_questions,
            opened.guesses,
        )


def audit_split(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration, source: SourceRef
) -> AuditReport:
    """Run every check over the splits as written; a failed check is reported, not raised."""
    for table in (split.train, split.val, split.test, validated.table):
        verify(table.file)
    with engine_for(declaration.data) as connection:
        sides = sides_of(connection, split, validated.spec, declaration)
        sides = sides._replace(places=places_of(validated))
        started = time.perf_counter()
        rows = judged(judge_rows(*find_missing_rows(sides, split, validated), split), declaration)
        windows = window_results(split, validated, declaration)
        results = [rows, *hard_results(sides), *windows, *leak_results(sides)]
        sources, sha256 = {"source": source.uri}, {"source": source.sha256}
        return _report(
            sides,
            results,
            time.perf_counter() - started,
            sources,
            sha256,
            undecided(validated.spec, declaration),
            (),
        )


def _report(
    sides: Sides,
    results: list[CheckResult],
    seconds: float,
    sources: dict[str, tuple[str, ...]],
    sha256: dict[str, str],
    open_questions: tuple[str, ...],
    guesses: tuple[str, ...],
) -> AuditReport:
    shown = {i: found for i, r in enumerate(results) if (found := rows_beside(sides, r))}
    return AuditReport(
        name=sides.declaration.name,
        sources=sources,
        sha256=sha256,
        roles=_roles(sides.spec),
        task=sides.declaration.task.kind,
        rows={str(side): n for side, n in sides.num_rows.items()},
        guesses=guesses,
        checks=CheckReport(results=tuple(results)),
        shown=shown,
        undecided=open_questions,
        seconds=seconds,
    )


def _roles(spec: TableSpec) -> dict[str, tuple[str, ...]]:
    found = {
        "id": spec.id,
        "group": spec.group,
        "time": (spec.time,),
        "label": tuple(spec.label_columns),
        "label known at": (spec.label_time,),
        "features known at": tuple(spec.available),
        "features": spec.features,
        "ignored": spec.ignored,
    }
    return {role: tuple(c for c in columns if c) for role, columns in found.items() if any(columns)}
