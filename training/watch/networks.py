"""Networks that mix the rows of a batch or let a sequence see its future, tested on a copy."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from training.watch.events import Call, Listener
from training.watch.loaders import Loaders
from training.watch.record import Watch

LOOKS = 3  # tested calls per network
FEWEST = 4  # least number of rows and places
SAME = 1e-4  # tolerance relative to the largest score
MOST = 4_000_000  # most input values
FOLLOWING = 0.7  # share of labels equal to the next token
TWICE, IDENTICAL_AFTER = 2, 3  # losses; steps

# B rows, T places of a sequence


class Networks(Listener):
    """Listener for losses, whose labels show which axis contains the rows."""

    def __init__(self, watch: Watch, loaders: Loaders) -> None:
        self.watch, self.loaders = watch, loaders
        self.looks: Counter[int] = Counter()
        self.first: dict[int, list[float]] = {}  # first inputs, by network
        self.crossed: Counter[int] = Counter()
        self.steps: Counter[int] = Counter()

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Test the network of a loss."""
        key = id(call.module)
        if not call.grad or not call.inputs:
            return
        self.crossed[key] += crossed(call, scores, target)
        if self.crossed[key] == TWICE:
            told = f"scores {list(call.outputs[0].shape)} of {type(call.module).__name__} are"
            told = f"{told} flattened place by place, and the labels row by row: they are of other"
            self.watch.tell("BH411", f"{told} places of other rows")
        if self.looks[key] >= LOOKS or sum(t.numel() for t in call.inputs) > MOST:
            return
        given = call.inputs[0]
        if given.layout is not torch.strided:
            return
        shown = given.detach().flatten()[:16].tolist()
        if self.first.setdefault(key, shown) == shown:
            # equal rows at each step are a graph or full batches, whose rows may belong together
            return
        self.looks[key] += 1
        if target.ndim and (given.is_floating_point() or target.numel() == len(given)):
            self._rows(call, target)
        for t in call.inputs:
            if t.dtype == torch.int64 and t.ndim == 2:
                self._tokens(call, target, t)

    def _rows(self, call: Call, target: Tensor) -> None:
        """Check that other values in the first row do not change the scores of other rows."""
        n = call.rows
        if n < FEWEST or any(not t.ndim or len(t) != n for t in (*call.inputs, target)):
            return
        if any(t.ndim > 2 and t.shape[1] == n for t in call.inputs):
            return  # rows may be on the second axis
        network = twin(call.module)
        before, again = scores_of(network, call), scores_of(network, call)
        after = scores_of(network, call, _other_first)
        if before is None or again is None or after is None or len(before) != n:
            return
        if not before.shape == again.shape == after.shape or before.shape == (n, n):
            return  # scores of each row against all others are on purpose
        if not torch.allclose(again, before, rtol=SAME, atol=SAME, equal_nan=True):
            if self.loaders.shuffles:
                told = f"{type(call.module).__name__} gives the same rows other scores when it is"
                told = f"{told} called again, in eval mode: it keeps something of earlier batches"
                self.watch.tell("BH826", told, call.place)
        elif float((after - before)[1:].abs().max()) > SAME * float(before.abs().max()):
            told = f"in {type(call.module).__name__} other values in one row move the scores of"
            self.watch.tell("BH801", f"{told} others of its batch, in eval mode too", call.place)

    def _tokens(self, call: Call, target: Tensor, tokens: Tensor) -> None:
        """Check that labels are the next tokens [B, T] and that scores do not depend on later
        tokens.
        """
        n, length = tokens.shape
        if length < FEWEST or target.dtype != torch.int64 or target.numel() != n * length:
            return
        labels = target.reshape(n, length)
        shown = labels >= 0
        # a repeated token does not show which of the two is the label
        telling = shown[:, :-1] & (tokens[:, :-1] != tokens[:, 1:])
        if not bool(telling.any()):
            return
        following = float((labels[:, :-1] == tokens[:, 1:])[telling].float().mean()) > FOLLOWING
        own = bool((labels == tokens)[shown].all())
        earlier = bool((labels[:, 1:] == tokens[:, :-1])[shown[:, 1:]].all())
        if not (following or own or earlier):
            return
        moved, name = _moved_by_last(call, tokens), type(call.module).__name__
        if moved is None:
            return
        sees_future = bool(moved[:-1].any())
        if following and sees_future:
            told = "learns the next token, and its scores depend on tokens that come after"
            self.watch.tell("BH802", f"{name} {told}", call.place)
        elif following or sees_future:
            return
        elif earlier or (own and bool(moved[-1])):  # otherwise the network shifts them itself
            told = "very tokens that" if own else "tokens before those that"
            told = f"the labels are the {told} {name} is given: they are not the next ones"
            self.watch.tell("BH817", told, call.place)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Report layers whose units are identical and stay so."""
        self.steps[id(optimizer)] += 1
        if self.steps[id(optimizer)] != IDENTICAL_AFTER:
            return
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.ndim < 2 or len(p) < 3 or p.grad is None or not p.grad.any():
                continue
            units = p.detach().flatten(1)
            if units.shape[1] > 1 and units.any() and bool((units == units[:1]).all()):
                told = f"all {len(p)} units of a layer with weights {list(p.shape)} are identical"
                self.watch.tell("BH809", f"{told} and stay so: they were made alike")


def crossed(call: Call, scores: Tensor, target: Tensor) -> bool:
    """Check for scores [T, B, C] flattened by place, with labels from the input [B, T] flattened by
    row.
    """
    out = next(iter(call.outputs), None)
    if out is None or out.ndim != 3 or scores.shape != (out[..., 0].numel(), out.shape[2]):
        return False
    places, rows = out.shape[:2]
    if places == rows or target.dtype != torch.int64 or target.numel() != len(scores):
        return False
    labels = target.reshape(rows, places)
    given = any(
        torch.equal(labels, t[:, k : k + places])
        for t in call.inputs
        if t.dtype == torch.int64 and t.ndim == 2 and len(t) == rows
        for k in range(t.shape[1] - places + 1)
    )
    untouched = torch.equal(out.detach().argmax(2).flatten(), scores.detach().argmax(1))
    return given and untouched and bool((labels != labels[:1]).any())


def _moved_by_last(call: Call, tokens: Tensor) -> Tensor | None:
    """Return a mask of places [T] whose scores change with each row's last token, or None if
    unknown.
    """
    n, length = tokens.shape
    network = twin(call.module)
    other = tokens.clone()
    other[:, -1] = torch.where(tokens[:, -1] == tokens[:, 0], tokens.min(), tokens[:, 0])

    def change(t: Tensor) -> Tensor:
        return other if t.shape == tokens.shape and torch.equal(t, tokens) else t

    before, after = scores_of(network, call), scores_of(network, call, change)
    if before is None or after is None or before.shape != after.shape:
        return None
    if before.ndim > 2 and n != length and before.shape[:2] == (length, n):
        before, after = before.transpose(0, 1), after.transpose(0, 1)
    if before.numel() % (n * length):
        return None
    # a place that attends to none gives nan
    change_at = (after - before).nan_to_num(0.0).abs().reshape(n, length, -1)
    return change_at.amax(2).amax(0) > SAME * float(before.nan_to_num(0.0).abs().max())


def _other_first(t: Tensor) -> Tensor:
    """Change the first row; for integers, replace it with the last row."""
    changed = t.clone()
    changed[0] = t[0] * -1.5 + 1.0 if t.is_floating_point() else t[-1]
    return changed


def twin(module: nn.Module) -> nn.Module | None:
    """Return a copy in eval mode, or None if it cannot be copied."""
    try:
        return copy.deepcopy(module).eval()
    except Exception:
        return None


def scores_of(
    network: nn.Module | None, call: Call, change: Callable[[Tensor], Tensor] = torch.clone
) -> Tensor | None:
    """Return the first floating-point output of a copy for the changed inputs of a call. Return
    None if the copy cannot run.
    """
    if network is None:
        return None
    fast = torch.backends.mha.get_fastpath_enabled()
    # the fast path gives nan where attention has no key, and cuts off padding
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            changed = {id(t): change(t.detach()).clone() for t in call.inputs}
            args, kwargs = tree_map(lambda v: changed.get(id(v), v), call.given)
            results = tree_leaves(network(*args, **kwargs))
    except Exception:
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    found = (t for t in results if isinstance(t, Tensor) and t.is_floating_point() and t.ndim)
    return next((t.double() for t in found), None)
