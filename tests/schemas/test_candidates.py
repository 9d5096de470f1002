"""The default model, and what the candidates of `model.kind: auto` can follow."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.load import declare
from schemas.members import first_network_number, members_of
from tasks.members import is_left_out


def declared(task: str = "binary", **sections: Any) -> Declaration:
    data = {"uri": "t.parquet", "columns": {"id": "id", "y": "label", "*": "feature"}}
    tree = {"name": "t", "data": data, "task": {"kind": task}, "split": {"kind": "random"}}
    return declare(tree | sections)


def kinds(declaration: Declaration) -> list[str]:
    return [member.model.kind for member in members_of(declaration)]


def test_a_declaration_without_model_blends_networks_and_boosting() -> None:
    found = declared(train={"epochs": 7})
    assert found.model.kind == "auto" and kinds(found) == ["realmlp", "boosting", "realmlp"]
    assert found.normalize.scale == "smooth" and members_of(found)[0].optimizer.lr == 0.04
    assert [member.train.epochs for member in members_of(found)] == [7, 7, 7]
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
    assert kinds(declared("regression", loss=loss)) == ["realmlp", "realmlp"]
    with pytest.raises(ConfigError, match=r"model.kind boosting lowers log loss"):
        model = {"kind": "auto", "candidates": ["realmlp", "boosting"]}
        declared("regression", loss=loss, model=model)


def test_a_search_of_several_kinds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"search: model.kind auto .* name one"):
        declared(model={"kind": "auto"}, search={"trials": 2})


def test_the_first_network_is_checked_and_boosting_has_no_limit_of_time() -> None:
    found = declared(model={"kind": "auto", "candidates": ["boosting", "realmlp", "tabm"]})
    assert first_network_number(found) == 2
    boosting, realmlp, _ = members_of(found)
    assert not is_left_out(realmlp, 1.0, 2.0) and is_left_out(realmlp, 2.0, 2.0)
    assert not is_left_out(boosting, 9.0, 2.0)
    alone = declared(model={"kind": "auto", "candidates": ["boosting"]})
    assert first_network_number(alone) == 1
