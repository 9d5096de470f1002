"""Observer of the training loop: torch hooks count what network and optimizer really do.

Its record goes into `result.json`, where the report's checklist reads it
(training.report.checklist). It changes nothing and never waits for the device. Under torch.compile
there are no hooks, because the compiler would trace them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from schemas.observed import GroupFacts, Observed, Passes, RankFacts
from training.checkpoint.state import TrainerState, model_digest
from training.engine.sampling import Sampler
from training.engine.step import Step
from training.optim.schedule import Schedule


class Witness:
    """Observer that counts from its creation.

    Args:
        step: network, optimizer and loss scaler.
        schedule: gives the expected learning rate of an update.
        sampler: sampler of the train rows.
        state: position of the run, read before each update and at the end.
    """

    def __init__(
        self, step: Step, schedule: Schedule, sampler: Sampler, state: TrainerState
    ) -> None:
        self.step, self.schedule, self.sampler, self.state = step, schedule, sampler, state
        self.layout, self.optimizer, self.begun_at = step.layout, step.optimizer, state.step
        self.counts: Counter[str] = Counter()
        self._parameters = list(step.parameters.values())
        self._begins = True
        self._clean = False
        self._measured: list[Tensor] = []
        self._left_out: Tensor | float = (
            # optimizer calls that changed nothing: only the device knows (training.engine.step)
            0.0
        )
        self._hooked = not self.layout.train.compile
        if self._hooked:
            self.layout.model.register_forward_pre_hook(self._forward)
            self.optimizer.register_step_pre_hook(self._update)

    def _forward(self, model: nn.Module, inputs: Any) -> None:
        if not torch.is_grad_enabled():
            seen = {
                "scored_in_eval_mode": not any(m.training for m in model.modules()),
                "scored_in_inference_mode": torch.is_inference_mode_enabled(),
            }
            self.counts.update(scored=1, **seen)
            return
        if self._begins:
            self._begins, self._clean = False, all(p.grad is None for p in self._parameters)
        exchanging = bool(getattr(self.layout.call, "require_backward_grad_sync", False))
        half = torch.is_autocast_enabled(self.layout.parallel.device.type)
        self.counts.update(
            train=1, train_in_train_mode=model.training, exchanging=exchanging, train_half=half
        )

    def _update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        declared = all(
            group["lr"] == self.schedule.rate(self.state.updates, group["peak"])
            for group in optimizer.param_groups
        )
        complete = all(p.grad is not None for p in self.step.waiting.trained(self.step.trace.step))
        self.counts.update(
            updates=1,
            begun_clean=self._clean,
            with_all_gradients=complete,
            at_declared_rate=declared,
        )
        self._begins = True
        left_out = getattr(optimizer, "found_inf", 0.0)
        self._left_out = self._left_out + left_out
        if not self.layout.sharded and (self.counts["updates"] & (self.counts["updates"] - 1)) == 0:
            self._measure(left_out)

    def _measure(self, left_out: Tensor | float) -> None:
        """Measure norm and largest value of the optimizer's gradient, 0 if skipped; stays on the
        device.
        """
        gradients = [p.grad.detach() for p in self._parameters if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        found = torch.stack([norm, torch.stack([g.abs().max() for g in gradients]).max()])
        self._measured.append(
            found if isinstance(left_out, float) else torch.where(left_out > 0, 0.0, found)
        )

    def observed(self) -> Observed:
        """Return all observations at the end of the run. Collective."""
        sampler, scaler = self.sampler, self.step.scaler
        memberships = Counter(p for group in self.optimizer.param_groups for p in group["params"])
        return Observed(
            begun_at=self.begun_at,
            rows=self.state.rows,
            rows_per_epoch=(
                sampler.steps_per_epoch * sampler.batch_size
                if sampler.drop_last
                else sampler.num_rows
            ),
            layout=self.layout.kind,
            wrapper=type(self.layout.call).__name__,
            backend=(
                torch.distributed.get_backend() if self.layout.parallel.world_size > 1 else None
            ),
            ranks=self._ranks(),
            optimizer=type(self.optimizer).__name__,
            fused=bool(self.optimizer.defaults.get("fused")),
            groups=tuple(_group(group) for group in self.optimizer.param_groups),
            trainable=len(self._parameters),
            grouped_once=sum(memberships[p] == 1 for p in self._parameters),
            weight_dtypes=tuple(
                sorted({str(p.dtype).removeprefix("torch.") for p in self._parameters})
            ),
            loss_scale=scaler.get_scale() if scaler.is_enabled() else None,
            passes=self._passes(),
            deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            cublas_workspace=os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            matmul_precision=torch.get_float32_matmul_precision(),
            table_on_device=sampler.device.type != "cpu",
        )

    def _passes(self) -> Passes | None:
        if not self._hooked:
            return None
        exchanging = self.counts["exchanging"] if self.layout.kind == "replicated" else None
        self.counts.subtract(
            dict.fromkeys(
                ("updates", "begun_clean", "with_all_gradients", "at_declared_rate"),
                int(self._left_out),
            )
        )
        self._left_out = 0.0
        counts = {name: int(number) for name, number in self.counts.items()} | {
            "exchanging": exchanging
        }
        norm, value = (
            torch.stack(self._measured).amax(0).tolist() if self._measured else (None, None)
        )
        return Passes.model_validate(
            counts | {"measured": len(self._measured), "largest_norm": norm, "largest_value": value}
        )

    def _ranks(self) -> tuple[RankFacts, ...]:
        """Describe each process in words. Collective."""
        parallel = self.layout.parallel
        whole = (
            None
            if self.layout.sharded
            else model_digest(dict(self.layout.model.named_parameters()))
        )
        own = RankFacts(
            rank=parallel.rank,
            local_rank=parallel.local_rank,
            device=str(parallel.device),
            threads=torch.get_num_threads(),
            weights_sha256=whole,
        )
        return tuple(
            RankFacts(**json.loads(said))
            for said in parallel.gather_bytes(own.model_dump_json().encode())
        )


def _group(group: dict[str, Any]) -> GroupFacts:
    parameters = group["params"]
    return GroupFacts(
        name=group["name"],
        peak=group["peak"],
        weight_decay=group.get("peak_decay", group["weight_decay"]),
        tensors=len(parameters),
        parameters=sum(p.numel() for p in parameters),
    )
