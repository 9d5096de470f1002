"""The command line: `bulkhead run FILE [path=value …]` and its sisters.

Exit codes: 0 done, 1 the run refused or failed for a stated reason, 2 usage (the declaration
included). Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.audit_command import audit
from flows.command import (
    AsJson,
    Debug,
    File,
    Overrides,
    environment,
    print_json,
    server_starting,
    stated_errors,
)
from flows.operate_command import deploy, up, worker
from flows.review_command import review
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from schemas.config import Declaration

app = typer.Typer(
    name="bulkhead",
    help=(
        "A table and one YAML file in, a registered PyTorch model whose test score can be believed"
        " out."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"bulkhead {version('bulkhead')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of the command itself; its help is the app's."""


def _resumable_runs(incomplete: str) -> list[str]:
    """Tab-completion of runs that can be continued."""
    from tasks.resume import unfinished_runs

    return [
        run.started.run_id for run in unfinished_runs() if run.started.run_id.startswith(incomplete)
    ]


@app.command()
def run(
    file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Run FILE end to end: validate, split, check, fit, train, evaluate, gate, register, report;
    exit code 1 if the gate refuses. With cv.folds=5: train and test the folds instead.
    """
    with stated_errors(debug):
        from schemas.load import load_declaration

        declaration = load_declaration(
            file, overrides or ()
        )  # a bad declaration is refused before anything starts
        environment(debug)
        if declaration.cv.folds:
            _cross_validate(file, overrides or [], declaration, as_json)
            return
        with server_starting():
            from flows.pipeline import pipeline
            from flows.summary import print_summary
            from tasks.ranks import with_ranks

            with_ranks(
                declaration
            )  # refused here rather than in the flow, after the server has started
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


@app.command()
def prepare(
    file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Validate, split, check, fit on train and write the arrays; no training."""
    with stated_errors(debug):
        from schemas.load import load_declaration

        load_declaration(file, overrides or ())
        environment(debug)
        with server_starting():
            from flows.prepare import prepare as flow

        prepared = flow(config_path=str(file), overrides=overrides or [])
        if as_json:
            print_json(prepared.model_dump(mode="json"))


app.command()(audit)
app.command()(review)


@app.command()
def train(
    file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Prepare and train, without touching the test rows or the registry."""
    with stated_errors(debug):
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


@app.command()
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
    with stated_errors(debug):
        environment(debug)
        from tasks.resume import unfinished

        if run is None:
            _list_resumable(as_json)
            return
        if unfinished(run) is None:
            return
        with server_starting():
            from flows.resume import resume as flow
            from flows.summary import RunSummary, print_summary

        ended = flow(run=run)
        if as_json:
            print_json(ended and ended.model_dump(mode="json"))
        elif isinstance(ended, RunSummary):
            print_summary(ended)
    raise typer.Exit(1 if isinstance(ended, RunSummary) and ended.outcome == "refused" else 0)


@app.command()
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
    with stated_errors(debug):
        from tasks.join import join_run

        code = join_run(run_dir, wait)
    raise typer.Exit(code)


@app.command()
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
    with stated_errors(debug):
        from tasks.replay import lines, replay_step

        report = replay_step(run, step)
        print_json(report.model_dump(mode="json")) if as_json else print("\n".join(lines(report)))
    raise typer.Exit(0 if report.reproduced else 1)


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


@app.command()
def evaluate(
    run_dir: Annotated[
        Path, typer.Argument(help="Run directory of a finished training.", metavar="RUN_DIR")
    ],
    side: Annotated[Literal["test", "val"], typer.Option(help="Which rows.")] = "test",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score a finished run's best weights, with confidence intervals and baselines."""
    with stated_errors(debug):
        environment(debug)
        with server_starting():
            from flows.evaluate import evaluate as flow

        report = flow(run_dir=str(run_dir), side=side)
        if as_json:
            print_json(report.model_dump(mode="json"))


@app.command()
def predict(
    model_uri: Annotated[
        str, typer.Argument(help="e.g. models:/clinic-visits@champion", metavar="MODEL_URI")
    ],
    source: Annotated[
        Path, typer.Argument(help="Parquet or CSV with the model's columns.", metavar="IN")
    ],
    target: Annotated[Path, typer.Argument(help="Parquet or CSV to write.", metavar="OUT")],
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="Default: MLFLOW_TRACKING_URI, else the Bulkhead home's SQLite file."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score the rows of IN with a registered model and write them with its predictions to OUT."""
    with stated_errors(debug):
        environment(debug)
        from schemas.output_file import require_room
        from tasks.predict import predict_file as score
        from tasks.predict import unfamiliar_values

        require_room(target, "OUT")
        scored = score(model_uri, source, target, tracking_uri)
        for sentence in unfamiliar_values(scored):
            print(f"! {sentence}", file=sys.stderr)
        if as_json:
            print_json(scored.model_dump(mode="json"))
        else:
            print(f"✓ {scored.rows:,} rows by {scored.uri} → {target}", file=sys.stderr)


@app.command()
def verify(
    model_uri: Annotated[
        str,
        typer.Argument(
            help="e.g. models:/clinic-visits@champion or models:/clinic-visits/3",
            metavar="MODEL_URI",
        ),
    ],
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="Default: MLFLOW_TRACKING_URI, else the Bulkhead home's SQLite file."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Prove from the registry alone that a model's files, digests, checks, metrics and run agree;
    exit code 1 if something does not.
    """
    with stated_errors(debug):
        environment(debug)
        from flows.summary import print_verification
        from tasks.verify import verify_model

        proven = verify_model(model_uri, tracking_uri)
        print_json(proven.model_dump(mode="json")) if as_json else print_verification(proven)
    raise typer.Exit(1 if proven.failed else 0)


@app.command()
def reevaluate(
    file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Score the champion on rows that came since, and look for drift; exit code 1 if it does not do
    any more what it did, 0 if it does or too few rows say so: see outcome in --json.
    """
    with stated_errors(debug):
        from schemas.load import load_declaration

        load_declaration(file, overrides or ())
        environment(debug)
        with server_starting():
            from flows.reevaluate import reevaluate as flow

        found = flow(config_path=str(file), overrides=overrides or [], stop=False)
        if as_json:
            print_json(
                found.model_dump(mode="json") | {"outcome": found.outcome, "verdict": found.verdict}
            )
    raise typer.Exit(1 if found.checks.failed else 0)


@app.command()
def promote(
    model_uri: Annotated[
        str,
        typer.Argument(
            help="e.g. models:/clinic-visits@challenger or models:/clinic-visits/3",
            metavar="MODEL_URI",
        ),
    ],
    alias: Annotated[str, typer.Option(help="What the version shall be called.")] = "champion",
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback", help="Go back to the version before: MODEL_URI is models:/NAME."
        ),
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Prove a registered version again, compare it with the champion, and put it to use; exit code
    1 if it may not be.
    """
    with stated_errors(debug):
        environment(debug)
        name, _, rest = model_uri.removeprefix("models:/").partition("/")
        if rollback and (rest or "@" in name or alias != "champion"):
            raise ConfigError(
                "--rollback goes back to the champion before: expected models:/NAME alone, got"
                f" {model_uri!r}"
            )
        with server_starting():
            from flows import promote as flows

        made = (
            flows.rollback(name=name)
            if rollback
            else flows.promote(model_uri=model_uri, alias=alias)
        )
        if as_json:
            print_json(made.model_dump(mode="json"))


@app.command()
def reproduce(
    model_uri: Annotated[
        str, typer.Argument(help="e.g. models:/clinic-visits/3", metavar="MODEL_URI")
    ],
    apply_diff: Annotated[
        bool,
        typer.Option(
            "--apply-diff",
            help=(
                "Also run the changes that were not committed then; read dirty.diff of its MLflow"
                " run first."
            ),
        ),
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train a registered version again from its recorded commit, declaration and data; exit code 1,
    and why, if a bit differs.
    """
    with stated_errors(debug):
        environment(debug)
        with server_starting():
            from flows.reproduce import reproduce as flow

        found = flow(model_uri=model_uri, apply_diff=apply_diff, stop=False)
        if as_json:
            print_json(found.model_dump(mode="json") | {"identical": found.identical})
    raise typer.Exit(0 if found.identical else 1)


@app.command()
def sample(
    target: Annotated[
        str,
        typer.Argument(
            help="Run directory, or a model such as models:/shakespeare@champion.",
            metavar="RUN_DIR|MODEL_URI",
        ),
    ],
    prompt: Annotated[str, typer.Option(help="What each text begins with.")] = "",
    count: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens that are added.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0, help="Below 1: likelier tokens; 0: always the likeliest.")
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(min=0, help="Only among so many likeliest tokens; 0: among all.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same texts.")] = 0,
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="Default: MLFLOW_TRACKING_URI, else the Bulkhead home's SQLite file."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a trained language model write; of SMILES also say how many are molecules."""
    with stated_errors(debug):
        environment(debug)
        from flows.summary import print_samples
        from tasks.sample import sample as write

        made = write(
            target,
            prompt,
            count,
            tracking_uri,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
        )
        print_json(made.model_dump(mode="json")) if as_json else print_samples(made)


@app.command()
def schema() -> None:
    """Print the JSON schema of the declaration, for editors."""
    with stated_errors():
        from schemas.describe import json_schema

        print_json(json_schema())


@app.command()
def init(
    data: Annotated[str, typer.Argument(help="Parquet, CSV, folder or glob.", metavar="DATA")],
    label: Annotated[
        str | None, typer.Option(help="The column to predict; guessed when absent.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model; from the file name when absent.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here instead of to standard output."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Draft a declaration from a table, with the reason for each guess."""
    with stated_errors(debug):
        from schemas.digest import write_atomic
        from schemas.output_file import require_room
        from tasks.draft import draft_declaration

        if output is not None:
            require_room(output, "--output")
            if output.exists():
                raise ConfigError(
                    f"{output} exists already; give another --output or remove it first"
                )
        text = draft_declaration(data, label, name)
        if output is None:
            print(text, end="")
        else:
            write_atomic(output, text)
            print(
                f"✓ {output}: read it, correct what was guessed wrong, then: bulkhead run {output}",
                file=sys.stderr,
            )


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, cores, devices, disk, tracking, and what is missing."""
    with stated_errors():
        environment(debug=False)
        from tasks.doctor import examine

        findings = examine()
    if as_json:
        print_json([f.model_dump(mode="json") for f in findings])
    else:
        for finding in findings:
            print(
                f"{'✓' if finding.ok else '✗'} {finding.what:<18} {finding.found}"
                + (f"  → {finding.remedy}" if finding.remedy else "")
            )
    raise typer.Exit(0 if all(f.ok for f in findings) else 1)


app.command()(up)
app.command()(worker)
app.command()(deploy)


def _unwrapped(docstring: str) -> str:
    """Join the lines of each paragraph, which the terminal breaks at its own width."""
    return "\n\n".join(" ".join(text.split()) for text in inspect.cleandoc(docstring).split("\n\n"))


for _command in app.registered_commands:
    _command.help = _unwrapped((_command.callback and _command.callback.__doc__) or "")


def main() -> None:
    """Entry point of the `bulkhead` command."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if (
            getattr(sys, name) is None
        ):  # closed by who called; programs that are started need it, too
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal of ASCII gets ? for ✓, not a traceback
    from tasks.family import end_with_me
    from tasks.stop import command

    end_with_me()
    with command():
        try:
            with stated_errors("--debug" in sys.argv):
                _call()
        except typer.Exit as end:
            sys.exit(end.exit_code)


def _call() -> None:
    """The command, and all that it printed; what cannot be written, e.g. to a full disk, is an
    error.
    """
    try:
        app()
    finally:
        try:
            sys.stdout.flush()
        except OSError as error:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # else the interpreter tries again at its end, and complains
            if isinstance(error, BrokenPipeError):  # who read it, e.g. head, has seen enough
                raise typer.Exit(1) from None
            raise


if __name__ == "__main__":
    main()
