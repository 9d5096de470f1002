"""Small trainings end with the weights that were recorded, bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.pinned import PINS, environment, python, recorded_elsewhere
from tests.golden.record import differences, load
from tests.golden.runs import CASES, LONG, train, weights_sha256

# the first test of each list trains all of it
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(recorded_elsewhere()), reason=recorded_elsewhere()),
]


def names(wanted: list[str]) -> list[str]:
    """Names under which the cases are recorded."""
    return [
        name if ranks == 1 else f"{name}, {ranks} ranks"
        for name in wanted
        for ranks in CASES[name].ranks
    ]


QUICK = [name for name in CASES if name not in LONG]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(tmp_path_factory.mktemp("long"), list(LONG))


@pytest.mark.slow
@pytest.mark.parametrize("name", names(QUICK))
def test_a_training_ends_with_the_recorded_weights(quick: dict[str, Any], name: str) -> None:
    assert differences(load()["weights"][name], quick[name], name) == []


@pytest.mark.long
@pytest.mark.parametrize("name", names(list(LONG)))
def test_a_longer_training_ends_with_the_recorded_weights(long: dict[str, Any], name: str) -> None:
    assert differences(load()["weights"][name], long[name], name) == []


def test_every_case_is_recorded_and_says_something_of_its_own() -> None:
    recorded = load()["weights"]
    assert sorted(recorded) == sorted(names(list(CASES)))
    by_weights = {entry["best weights"]: name for name, entry in recorded.items()}
    assert (
        len(by_weights) == len(recorded) - 1 and recorded["elastic"] == recorded["elastic, 2 ranks"]
    )
    assert (
        recorded["fp16"]["skipped_steps"] > 0
        and recorded["fsdp2, fp16, 2 ranks"]["skipped_steps"] > 0
    ), "the forced overflows"
    assert all(entry["losses"] and entry["status"] == "finished" for entry in recorded.values())


def test_a_bit_of_a_weight_and_a_loss_that_differ_are_named(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3), "b": torch.zeros(2)}, tmp_path / "one.pt")
    torch.save(
        {"b": torch.zeros(2), "a": torch.tensor([1.0, 1.0, 1.0 + 2**-23])}, tmp_path / "other.pt"
    )
    torch.save({"b": torch.zeros(2), "a": torch.ones(3)}, tmp_path / "same.pt")
    assert (
        weights_sha256(tmp_path / "one.pt")
        == weights_sha256(tmp_path / "same.pt")
        != weights_sha256(tmp_path / "other.pt")
    )
    recorded = load()["weights"]["exact"]
    changed = copy.deepcopy(recorded)
    changed["losses"][4] += 1e-12
    changed["best weights"] = "0" * 64
    found = differences(recorded, changed, "exact")
    assert [line.split(": recorded")[0] for line in found] == [
        "exact: best weights",
        "exact: losses[4]",
    ]


def test_the_pins_reach_the_libraries(tmp_path: Path) -> None:
    """A pin under a name that its library no longer reads would go unnoticed on the machine that
    recorded.
    """
    assert set(PINS) <= set(environment())
    program = """
import numpy, torch
from numpy._core._multiarray_umath import __cpu_features__ as features
print(torch.backends.cpu.get_cpu_capability(), torch.ops.mkldnn._is_mkldnn_fp16_supported(), torch.ops.mkldnn._is_mkldnn_bf16_supported())
print([name for name in ("X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR") if features.get(name)], torch.get_num_threads())
"""  # noqa: E501
    done = python("-c", program, folder=tmp_path)
    assert done.stdout.splitlines() == ["DEFAULT False False", "[] 1"], done.stderr
