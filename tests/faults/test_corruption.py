"""Random damage of checkpoints, the short form of `python -m tests.faults.corrupt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.corrupt import run
from tests.faults.saved_runs import STEPS, opened, save
from training.checkpoint import manifest


@pytest.mark.req("C3")
def test_every_flip_and_truncation_is_found_and_no_unverified_byte_is_unpickled(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, flips=40, truncations=40, seed=1)
    assert [one for one in done if one.failure] == []
    assert len({(one.layout, one.file) for one in done}) == 11, (
        "every file of both layouts was damaged"
    )


@pytest.mark.req("C3")
def test_the_watch_finds_a_loader_that_does_not_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_compare", lambda *arguments: None)
    done = run(tmp_path, flips=12, truncations=0, seed=1)
    missed = [one for one in done if not one.file.endswith("manifest.json")]
    assert missed and all(one.failure for one in missed), missed
    assert any("only vouched bytes are unpickled" in one.failure for one in missed)


@pytest.mark.req("C3")
def test_pruning_tells_of_damage_and_keeps_an_older_one_for_it(tmp_path: Path) -> None:
    save(tmp_path, "whole")
    model = tmp_path / f"best-{STEPS[-1]:08d}" / "model.pt"
    model.write_bytes(model.read_bytes()[:-1])
    told: list[str] = []
    checkpoints = opened(tmp_path, told, keep=2)
    checkpoints.prune(STEPS[-1])
    assert sorted(checkpoints.folders("step")) == [20, 30] and sorted(
        checkpoints.folders("best")
    ) == [20, 30]
    assert (
        len(told) == 1
        and "step-00000030 is damaged; an older one is kept for it" in told[0]
        and "best-00000030" in told[0]
    )
