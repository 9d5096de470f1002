"""Commands that prepare, train and continue: `bulkhead run`, `train`, `resume` and others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from flows.cli.output import print_json
from flows.cli.shared import AsJson, Debug, File, Overrides, environment, server_starting, stated

if TYPE_CHECKING:
    from schemas.config import Declaration


def _resumable_runs(incomplete: str) -> list[str]:
    """Tab-completion of runs that can be continued."""
    from tasks.resume import unfinished_runs

    return [
        run.started.run_id for run in unfinished_runs() if run.started.run_id.startswith(incomplete)
    ]


@stated
def run(
    file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Run FILE end to end: validate, split, check, fit, train, evaluate, gate, register, report;
    exit code 1 if the gate refuses. With cv.folds=5: train and test the folds instead; with
    search.trials=40: search first.
    """
    from schemas.load import load_declaration

    # refuse a bad declaration before anything starts
    declaration = load_declaration(file, overrides or ())
    environment(debug)
    if declaration.cv.folds:
        _cross_validate(file, overrides or [], declaration, as_json)
        return
    if declaration.search and not declaration.search.found:
        _search(file, overrides or [], declaration, as_json)
    with server_starting():
        from flows.pipeline import pipeline
        from flows.summary import print_summary
        from tasks.ranks import with_ranks

        # refuse here, not in the flow after the server has started
        with_ranks(declaration)
    summary = pipeline(config_path=str(file), overrides=overrides or [])
    print_json(summary.model_dump(mode="json")) if as_json else print_summary(summary)
    raise typer.Exit(1 if summary.outcome == "refused" else 0)


def _cross_validate(
    file: Path, overrides: list[str], declaration: Declaration, as_json: bool
) -> None:
    with server_starting():
        from flows.crossvalidate import crossvalidate
        from flows.summary import print_folds
        from tasks.ranks import with_ranks

        with_ranks(declaration)

    found = crossvalidate(config_path=str(file), overrides=overrides)
    print_json(found.model_dump(mode="json")) if as_json else print_folds(found)


def _search(file: Path, overrides: list[str], declaration: Declaration, as_json: bool) -> NoReturn:
    from tasks.search import searching

    searching(declaration)
    with server_starting():
        from flows.search import search as flow
        from flows.summary import print_search
        from tasks.ranks import with_ranks

        with_ranks(declaration)

    found = flow(config_path=str(file), overrides=overrides)
    print_json(found.model_dump(mode="json")) if as_json else print_search(found)
    raise typer.Exit(1 if found.best.outcome == "refused" else 0)


@stated
def search(
    file: File,
    overrides: Overrides = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="How many trials. Default: search.trials, else 40.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(min=0, help="Begin no trial after so many hours. Default: no limit."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Try other values of FILE in trials that are scored on validation rows, then run the best end
    to end; exit code 1 if the gate refuses it. Section search says which values; without it, the
    usual ones of the kind of model.
    """
    from schemas.load import load_declaration
    from schemas.parameters import chosen

    given = [*(overrides or []), *chosen(trials=trials or 0, hours=hours or 0)]
    declaration = load_declaration(file, given)
    if declaration.search is None:
        given.append("search={}")
    elif declaration.search.found:
        given.append("search.found=null")
    declaration = load_declaration(file, given)
    environment(debug)
    _search(file, given, declaration, as_json)


@stated
def prepare(
    file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Validate, split, check, fit on train and write the arrays; no training."""
    from schemas.load import load_declaration

    load_declaration(file, overrides or ())
    environment(debug)
    with server_starting():
        from flows.prepare import prepare as flow

    prepared = flow(config_path=str(file), overrides=overrides or [])
    if as_json:
        print_json(prepared.model_dump(mode="json"))


@stated
def train(
    file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Prepare and train, without touching the test rows or the registry."""
    from schemas.load import load_declaration

    declaration = load_declaration(file, overrides or ())
    environment(debug)
    with server_starting():
        from flows.train import train as flow
        from tasks.ranks import with_ranks

        with_ranks(declaration)

    trained = flow(config_path=str(file), overrides=overrides or [])
    if as_json:
        print_json(trained.model_dump(mode="json"))


@stated
def resume(
    run: Annotated[
        str | None,
        typer.Argument(
            help=(
                "Run directory, run id or MLflow run id; without it, the runs that can be resumed."
            ),
            metavar="[RUN]",
            autocompletion=_resumable_runs,
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Go on with a run that was interrupted, killed or failed, from its newest verified
    checkpoint.
    """
    environment(debug)
    from tasks.resume import unfinished

    if run is None:
        _list_resumable(as_json)
        return
    if unfinished(run) is None:
        return
    with server_starting():
        from flows.resume import resume as flow
        from flows.summary import RunSummary, SearchSummary, print_search, print_summary

    ended = flow(run=run)
    last = ended.best if isinstance(ended, SearchSummary) else ended
    if as_json:
        print_json(ended and ended.model_dump(mode="json"))
    elif isinstance(ended, SearchSummary):
        print_search(ended)
    elif isinstance(last, RunSummary):
        print_summary(last)
    raise typer.Exit(1 if isinstance(last, RunSummary) and last.outcome == "refused" else 0)


def _list_resumable(as_json: bool) -> None:
    from tasks.resume import unfinished_runs

    rows = [run.row for run in unfinished_runs()]
    if as_json:
        print_json(rows)
        return
    print(
        "\n".join(
            "{run_id}  {name:<20} {state:<8} checkpoint at step {checkpoint_step:<7}"
            " {cause}".format_map(row)
            for row in rows
        )
        or "nothing to resume"
    )


@stated
def join(
    run_dir: Annotated[
        Path,
        typer.Argument(
            help="Run directory that the first machine named, on a shared file system.",
            metavar="RUN_DIR",
        ),
    ],
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for the first machine.", min=0)
    ] = 900.0,
    debug: Debug = False,
) -> None:
    """Take part in a run on several machines, on all but the first one."""
    from tasks.join import join_run

    code = join_run(run_dir, wait)
    raise typer.Exit(code)


@stated
def replay(
    run: Annotated[
        str,
        typer.Argument(
            help="Directory or id of a run that stopped because a step was not finite.",
            metavar="RUN_DIR",
        ),
    ],
    step: Annotated[
        int | None, typer.Option(help="Which of its dumped steps. Default: the last.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a step again that was not finite, on one process, and find where it began; exit code 0
    if it is not finite again.
    """
    from tasks.replay import lines, replay_step

    report = replay_step(run, step)
    print_json(report.model_dump(mode="json")) if as_json else print("\n".join(lines(report)))
    raise typer.Exit(0 if report.reproduced else 1)
