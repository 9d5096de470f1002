"""A language model on one and on two gloo processes: the loss per token is by the global count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.digest import write_atomic
from tests.distributed.launch import run_ranks
from tests.distributed.token_work import everything
from tests.training.corpora import made_up, make_corpus
from tests.training.runs import keep_torch_settings
from training.distributed.parallel import Parallel

WORLD_SIZES = (1, 2)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("worlds")
    corpus = make_corpus(
        folder,
        made_up(80),
        {"context": 24},
        train={"epochs": 1, "batch_size": 8, "micro_batch_size": 3},
    )
    write_atomic(folder / "resolved.json", corpus.run.model_dump_json())
    with keep_torch_settings():
        results = {1: [json.loads(json.dumps(everything(Parallel(), str(folder))))]}
    return results | {
        2: run_ranks(
            "tests.distributed.token_work:everything", 2, folder / "ranks", folder=str(folder)
        )
    }


@pytest.mark.long
@pytest.mark.req("T3")
@pytest.mark.parametrize("size", WORLD_SIZES)
def test_the_gradient_of_uneven_token_counts_is_that_of_one_big_batch(
    worlds: dict[int, list[dict[str, Any]]], size: int
) -> None:
    assert max(error for rank in worlds[size] for error in rank["errors"]) < 1e-12


@pytest.mark.long
@pytest.mark.req("T9")
def test_the_loss_per_token_does_not_depend_on_the_ranks(
    worlds: dict[int, list[dict[str, Any]]],
) -> None:
    """It does not depend on the layout of parameters either, even if one rank has one micro-batch
    more.
    """
    one = worlds[1][0]
    for rank in worlds[2]:
        assert rank["steps"] == one["steps"] and rank["metric"] == pytest.approx(
            one["metric"], rel=1e-5
        )
        assert rank["sharded"] == pytest.approx(one["metric"], rel=1e-5)
    assert len({rank["weights"] for rank in worlds[2]}) == 1
