"""Section of the report on the learning curves: the reading, the pictures, the kept step."""

from __future__ import annotations

from schemas.config import Declaration
from schemas.records import EvaluationReport, PreflightReport, TrainReport
from training.evaluation.next_step import longer_line, unfinished
from training.formatting import MISSING, count, duration, metric_name, number, plain, plural
from training.report import plots
from training.report.blocks import Block, Callout, Facts, Gallery, Heading, Tone, Words, table
from training.report.curves import History, Reading, kept_index, read_curves
from training.report.svg import Picture
from training.report.tree_words import in_terms_of_trees, is_boosting

READING_TONES: dict[str, Tone] = {
    "healthy": "good",
    "overfitting": "warn",
    "underfitting": "warn",
    "too short": "info",
    "unknown": "info",
}


ANNEALED = 0.5  # last share of the highest learning rate, below which the schedule lowered it


def reading(
    history: History,
    train: TrainReport,
    preflight: PreflightReport,
    said_unfinished: bool = False,
) -> Reading:
    """Decide over- or underfitting of this run; unknown if the log lacks the losses.

    Args:
        history: the run's log.
        train: its result.
        preflight: gives the loss of an uninformed model.
        said_unfinished: the verdict says so, see `next_step.unfinished`.
    """
    both = [
        p for p in history.evaluations if "train_eval/loss" in p.values and "val/loss" in p.values
    ]
    kept = next((i for i, p in enumerate(both) if p.step == train.best_step), None)
    if kept is None:
        return Reading(
            "unknown",
            "The log holds no train and validation loss at the kept step, so the curves cannot be"
            " read.",
        )
    uninformed = (
        preflight.initial_loss if preflight.expected_loss is None else preflight.expected_loss
    )
    return read_curves(
        [p.values["train_eval/loss"] for p in both],
        [p.values["val/loss"] for p in both],
        kept,
        uninformed,
        train.status != "finished",
        _is_annealed(history),
        said_unfinished,
    )


def _is_annealed(history: History) -> bool:
    """Return True if the schedule lowered the learning rate towards the end."""
    rates = history.series("steps", "lr")[1]
    return bool(rates) and rates[-1] < ANNEALED * max(rates)


def curve_blocks(
    declaration: Declaration,
    history: History,
    train: TrainReport,
    preflight: PreflightReport,
    test: EvaluationReport | None = None,
) -> list[Block]:
    """Show over- or underfitting in words, the curves, the kept step, and problems on the way."""
    note, trees = unfinished(declaration, train), is_boosting(declaration)
    found = reading(history, train, preflight, bool(note and test and note in test.verdict))
    unit = "iteration" if trees else "step"
    # the loss has its own picture
    metric = declaration.metric if declaration.metric != "loss" else "accuracy"
    pictures = [
        plots.learning_curve(history, "loss", train.best_step, "loss", unit),
        plots.learning_curve(history, metric, train.best_step, "metric", unit),
        plots.step_curve(history, "lr", "learning rate", "lr"),
        plots.step_curve(
            history,
            "grad_norm",
            "gradient norm",
            "grad",
            log=True,
            limit=declaration.train.clip_at if declaration.train.clip == "norm" else None,
        ),
    ]
    shown: tuple[Picture, ...] = tuple(p for p in pictures if p is not None)
    words = in_terms_of_trees(found.words) if trees else found.words
    words += f" Set {longer_line(declaration, train)}." if found.cut_short else ""
    title = found.kind.capitalize() if found.kind != "unknown" else "Not read"
    blocks: list[Block] = [Callout(READING_TONES[found.kind], title, words)]
    blocks += [Gallery(shown)] if shown else [Words("No learning curves were logged.")]
    blocks += _kept_table(history, train, unit)
    return [
        *blocks,
        Facts(_tree_facts(train) if trees else _run_facts(train)),
        Heading("Instabilities and events"),
        *_events(history, train),
    ]


def _kept_table(history: History, train: TrainReport, unit: str) -> list[Block]:
    kept = kept_index(history, train.best_step)
    if kept is None:
        return []
    values = history.evaluations[kept].values
    names = [k.removeprefix("val/") for k in values if k.startswith("val/")]
    rows = []
    for name in names:
        a, b = values.get(f"train_eval/{name}"), values[f"val/{name}"]
        rows.append([metric_name(name), number(a), number(b), number(None if a is None else b - a)])
    return [
        Heading(f"At the kept {unit}, {count(train.best_step)}"),
        table(["", "Train", "Validation", "Validation − train"], rows),
    ]


def _run_facts(train: TrainReport) -> tuple[tuple[str, str], ...]:
    status = {
        "finished": "ran to its epoch limit",
        "stopped_early": "stopped early: no improvement within patience",
        "interrupted": "interrupted",
    }[train.status]
    return (
        ("ended", status),
        ("epochs", count(train.epochs)),
        ("optimizer steps", count(train.steps)),
        (f"best validation {metric_name(train.metric)}", number(train.best_metric)),
        ("time", duration(train.seconds)),
        ("rows per second", f"{train.rows_per_second:,.0f}"),
        ("processes", count(train.world_size)),
        ("parameters", count(train.num_parameters)),
    )


def _tree_facts(train: TrainReport) -> tuple[tuple[str, str], ...]:
    """Return the facts of a fit of trees."""
    ended = "stopped early: the validation loss fell no more within patience"
    return (
        ("ended", ended if train.status == "stopped_early" else "ran to its limit of iterations"),
        ("iterations", count(train.steps)),
        ("of which kept", count(train.best_step)),
        (f"validation {metric_name(train.metric)} with them", number(train.best_metric)),
        ("time", duration(train.seconds)),
        ("rows per second", f"{train.rows_per_second:,.0f}"),
    )


def _events(history: History, train: TrainReport) -> list[Block]:
    rows = [[MISSING, plain(message, 400)] for message in train.instabilities]
    rows += [
        [MISSING if e.step is None else count(e.step), plain(e.message, 400)]
        for e in history.events
        if e.message not in train.instabilities
    ]
    blocks: list[Block] = (
        [table(["Step", "What happened"], rows, words=(1,), limit=30, what="events")]
        if rows
        else [Words("None was logged.")]
    )
    if history.unreadable:
        blocks.append(
            Words(
                f"{plural(history.unreadable, 'line')} of the log could not be read (as a killed"
                " process may leave) and is left out."
            )
        )
    return blocks
