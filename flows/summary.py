"""Result of a run, in a few lines for a person and as one record for a script."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import counted
from schemas.fold_records import CrossValidation
from schemas.look_records import Looks
from schemas.new_rows import NewRows
from schemas.records import (
    EvaluationReport,
    Interval,
    Prepared,
    Record,
    Registered,
    SampleReport,
    TrainReport,
    Verification,
)
from schemas.registry_records import Outcome
from schemas.search_records import SearchOutcome
from tasks.claim import used_servers
from tasks.context import RunContext
from tasks.evaluate import worse_slices

OUTCOMES: dict[Outcome, str] = {
    "refused": "; exit code 1",
    "kept": ": the new version is equal within the noise, so the champion stays",
    "undecided": ": the gate waits for rows that came since its last decision; the champion stays",
}


class RunSummary(Record):
    """Result of a pipeline run.

    `cached`: the prepared data were reused. `metrics`: metrics of the test rows, with confidence
    intervals. `outcome`: outcome of the model. `new_rows`: difference from the rows of the last
    run; null without one. `looks`: how many models were scored on the test rows. `cautions`: checks
    that warn, with what they found. `slices`: those that are worse than others.
    """

    name: str
    run_id: str
    run_dir: str
    task: str
    metric: str
    metrics: dict[str, Interval]
    looks: Looks = ()
    verdict: str
    cautions: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    cached: bool
    registered: Registered
    outcome: Outcome
    new_rows: NewRows | None = None
    report: str
    confidence: float
    tracking_uri: str
    mlflow_run_id: str
    flow_run_id: str | None
    promise: str

    @property
    def message(self) -> str:
        """Outcome in a sentence, for Prefect's state."""
        model = (
            f"{self.registered.uri} (version {self.registered.version})"
            if self.registered.registered
            else f"nothing registered: {self.registered.verdict}"
        )
        rows = f"; {self.new_rows.sentence}" if self.new_rows else ""
        return f"{model}; test {self.metric} {interval_text(self.metrics[self.metric])}{rows}"


class SearchSummary(Record):
    """Result of a search: its trials, and the run of the best declaration."""

    search: SearchOutcome
    best: RunSummary


def summarise(
    run: RunContext,
    prepared: Prepared,
    trained: TrainReport,
    evaluated: EvaluationReport,
    registered: Registered,
    outcome: Outcome,
    new_rows: NewRows | None,
    report: Path,
) -> RunSummary:
    """Return the record of a finished run."""
    return RunSummary(
        name=run.declaration.name,
        run_id=run.run_id,
        run_dir=str(run.run_dir),
        task=run.declaration.task.kind,
        metric=run.declaration.metric,
        metrics=evaluated.metrics,
        looks=evaluated.looks,
        verdict=evaluated.verdict,
        cautions=tuple(
            f"{found.name}: {found.summary}"
            for found in prepared.checks.results
            if found.verdict == "warn"
        ),
        slices=tuple(worse_slices(evaluated)),
        cached=prepared.cached,
        registered=registered,
        outcome=outcome,
        new_rows=new_rows,
        report=str(report),
        confidence=run.declaration.evaluate.confidence,
        tracking_uri=run.tracking_uri,
        mlflow_run_id=run.tracker.run_id,
        flow_run_id=run.flow_run_id,
        promise=trained.promise,
    )


def interval_text(interval: Interval) -> str:
    """Format `0.671 [0.660, 0.682]`, or a dash if the metric is not defined."""
    if interval.value is None:
        return "–"
    bounds = (
        f" [{interval.low:.4f}, {interval.high:.4f}]"
        if interval.low is not None and interval.high is not None
        else ""
    )
    return f"{interval.value:.4f}{bounds}"


def program() -> str:
    """Return the command as a person can call it: by name if PATH finds it, else by path."""
    called, found = Path(sys.argv[0]), shutil.which("bulkhead")
    if called.name != "bulkhead" or (found and Path(found).samefile(called)):
        return "bulkhead"
    return str(called.relative_to(Path.cwd())) if called.is_relative_to(Path.cwd()) else str(called)


def where_to_look(tracking_uri: str) -> str:
    """Return the addresses of the servers that a run used or that serve its home.

    Without servers it is the command that starts them.
    """
    return (
        used_servers(tracking_uri)
        or f"{program()} up   → Prefect http://127.0.0.1:4200, MLflow http://127.0.0.1:5000"
    )


def _caution_lines(cautions: Sequence[str]) -> dict[str, str]:
    """Return the first check that warns, and the names of the others."""
    if not cautions:
        return {}
    others = ", ".join(caution.partition(":")[0] for caution in cautions[1:])
    return {"caution": cautions[0] + (f"; also: {others}" if others else "")}


