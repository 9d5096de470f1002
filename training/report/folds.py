"""Report of a cross-validation: one page in the form of a run's report."""

from __future__ import annotations

from pathlib import Path

from schemas.config import Declaration
from schemas.fold_records import CrossValidation, FoldResult, Spread
from schemas.records import FileRef
from training.evaluation.cross_validation import NOTE
from training.formatting import (
    capital,
    count,
    duration,
    interval,
    metric_name,
    number,
    plain,
    plural,
)
from training.report.blocks import Block, Section, Table, checks, table
from training.report.blocks import Words as Text
from training.report.headline import Headline, Tile
from training.report.page import write_run_page

SIDES = ("train", "val", "test")


def write_fold_report(found: CrossValidation, declaration: Declaration, path: Path) -> FileRef:
    """Write the page completely or not at all; the same record gives the same bytes.

    Args:
        found: the result.
        declaration: gives the names.
        path: path of the HTML file.
    """
    return write_run_page(
        path,
        declaration,
        found.run_id,
        found.label,
        _headline(found),
        _sections(found),
        "cross-validation",
    )


def _headline(found: CrossValidation) -> Headline:
    main = found.metrics[found.metric]
    warned = any(r.verdict == "warn" for fold in found.folds for r in fold.checks.results)
    tiles = (
        Tile(
            f"Mean {metric_name(found.metric)}",
            number(main.mean),
            f"over {plural(main.folds, 'fold')}",
            "info",
        ),
        Tile("Standard deviation", number(main.std), "between folds", "info"),
        Tile(
            "Worst and best fold",
            f"{number(main.min)} / {number(main.max)}",
            found.kind.replace("_", " "),
            "info",
        ),
        Tile(
            "Checks",
            "warnings" if warned else "passed",
            "of every fold",
            "warn" if warned else "good",
        ),
    )
    return Headline(
        f"{capital(found.verdict)}. Nothing is registered.", "warn" if warned else "good", tiles
    )


def _sections(found: CrossValidation) -> tuple[Section, ...]:
    parts: tuple[tuple[str, str, str, list[Block]], ...] = (
        (
            "folds",
            "Folds",
            "How does each fold do on the rows it was not trained on?",
            [_fold_table(found), Text(NOTE)],
        ),
        (
            "metrics",
            "Mean and spread",
            "How good is this way of training, next to something simple?",
            [_spread_table(found)],
        ),
        (
            "rows",
            "Rows",
            "What is each fold trained and tested on, and what is left out?",
            [_row_table(found.folds)],
        ),
        (
            "checks",
            "Checks",
            "Does anything cross between the sides of a fold?",
            _check_blocks(found),
        ),
    )
    return tuple(
        Section(anchor, title, question, tuple(blocks)) for anchor, title, question, blocks in parts
    )


def _fold_table(found: CrossValidation) -> Table:
    names = [found.metric, *(n for n in found.metrics if n != found.metric)][:4]
    baselines = [n for n, spreads in found.baselines.items() if found.metric in spreads]
    headers = [
        "Fold",
        "Test rows",
        *(capital(metric_name(n)) for n in names),
        *(f"{capital(plain(n))} baseline" for n in baselines),
        "Epochs",
        "Time",
    ]
    rows = [
        [
            str(fold.number),
            count(fold.rows["test"]),
            *(interval(fold.metrics[n]) for n in names),
            *(number(fold.baselines.get(n, {}).get(found.metric)) for n in baselines),
            count(fold.epochs),
            duration(fold.seconds),
        ]
        for fold in found.folds
    ]
    return table(headers, rows, limit=50, what="folds")


def _spread_table(found: CrossValidation) -> Table:
    rows = [["model", *_cells(name, spread)] for name, spread in found.metrics.items()]
    rows += [
        [plain(baseline), *_cells(name, spreads[name])]
        for baseline, spreads in found.baselines.items()
        for name in found.metrics
        if name in spreads
    ]
    return table(
        ["What", "Metric", "Mean", "Standard deviation", "Least", "Greatest", "Folds"],
        rows,
        words=(0, 1),
        limit=200,
    )


def _cells(name: str, spread: Spread) -> list[str]:
    return [
        capital(metric_name(name)),
        number(spread.mean),
        number(spread.std),
        number(spread.min),
        number(spread.max),
        str(spread.folds),
    ]


def _row_table(folds: tuple[FoldResult, ...]) -> Table:
    reasons = sorted({reason for fold in folds for reason in fold.excluded})
    blocks = [
        name
        for name in ("test_begins", "test_ends", "val_begins")
        if any(fold.plan.get(name) is not None for fold in folds)
    ]
    headers = [
        "Fold",
        *(capital(s) for s in SIDES),
        *(capital(plain(r).replace("_", " ")) for r in reasons),
        *(capital(b.replace("_", " ")) for b in blocks),
    ]
    rows = [
        [
            str(fold.number),
            *(count(fold.rows[s]) for s in ("train", "val", "test")),
            *(count(fold.excluded.get(r, 0)) for r in reasons),
            *(plain("–" if fold.plan.get(b) is None else fold.plan[b]) for b in blocks),
        ]
        for fold in folds
    ]
    return table(headers, rows, limit=50, what="folds")


def _check_blocks(found: CrossValidation) -> list[Block]:
    """Show the check over all folds, and the failed checks of each fold."""
    findings = [
        r.model_copy(update={"name": f"fold {fold.number}: {r.name}"})
        for fold in found.folds
        for r in fold.checks.results
        if r.verdict != "pass"
    ]
    passed = sum(r.verdict == "pass" for fold in found.folds for r in fold.checks.results)
    return [
        Text(
            f"{plural(passed, 'check')} of the folds passed; what follows is the check over all"
            " folds, and what did not pass."
        ),
        checks([*found.coverage.results, *findings]),
    ]
