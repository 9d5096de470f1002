"""Weights that a run starts from: what is loaded, refused, frozen, and until when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.errors import ConfigError, IntegrityError
from schemas.init_records import InitialWeights
from tests.training.toys import Toy, declare, make_toy
from training.checkpoint.state import model_digest
from training.models.build import build_model
from training.models.code_rows import inputs_of
from training.models.initial import initial_network, load_weights
from training.models.parameter_names import unfreeze_steps

MLP: dict[str, Any] = {"kind": "mlp", "hidden": [8, 8], "numeric_embedding": "none"}
KINDS: list[dict[str, Any]] = [
    {"kind": "linear"},
    MLP,
    {"kind": "resmlp", "width": 8, "depth": 2},
    {"kind": "realmlp", "hidden": [8, 8]},
    {"kind": "tabm", "members": 2, "width": 8, "depth": 2},
    {"kind": "ft_transformer", "width": 8, "depth": 2, "heads": 2},
    {"kind": "cnn", "channels": [4, 4], "hidden": 8},
]
INIT: dict[str, Any] = {"from": "models:/before/1"}


def written(folder: Path, tensors: dict[str, Tensor], toy: Toy | None = None) -> InitialWeights:
    """Weights in a file, of a Bulkhead model if its toy is given."""
    torch.save(tensors, folder / "weights.pt")
    return InitialWeights(
        given="models:/before/1",
        resolved="models:/before/1",
        file=file_ref(folder / "weights.pt"),
        sha256=model_digest(tensors),
        inputs=inputs_of(toy.statistics) if toy else None,
    )


def drawn(toy: Toy, seed: int = 5) -> dict[str, Tensor]:
    """Weights of a toy's network that no initialisation gives."""
    generator = torch.Generator().manual_seed(seed)
    state = build_model(toy.declaration, toy.statistics).state_dict()
    return {name: torch.randn(t.shape, generator=generator) for name, t in state.items()}


def with_model(toy: Toy, **changes: Any) -> Declaration:
    """The toy's declaration with more keys of section `model`."""
    tree = toy.declaration.model.model_dump(mode="json", by_alias=True)
    return declare(toy.declaration.task.kind, tree | changes)


@pytest.mark.parametrize("model", KINDS, ids=lambda m: m["kind"])
def test_every_kind_starts_from_the_weights_to_the_bit(
    model: dict[str, Any], tmp_path: Path
) -> None:
    toy = make_toy("multiclass", model)
    tensors = drawn(toy)
    network = initial_network(
        with_model(toy, init=INIT), toy.statistics, written(tmp_path, tensors, toy)
    )
    assert model_digest(network.state_dict()) == model_digest(tensors)


def test_without_init_the_network_is_the_one_that_is_built() -> None:
    toy = make_toy("binary", MLP)
    found = initial_network(toy.declaration, toy.statistics, None).state_dict()
    built = build_model(toy.declaration, toy.statistics).state_dict()
    assert model_digest(found) == model_digest(built)


def test_what_is_new_stays_as_built_and_all_else_is_loaded(tmp_path: Path) -> None:
    toy = make_toy("multiclass", MLP)
    tensors, built = drawn(toy), build_model(toy.declaration, toy.statistics).state_dict()
    declaration = with_model(toy, init=INIT | {"new": ["body.head"]})
    found = initial_network(declaration, toy.statistics, written(tmp_path, tensors, toy))
    for name, value in found.state_dict().items():
        source = built if name.startswith("body.head.") else tensors
        assert torch.equal(value, source[name]), name


