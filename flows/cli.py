"""The command line: `bulkhead run FILE [path=value …]` and its sisters.

Exit codes: 0 done, 1 the run refused or failed for a stated reason, 2 usage (the declaration included).
Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from schemas.errors import BulkheadError, ConfigError
from schemas.home import home

app = typer.Typer(
    name="bulkhead",
    help="A table and one YAML file in, a registered PyTorch model whose test score can be believed out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _declared_paths(incomplete: str) -> list[str]:
    """Tab-completion of overrides: the dotted paths of the declaration."""
    from schemas.describe import value_paths

    return [f"{path}=" for path in value_paths() if path.startswith(incomplete)]


def _resumable_runs(incomplete: str) -> list[str]:
    """Tab-completion of runs that can be continued."""
    from tasks.resume import unfinished_runs

    return [run.started.run_id for run in unfinished_runs() if run.started.run_id.startswith(incomplete)]


File = Annotated[Path, typer.Argument(help="The declaration, a YAML file.", metavar="FILE")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Values that replace the file's, e.g. train.epochs=5 model.kind=mlp.", metavar="[path=value]…", autocompletion=_declared_paths),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and Prefect's own log.")]


@contextmanager
def _stated_errors(debug: bool = False) -> Iterator[None]:
    """Turn a stated error into its message and exit code; anything else keeps its traceback."""
    try:
        yield
    except BulkheadError as error:
        if debug:
            raise
        _refuse(error)
    except KeyboardInterrupt:
        print("\n✗ interrupted; what was saved stays", file=sys.stderr)
        raise typer.Exit(130) from None


def _refuse(error: BulkheadError) -> NoReturn:
    print(f"\n✗ {type(error).__name__}: {error}", file=sys.stderr)
    raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def _environment(debug: bool) -> None:
    """Settings of Prefect and MLflow for a run without servers; what the user has set stays."""
    defaults = {
        "PREFECT_HOME": str(home() / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO" if debug else "CRITICAL",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


@app.command()
def run(file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Run FILE end to end: validate, split, check, fit, train, evaluate, gate, register, report. With cv.folds=5: train and test the folds instead."""
    with _stated_errors(debug):
        from schemas.load import load_declaration

        declaration = load_declaration(file, overrides or ())  # a bad declaration is refused before anything starts
        _environment(debug)
        if declaration.cv.folds:
            _cross_validate(file, overrides or [], as_json)
            return
        from flows.pipeline import pipeline
        from flows.summary import print_summary

        summary = pipeline(config_path=str(file), overrides=overrides or [])
        _print_json(summary.model_dump(mode="json")) if as_json else print_summary(summary)


def _cross_validate(file: Path, overrides: list[str], as_json: bool) -> None:
    from flows.crossvalidate import crossvalidate
    from flows.summary import print_folds

    found = crossvalidate(config_path=str(file), overrides=overrides)
    _print_json(found.model_dump(mode="json")) if as_json else print_folds(found)


