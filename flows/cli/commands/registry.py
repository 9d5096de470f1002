"""Commands on finished runs and registered versions: `bulkhead predict`, `verify`, `promote` …"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli.output import print_json
from flows.cli.shared import (
    AsJson,
    Debug,
    File,
    Overrides,
    TrackingUri,
    environment,
    server_starting,
    stated,
)
from schemas.errors import ConfigError, counted

if TYPE_CHECKING:
    pass


@stated
def evaluate(
    run_dir: Annotated[
        Path, typer.Argument(help="Run directory of a finished training.", metavar="RUN_DIR")
    ],
    side: Annotated[Literal["test", "val"], typer.Option(help="Which rows.")] = "test",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score a finished run's best weights, with confidence intervals and baselines."""
    environment(debug)
    with server_starting():
        from flows.evaluate import evaluate as flow

    report = flow(run_dir=str(run_dir), side=side)
    if as_json:
        print_json(report.model_dump(mode="json"))


@stated
def predict(
    model_uri: Annotated[
        str, typer.Argument(help="e.g. models:/clinic-visits@champion", metavar="MODEL_URI")
    ],
    source: Annotated[
        Path, typer.Argument(help="Parquet or CSV with the model's columns.", metavar="IN")
    ],
    target: Annotated[Path, typer.Argument(help="Parquet or CSV to write.", metavar="OUT")],
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals",
            help="Add the bounds of each prediction, or the possible classes, of a model that"
            " declared evaluate.intervals.",
        ),
    ] = False,
    tracking_uri: TrackingUri = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score the rows of IN with a registered model and write them with its predictions to OUT."""
    environment(debug)
    from schemas.output_file import require_room
    from tasks.predict import predict_file as score
    from tasks.predict import unfamiliar_values

    require_room(target, "OUT")
    scored = score(model_uri, source, target, tracking_uri, intervals)
    for sentence in unfamiliar_values(scored):
        print(f"! {sentence}", file=sys.stderr)
    if as_json:
        print_json(scored.model_dump(mode="json"))
    else:
        print(f"✓ {counted(scored.rows, 'row')} by {scored.uri} → {target}", file=sys.stderr)


@stated
def verify(
    model_uri: Annotated[
        str,
        typer.Argument(
            help="e.g. models:/clinic-visits@champion or models:/clinic-visits/3",
            metavar="MODEL_URI",
        ),
    ],
    tracking_uri: TrackingUri = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Prove from the registry alone that a model's files, digests, checks, metrics and run agree;
    exit code 1 if something does not.
    """
    environment(debug)
    from flows.summary import print_verification
    from tasks.verify import verify_model

    proven = verify_model(model_uri, tracking_uri)
    print_json(proven.model_dump(mode="json")) if as_json else print_verification(proven)
    raise typer.Exit(1 if proven.failed else 0)


@stated
def reevaluate(
    file: File, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Score the champion on rows that came since, and look for drift; exit code 1 if it does not do
    any more what it did, 0 if it does or too few rows say so: see outcome in --json.
    """
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


@stated
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
        flows.rollback(name=name) if rollback else flows.promote(model_uri=model_uri, alias=alias)
    )
    if as_json:
        print_json(made.model_dump(mode="json"))


@stated
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
    environment(debug)
    with server_starting():
        from flows.reproduce import reproduce as flow

    found = flow(model_uri=model_uri, apply_diff=apply_diff, stop=False)
    if as_json:
        print_json(found.model_dump(mode="json") | {"identical": found.identical})
    raise typer.Exit(0 if found.identical else 1)


@stated
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
    tracking_uri: TrackingUri = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a trained language model write; of SMILES also say how many are molecules."""
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
