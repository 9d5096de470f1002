"""RealMLP: each part equals its formula; rates and decay go to the parts that the paper names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from schemas.config import AdamWConfig
from schemas.errors import ConfigError
from tests.training.toys import CLASSES, make_toy
from training.models.build import Network, build_model
from training.models.categories import Categories
from training.models.drawn_rows import drawn_rows
from training.models.numeric_embeddings import PbldEmbedding
from training.models.realmlp import LearnedActivation, NtkLinear, RealMlp
from training.models.scheduled_dropout import ScheduledDropout
from training.models.shape import model_shape
from training.objectives.losses import SquaredError
from training.objectives.metrics import predict
from training.optim.curves import flat_cos
from training.optim.groups import parameter_factors, parameter_groups
from training.optim.optimizer import make_optimizer
from training.optim.schedule import Schedule

SMALL: dict[str, Any] = {"kind": "realmlp", "hidden": [16, 12]}


def small(task: str = "binary", **options: Any) -> tuple[Network, RealMlp]:
    toy = make_toy(task, SMALL | options)
    network = build_model(toy.declaration, toy.statistics)
    assert isinstance(network, Network) and isinstance(network.body, RealMlp)
    return network, network.body


@pytest.mark.req("M1")
def test_the_periodic_embedding_is_the_formula_with_the_column_last() -> None:
    torch.manual_seed(0)
    layer, x = PbldEmbedding(3, 0.1), torch.randn(7, 3)
    found = layer(x).view(7, 3, 4).detach().numpy()
    f, b, w, c = (p.detach().numpy().astype(float) for p in layer.parameters())
    for column in range(3):
        waves = np.cos(2 * np.pi * x.numpy()[:, column, None] * f[column] + b[column])
        np.testing.assert_allclose(found[:, column, :3], waves @ w[column] + c[column], atol=1e-5)
        np.testing.assert_array_equal(found[:, column, 3], x.numpy()[:, column])
    assert np.abs(f).max() < 0.1 * 5 and np.abs(b).max() <= np.pi
    assert max(np.abs(w).max(), np.abs(c).max()) <= 0.25


@pytest.mark.req("M1")
@pytest.mark.parametrize("kind", ["selu", "mish", "relu", "gelu", "silu"])
def test_layers_are_their_formulas(kind: Any) -> None:
    torch.manual_seed(1)
    linear, activation, x = NtkLinear(9, 4), LearnedActivation(4, kind), torch.randn(5, 9)
    expected = x @ linear.weight.T / math.sqrt(9) + linear.bias
    torch.testing.assert_close(linear(x), expected)
    f = {"mish": lambda v: v * torch.tanh(F.softplus(v))}.get(
        kind, getattr(torch.nn.functional, kind)
    )
    torch.testing.assert_close(activation(expected), f(expected))
    with torch.no_grad():
        activation.share.copy_(torch.tensor([0.0, 1.0, 0.3, -1.0]))
    torch.testing.assert_close(
        activation(expected), expected + (f(expected) - expected) * activation.share
    )


@pytest.mark.req("M1")
def test_a_layer_starts_at_unit_scale_on_the_rows_it_is_given() -> None:
    torch.manual_seed(2)
    layer, x = NtkLinear(6, 500), torch.randn(256, 6) * torch.tensor([10.0, 1, 1, 1, 0.1, 0])
    z = layer.init_on_(x).detach()
    torch.testing.assert_close(z.std(0, unbiased=False), torch.ones(500))
    # minus a mixture of five rows: its variance is that of Dirichlet shares, 1/3
    assert 0.25 < float(layer.bias.detach().var()) < 0.45
    crossing = ((z > 0).any(0) & (z < 0).any(0)).float().mean()
    assert float(crossing) == 1.0, "the kink of each unit lies among the rows"


@pytest.mark.req("M1")
def test_few_values_are_one_hot_two_are_signs_and_others_embedded() -> None:
    toy = make_toy("binary", SMALL)
    shape = replace(
        model_shape(toy.declaration, toy.statistics),
        categories=(4, 5, 12),
        unseen=((0, 1), (0,), (0, 1)),
    )
    part = Categories(shape, one_hot=8, size=8, signs=True)
    assert part.widths == [1, 4, 8] and list(part.embeddings) == ["2"]
    found = part(torch.tensor([[2, 1, 5], [3, 4, 1], [0, 0, 0], [1, 2, 0]]))
    assert found[:, 0].tolist() == [1, -1, 0, 0]
    assert found[:, 1:5].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert not found[1:, 5:].any() and found[0, 5:].all(), "an unknown code adds nothing"


@pytest.mark.req("M1")
def test_a_network_is_its_parts_in_their_order_and_starts_at_the_prior() -> None:
    for task in CLASSES:
        network, body = small(task)
        batch = make_toy(task, SMALL).batch(300)[0]
        x = body.inputs(batch) * body.scaling.scale
        for block in body.blocks:
            z = x @ block.linear.weight.T / math.sqrt(x.shape[1]) + block.linear.bias
            x = F.mish(z) if task == "regression" else F.selu(z)
        expected = (x @ body.head.weight.T / math.sqrt(x.shape[1]) + body.head.bias).detach()
        torch.testing.assert_close(network.eval()(batch).detach(), expected)
        prior = torch.tensor(network.shape.prior)
        assert float((expected - prior).std(0).max()) < 0.3
        assert float((expected - prior).mean(0).abs().max()) < 0.15


@pytest.mark.req("M1")
def test_predictions_stay_within_the_labels_of_train_in_eval_mode_alone() -> None:
    toy = make_toy("regression", SMALL)
    shape = replace(model_shape(toy.declaration, toy.statistics), label_range=(-0.02, 0.01))
    rows = drawn_rows(toy.statistics, 256)
    body, batch = RealMlp(shape, toy.declaration.model, "regression", rows), toy.batch(200)[0]
    free = body.eval()(batch)
    assert (free.min(), free.max()) == (torch.tensor(-0.02), torch.tensor(0.01))
    body.blocks.eval()
    body.training = True
    assert body(batch).max() > 0.01
    config = toy.declaration.model.model_copy(update={"clamp": False})
    assert RealMlp(shape, config, "regression", rows).eval()(batch).max() > 0.01


@pytest.mark.req("M1")
@pytest.mark.parametrize(("loss", "low"), [("mse", 0.0), ("poisson", 0.0), ("tweedie", 3.0)])
def test_the_range_of_labels_is_that_of_predictions_for_any_link(loss: str, low: float) -> None:
    toy = make_toy("regression", SMALL, loss={"kind": loss})
    scaled = {"target_center": 2.0 if loss == "mse" else 0.0, "target_scale": 5.0}
    update = {"label_low": low, "label_high": 40.0, "label_mean": 5.0, **scaled}
    statistics = toy.statistics.model_copy(update=update)
    found = model_shape(toy.declaration, statistics).label_range
    assert found is not None
    predicted = predict(toy.declaration, statistics, np.array(found)[:, None])
    np.testing.assert_allclose(predicted, [low, 40.0], rtol=1e-12, atol=1e-30)


@pytest.mark.req("M1")
def test_initial_weights_follow_from_declaration_and_statistics() -> None:
    one, other = (small("multiclass")[0].state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not [name for name in one if "progress" in name or "one_hot" in name]


@pytest.mark.req("T6")
def test_rates_and_decay_are_the_papers_by_part() -> None:
    network, _ = small("regression")
    config = AdamWConfig(lr=0.2, weight_decay=0.02, weight_decay_schedule="flat_cos")
    names = {p: name for name, p in network.named_parameters()}
    found = {
        names[p]: (group["peak"] / 0.2, group["weight_decay"] / 0.02, group["peak_decay"])
        for group in parameter_groups(config, network)
        for p in group["params"]
    }
    assert len(found) == len(names)
    for name, (rate, decay, peak_decay) in found.items():
        expected = (1.0, 1.0)
        if name.endswith("bias"):
            expected = (0.1, 0.0)
        elif name.endswith("scaling.scale"):
            expected = (6.0, 6.0)
        elif ".numbers." in name or name.endswith("activation.share"):
            expected = (0.1, 0.1)
        assert (rate, decay) == pytest.approx(expected), name
        assert peak_decay == pytest.approx(0.02 * decay)
    head = small("binary")[1].parameter_factors()
    assert [tuple(f) for p, f in head.items() if p.shape == (1, 12)] == [(2.0, 0.5)]


@pytest.mark.req("T6")
def test_factors_of_a_network_must_fit_it() -> None:
    class Own(nn.Linear):
        factors: Any = ()

        def parameter_factors(self) -> Any:
            return dict(self.factors)

    model = Own(2, 2)
    model.factors = [(model.bias, (3.0, 2.0))]
    groups = {g["name"]: g for g in parameter_groups(AdamWConfig(lr=1.0, weight_decay=0.1), model)}
    own = groups["rate x 3, decay x 2/decay"]
    assert (own["lr"], own["weight_decay"], own["params"]) == (3.0, 0.2, [model.bias])
    assert "factor" not in groups["decay"] and "peak_decay" not in groups["decay"]
    ruled = AdamWConfig(lr=1.0, weight_decay=0.1, modules=({"match": "bias", "lr": 0.5},))
    assert {g["lr"] for g in parameter_groups(ruled, model)} == {1.0, 0.5}, "a rule's rate holds"
    for wrong in ((model.bias, (-1.0, 0.0)), (nn.Parameter(torch.ones(1)), (1.0, 0.0))):
        model.factors = [wrong]
        with pytest.raises(ConfigError, match=r"Own.parameter_factors\(\): expected factors"):
            parameter_factors(model)


@pytest.mark.req("T6")
def test_dropout_follows_the_progress_without_another_graph() -> None:
    layer, x = ScheduledDropout(0.4), torch.ones(200, 200)
    graphs: list[Any] = []

    def count(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, backend=count, dynamic=False)
    for progress in (0.0, 0.5, 0.75, 0.9, 1.0):
        layer.progress.fill_(progress)
        rate = 0.4 * flat_cos(progress)
        assert float(layer.rate()) == pytest.approx(rate, abs=1e-6)
        found = compiled(x)
        assert float((found == 0).float().mean()) == pytest.approx(rate, abs=0.01)
        torch.testing.assert_close(found.max(), torch.tensor(1 / (1 - rate)))
    assert len(graphs) == 1 and "progress" not in layer.state_dict()
    assert torch.equal(layer.eval()(x), x)


def written_out(network: nn.Module, batches: list[Any], labels: Any) -> dict[str, Tensor]:
    """Return a regression's weights after steps written out as pytabkit 1.7.3 makes them.

    Adam with bias correction; before it each weight decays by its part's factor of the rate, twice.
    """
    weights = {n: p.detach().clone().requires_grad_() for n, p in network.named_parameters()}
    adam = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in weights.items()}
    for step, (batch, label) in enumerate(zip(batches, labels, strict=True)):
        scores = functional_call(network, weights, (batch,))[:, 0]
        gradients = torch.autograd.grad(((scores - label) ** 2).mean(), list(weights.values()))
        time = step / len(batches)
        rate = 0.2 * 0.5 * (1 - math.cos(2 * math.pi * math.log2(1 + 15 * time)))
        decay = 0.02 * (1.0 if time < 0.5 else 0.5 * (1 + math.cos(math.pi * (2 * time - 1))))
        for (name, p), gradient in zip(weights.items(), gradients, strict=True):
            factor = 1.0
            if name.endswith("scale"):
                factor = 6.0
            elif name.endswith(("bias", "share")) or ".numbers." in name:
                factor = 0.1
            m, v = adam[name]
            m.lerp_(gradient, 0.1)
            v.lerp_(gradient**2, 0.05)
            with torch.no_grad():
                if not name.endswith("bias"):
                    p.mul_(1 - decay * factor * rate * factor)
                fair = (v / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
                p.sub_(rate * factor * m / (1 - 0.9 ** (step + 1)) / fair)
    return weights


@pytest.mark.req("T6")
def test_steps_are_those_of_pytabkit_written_out() -> None:
    toy = make_toy("regression", SMALL | {"dropout": 0.0})
    network = build_model(toy.declaration, toy.statistics).double().train()
    rows, labels = toy.batch(300)
    rows["numeric"] = rows["numeric"].double()
    chosen = torch.randint(300, (40, 64), generator=torch.Generator().manual_seed(0))
    batches = [{key: t[at] for key, t in rows.items()} for at in chosen]
    given = batches, [labels[at].double() for at in chosen]
    expected = written_out(network, *given)
    declared = toy.declaration
    optimizer = make_optimizer(declared.optimizer, network)
    schedule = Schedule(declared.schedule, declared.optimizer.lr, len(batches), True)
    for step, (batch, label) in enumerate(zip(*given, strict=True)):
        schedule.apply(optimizer, step)
        optimizer.zero_grad()
        SquaredError().row_losses(network(batch), label).mean().backward()
        optimizer.step()
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name].detach(), rtol=1e-6, atol=1e-8)
