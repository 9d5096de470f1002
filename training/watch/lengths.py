"""Scores of a sequence that depend on how much padding stands behind it: tried on a copy, with the
padding cut off.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor, nn

from training.watch.forwards import Call, twin
from training.watch.networks import scores_of
from training.watch.record import Listener, Place, Watch

LOOKED_AT = (2, 12, 30)  # calls of a network with labels
FEWEST_ROWS, FEWEST_KINDS = 8, 4  # with padding; values of tokens beside it
SHARE = 0.15  # of the places, that are padding in the rows looked at
FEW = 0.25  # of rows, in which the value of the padding stands among others
MOVED = 0.4  # standard deviations of the scores, in the mean
ATTENDED = 1e-3  # the same, where attention should leave the padding out
MOST = 1_000_000  # input values

ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
# parts of the names of classes
ATTENDS, OF_SETS = ("transformer", "selfattention", "multihead"), ("set", "basket", "bag")

# B rows, T places of a sequence


def attends(network: nn.Module) -> bool:
    """Whether it is built of attention between tokens, and not called after sets of them."""
    kinds = [type(m).__name__.lower() for m in network.modules()]
    attention = any(isinstance(m, ATTENTION) for m in network.modules()) or any(
        part in kind for kind in kinds for part in ATTENDS
    )
    return attention and not any(part in kind for kind in kinds for part in OF_SETS)


class Lengths(Listener):
    """Listens to losses with one label a row, or one a place."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.calls: dict[int, int] = {}
        self.moved: dict[int, tuple[Place, list[float]]] = {}
        # places of float inputs: where batches have other numbers of them, the last ones fill up
        self.widths: dict[int, set[int]] = {}
        # as `moved`, of networks that score each place
        self.sequences: dict[int, tuple[Place, list[float]]] = {}

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Try the network of a loss with its padding cut off."""
        key = id(call.module)
        if not call.grad or not call.inputs:
            return
        self.calls[key] = self.calls.get(key, 0) + 1
        out, rows = (
            next(iter(call.outputs), None),
            (len(call.inputs[0]) if call.inputs[0].ndim else 0),
        )
        if (
            target.ndim == 1
            and out is not None
            and out.ndim == 3
            and len(out) == rows
            and target.numel() == rows * out.shape[1]
        ):
            target = target.reshape(rows, -1)  # of all places in a row
        if target.ndim > 1:
            self._of_sequences(call, target)
            return
        tokens = next(
            (
                t
                for t in call.inputs
                if t.dtype == torch.int64 and t.ndim == 2 and len(t) == len(target)
            ),
            None,
        )
        series = (
            next(
                (
                    t
                    for t in call.inputs
                    if t.is_floating_point() and t.ndim == 3 and len(t) == len(target)
                ),
                None,
            )
            if tokens is None
            else None
        )
        if series is not None:
            self.widths.setdefault(key, set()).add(series.shape[1])
        tokens = series if series is not None else tokens
        if (
            self.calls[key] not in LOOKED_AT
            or tokens is None
            or sum(t.numel() for t in call.inputs) > MOST
        ):
            return
        lengths = (
            lengths_of(tokens)
            if series is None
            else _steps_of(series)
            if len(self.widths[key]) > 1
            else None
        )
        if (
            lengths is None
            or (network := twin(call.module)) is None
            or (series is None and not _looks_up_sequences(network, call, tokens))
        ):
            return
        n, width = tokens.shape[:2]
        rows = (lengths <= min(width * (1 - SHARE), float(lengths.median()))).nonzero().squeeze(1)
        longest = int(lengths[rows].max()) if len(rows) else 0
        if len(rows) < FEWEST_ROWS or not longest:
            return
        whole = scores_of(network, call, lambda t: t[rows] if t.ndim and len(t) == n else t)
        short = scores_of(
            network, call, lambda t: _cut(t[rows], longest, width) if t.ndim and len(t) == n else t
        )
        if (
            short is None
            and series is None
            and _padding_as_another(network, tokens, int(tokens[lengths.argmin(), -1]))
        ):  # it takes that many places alone
            short = scores_of(network, call, lambda t: t[rows] if t.ndim and len(t) == n else t)
        if (
            whole is None
            or short is None
            or whole.shape != short.shape
            or whole.ndim > 2
            or len(whole) != len(rows)
        ):
            return
        spread = max(float(found.reshape(len(rows), -1).std(0).mean()) for found in (whole, short))
        if spread > 0:
            self.moved.setdefault(key, (call.place, []))[1].append(
                float((whole - short).abs().mean()) / spread
            )

    def _of_sequences(self, call: Call, target: Tensor) -> None:
        """Whether scores [B, T, classes] of a network that attends depend on what stands behind its
        first input, which comes without some of its padding.
        """
        tokens = call.inputs[0]
        if (
            self.calls[id(call.module)] not in LOOKED_AT
            or tokens.dtype != torch.int64
            or tokens.ndim != 2
            or target.ndim != 2
            or len(target) != len(tokens)
        ):
            return
        lengths = (
            lengths_of(tokens)
            if sum(t.numel() for t in call.inputs) <= MOST and attends(call.module)
            else None
        )
        if (
            lengths is None
            or (network := twin(call.module)) is None
            or not _looks_up_sequences(network, call, tokens)
        ):
            return
        rows = (lengths <= min(tokens.shape[1] - 1, float(lengths.median()))).nonzero().squeeze(1)
        longest = int(lengths[rows].max()) if len(rows) else 0
        if len(rows) < FEWEST_ROWS or not longest:
            return

        def short(t: Tensor) -> Tensor:
            part = t[rows] if t.ndim and len(t) == len(tokens) else t
            return part[:, :longest] if t.shape == tokens.shape and torch.equal(t, tokens) else part

        whole, cut = (
            scores_of(network, call, lambda t: t[rows] if t.ndim and len(t) == len(tokens) else t),
            scores_of(network, call, short),
        )
        if (
            whole is None
            or cut is None
            or whole.ndim != 3
            or whole.shape[::2] != cut.shape[::2]
            or len(whole) != len(rows)
        ):
            return
        places = min(longest, cut.shape[1]) if cut.shape != whole.shape else whole.shape[1]
        whole, cut = whole[:, :places], cut[:, :places]
        shown = torch.arange(places).expand(len(rows), places) < (
            lengths[rows, None].cpu() if cut.shape[1] < target.shape[1] else places
        )
        spread = float(whole.reshape(-1, whole.shape[2]).std(0).mean())
        # attention that is left nothing gives no number
        moved = (whole - cut).abs().amax(2).cpu()[shown].nan_to_num(spread)
        if spread > 0:
            self.sequences.setdefault(id(call.module), (call.place, []))[1].append(
                float(moved.mean()) / spread
            )

    def ended(self) -> None:
        """What all looks but the first show: weights of the start may give nearly the same score to
        every row.
        """
        for place, moved in self.sequences.values():
            if len(moved) > 1 and min(moved[1:]) > ATTENDED:
                told = (
                    "without the padding behind its tokens the same rows get other scores, by"
                    f" {moved[-1]:.1g} of their standard deviation: padding is attended to"
                )
                self.watch.tell("BH860", told, place)
        for place, moved in self.moved.values():
            if len(moved) > 1 and statistics.mean(moved[1:]) > MOVED:
                told = (
                    "without the padding behind the tokens the same sequences get other scores, by"
                    f" {moved[-1]:.1g} of their standard deviation: padding counts"
                )
                self.watch.tell("BH860", told, place)


def _looks_up_sequences(network: nn.Module, call: Call, tokens: Tensor) -> bool:
    """Whether one table of the network is given all places of a row: codes of several columns go to
    a table each.
    """
    whole: list[bool] = []
    tables = [m for m in network.modules() if isinstance(m, nn.Embedding)]
    handles = [
        m.register_forward_pre_hook(
            lambda _, given: whole.append(bool(given) and given[0].numel() == tokens.numel())
        )
        for m in tables
    ]
    scores_of(network, call, lambda t: t)
    for handle in handles:
        handle.remove()
    return any(whole)


def lengths_of(tokens: Tensor) -> Tensor | None:
    """Places of each row [B] before the one value that fills the ends of rows; None where no value
    does.

    >>> lengths_of(torch.tensor([[4, 5, 0, 0], [3, 7, 6, 0], [1, 2, 3, 4]])).tolist()
    [2, 3, 4]
    """
    last = tokens[:, -1]
    values, counts = last.unique(return_counts=True)
    pad = values[counts.argmax()]
    is_pad = tokens == pad
    ends = is_pad.flip(1).long().cumprod(1).sum(1)  # how many of it stand at the end
    inside = is_pad.sum(1) - ends
    if (
        float((inside > 0).float().mean()) > FEW
        or bool((ends == ends[0]).all())
        or len(tokens[~is_pad].unique()) < min(FEWEST_KINDS, tokens.numel())
    ):
        return None
    # a row in which it stands among others is not told to have padding
    return tokens.shape[1] - ends.masked_fill(inside > 0, 0)


def _steps_of(series: Tensor) -> Tensor | None:
    """Places of each row [B] of series [B, T, F] before the zeros that fill its end; None where the
    longest row has some, or rows are zero in between.
    """
    empty = (series == 0).all(2)
    ends = empty.flip(1).long().cumprod(1).sum(1)
    inside = empty.sum(1) - ends
    return (
        None
        if int(ends.min()) or float((inside > 0).float().mean()) > FEW
        else series.shape[1] - ends
    )


def _padding_as_another(network: nn.Module, tokens: Tensor, pad: int) -> bool:
    """Give the padding the vector of another token, in every table of the network with a row for
    each; whether there is one.
    """
    other, rows = int(tokens[tokens != pad].mode().values), int(tokens.max()) + 1
    tables = [
        m for m in network.modules() if isinstance(m, nn.Embedding) and m.num_embeddings >= rows
    ]
    with torch.no_grad():
        for table in tables:
            table.weight[pad] = table.weight[other]
    return bool(tables)


def _cut(values: Tensor, longest: int, width: int) -> Tensor:
    """Without what stands behind the longest row, where the second axis is that of places."""
    return values[:, :longest] if values.ndim > 1 and values.shape[1] == width else values
