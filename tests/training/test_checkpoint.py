"""Checkpoints are whole or absent, verified before a byte is unpickled, and never the last good one
deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.digest import sha256_file
from schemas.errors import CheckpointError
from schemas.records import digest_of
from schemas.train_config import TrainConfig
from training.checkpoint.checkpoint import Checkpoints, folder_name
from training.checkpoint.commit import commit
from training.checkpoint.manifest import FULL, LIGHT, MANIFEST, FileEntry, Manifest, read_manifest
from training.checkpoint.state import TrainerState

IDENTITY = {"train": {"batch_size": 16, "seed": 0}, "model": {"kind": "mlp"}, "world_size": 2}


class Run:
    """Checkpoints of a small run, with what was told."""

    def __init__(
        self,
        root: Path,
        keep: int = 3,
        identity: dict[str, Any] | None = None,
        environment: dict[str, Any] | None = None,
    ) -> None:
        self.told: list[str] = []
        self.checkpoints = Checkpoints(
            root, identity or IDENTITY, environment or {"torch": "2"}, keep, self.told.append
        )

    def save(self, step: int, best_step: int = 0) -> None:
        if best_step == step:
            self.checkpoints.save_best(step, {"w": torch.full((40,), float(step))})
        self.checkpoints.save(step, best_step, parts(step))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.root.iterdir())


def parts(step: int) -> dict[str, Any]:
    return {
        "model.pt": {"w": torch.full((40,), float(step))},
        "optimizer.pt": {"state": {0: {"m": torch.ones(40)}}, "param_groups": []},
        "trainer.pt": {"state": {"step": step}},
    }


@pytest.mark.req("C2")
def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(120, best_step=120)
    assert run.names() == ["best-00000120", "step-00000120"]
    assert run.checkpoints.newest() == 120
    loaded = run.checkpoints.load(120)
    assert loaded["trainer.pt"] == {"state": {"step": 120}}
    assert torch.equal(loaded["model.pt"]["w"], torch.full((40,), 120.0))
    assert torch.equal(run.checkpoints.load_best(120)["w"], torch.full((40,), 120.0))
    manifest = read_manifest(tmp_path / "step-00000120", FULL)
    assert manifest.identity == IDENTITY and manifest.best_step == 120
    assert manifest.files["model.pt"].sha256 == sha256_file(tmp_path / "step-00000120" / "model.pt")


def damage(path: Path, kind: str, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if kind == "flip":
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
    elif kind == "cut":
        path.write_bytes(data[: dice.randrange(len(data))])
    else:
        path.unlink()


@pytest.mark.req("C3")
@pytest.mark.parametrize("name", [*FULL, MANIFEST])
@pytest.mark.parametrize("kind", ["flip", "cut", "gone"])
def test_any_damage_is_found_and_the_previous_checkpoint_is_used(
    tmp_path: Path, name: str, kind: str
) -> None:
    dice = random.Random(f"{name}{kind}")
    run = Run(tmp_path / "0")
    run.save(10)
    run.save(20)
    for trial in range(1 if kind == "gone" else 25):
        root = tmp_path / f"copy-{trial}"
        shutil.copytree(tmp_path / "0", root)
        damage(root / "step-00000020" / name, kind, dice)
        again = Run(root)
        assert again.checkpoints.newest() == 10
        assert again.names() == ["step-00000010", "step-00000020.damaged"]
        assert (
            len(again.told) == 1
            and "step-00000020 is damaged" in again.told[0]
            and name in again.told[0]
        )


@pytest.mark.req("C3")
def test_damage_of_the_best_weights_is_found(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(10, best_step=10)
    run.save(20, best_step=20)
    damage(tmp_path / "best-00000020" / "model.pt", "flip", random.Random(1))
    assert run.checkpoints.newest() == 10
    assert "best-00000020" in run.told[0]


@pytest.mark.req("C3")
def test_no_checkpoint_that_verifies_is_an_error_not_a_silent_start(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in (10, 20):
        run.save(step)
        damage(tmp_path / folder_name("step", step) / "model.pt", "flip", random.Random(step))
    with pytest.raises(
        CheckpointError,
        match=(
            r"none of 2 checkpoints verifies.*\.damaged.*start again to train from the first step"
        ),
    ):
        run.checkpoints.newest()
    assert run.names() == ["step-00000010.damaged", "step-00000020.damaged"]
    assert Run(tmp_path / "empty").checkpoints.newest() is None


@pytest.mark.req("C3")
def test_a_manifest_cannot_point_elsewhere(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(10)
    folder = tmp_path / "step-00000010"
    manifest = read_manifest(folder, FULL)
    for files in (
        {**manifest.files, "../../secret": manifest.files["model.pt"]},
        {"model.pt": manifest.files["model.pt"]},
    ):
        (folder / MANIFEST).write_bytes(
            manifest.model_copy(update={"files": files}).sealed().text()
        )
        with pytest.raises(CheckpointError, match="with files"):
            read_manifest(folder, FULL)
    (folder / MANIFEST).write_bytes(json.dumps(json.loads(manifest.text()), indent=1).encode())
    with pytest.raises(CheckpointError, match="was changed after it was written"):
        read_manifest(folder, FULL)
    (folder / MANIFEST).write_text("[]")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_manifest(folder, FULL)


@pytest.mark.req("C2")
def test_a_checkpoint_of_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    Run(tmp_path).save(10)
    other = {**IDENTITY, "train": {"batch_size": 32, "seed": 0}, "world_size": 4}
    with pytest.raises(
        CheckpointError,
        match=(
            r"train.batch_size is 32, the checkpoint has 16; world_size is 4, the checkpoint has 2."
            r" Train in a new run directory"
        ),
    ):
        Run(tmp_path, identity=other).checkpoints.newest()
    assert Run(tmp_path).checkpoints.newest() == 10, "refused, not set aside"


@pytest.mark.req("T12")
def test_another_environment_is_told_not_refused(tmp_path: Path) -> None:
    Run(tmp_path).save(10)
    moved = Run(tmp_path, environment={"torch": "3"})
    assert moved.checkpoints.newest() == 10
    assert moved.told == [
        "the environment is not that of step-00000010: torch is '3', the checkpoint has '2';"
        " bit-identity is not promised from here on"
    ]


@pytest.mark.req("C4")
def test_the_newest_k_and_every_best_one_still_needed_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=2)
    for step in (10, 20, 30, 40):
        run.save(step, best_step=min(step, 20))
    assert run.names() == ["best-00000020", "step-00000030", "step-00000040"]
    run.save(50, best_step=50)
    assert run.names() == [
        "best-00000020",
        "best-00000050",
        "step-00000040",
        "step-00000050",
    ], "step 40 still refers to best 20"


@pytest.mark.req("C4")
def test_the_last_verified_checkpoint_is_never_deleted(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=2)
    for step in (10, 20):
        run.save(step)
    Run(tmp_path, keep=4).save(30)
    Run(tmp_path, keep=4).save(40)
    for step in (30, 40):
        damage(tmp_path / folder_name("step", step) / "model.pt", "flip", random.Random(step))
    run.checkpoints.prune(0)
    assert run.names() == ["step-00000020", "step-00000030", "step-00000040"]
    assert run.checkpoints.newest() == 20


class Failing:
    """Makes the n-th of all calls end as a kill would: nothing after it is done."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                raise KeyboardInterrupt("as a kill")
            return real(*arguments, **keywords)

        return call