def print_summary(summary: RunSummary) -> None:
    """Print the outcome: the test metric, the model, the report, and further commands."""
    others = [
        f"{name} {interval_text(value)}"
        for name, value in summary.metrics.items()
        if name != summary.metric
    ]
    registered = summary.registered
    lines = {
        "test": (
            f"{summary.metric} {interval_text(summary.metrics[summary.metric])}  "
            f" ({summary.confidence:.0%} interval; {', '.join(others[:2])})"
        ),
        **_look_lines(summary.looks),
        "verdict": summary.verdict,
        **_caution_lines(summary.cautions),
        **_slice_lines(summary.slices),
        "model": (
            f"{registered.uri}  (version {registered.version})"
            if registered.registered
            else f"nothing registered; {registered.verdict}"
        ),
        "outcome": summary.outcome + OUTCOMES.get(summary.outcome, ""),
        **({"rows": summary.new_rows.sentence} if summary.new_rows else {}),
        "report": summary.report,
        "promise": summary.promise,
        "look further": where_to_look(summary.tracking_uri),
    }
    if registered.registered and summary.outcome not in ("kept", "undecided"):
        lines["use it"] = (
            f"mlflow.pyfunc.load_model('{registered.uri}') with"
            f" MLFLOW_TRACKING_URI={summary.tracking_uri}"
        )
    print()
    for name, text in lines.items():
        print(f"  {name:<13} {text}")


def _look_lines(looks: Looks) -> dict[str, str]:
    """Return the line on looks at the test rows; none at the first look."""
    found = [look.sentence for look in looks if look.number > 1]
    return {"looks": found[0]} if found else {}


def _slice_lines(slices: Sequence[str]) -> dict[str, str]:
    """Return the line on the worst slice; none where no slice is worse."""
    if not slices:
        return {}
    more = f"; {len(slices) - 1} more in the report" if len(slices) > 1 else ""
    return {"slices": slices[0] + more}


def print_search(found: SearchSummary) -> None:
    """Print what the search found, then the outcome of the best declaration's run."""
    search = found.search
    params = ", ".join(f"{path}={value}" for path, value in search.winner.params.items())
    lines = {
        "search": (
            f"{counted(len(search.trials), 'trial')} in {search.hours:.2f} hours"
            f" ({search.count('pruned')} stopped early, {search.count('failed')} failed)"
        ),
        "best": f"trial {search.trial}: val {search.metric} {_figure(search.winner.score)}",
        "values": params,
        "declaration": search.best,
    }
    print()
    for name, text in lines.items():
        print(f"  {name:<13} {text}")
    print_summary(found.best)


def print_folds(found: CrossValidation) -> None:
    """Print the table of folds, mean and spread, and further commands."""
    names = [found.metric, *(name for name in found.metrics if name != found.metric)][:4]
    width = max(12, *(len(name) + 2 for name in names))
    print(
        "\n  "
        + "fold".ljust(6)
        + "train".rjust(10)
        + "val".rjust(9)
        + "test".rjust(9)
        + "".join(name.rjust(width) for name in names)
    )
    for fold in found.folds:
        rows = f"{fold.rows['train']:>10,}{fold.rows['val']:>9,}{fold.rows['test']:>9,}"
        print(
            f"  {fold.number:<6}{rows}"
            + "".join(_figure(fold.metrics[name].value).rjust(width) for name in names)
        )
    for word, field in (("mean", "mean"), ("sd", "std")):
        print(
            f"  {word:<34}"
            + "".join(_figure(getattr(found.metrics[name], field)).rjust(width) for name in names)
        )
    print()
    lines = {
        "verdict": found.verdict,
        "model": "none registered; for the final model: cv.folds=0",
        "report": found.report,
    }
    lines["look further"] = where_to_look(found.tracking_uri)
    for name, text in lines.items():
        print(f"  {name:<13} {text}")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def print_samples(made: SampleReport) -> None:
    """Print generated texts on standard output, separated by dashes.

    Findings about molecules go to standard error.
    """
    print("\n--------\n".join(made.texts))
    if made.note:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in made.molecules.items())
        print(f"\n  {shares + '; ' if shares else ''}{made.note}", file=sys.stderr)


def print_verification(proven: Verification) -> None:
    """Print one line for each statement: its verdict and what was found."""
    marks = {"pass": "✓", "fail": "✗"}
    aliases = f" ({', '.join(proven.aliases)})" if proven.aliases else ""
    print(f"models:/{proven.name}/{proven.version}{aliases}")
    for result in proven.results:
        print(f"{marks.get(result.verdict, '!')} {result.name:<12} {result.summary}")
    if proven.failed:
        print(f"\n  {proven.failed[0].remedy}")
