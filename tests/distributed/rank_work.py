"""Work of a test's ranks; call each function on every rank. It returns something that JSON can
hold.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import metrics as sk
from torch import nn

from schemas.config import TrainConfig
from schemas.errors import BulkheadError
from schemas.load import declare
from schemas.records import RunSpec
from tests.distributed.label_work import label_gradients
from tests.training.networks import FirstColumn, InPlace, Plain
from tests.training.runs import WIDTH, declaration_tree, statistics, synthetic, write_side
from training.checkpoint.state import model_digest
from training.distributed.layout import Layout
from training.distributed.parallel import Parallel
from training.engine.batches import WindowReader
from training.engine.sampling import Sampler
from training.engine.scoring import score
from training.engine.step import Step
from training.engine.trainer import Trainer, train
from training.launch.stop_signal import StopSignal
from training.objectives import metrics
from training.objectives.losses import BinaryCrossEntropy

CASES = [  # train rows, rows of a window, rows of a micro-batch, weighted
    (37, 16, None, True),
    (37, 16, 3, True),
    (37, 16, 1, False),
    (16, 16, 4, False),
    (5, 4, 2, True),  # the last window has one row: other ranks have none
]


def everything(parallel: Parallel, folder: str) -> dict[str, Any]:
    """Run everything for one world size in one start of processes."""
    results: dict[str, Any] = {
        "gradients": gradients(parallel),
        "scoring": scoring(parallel, Path(folder) / "scoring"),
    }
    results["label_gradients"] = label_gradients(parallel)
    results["trained"] = trained(parallel, Path(folder))
    results["on_main"] = on_main(parallel)
    parallel.barrier()
    results["first"] = parallel.broadcast(torch.tensor([parallel.rank + 5])).item()
    results["any"] = [parallel.any(parallel.rank == parallel.world_size - 1), parallel.any(False)]
    results["gathered"] = [
        part.decode() for part in parallel.gather_bytes(f"{parallel.rank}".encode() * parallel.rank)
    ]
    return results


# gradients


def reference_gradient(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the gradient of `sum(w l) / sum(w)` over the whole window at once, in plain torch."""
    twin = copy.deepcopy(model)
    twin.zero_grad()
    losses = nn.functional.binary_cross_entropy_with_logits(
        twin(batch)[:, 0], batch["label"].double(), reduction="none"
    )
    ((batch["weight"] * losses).sum() / batch["weight"].sum()).backward()
    return {name: p.grad for name, p in twin.named_parameters()}


def gradients(parallel: Parallel) -> list[float]:
    """Return by case the largest error of the window gradient over all windows, relative to the
    largest entry.
    """
    return [worst_gradient_error(parallel, *case) for case in CASES]


def worst_gradient_error(
    parallel: Parallel, rows: int, batch_size: int, micro_batch_size: int | None, weighted: bool
) -> float:
    """Return the largest relative error of the window gradient over all windows."""
    torch.manual_seed(3)
    model = Plain(WIDTH, 1, torch.float64)
    tensors = {
        name: torch.from_numpy(array.astype(np.int64 if name == "label" else np.float64))
        for name, array in synthetic(rows, 1).items()
    }
    weights = tensors["weight"] if weighted else torch.ones(rows, dtype=torch.float64)
    if not weighted:
        del tensors["weight"]
    sampler, loss = Sampler(rows, batch_size, seed=5), BinaryCrossEntropy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    config = TrainConfig(batch_size=batch_size, micro_batch_size=micro_batch_size, clip="none")
    step = Step(Layout(model, parallel, config), loss, optimizer, config)
    reader = WindowReader(tensors, sampler, loss, parallel)
    step.rehearse(reader.read(0))
    worst = 0.0
    for number in range(2 * sampler.steps_per_epoch):
        window = reader.read(number)
        step.gradients(window)
        gate = step.gate(window, step.clip())
        picked = {
            name: tensor[window.rows] for name, tensor in {**tensors, "weight": weights}.items()
        }
        expected = reference_gradient(model, picked)
        scale = max(float(g.abs().max()) for g in expected.values())
        worst = max(
            worst,
            *(
                float((p.grad - expected[name]).abs().max()) / scale
                for name, p in model.named_parameters()
            ),
        )
        assert abs(gate.weight_sum - float(picked["weight"].sum())) < 1e-12 * gate.weight_sum
    return worst


# scoring


