"""Runs that start from registered weights: alike splits pass in silence, seen rows are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from prefect.testing.utilities import prefect_test_harness

from schemas.errors import ConfigError, LeakageError, RegistryError
from schemas.load import load_declaration
from schemas.records import Prepared
from tasks.weights import find_weights
from tests.e2e.growing import Growing
from training.registry.registry import load_model
from training.registry.reproduce import read_origin
from training.run.result_files import read_run

FROM = "model.init.from=models:/growing@champion"
OTHER_SPLIT = ("split.seed=7", "name=other")


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture
def growing(tmp_path: Path, server: None, monkeypatch: pytest.MonkeyPatch) -> Growing:
    made = Growing(tmp_path)
    monkeypatch.setenv("BULKHEAD_HOME", str(made.home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return made


def prepared_of(summary: Any) -> Prepared:
    return Prepared.model_validate_json((Path(summary.run_dir) / "prepared.json").read_bytes())


def learned(summary: Any) -> set[str]:
    """Ids and groups of the train rows of a run."""
    split = prepared_of(summary).split
    return set(pq.read_table(split.train.file.path, columns=["__id"])["__id"].to_pylist())


@pytest.mark.long
def test_a_warm_start_is_silent_on_alike_splits_and_refused_on_others(growing: Growing) -> None:
    growing.grow(groups=200)
    first = growing.run("train.epochs=12")
    assert first.registered.registered, first.registered.verdict
    spec, trained = read_run(Path(first.run_dir))
    growing.grow(groups=40)  # more rows of old groups, and new groups
    second = growing.run(FROM, "train.epochs=1")
    prepared = prepared_of(second)
    weights = prepared.init
    assert weights is not None and weights.resolved == "models:/growing/1"
    assert weights.sha256 == trained.model_sha256, "the program's numbers are those of training"
    assert weights.origins[0].run_id == spec.run_id and weights.origins[0].fitted
    check = next(c for c in prepared.checks.results if c.name == "init_rows")
    assert check.verdict == "pass" and check.figures == {"seen_val": 0, "seen_test": 0}
    started = json.loads((Path(second.run_dir) / "evidence.json").read_bytes())["init"]
    assert started["from"] == "models:/growing/1" and started["given"] == "models:/growing@champion"
    assert started["trained_on"][0]["train_sha256"] == weights.origins[0].train_sha256
    assert str(growing.folder) not in json.dumps(started)

    assert second.registered.registered, second.registered.verdict
    with pytest.raises(RegistryError, match="started from the weights of models:/growing/1"):
        read_origin(str(second.registered.uri), growing.uri)

    with pytest.raises(LeakageError, match=r"rows of test \(first: p[01]-.*seen_rows: exclude"):
        growing.run(FROM, *OTHER_SPLIT)
    excluded = growing.run(FROM, *OTHER_SPLIT, "model.init.seen_rows=exclude")
    prepared, known = prepared_of(excluded), learned(first)
    check = next(c for c in prepared.checks.results if c.name == "init_rows")
    left_out = prepared.split.excluded["seen_by_init"]
    assert left_out == sum(int(n or 0) for n in check.figures.values()) > 0  # type: ignore[misc]
    for side in ("val", "test"):
        table = prepared.split.side(side).file.path  # type: ignore[arg-type]
        assert not known & set(pq.read_table(table, columns=["__id"])["__id"].to_pylist())
    if excluded.registered.registered:  # its own comparisons leave out what its origin saw
        keys = load_model(str(excluded.registered.uri), growing.uri).trained_on
        origin = load_model("models:/growing/1", growing.uri).trained_on
        assert keys is not None and origin is not None and set(origin) <= set(keys)
    resolved_once(growing, second)
    without_its_run(growing, first)


def resolved_once(growing: Growing, second: Any) -> None:
    """An alias that moves after the start does not change a run that goes on."""
    growing.client.set_registered_model_alias("growing", "champion", "1")
    declaration = load_declaration(str(growing.file), (FROM,))
    recorded = prepared_of(second)
    assert find_weights(declaration, recorded) == recorded.init


def without_its_run(growing: Growing, first: Any) -> None:
    """Where the run of a version is gone, its registered keys decide; others cannot be compared."""
    shutil.rmtree(first.run_dir)
    for known in (growing.home / "prepared").glob("weights-*"):  # what earlier runs found of it
        shutil.rmtree(known)
    with pytest.raises(LeakageError, match="rows of test"):
        growing.run("model.init.from=models:/growing/1", "split.seed=7")
    with pytest.raises(LeakageError, match="cannot be compared with the train rows of version 1"):
        growing.run("model.init.from=models:/growing/1", *OTHER_SPLIT)
    last = growing.run(
        "model.init.from=models:/growing/1", *OTHER_SPLIT, "model.init.seen_rows=unchecked"
    )
    check = next(c for c in prepared_of(last).checks.results if c.name == "init_rows")
    assert check.verdict == "allowed"
    with pytest.raises(RegistryError, match="not in the registry"):
        growing.run("model.init.from=models:/growing/99")


@pytest.mark.long
def test_a_run_a_file_and_a_frozen_body(growing: Growing) -> None:
    growing.grow()
    first = growing.run("register.enabled=false")
    frozen = ("model.freeze=[body.inputs, body.hidden]", "register.enabled=false")
    before = torch.load(read_run(Path(first.run_dir))[1].best_checkpoint.file, weights_only=True)
    for source in (Path(first.run_dir).name, str(first.run_dir)):
        again = growing.run(f"model.init.from={source}", *frozen)
        after = torch.load(read_run(Path(again.run_dir))[1].best_checkpoint.file, weights_only=True)
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved == {"body.head.weight", "body.head.bias"}


@pytest.mark.long
def test_rows_that_another_run_holds_out_are_on_no_split(growing: Growing) -> None:
    growing.grow(groups=200)
    first = growing.run("train.epochs=12")
    held = set[str]()
    for side in ("val", "test"):
        table = prepared_of(first).split.side(side).file.path  # type: ignore[arg-type]
        held |= set(pq.read_table(table, columns=["__id"])["__id"].to_pylist())
    for source in ("models:/growing@champion", Path(first.run_dir).name):
        other = growing.run(*OTHER_SPLIT, f"data.held_out_by=[{source}]", "train.epochs=1")
        prepared = prepared_of(other)
        left_out = prepared.split.excluded["held_out_by_another_run"]
        assert left_out == len(held)
        for side in ("train", "val", "test"):
            table = prepared.split.side(side).file.path  # type: ignore[arg-type]
            assert not held & set(pq.read_table(table, columns=["__id"])["__id"].to_pylist())
        check = next(c for c in prepared.checks.results if c.name == "held_out_rows")
        assert sum(int(n) for n in check.figures.values()) == left_out  # type: ignore[arg-type]
    # so its weights may be tested on the rows of the first run
    growing.run(f"model.init.from={other.run_dir}", "train.epochs=1")
    with pytest.raises(ConfigError, match=r"data.held_out_by 'gone'.*there is no such run"):
        growing.run(*OTHER_SPLIT, "data.held_out_by=[gone]")