def misfit(init: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> str:
    toy = make_toy("multiclass", MLP)
    with pytest.raises(ConfigError) as caught:
        initial_network(with_model(toy, init=INIT | init), toy.statistics, written(folder, tensors))
    return str(caught.value)


def test_a_missing_name_an_unknown_one_and_another_shape_are_refused_with_the_line_to_add(
    tmp_path: Path,
) -> None:
    tensors = drawn(make_toy("multiclass", MLP))
    some = {n: t for n, t in tensors.items() if not n.startswith("body.head")}
    text = misfit({}, some, tmp_path)
    assert "2 of 8 tensors" in text and "body.head.weight [3, 8]" in text
    assert "model.init.new: [body.head]" in text
    text = misfit({}, {**tensors, "body.head.bias": torch.zeros(7)}, tmp_path)
    assert "body.head.bias [3], in the weights [7]" in text
    assert "model.init.new: [body.head.bias]" in text
    text = misfit(
        {}, tensors | {"extra.weight": torch.ones(1), "extra.bias": torch.ones(1)}, tmp_path
    )
    assert "model.init.unused: [extra]" in text


@pytest.mark.parametrize(
    "init, words",
    [
        ({"new": ["body.heads"]}, "model.init.new: 'body.heads' fits none of 8 names.*body.head"),
        ({"unused": ["body.head"]}, "model.init.unused names body.head.*which the network has"),
        ({"unused": ["gone"]}, "model.init.unused: 'gone' fits none"),
        ({"map": {"gone.*": "body.*"}}, "model.init.map: 'gone"),
        ({"map": {"body.head": "body.hidden.0"}}, "the same name body.hidden.0.weight"),
        ({"new": ["body"]}, "nothing of the weights is loaded"),
    ],
)
def test_a_pattern_that_does_nothing_or_contradicts_is_refused(
    init: dict[str, Any], words: str, tmp_path: Path
) -> None:
    toy = make_toy("multiclass", MLP)
    with pytest.raises(ConfigError, match=words):
        initial_network(
            with_model(toy, init=INIT | init), toy.statistics, written(tmp_path, drawn(toy))
        )


def test_names_are_mapped(tmp_path: Path) -> None:
    toy = make_toy("multiclass", MLP)
    tensors = drawn(toy)
    theirs = {
        n.replace("body.hidden", "enc").replace("body.head", "top"): t for n, t in tensors.items()
    }
    init = INIT | {"map": {"enc.*": "body.hidden.*", "top": "body.head"}}
    found = initial_network(with_model(toy, init=init), toy.statistics, written(tmp_path, theirs))
    assert model_digest(found.state_dict()) == model_digest(tensors)


def test_weights_that_are_not_finite_or_were_changed_are_refused(tmp_path: Path) -> None:
    toy = make_toy("multiclass", MLP)
    tensors = drawn(toy)
    declaration = with_model(toy, init=INIT)
    tensors["body.head.bias"][0] = np.inf
    with pytest.raises(ConfigError, match=r"body.head.bias has 1 values that are not finite"):
        initial_network(declaration, toy.statistics, written(tmp_path, tensors))
    weights = written(tmp_path, drawn(toy))
    torch.save(tensors, tmp_path / "weights.pt")
    with pytest.raises(IntegrityError, match=r"SHA-256"):
        initial_network(declaration, toy.statistics, weights)


def other_values(toy: Toy) -> Any:
    """Statistics with the first categorical column's values reversed, the last one replaced."""
    first = toy.statistics.categorical[0]
    values = (*first.values[::-1][:-1], "of another hospital")
    changed = first.model_copy(update={"values": values})
    columns = (changed, *toy.statistics.categorical[1:])
    return toy.statistics.model_copy(update={"categorical": columns})


@pytest.mark.parametrize("model", [KINDS[0], KINDS[1], KINDS[5]], ids=lambda m: m["kind"])
def test_rows_of_categories_go_by_value_not_by_number(
    model: dict[str, Any], tmp_path: Path
) -> None:
    toy = make_toy("multiclass", model)
    tensors, now = drawn(toy), other_values(toy)
    weights = written(tmp_path, tensors, toy)
    declaration = with_model(toy, init=INIT)
    network = build_model(declaration, now)
    built = {n: t.clone() for n, t in network.state_dict().items()}
    report = load_weights(network, declaration, now, weights)
    ((name, (known, rows)),) = report.rows.items()
    assert rows - known == 1
    old, new = ([*("unknown", "null"), *s.categorical[0].values] for s in (toy.statistics, now))
    for code, value in enumerate(new):
        source = built[name][code] if value not in old else tensors[name][old.index(value)]
        assert torch.equal(network.state_dict()[name][code], source), value


def test_other_columns_values_without_rows_and_classes_are_refused(tmp_path: Path) -> None:
    toy = make_toy("multiclass", MLP)
    weights = written(tmp_path, drawn(toy), toy)
    names = [s.name for s in toy.statistics.numeric]
    turned = toy.statistics.model_copy(update={"numeric": toy.statistics.numeric[::-1]})
    declaration = with_model(toy, init=INIT)
    with pytest.raises(
        ConfigError, match=r"reads other inputs.*another order.*other_inputs: accept"
    ):
        initial_network(declaration, turned, weights)
    assert names
    accepted = with_model(toy, init=INIT | {"other_inputs": "accept"})
    initial_network(accepted, turned, weights)
    classes = toy.statistics.model_copy(update={"classes": toy.statistics.classes[::-1]})
    with pytest.raises(ConfigError, match=r"train a new head with model.init.new: \[body.head\]"):
        initial_network(declaration, classes, weights)
    initial_network(with_model(toy, init=INIT | {"new": ["body.head"]}), classes, weights)
    one_hot = make_toy("multiclass", KINDS[3])
    with pytest.raises(ConfigError, match=r"the values of .*enter one by one"):
        initial_network(
            with_model(one_hot, init=INIT),
            other_values(one_hot),
            written(tmp_path, drawn(one_hot), one_hot),
        )


def test_frozen_parameters_have_no_gradient_and_a_wrong_pattern_is_refused() -> None:
    toy = make_toy("binary", MLP)
    network = build_model(with_model(toy, freeze=["body.hidden", "body.inputs"]), toy.statistics)
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    assert trained == ["body.head.weight", "body.head.bias"]
    with pytest.raises(ConfigError, match=r"model.freeze: 'body.hides' fits none of"):
        build_model(with_model(toy, freeze=["body.hides"]), toy.statistics)
    with pytest.raises(ConfigError, match=r"leaves none of"):
        build_model(with_model(toy, freeze=["body"]), toy.statistics)


def test_unfreezing_names_each_parameter_once_and_leaves_some_to_train() -> None:
    toy = make_toy("binary", MLP)

    def steps(**keys: Any) -> dict[str, int]:
        declaration = with_model(toy, **keys)
        return unfreeze_steps(build_model(declaration, toy.statistics), declaration.model)

    assert steps(unfreeze_at={"body.hidden.0": 3}) == {
        "body.hidden.0.weight": 3,
        "body.hidden.0.bias": 3,
    }
    with pytest.raises(ConfigError, match=r"model.freeze names too"):
        steps(freeze=["body.hidden"], unfreeze_at={"body.hidden.0": 3})
    with pytest.raises(ConfigError, match=r"another of its patterns names too"):
        steps(unfreeze_at={"body.hidden": 3, "body.*.0.weight": 4})
    with pytest.raises(ConfigError, match=r"no parameter to train from the first step"):
        steps(unfreeze_at={"body": 3})


@pytest.mark.parametrize(
    "model, words",
    [
        ({"kind": "boosting", "init": INIT}, "trees have no weights"),
        ({"kind": "auto", "freeze": ["a"]}, "several models"),
        ({"kind": "auto", "candidates": [MLP | {"init": INIT}]}, "compares models from scratch"),
        (MLP | {"init": {"from": "a.pt"}}, "is a file; give its sha256"),
        (MLP | {"init": INIT | {"sha256": "0" * 64}}, "is for files alone"),
        (MLP | {"init": {"from": "models:/a"}}, "models:/NAME/VERSION"),
        (MLP | {"init": INIT | {"map": {"a.*": "b"}}}, r"one \* each"),
        (MLP | {"freeze": ["a"], "unfreeze_at": {"a": 1}}, "both name 'a'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(model: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        declare("binary", model)


def test_folds_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"model.init with cv.folds"):
        declare("binary", MLP | {"init": INIT}, cv={"folds": 3})
    members = {"members": 2, "over": "folds"}
    with pytest.raises(ValidationError, match=r"model.init with ensemble.over: folds"):
        declare("binary", MLP | {"init": INIT}, ensemble=members)