def scoring(parallel: Parallel, folder: Path) -> dict[str, Any]:
    """Check for 1 to 64 rows that scores name each row once in order and metrics equal
    scikit-learn's.
    """
    torch.manual_seed(0)
    network, declaration, stats = Plain(WIDTH, 1), declare(declaration_tree()), statistics()
    misplaced, metric_error, score_error, calls = [], 0.0, 0.0, []
    for rows in range(1, 65):
        arrays = synthetic(rows, rows)
        arrays["numeric"][:, 0] = np.arange(rows)
        side = write_side(folder / f"{rows}-{parallel.rank}", arrays)
        if not np.array_equal(score(FirstColumn(), side, 5, parallel)[:, 0], np.arange(rows)):
            misplaced.append(rows)
        counter = Counting(network)
        scores = score(counter, side, 5, parallel)
        calls.append(counter.rows)
        with torch.inference_mode():
            whole = network({"numeric": torch.from_numpy(arrays["numeric"])}).numpy()
        score_error = max(score_error, float(np.abs(scores - whole).max()))
        found = metrics.compute(declaration, stats, scores, arrays["label"], arrays["weight"])
        metric_error = max(metric_error, difference(found, scores, arrays))
    in_place = score(InPlace(), side, 7, parallel)
    return {
        "misplaced": misplaced,
        "metric_error": metric_error,
        "score_error": score_error,
        "rows_here": calls,
        "in_place": bool(np.allclose(in_place[:, 0], arrays["numeric"].sum(axis=1) * 2, atol=1e-5)),
    }


class Counting(nn.Module):
    """Count the rows that pass on this rank."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.rows = inner, 0

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Count the rows and return the inner model's output."""
        self.rows += len(batch["numeric"])
        return self.inner(batch)


def difference(
    found: dict[str, float | None], scores: np.ndarray, arrays: dict[str, np.ndarray]
) -> float:
    """Return the largest difference of some metrics from scikit-learn's on the gathered rows."""
    label, weight, probability = (
        arrays["label"],
        arrays["weight"].astype(np.float64),
        1 / (1 + np.exp(-scores[:, 0].astype(np.float64))),
    )
    expected = {
        "log_loss": sk.log_loss(label, probability, sample_weight=weight, labels=[0, 1]),
        "accuracy": sk.accuracy_score(label, probability > 0.5, sample_weight=weight),
    }
    if len(set(label.tolist())) == 2:
        expected["auroc"] = sk.roc_auc_score(label, probability, sample_weight=weight)
        expected["pr_auc"] = sk.average_precision_score(label, probability, sample_weight=weight)
    return max(abs(found[name] - value) for name, value in expected.items())


# training


def trained(parallel: Parallel, folder: Path) -> dict[str, Any]:
    """Train the runs that the test prepared below the folder; return the results by name."""
    outcomes: dict[str, Any] = {}
    for config in sorted(folder.glob("*/resolved.json")):
        spec, name = RunSpec.model_validate_json(config.read_text()), config.parent.name
        began = time.monotonic()
        try:
            report = train(
                spec, config.parent / f"run-{parallel.world_size}", parallel, StopSignal()
            )
            outcomes[name] = {"report": report.model_dump(mode="json")}
        except BulkheadError as error:
            outcomes[name] = {"error": type(error).__name__, "message": str(error)}
        outcomes[name]["seconds"] = time.monotonic() - began
    if (folder / "steady" / "resolved.json").exists():
        outcomes["resumed_in_process"] = resumed(parallel, folder / "steady")
    return outcomes


def resumed(parallel: Parallel, folder: Path) -> list[str]:
    """Return digests of the final weights of a run without a stop, and of one resumed after 7
    steps.
    """
    spec = RunSpec.model_validate_json((folder / "resolved.json").read_text())
    digests = []
    for name, stops in (("whole", ()), ("parts", (7, 9))):
        for steps in (*stops, None):
            stop = StopSignal()
            trainer = Trainer(spec, folder / f"{name}-{parallel.world_size}", parallel, stop)
            one_step = trainer._train_one_step

            def step_then_stop(
                one_step: Any = one_step,
                trainer: Trainer = trainer,
                stop: StopSignal = stop,
                steps: int | None = steps,
            ) -> bool:
                stop.requested = (
                    trainer.state.step + 1 == steps and parallel.rank == parallel.world_size - 1
                )
                return bool(one_step())

            trainer._train_one_step = step_then_stop  # type: ignore[method-assign]
            trainer.run()
        trainer.model.load_state_dict(trainer.checkpoints.load(trainer.state.step)["model.pt"])
        digests.append(model_digest(trainer.model.state_dict()))
    return digests


def on_main(parallel: Parallel) -> list[Any]:
    """Return a result and an error of rank 0 as every rank sees them."""
    from schemas.errors import CheckpointError

    def fail() -> None:
        raise CheckpointError("planted")

    value = parallel.on_main(lambda: {"rank": parallel.rank})
    try:
        parallel.on_main(fail)
    except BulkheadError as error:
        return [value, type(error).__name__, str(error)]
    return [value]
