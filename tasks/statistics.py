"""Fit on train, then write every split as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.config import SPLITS, Declaration
from schemas.digest import write_atomic
from schemas.errors import counted
from schemas.records import (
    ArraysRef,
    SplitTables,
    Statistics,
    TrainTable,
    ValidatedTable,
    digest_of,
)
from tasks.say import say
from tasks.store import stored, stored_task
from training.data.arrays.shards import materialise
from training.data.fit.normalize import fit
from training.data.fit.train_rows import model_needs


@stored_task(
    name="fit statistics",
    description="Means, quantiles, fills, vocabularies and class weights, from train alone.",
    tags=["data", "fit"],
)
def fit_statistics(train: TrainTable, validated: ValidatedTable, declaration: Declaration) -> Any:
    """Fit everything that is fitted before training; only a train table is accepted."""
    inputs: dict[str, Any] = {
        "train": train.digests,
        "spec": validated.spec,
        "normalize": declaration.normalize,
        "task": declaration.task,
    }
    inputs |= {
        "tokens": declaration.tokens,
        "loss": declaration.loss,
        "columns": declaration.data.model_dump(mode="json")["columns"],
        "constant": declaration.checks.constant_features,
    }
    if declaration.data.windows:
        inputs["windows"] = declaration.data.model_dump(mode="json")["windows"]
    if any(needs := model_needs(declaration)):
        inputs["model"] = needs._asdict()
    if declaration.evaluate.top_k is not None or declaration.evaluate.costs is not None:
        inputs["class_metrics"] = declaration.evaluate.model_dump(include={"top_k", "costs"})

    def make(folder: Path) -> Statistics:
        made = fit(train, validated.spec, declaration)
        write_atomic(folder / "statistics.json", made.model_dump_json(indent=1))
        dropped = f"; dropped {', '.join(made.dropped)}" if made.dropped else ""
        found = (
            f"{counted(len(made.tokens.values), 'token')}"
            if made.tokens
            else f"{len(made.numeric)} scaled, {len(made.categorical)} vocabularies"
        )
        unknown = sum(made.rows - label.known for label in made.labels)
        labels = (
            f"; {counted(len(made.labels), 'label')}, {unknown:,} of"
            f" {counted(made.rows * len(made.labels), 'value')}"
            " unknown"
            if made.labels
            else ""
        )
        say("statistics", f"fitted on {counted(made.rows, 'train row')}: {found}{labels}{dropped}")
        return made

    return stored("statistics", inputs, Statistics, make)


@stored_task(
    name="materialise arrays",
    description="Write each side as memory-mapped arrays with the train statistics applied.",
    tags=["data"],
)
def materialise_arrays(
    split: SplitTables, validated: ValidatedTable, statistics: Statistics, declaration: Declaration
) -> Any:
    """Write the arrays that training gathers from."""
    inputs: dict[str, Any] = {s: split.side(s).digests for s in SPLITS}
    inputs |= {"statistics": digest_of(statistics), "spec": digest_of(validated.spec)}

    def make(folder: Path) -> ArraysRef:
        made = materialise(split, validated, statistics, declaration, folder)
        megabytes = (
            sum(f.num_bytes for s in (made.train, made.val, made.test) for f in s.arrays.values())
            / 1e6
        )
        say("arrays", f"{megabytes:,.1f} MB, sha256 {made.sha256[:12]}")
        return made

    return stored("arrays", inputs, ArraysRef, make)