@pytest.mark.req("C3")
def test_what_a_kill_in_mid_commit_leaves_is_never_taken_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.save(10)
    for call in range(1, 40):  # fail at each rename and each flush of the save of step 20, in turn
        plan = Failing(call)
        with monkeypatch.context() as patch:
            for name in ("fsync", "rename"):
                patch.setattr(os, name, plan.around(getattr(os, name)))
            # a killed process does not tidy up
            patch.setattr(shutil, "rmtree", lambda *a, **k: None)
            with contextlib.suppress(KeyboardInterrupt):
                run.save(20)
        assert Run(tmp_path).checkpoints.newest() in (10, 20)
        assert [name for name in run.names() if not name.startswith("step-0")] == []
        if plan.calls < call:
            break
    assert call > 6
    assert run.checkpoints.newest() == 20


@pytest.mark.req("C3")
def test_a_replacement_that_did_not_come_is_put_back(tmp_path: Path) -> None:
    commit(
        tmp_path,
        "best-00000010",
        {"model.pt": {"w": torch.zeros(1)}},
        {"identity": {}, "environment": {}, "step": 10},
    )
    commit(
        tmp_path,
        "best-00000010",
        {"model.pt": {"w": torch.ones(1)}},
        {"identity": {}, "environment": {}, "step": 10},
    )
    run = Run(tmp_path)
    assert run.names() == ["best-00000010"]
    assert float(run.checkpoints.load_best(10)["w"]) == 1.0
    (tmp_path / "best-00000010").rename(tmp_path / "best-00000010.replaced")
    run.checkpoints.newest()
    assert float(run.checkpoints.load_best(10)["w"]) == 1.0


@pytest.mark.req("C3")
def test_the_manifest_seals_itself() -> None:
    manifest = Manifest(
        name="best-00000001",
        step=1,
        identity={"a": 1},
        environment={},
        files={name: FileEntry(sha256="0", num_bytes=1) for name in LIGHT},
    ).sealed()
    assert manifest.sha256 == digest_of(
        {k: v for k, v in manifest.model_dump(mode="json").items() if k != "sha256"}
    )
    assert Manifest.model_validate_json(manifest.text()) == manifest


@settings(max_examples=50)
@given(
    metrics=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    patience=st.integers(1, 6),
    factor=st.sampled_from([1.0, 1.5, 3.0]),
)
def test_training_waits_longer_the_later_the_best_evaluation_was(
    metrics: list[int], patience: int, factor: float
) -> None:
    state, train = TrainerState(), TrainConfig(patience=patience, patience_factor=factor)
    for number, metric in enumerate(metrics, start=1):
        state.step += 1
        state.observe(float(metric), True, 0.0)
        best = metrics.index(max(metrics[:number])) + 1
        stops = state.waited >= state.allowed(train)
        assert stops == (number >= best + int((factor - 1) * best) + patience)
