"""A sharded state is committed whole or not at all, and every shard is verified."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import CheckpointError
from tests.distributed.launch import run_ranks
from training.checkpoint.checkpoint import Checkpoints
from training.checkpoint.manifest import FULL, read_manifest


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("sharded")
    return folder / "run", run_ranks(
        "tests.faults.shard_work:saves", 2, folder / "ranks", folder=str(folder / "run")
    )


@pytest.mark.req("C2")
def test_every_rank_gets_its_own_part_back_and_any_rank_all_of_them(
    saved: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, ranks = saved
    for rank in ranks:
        assert (rank["newest"], rank["num_shards"], rank["own"], rank["all"]) == (
            20,
            2,
            True,
            [True, True],
        )
        assert rank["trainer"] == {"step": 20} and rank["told"] == []
    manifest = read_manifest(folder / "step-00000020")
    assert sorted(manifest.files) == [
        "shard-00000-of-00002.pt",
        "shard-00001-of-00002.pt",
        "trainer.pt",
    ]
    for name, entry in manifest.files.items():
        assert (folder / "step-00000020" / name).stat().st_size == entry.num_bytes


@pytest.mark.req("C3")
def test_a_rank_without_space_stops_every_rank_and_leaves_what_was_there(
    saved: tuple[Path, list[dict[str, Any]]],
) -> None:
    _, ranks = saved
    for rank in ranks:
        assert "1 of 2 ranks could not write their part of the state; rank 1: " in rank["refused"]
        assert (
            "while saving" in rank["refused"] and "free space, then start again" in rank["refused"]
        )
        assert rank["left"] == ["step-00000010"]


@pytest.mark.req("C3")
@pytest.mark.parametrize(
    "name", ["trainer.pt", "shard-00000-of-00002.pt", "shard-00001-of-00002.pt", "manifest.json"]
)
def test_damage_of_any_part_is_found(
    saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path, name: str
) -> None:
    shutil.copytree(saved[0], tmp_path / "run")
    part = tmp_path / "run" / "step-00000020" / name
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 4
    part.write_bytes(data)
    told: list[str] = []
    assert Checkpoints(tmp_path / "run", {"seed": 1}, {}, 2, told.append).newest() == 10
    assert len(told) == 1 and name in told[0]


@pytest.mark.req("C2")
def test_a_cut_state_is_not_taken_for_a_whole_one(saved: tuple[Path, list[dict[str, Any]]]) -> None:
    checkpoints = Checkpoints(saved[0], {"seed": 1}, {}, 2, print)
    with pytest.raises(
        CheckpointError,
        match=(
            r"with files shard-00000-of-00002.pt, .*expected format 1 with model.pt, optimizer.pt,"
            r" trainer.pt"
        ),
    ):
        checkpoints.load(20)
    with pytest.raises(
        CheckpointError,
        match=r"expected shard-00002-of-00002.pt, found .* saved by 2 sharded ranks",
    ):
        checkpoints.load_shard(20, 2)
    with pytest.raises(CheckpointError, match="with files"):
        read_manifest(saved[0] / "step-00000020", FULL)