@app.command()
def prepare(file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Validate, split, check, fit on train and write the arrays; no training."""
    with _stated_errors(debug):
        from schemas.load import load_declaration

        load_declaration(file, overrides or ())
        _environment(debug)
        from flows.prepare import prepare as flow

        prepared = flow(config_path=str(file), overrides=overrides or [])
        if as_json:
            _print_json(prepared.model_dump(mode="json"))


@app.command()
def train(file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Prepare and train, without touching the test rows or the registry."""
    with _stated_errors(debug):
        from schemas.load import load_declaration

        load_declaration(file, overrides or ())
        _environment(debug)
        from flows.train import train as flow

        trained = flow(config_path=str(file), overrides=overrides or [])
        if as_json:
            _print_json(trained.model_dump(mode="json"))


@app.command()
def resume(
    run: Annotated[
        str | None,
        typer.Argument(
            help="Run directory, run id or MLflow run id; without it, the runs that can be resumed.", metavar="[RUN]", autocompletion=_resumable_runs
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Go on with a run that was interrupted, killed or failed, from its newest verified checkpoint."""
    with _stated_errors(debug):
        _environment(debug)
        from tasks.resume import unfinished

        if run is None:
            _list_resumable(as_json)
            return
        if unfinished(run) is None:
            return
        from flows.resume import resume as flow
        from flows.summary import RunSummary, print_summary

        ended = flow(run=run)
        if as_json:
            _print_json(ended and ended.model_dump(mode="json"))
        elif isinstance(ended, RunSummary):
            print_summary(ended)


@app.command()
def join(
    run_dir: Annotated[Path, typer.Argument(help="Run directory that the first machine named, on a shared file system.", metavar="RUN_DIR")],
    wait: Annotated[float, typer.Option(help="Seconds to wait for the first machine.", min=0)] = 900.0,
    debug: Debug = False,
) -> None:
    """Take part in a run on several machines, on all but the first one."""
    with _stated_errors(debug):
        from tasks.join import join_run

        code = join_run(run_dir, wait)
    raise typer.Exit(code)


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="Directory or id of a run that stopped because a step was not finite.", metavar="RUN_DIR")],
    step: Annotated[int | None, typer.Option(help="Which of its dumped steps. Default: the last.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a step again that was not finite, on one process, and find where it began; exit code 0 if it is not finite again."""
    with _stated_errors(debug):
        from tasks.replay import lines, replay_step

        report = replay_step(run, step)
        _print_json(report.model_dump(mode="json")) if as_json else print("\n".join(lines(report)))
    raise typer.Exit(0 if report.reproduced else 1)


def _list_resumable(as_json: bool) -> None:
    from tasks.resume import unfinished_runs

    rows = [run.row for run in unfinished_runs()]
    if as_json:
        _print_json(rows)
        return
    print("\n".join("{run_id}  {name:<20} {state:<8} checkpoint at step {checkpoint_step:<7} {cause}".format_map(row) for row in rows) or "nothing to resume")


@app.command()
def evaluate(
    run_dir: Annotated[Path, typer.Argument(help="Run directory of a finished training.", metavar="RUN_DIR")],
    side: Annotated[Literal["test", "val"], typer.Option(help="Which rows.")] = "test",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score a finished run's best weights, with confidence intervals and baselines."""
    with _stated_errors(debug):
        _environment(debug)
        from flows.evaluate import evaluate as flow

        report = flow(run_dir=str(run_dir), side=side)
        if as_json:
            _print_json(report.model_dump(mode="json"))


@app.command()
def predict(
    model_uri: Annotated[str, typer.Argument(help="e.g. models:/clinic-visits@champion", metavar="MODEL_URI")],
    source: Annotated[Path, typer.Argument(help="Parquet or CSV with the model's columns.", metavar="IN")],
    target: Annotated[Path, typer.Argument(help="Parquet or CSV to write.", metavar="OUT")],
    tracking_uri: Annotated[str | None, typer.Option(help="Default: MLFLOW_TRACKING_URI, else the Bulkhead home's SQLite file.")] = None,
    debug: Debug = False,
) -> None:
    """Score the rows of IN with a registered model and write them with its predictions to OUT."""
    with _stated_errors(debug):
        _environment(debug)
        from tasks.predict import predict_file as score

        rows = score(model_uri, source, target, tracking_uri)
        print(f"✓ {rows:,} rows → {target}", file=sys.stderr)


@app.command()
def sample(
    target: Annotated[str, typer.Argument(help="Run directory, or a model such as models:/shakespeare@champion.", metavar="RUN_DIR|MODEL_URI")],
    prompt: Annotated[str, typer.Option(help="What each text begins with.")] = "",
    count: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens that are added.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="Below 1: likelier tokens; 0: always the likeliest.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Only among so many likeliest tokens; 0: among all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same texts.")] = 0,
    tracking_uri: Annotated[str | None, typer.Option(help="Default: MLFLOW_TRACKING_URI, else the Bulkhead home's SQLite file.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a trained language model write; of SMILES also say how many are molecules."""
    with _stated_errors(debug):
        _environment(debug)
        from flows.summary import print_samples
        from tasks.sample import sample as write

        made = write(target, prompt, count, tracking_uri, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, seed=seed)
        _print_json(made.model_dump(mode="json")) if as_json else print_samples(made)


@app.command()
def schema() -> None:
    """Print the JSON schema of the declaration, for editors."""
    from schemas.describe import json_schema

    _print_json(json_schema())


@app.command()
def init(
    data: Annotated[str, typer.Argument(help="Parquet, CSV, folder or glob.", metavar="DATA")],
    label: Annotated[str | None, typer.Option(help="The column to predict; guessed when absent.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; from the file name when absent.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here instead of to standard output.")] = None,
    debug: Debug = False,
) -> None:
    """Draft a declaration from a table, with the reason for each guess."""
    with _stated_errors(debug):
        from schemas.digest import write_atomic
        from tasks.draft import draft_declaration

        if output is not None and output.exists():
            raise ConfigError(f"{output} exists already; give another --output or remove it first")
        text = draft_declaration(data, label, name)
        if output is None:
            print(text, end="")
        else:
            write_atomic(output, text)
            print(f"✓ {output}: read it, correct what was guessed wrong, then: bulkhead run {output}", file=sys.stderr)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, cores, devices, disk, tracking, and what is missing."""
    _environment(debug=False)
    from tasks.doctor import examine

    findings = examine()
    if as_json:
        _print_json([f.model_dump(mode="json") for f in findings])
    else:
        for finding in findings:
            print(f"{'✓' if finding.ok else '✗'} {finding.what:<18} {finding.found}" + (f"  → {finding.remedy}" if finding.remedy else ""))
    raise typer.Exit(0 if all(f.ok for f in findings) else 1)


@app.command()
def up(
    prefect_port: Annotated[int, typer.Option(help="Port of Prefect's UI and API.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of MLflow's UI.")] = 5000,
) -> None:
    """Open the Prefect and MLflow UIs over this home's runs, on loopback, until Ctrl-C."""
    with _stated_errors():
        _environment(debug=False)
        from tasks.servers import serve_uis

        serve_uis(prefect_port, mlflow_port)


def _end_quietly() -> None:
    """Close standard error after everything else ended: DuckDB's binding would list its own objects there as leaked."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def main() -> None:
    """Entry point of the `bulkhead` command."""
    from tasks.family import end_with_me

    atexit.register(_end_quietly)  # registered first, so it runs last
    end_with_me()
    app()


if __name__ == "__main__":
    main()
