"""Report of a repeated step: where it became non-finite, in words, and possible fixes."""

from __future__ import annotations

from schemas.config import Declaration
from schemas.errors import first_few
from schemas.records import Record

LARGE_INPUT = 1e4  # of a scaled column; above it the column is more likely wrong than the network


class Finding(Record):
    """Place where a rank's share first became non-finite.

    `direction`: forward or backward. `module`: its path in the network, `kind` its class; or a
    parameter. `rows`: number of rows of the micro-batch; `row_ids` the first ten of them.
    `largest_input`: largest scaled value of those rows, of `column`.
    """

    direction: str
    module: str
    kind: str
    micro_batch: int
    rows: int
    row_ids: tuple[str, ...] = ()
    column: str = ""
    largest_input: str = ""

    @property
    def sentence(self) -> str:
        """Describe the finding for a person."""
        name = f"{self.module} ({self.kind})" if self.module else f"the whole network ({self.kind})"
        what = (
            "the output of"
            if self.direction == "forward"
            else (
                "the gradient of"
                if self.kind == "Parameter"
                else "the gradient with respect to the output of"
            )
        )
        rows = (
            f" in {self.rows} of the rows (first: {first_few(self.row_ids, total=self.rows)})"
            if self.row_ids
            else ""
        )
        inputs = (
            f"; largest input of these rows: {self.column} = {self.largest_input}, scaled"
            if self.column
            else ""
        )
        return (
            f"{what} {name} is the first that is not finite, in micro-batch"
            f" {self.micro_batch}{rows}{inputs}"
        )


class RankReplay(Record):
    """One rank's share, repeated.

    `loss`: its part of the window's. `same_losses`: equal to the dump's bit for bit.
    """

    rank: int
    finite: bool
    loss: str
    grad_norm: str
    same_losses: bool
    finding: Finding | None = None
    largest_activations: dict[str, float] = {}


class ReplayReport(Record):
    """Result of the repeated step: reproduced or not, and where it became non-finite."""

    step: int
    checkpoint: str
    device: str
    reproduced: bool
    ranks: tuple[RankReplay, ...]
    message: str
    advice: tuple[str, ...] = ()


def sentence(ranks: tuple[RankReplay, ...], finite: bool) -> str:
    """Describe the result in one sentence."""
    if finite:
        return (
            "the step came out finite this time: another device, other versions, or a network that"
            " draws from elsewhere than its window's streams"
        )
    for rank in ranks:
        if not rank.finite:
            where = (
                rank.finding.sentence
                if rank.finding
                else (
                    "with every module watched, and neither compiled nor recomputed, all of it is"
                    " finite"
                )
            )
            return f"rank {rank.rank}: {where}"
    return "the share of each rank is finite, but the sum of their gradients is not"


def advice(declaration: Declaration, ranks: tuple[RankReplay, ...], rate: float) -> tuple[str, ...]:
    """Suggest fixes, the likeliest first."""
    train, found = declaration.train, [rank.finding for rank in ranks if rank.finding]
    ways = []
    for finding in found:
        if finding.column and not abs(float(finding.largest_input)) < LARGE_INPUT:
            ways.append(
                f"bound the column {finding.column} (min and max in data.columns, or"
                f" normalize.clip) or filter rows such as {finding.row_ids[0]}"
            )
        if finding.direction == "backward" and finding.kind != "Parameter":
            ways.append(
                f"what follows {finding.module or 'the network'} has no finite slope there: a root,"
                " logarithm, norm or division at zero needs an epsilon"
            )
    ways += [f"see whether train.precision: fp32 ends it: {train.precision} has fewer bits"] * (
        train.precision != "fp32"
    )
    ways += [
        f"lower optimizer.lr (the rate was {rate:.3g}) or warm up longer"
        + ("" if train.clip == "norm" else "; set train.clip: norm")
    ]
    return tuple(dict.fromkeys(ways))
