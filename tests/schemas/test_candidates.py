"""The default model, and what the candidates of `model.kind: auto` can follow."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.load import declare
from schemas.members import (
    first_network_number,
    last_without_limit,
    member_for_rows,
    members_of,
)


def declared(task: str = "binary", **sections: Any) -> Declaration:
    data = {"uri": "t.parquet", "columns": {"id": "id", "y": "label", "*": "feature"}}
    tree = {"name": "t", "data": data, "task": {"kind": task}, "split": {"kind": "random"}}
    return declare(tree | sections)


BLEND = ["boosting", "boosting", "boosting", "linear", "realmlp"]


def kinds(declaration: Declaration) -> list[str]:
    return [member.model.kind for member in members_of(declaration)]


def test_a_declaration_without_model_blends_networks_and_boosting() -> None:
    found = declared(train={"epochs": 7})
    assert found.model.kind == "auto" and kinds(found) == BLEND
    assert found.normalize.scale == "smooth" and members_of(found)[4].optimizer.lr == 0.04
    assert {member.train.epochs for member in members_of(found)} == {7}
    again = declare(found.model_dump(mode="json", by_alias=True))
    assert again == found, "read again from a record it is the same"


@pytest.mark.parametrize(
    "sections",
    [
        {"optimizer": {"lr": 0.002}},
        {"schedule": {"kind": "cosine"}},
        {"train": {"patience": 3}},
        {"train": {"clip": "none"}},
    ],
)
def test_a_file_that_tunes_one_network_keeps_it(sections: dict[str, Any]) -> None:
    assert declared(**sections).model.kind == "mlp"
    (section,) = sections
    with pytest.raises(ConfigError, match=rf"{section}.*without effect.*name one network"):
        declared(model={"kind": "auto"}, **sections)
    declared(model={"kind": "auto", "candidates": ["mlp", "boosting"]}, **sections)


@pytest.mark.parametrize(
    ("sections", "kind"),
    [
        ({"cv": {"folds": 3}}, "realmlp"),
        ({"train": {"ranks": 2}}, "realmlp"),
        ({"train": {"refit": "train_val"}}, "realmlp"),
        ({"ensemble": {"members": 2}}, "realmlp"),
        ({"search": {"trials": 2}}, "realmlp"),
        ({"model": {"dropout": 0.2}}, "mlp"),
        ({"model": {"effort": "quick"}}, "auto"),
    ],
)
def test_one_network_is_the_default_where_several_cannot_be(
    sections: dict[str, Any], kind: str
) -> None:
    assert declared(**sections).model.kind == kind


@pytest.mark.parametrize("loss", [{"kind": "huber"}, {"kind": "poisson"}])
def test_trees_are_no_candidate_of_a_loss_that_they_cannot_follow(loss: dict[str, Any]) -> None:
    left = [kind for kind in BLEND if kind != "boosting"]
    assert kinds(declared("regression", loss=loss)) == left
    with pytest.raises(ConfigError, match=r"model.kind boosting lowers log loss"):
        model = {"kind": "auto", "candidates": ["realmlp", "boosting"]}
        declared("regression", loss=loss, model=model)


def test_a_search_of_several_kinds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"search: model.kind auto .* name one"):
        declared(model={"kind": "auto"}, search={"trials": 2})


def test_the_first_network_is_checked_and_has_no_limit_of_time_as_the_first_boosting() -> None:
    found = declared(model={"kind": "auto", "candidates": ["boosting", "realmlp", "tabm"]})
    assert first_network_number(found) == 2 and last_without_limit(found) == 2
    assert first_network_number(declared()) == 5 and last_without_limit(declared()) == 5
    alone = declared(model={"kind": "auto", "candidates": ["boosting"]})
    assert first_network_number(alone) == 1


def test_a_linear_model_has_a_recipe_as_a_candidate_alone() -> None:
    (candidate,) = members_of(declared(model={"kind": "auto", "candidates": ["linear"]}))
    assert candidate.optimizer.lr == 0.01 and candidate.train.patience == 16
    alone = declared(model={"kind": "linear"})
    assert alone.optimizer.lr != 0.01 and alone.train.patience == 8


def test_the_patience_of_realmlp_counts_epochs_whatever_the_steps_between_evaluations() -> None:
    declaration = declared()
    for rows, apart in ((2_000, 4), (20_000, 4), (100_000, 1)):
        train = member_for_rows(declaration, 5, rows).train
        assert train.eval_every == apart * -(-rows // 256), rows
        assert train.patience * apart == 40 and train.patience_factor == 3
