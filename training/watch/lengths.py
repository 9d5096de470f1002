"""Scores of a sequence that depend on how much padding stands behind it: tried on a copy, with the
padding cut off.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from training.watch.events import Call, Listener, Place
from training.watch.networks import scores_of, twin
from training.watch.record import Watch

LOOKED_AT = (2, 12, 30)  # calls of a network with labels
FEWEST_ROWS, FEWEST_KINDS = 8, 4  # with padding; values of tokens beside it
SHARE = 0.15  # of the places, that are padding in the rows looked at
FEW = 0.25  # of rows, in which the value of the padding stands among others
MOVED, ATTENDED = 0.4, 1e-3  # standard deviations of the scores: of rows, of each place
MOST = 1_000_000  # input values

OF_SETS = ("set", "basket", "bag")  # parts of the names of classes

# B rows, T places of a sequence


class Lengths(Listener):
    """Listens to losses with one label a row, or one a place."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.calls: Counter[int] = Counter()
        # by network and by whether it scores each place
        self.moved: dict[tuple[int, bool], tuple[Place, list[float]]] = {}

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Try the network of a loss with its padding cut off."""
        if not call.grad or not call.outputs:
            return
        self.calls[id(call.module)] += 1
        looks = self.calls[id(call.module)] in LOOKED_AT
        if not looks or sum(t.numel() for t in call.inputs) > MOST:
            return
        n, out = call.rows, call.outputs[0]
        placed = out.ndim == 3 and len(out) == n and target.numel() == n * out.shape[1]
        tokens = next((t for t in call.inputs if t.dtype == torch.int64 and t.ndim == 2), None)
        if tokens is None or len(tokens) != n or not (placed or target.shape == (n,)):
            return
        kinds = " ".join(type(m).__name__.lower() for m in call.module.modules())
        attends = "multiheadattention" in kinds and not any(part in kinds for part in OF_SETS)
        moved = self._try(call, tokens, placed) if attends or not placed else None
        if moved is not None:
            self.moved.setdefault((id(call.module), placed), (call.place, []))[1].append(moved)

    def _try(self, call: Call, tokens: Tensor, placed: bool) -> float | None:
        """By how many of their standard deviations scores of rows with padding move without it."""
        lengths, width, n = lengths_of(tokens), tokens.shape[1], len(tokens)
        network = twin(call.module) if lengths is not None else None
        if lengths is None or network is None:
            return None
        most = min(width * (1 - SHARE), float(lengths.median()))
        rows = (lengths <= most).nonzero().squeeze(1)
        longest = int(lengths[rows].max()) if len(rows) else 0
        if len(rows) < FEWEST_ROWS or not longest:
            return None

        def pick(t: Tensor) -> Tensor:
            return t[rows] if t.ndim and len(t) == n else t

        def short(t: Tensor) -> Tensor:
            # a decoder's own tokens may be as many by chance
            cut = t.ndim > 1 and t.shape[1] == width and (not placed or t.equal(tokens))
            return pick(t)[:, :longest] if cut else pick(t)

        looked_up: list[int] = []  # so many tokens by each table
        for table in (m for m in network.modules() if isinstance(m, nn.Embedding)):
            table.register_forward_pre_hook(lambda _, given: looked_up.append(given[0].numel()))
        whole = scores_of(network, call, pick)
        if len(rows) * width not in looked_up:
            return None  # codes of several columns go to a table each
        cut = scores_of(network, call, short)
        if whole is None or cut is None or len(whole) != len(rows) or len(cut) != len(rows):
            return None
        if not placed:
            whole, cut = whole.reshape(len(rows), 1, -1), cut.reshape(len(rows), 1, -1)
        elif cut.shape != whole.shape:  # of the tokens themselves
            places = int(lengths[rows].min())
            whole, cut = whole[:, :places], cut[:, :places]
        if whole.shape != cut.shape:
            return None
        spread = float(whole.flatten(0, 1).std(0).mean())
        # attention that is left nothing gives no number
        moved = float((whole - cut).abs().nan_to_num(spread).mean())
        return moved / spread if spread > 0 else None

    def ended(self) -> None:
        """What all looks but the first show: weights of the start may give nearly the same score to
        every row.
        """
        for (_, placed), (place, moved) in self.moved.items():
            if len(moved) > 1 and min(moved[1:]) > (ATTENDED if placed else MOVED):
                told = (
                    "without the padding behind the tokens the same sequences get other scores, by"
                    f" {moved[-1]:.1g} of their standard deviation: padding counts"
                )
                self.watch.tell("BH860", told, place)


def lengths_of(tokens: Tensor) -> Tensor | None:
    """Places of each row [B] before the one value that fills the ends of rows; None where no value
    does.

    >>> lengths_of(torch.tensor([[4, 5, 0, 0], [3, 7, 6, 0], [1, 2, 3, 4]])).tolist()
    [2, 3, 4]
    """
    values, counts = tokens[:, -1].unique(return_counts=True)
    is_pad = tokens == values[counts.argmax()]
    ends = is_pad.flip(1).long().cumprod(1).sum(1)  # how many of it stand at the end
    inside = is_pad.sum(1) - ends
    often_inside = float((inside > 0).float().mean()) > FEW
    kinds = len(tokens[~is_pad].unique())
    if often_inside or bool((ends == ends[0]).all()) or kinds < min(FEWEST_KINDS, tokens.numel()):
        return None
    # a row in which it stands among others is not told to have padding
    return tokens.shape[1] - ends.masked_fill(inside > 0, 0)
