"""Rule BH445: batch norm with the momentum of another framework."""

from __future__ import annotations

from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.syntax import constant, keyword

NORMS = {
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "SyncBatchNorm",
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
}
LARGEST = 0.9


@rule("BH445")
def norm_momentum_of_another_framework(subject: Subject) -> Iterator[Place]:
    """A batch norm that is made with a momentum of 0.9 and more."""
    program = subject.program
    for call in program.calls_of(*NORMS):
        if program.resolve(call.func).startswith("torch."):
            momentum = constant(keyword(call, "momentum", 2))
            if (
                isinstance(momentum, (int, float))
                and not isinstance(momentum, bool)
                and momentum >= LARGEST
            ):
                yield (
                    call,
                    f"momentum is {momentum:g}: the running statistics are those of the last batch",
                )
