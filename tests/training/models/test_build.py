"""The model contract: what goes in, what comes out, what is refused, and what the initial weights
are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from schemas.errors import ConfigError
from schemas.records import Statistics, TensorStats
from tests.training.toys import CLASSES, KINDS, Toy, make_toy
from training.models.build import build_model, count_parameters
from training.models.cnn import Cnn, averages
from training.models.inputs import CategoryEmbeddings, embedding_size
from training.models.shape import model_shape
from training.objectives.losses import make_loss

TASKS = tuple(CLASSES)


def network(toy: Toy) -> nn.Module:
    return build_model(toy.declaration, toy.statistics).eval()


@pytest.mark.req("M2")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASKS)
def test_scores_are_raw_float_columns_for_any_number_of_rows(task: str, kind: str) -> None:
    toy = make_toy(task, {"kind": kind})
    for rows in (1, 2, 7):
        scores = network(toy)(toy.batch(rows)[0])
        assert scores.shape == (rows, 3 if task == "multiclass" else 1)
        assert scores.dtype == torch.float32


@pytest.mark.req("M2")
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_a_function_of_the_declaration_alone(kind: str) -> None:
    toy = make_toy("binary", {"kind": kind})
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = network(toy).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = network(toy).state_dict()
    other = network(make_toy("binary", {"kind": kind}, train={"seed": 1})).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.req("M2")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_training_starts_near_the_base_rate(task: str, kind: str, weights: str) -> None:
    loss_section = {"class_weights": weights} if task != "regression" else {}
    toy = make_toy(task, {"kind": kind}, rows=300, loss=loss_section)
    batch, label = toy.batch(300)
    loss = make_loss(toy.declaration, toy.statistics)
    with torch.no_grad():
        found = loss(network(toy)(batch), label)
    counts = np.bincount(toy.arrays["label"]) / 300 if task != "regression" else np.ones(1)
    entropy = {
        "regression": 1.0,
        "none": float(-(counts * np.log(counts)).sum()),
        "balanced": math.log(len(counts)),
    }
    assert float(found) == pytest.approx(
        entropy["regression" if task == "regression" else weights], rel=0.1
    )


@pytest.mark.req("M1")
@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    toy = make_toy("multiclass", {"kind": kind})
    batch, label = toy.batch(64)
    model = network(toy).train()
    make_loss(toy.declaration, toy.statistics)(model(batch), label).backward()
    assert [
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()
    ] == []


@pytest.mark.req("R1")
@pytest.mark.parametrize("kind", KINDS)
def test_export_with_a_free_batch_axis_gives_the_same_scores(kind: str) -> None:
    toy = make_toy("binary", {"kind": kind})
    model = network(toy)
    batch = toy.batch(4)[0]
    axes = ({name: {0: torch.export.Dim.DYNAMIC} for name in batch},)
    program = torch.export.export(model, (batch,), dynamic_shapes=axes).module()
    for rows in (1, 3, 50):
        inputs = toy.batch(rows)[0]
        torch.testing.assert_close(program(inputs), model(inputs), rtol=0, atol=1e-6)


@pytest.mark.req("T4")
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_float32_under_autocast_and_float64_when_the_network_is(kind: str) -> None:
    toy = make_toy("binary", {"kind": kind})
    model, batch = network(toy), toy.batch(8)[0]
    exact = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(batch)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, rtol=0, atol=0.05)
    double = model.double()({**batch, "numeric": batch["numeric"].double()})
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), exact, rtol=0, atol=1e-5)


@pytest.mark.req("M1")
@pytest.mark.parametrize("task", TASKS)
def test_linear_model_is_linear_in_the_one_hot_of_its_categories(task: str) -> None:
    toy = make_toy(task, {"kind": "linear"})
    model, (batch, _) = network(toy), toy.batch(50)
    body = model.body
    torch.nn.init.normal_(body.categories.weight)
    one_hot = torch.cat(
        [
            nn.functional.one_hot(batch["categorical"][:, i], n)
            for i, n in enumerate(model.shape.categories)
        ],
        dim=1,
    )
    expected = (
        batch["numeric"] @ body.dense.weight.T
        + body.dense.bias
        + one_hot.float() @ body.categories.weight
    )
    torch.testing.assert_close(model(batch), expected)


@pytest.mark.req("M1")
@pytest.mark.parametrize("keys", [("numeric",), ("categorical",), ("numeric", "categorical")])
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "cnn"])
def test_any_kind_of_column_may_be_absent(kind: str, keys: tuple[str, ...]) -> None:
    toy = make_toy("binary", {"kind": kind})
    absent = {"numeric": (), "categorical": ()}
    statistics = toy.statistics.model_copy(
        update={k: v for k, v in absent.items() if k not in keys}
    )
    model = build_model(toy.declaration, statistics).eval()
    batch = {k: v for k, v in toy.batch(5)[0].items() if k in keys}
    assert model(batch).shape == (5, 1)
    with pytest.raises(ConfigError, match="no feature column is left"):
        build_model(toy.declaration, toy.statistics.model_copy(update=absent))


@pytest.mark.req("M1")
def test_rows_of_codes_that_train_never_had_are_zero_and_stay_so() -> None:
    toy = make_toy("binary", {"kind": "mlp"})
    shape = model_shape(toy.declaration, toy.statistics)
    assert shape.unseen == ((0, 1), (0,))  # the second column had nulls in train
    model = build_model(toy.declaration, toy.statistics).train()
    batch, label = toy.batch(200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        make_loss(toy.declaration, toy.statistics)(model(batch), label).backward()
        optimizer.step()
    tables = next(m for m in model.modules() if isinstance(m, CategoryEmbeddings)).tables
    assert not tables[0].weight[[0, 1]].any()
    assert not tables[1].weight[0].any()
    assert tables[1].weight[1].all()


@pytest.mark.req("M1")
def test_rare_categories_give_the_unknown_code_weights() -> None:
    toy = make_toy("binary", {"kind": "mlp"})
    rare = toy.statistics.categorical[0].model_copy(update={"rare_rows": 4})
    statistics = toy.statistics.model_copy(
        update={"categorical": (rare, toy.statistics.categorical[1])}
    )
    assert model_shape(toy.declaration, statistics).unseen == ((1,), (0,))


@pytest.mark.req("M2")
def test_parameters_are_counted() -> None:
    toy = make_toy("binary", {"kind": "mlp", "hidden": [7], "numeric_embedding": "none"})
    model = network(toy)
    width = 6 + 2 * embedding_size(5)
    expected = 2 * 5 * embedding_size(5) + width * 7 + 7 + 7 + 1
    assert count_parameters(model) == (expected, expected)
    model.body.head.requires_grad_(False)
    assert count_parameters(model) == (expected, expected - 8)


@pytest.mark.req("M2")
def test_a_batch_that_breaks_the_contract_is_refused() -> None:
    toy = make_toy("binary", {"kind": "mlp"})
    model, batch = network(toy), toy.batch(4)[0]
    with pytest.raises(
        ConfigError, match=r"expects the batch keys \['categorical', 'numeric'\], got \['numeric'\]"
    ):
        model({"numeric": batch["numeric"]})
    with pytest.raises(ConfigError, match=r"batch\['numeric'\]: expected \['B', 6\], got \[4, 5\]"):
        model({**batch, "numeric": batch["numeric"][:, :5]})


# ------------------------------------------------------------------------------------------ tensors


def pictures(
    toy: Toy, shape: tuple[int, ...], dtype: str, channels: int = 1
) -> tuple[Statistics, torch.Tensor]:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (6, *shape)).astype(dtype)
    mean, std = (
        tuple(100.0 + 10 * i for i in range(channels)),
        tuple(50.0 + 5 * i for i in range(channels)),
    )
    tensor = TensorStats(name="picture", shape=shape, dtype=dtype, mean=mean, std=std)  # type: ignore[arg-type]
    return toy.statistics.model_copy(
        update={"tensor": (tensor,), "numeric": (), "categorical": ()}
    ), torch.from_numpy(values)


@pytest.mark.req("M1")
@pytest.mark.parametrize(
    ("shape", "channels"), [((28, 28), 1), ((3, 5, 4), 3), ((1, 1), 1), ((3, 70, 33), 3)]
)
def test_cnn_takes_pictures_of_any_size(shape: tuple[int, ...], channels: int) -> None:
    toy = make_toy("multiclass", {"kind": "cnn", "channels": [6, 12]})
    statistics, values = pictures(toy, shape, "uint8", channels)
    model = build_model(toy.declaration, statistics).eval()
    scores = model({"tensor_picture": values})
    assert scores.shape == (6, 3)
    torch.testing.assert_close(model({"tensor_picture": values[:1]}), scores[:1], rtol=0, atol=1e-5)


@pytest.mark.req("M1")
def test_large_pictures_are_averaged_over_whole_patches() -> None:
    toy = make_toy("binary", {"kind": "cnn", "channels": [2]})
    statistics, _ = pictures(toy, (40, 20), "uint8")
    body = build_model(toy.declaration, statistics).body
    assert isinstance(body, Cnn)
    x = torch.randn(3, 2, 20, 10)  # after one stage; patches of 3 x 2, padded to 21 x 10
    found = averages(x, body.patch)
    expected = nn.functional.avg_pool2d(nn.functional.pad(x, (0, 0, 0, 1)), (3, 2))
    torch.testing.assert_close(found, expected)


@pytest.mark.req("M1")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_tensors_are_scaled_by_channel_inside_the_network(dtype: str) -> None:
    toy = make_toy("binary", {"kind": "linear"})
    statistics, values = pictures(toy, (3, 4, 2), dtype, 3)
    model = build_model(toy.declaration, statistics)
    mean, std = (
        torch.tensor(statistics.tensor[0].mean).view(3, 1, 1),
        torch.tensor(statistics.tensor[0].std).view(3, 1, 1),
    )
    expected = model.body.dense(((values.float() - mean) / std).flatten(1))
    torch.testing.assert_close(model({"tensor_picture": values}), expected)
    assert not [name for name in model.state_dict() if "mean" in name or "std" in name]


@pytest.mark.req("M1")
def test_cnn_refuses_what_is_no_picture() -> None:
    toy = make_toy("binary", {"kind": "cnn"})
    with pytest.raises(ConfigError, match=r"exactly one tensor feature, the data have 0 \(none\)"):
        build_model(toy.declaration, toy.statistics.model_copy(update={"tensor": ()}))
    flat, _ = pictures(toy, (12,), "uint8")
    with pytest.raises(ConfigError, match=r"picture has \[12\]"):
        build_model(toy.declaration, flat)


# ------------------------------------------------------------------------------------------- custom


def custom(name: str, **options: Any) -> Toy:
    return make_toy(
        "binary", {"kind": "custom", "path": f"tests.training.modules:{name}", "options": options}
    )


@pytest.mark.req("S1")
def test_custom_modules_come_from_allowed_packages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = custom("Sound", width=5)
    monkeypatch.delenv("BULKHEAD_ALLOW_IMPORTS", raising=False)
    with pytest.raises(
        ConfigError,
        match=r"package 'tests' is not allowed \(allowed: none\).*set BULKHEAD_ALLOW_IMPORTS=tests",
    ):
        build_model(toy.declaration, toy.statistics)
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "test, tests.training")
    with pytest.raises(ConfigError, match="package 'tests' is not allowed"):
        build_model(toy.declaration, toy.statistics)
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "mine, tests")
    model = build_model(toy.declaration, toy.statistics)
    assert model.body.hidden.out_features == 5
    assert model(toy.batch(3)[0]).shape == (3, 1)


@pytest.mark.req("S1")
@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("tests.training.modules:Missing", {}, "cannot be imported .*has no attribute 'Missing'"),
        ("tests.training.nowhere:Sound", {}, "cannot be imported .*No module named"),
        (
            "tests.training.modules:NOT_A_MODULE",
            {},
            "expected a class derived from torch.nn.Module, got 3",
        ),
        (
            "tests.training.modules:Sound",
            {"depth": 3},
            "cannot be constructed as Sound.*unexpected keyword argument 'depth'",
        ),
        (
            "tests.training.modules:Demanding",
            {},
            "missing 1 required keyword-only argument: 'colour'",
        ),
    ],
)
def test_custom_modules_that_cannot_be_built_are_refused(
    monkeypatch: pytest.MonkeyPatch, path: str, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    toy = make_toy("binary", {"kind": "custom", "path": path, "options": options})
    with pytest.raises(ConfigError, match=message):
        build_model(toy.declaration, toy.statistics)


@pytest.mark.req("M2")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TooWide", r"raw scores \[B, 1\] = \[4, 1\], got \[4, 2\]"),
        ("Squeezed", r"got \[4\]"),
        ("Tupled", "must return one tensor.*got tuple"),
    ],
)
def test_output_of_another_shape_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    toy = custom(name)
    with pytest.raises(ConfigError, match=message):
        build_model(toy.declaration, toy.statistics)(toy.batch(4)[0])
