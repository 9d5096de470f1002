"""Sequence scores that depend on the amount of padding, tested on a copy without it."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from training.watch.events import Call, Listener, Place
from training.watch.networks import scores_of, twin
from training.watch.record import Watch

LOOKED_AT = (2, 12, 30)  # numbers of the network calls that are tested
FEWEST_ROWS, FEWEST_KINDS = 8, 4  # least rows with padding; least distinct other tokens
SHARE = 0.15  # share of padding in the tested rows
FEW = 0.25  # share of rows that contain the padding value between other tokens
MOVED, ATTENDED = 0.4, 1e-3  # change of scores in standard deviations: per row, per place
MOST = 1_000_000  # most input values

OF_SETS = ("set", "basket", "bag")  # parts of class names

# B rows, T places of a sequence


class Lengths(Listener):
    """Listener for losses with one label per row or per place."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.calls: Counter[int] = Counter()
        # key: id of the network, and whether it scores each place
        self.moved: dict[tuple[int, bool], tuple[Place, list[float]]] = {}

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Test the network of a loss with its padding cut off."""
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
        """Return the change of scores without padding, in standard deviations."""
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
            # the tokens of a decoder may have the same width by chance
            cut = t.ndim > 1 and t.shape[1] == width and (not placed or t.equal(tokens))
            return pick(t)[:, :longest] if cut else pick(t)

        looked_up: list[int] = []  # number of tokens in each lookup
        for table in (m for m in network.modules() if isinstance(m, nn.Embedding)):
            table.register_forward_pre_hook(lambda _, given: looked_up.append(given[0].numel()))
        whole = scores_of(network, call, pick)
        if len(rows) * width not in looked_up:
            return None  # codes of several columns use one table each
        cut = scores_of(network, call, short)
        if whole is None or cut is None or len(whole) != len(rows) or len(cut) != len(rows):
            return None
        if not placed:
            whole, cut = whole.reshape(len(rows), 1, -1), cut.reshape(len(rows), 1, -1)
        elif cut.shape != whole.shape:  # one score per token
            places = int(lengths[rows].min())
            whole, cut = whole[:, :places], cut[:, :places]
        if whole.shape != cut.shape:
            return None
        spread = float(whole.flatten(0, 1).std(0).mean())
        # attention without any key gives nan
        moved = float((whole - cut).abs().nan_to_num(spread).mean())
        return moved / spread if spread > 0 else None

    def ended(self) -> None:
        """Report scores that depend on padding in all tests but the first. With initial weights,
        every row may get nearly the same score.
        """
        for (_, placed), (place, moved) in self.moved.items():
            if len(moved) > 1 and min(moved[1:]) > (ATTENDED if placed else MOVED):
                told = (
                    "without the padding behind the tokens the same sequences get other scores, by"
                    f" {moved[-1]:.1g} of their standard deviation: padding counts"
                )
                self.watch.tell("BH860", told, place)


def lengths_of(tokens: Tensor) -> Tensor | None:
    """Return the length of each row [B] without padding, or None without padding. Padding is the
    one value that fills the ends of rows.

    >>> lengths_of(torch.tensor([[4, 5, 0, 0], [3, 7, 6, 0], [1, 2, 3, 4]])).tolist()
    [2, 3, 4]
    """
    values, counts = tokens[:, -1].unique(return_counts=True)
    is_pad = tokens == values[counts.argmax()]
    ends = is_pad.flip(1).long().cumprod(1).sum(1)  # padding at the end of each row
    inside = is_pad.sum(1) - ends
    often_inside = float((inside > 0).float().mean()) > FEW
    kinds = len(tokens[~is_pad].unique())
    if often_inside or bool((ends == ends[0]).all()) or kinds < min(FEWEST_KINDS, tokens.numel()):
        return None
    # a row that contains the value between others counts as unpadded
    return tokens.shape[1] - ends.masked_fill(inside > 0, 0)
