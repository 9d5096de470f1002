"""Score a file of any size with one version of a registered model."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from schemas.confinement import require_readable, require_registered, require_writable
from schemas.errors import counted
from schemas.output_file import require_room
from schemas.registry_records import Scored
from schemas.variables import expand
from tasks.say import say
from training.registry.score_file import FORMATS, predict_file


@task(
    name="score rows",
    description=(
        "Every row in batches, written with its predictions, whole or not at all; the version is"
        " resolved once."
    ),
    tags=["score"],
    cache_policy=NO_CACHE,
)
def score_rows(model_uri: str, source: str, target: str) -> Scored:
    """Score the rows; return the output's record with the version."""
    source, target = expand(source), expand(target)
    require_registered(model_uri)
    require_readable(source, "source")
    require_writable(target, "target", FORMATS)
    require_room(target, "target")
    scored = predict_file(model_uri, Path(source), Path(target))
    say("score", f"{counted(scored.rows, 'row')} by {scored.uri} → {scored.target}")
    lines = "\n".join(
        f"| {name} | `{value}` |" for name, value in scored.model_dump(mode="json").items()
    )
    create_markdown_artifact(
        key="scores",
        markdown=f"| | |\n|---|---|\n{lines}\n",
        description=f"{scored.uri}: {counted(scored.rows, 'row')}",
    )
    return scored
