"""Whether rows of a batch mix in a network, and whether a sequence sees its future: tried on a
copy, beside the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training.watch.forwards import Call, twin
from training.watch.loaders import Loaders
from training.watch.record import Listener, Place, Watch

LOOKS = 3  # calls of a network on which it is tried
FEWEST = 4  # rows
SAME, SAME_EXACTLY = 1e-4, 1e-9  # of the largest score; in double precision
PLACED = 0.02  # of the spread of the scores
TWICE = 2
MOST = 4_000_000  # input values
IDENTICAL_AFTER = 3  # steps


@dataclass(eq=False)
class Far:
    """How far the labels of a language model are ahead."""

    call: Call
    place: Place
    next_ones: bool = False
    two_ahead: int = 0


class Networks(Listener):
    """Listens to losses, whose labels tell which axis holds the rows."""

    def __init__(self, watch: Watch, loaders: Loaders) -> None:
        self.watch, self.loaders = watch, loaders
        self.looks: dict[int, int] = {}
        self.seen: dict[int, bytes] = {}
        self.last: Call | None = None
        self.firsts: dict[int, tuple[float, ...]] = {}
        self.tries: dict[int, int] = {}
        self.varies: set[int] = set()
        self.shifted: dict[int, int] = {}
        self.far: dict[int, Far] = {}
        self.crossed: dict[int, int] = {}

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Try the network of a loss."""
        key = id(call.module)
        if call.grad and call.inputs and crossed(call, scores, target):
            self.crossed[key] = self.crossed.get(key, 0) + 1
            if self.crossed[key] == TWICE:
                shape = list(call.outputs[0].shape)
                told = (
                    f"scores {shape} of {type(call.module).__name__} are flattened place by place,"
                    " and the labels row by row: they are of other places of other rows"
                )
                self.watch.tell("BH411", told, self.watch.here())
        if (
            not call.grad
            or self.looks.get(key, 0) >= LOOKS
            or not call.inputs
            or sum(t.numel() for t in call.inputs) > MOST
        ):
            return
        first = call.inputs[0]
        shown = bytes(first.detach().reshape(-1)[:16].float().cpu().numpy().tobytes()) + bytes(
            str(list(first.shape)), "ascii"
        )
        if self.seen.setdefault(key, shown) == shown:
            # the same rows at each step: a graph, or full batches, whose rows may belong together
            return
        self.looks[key] = self.looks.get(key, 0) + 1
        if first.is_floating_point() or (target.ndim < 2 and target.numel() == len(first)):
            self._rows(call, target)
            self._places(call, target)
        if first.dtype == torch.int64 and first.ndim == 2:
            self._tokens(call, target, first)
        for other in call.inputs[1:]:  # of a decoder: what it has said so far
            if (
                other.dtype == torch.int64
                and other.ndim == 2
                and first.ndim > 1
                and len(other) == len(first)
            ):
                self._tokens(call, target, other)

    def forwarded(self, call: Call) -> None:
        """A network with parts ran, by which something may be learned."""
        if call.grad and next(call.module.children(), None) is not None:
            self.last = call

    def backed(self, *_: object) -> None:
        """Try the network of a loss that is given no labels, as one of pairs: rows that are drawn
        or looked up by their numbers stand for themselves.
        """
        call, self.last = self.last, None
        if call is not None:
            self._paired(call)

    def _paired(self, call: Call) -> None:
        if (
            not call.inputs
            or id(call.module) in self.looks
            or sum(t.numel() for t in call.inputs) > MOST
        ):
            return
        key, first = id(call.module), call.inputs[0]
        shown = tuple(first.detach().reshape(-1)[:16].tolist())
        drawn = self.loaders.shuffles or first.dtype == torch.int64
        if (
            self.firsts.setdefault(key, shown) == shown
            or self.tries.get(key, 0) >= LOOKS
            or not drawn
        ):
            return
        if any(t.ndim > 1 and t.shape[1] == len(t) for t in call.inputs):
            return  # of each row with all others
        self.tries[key] = self.tries.get(key, 0) + 1
        self._rows(call, None)

    # ----------------------------------------------------------------------------------------- rows

    def _rows(self, call: Call, target: Tensor | None) -> None:
        n = call.rows
        if (
            n < FEWEST
            or any(t.ndim == 0 or len(t) != n for t in call.inputs)
            or (target is not None and (not target.ndim or len(target) != n))
        ):
            return
        network = twin(call.module)
        if network is None:
            return
        before, after, small = self._exactly(network, call, _other_first)
        if (
            before is None
            or after is None
            or not before.ndim
            or len(before) != n
            or before.shape != after.shape
        ):
            return
        square = before.ndim == 2 and before.shape[1] == n
        if square and not _as_wide_without_a_row(network, call, n):
            return  # each row against all others of its batch, as it is meant
        again = scores_of(network, call, lambda t: t) if small == SAME else before
        if (
            again is None
            or again.shape != before.shape
            or not torch.allclose(again, before, rtol=SAME, atol=SAME, equal_nan=True)
        ):
            if self.loaders.shuffles:
                told = (
                    "gives the same rows other scores when it is called again, in eval mode and"
                    " with the same seed: it keeps something of earlier batches"
                )
                self.watch.tell("BH826", f"{type(call.module).__name__} {told}", call.place)
            return
        if (
            call.inputs[0].ndim > 2
            and call.inputs[0].shape[1] == n
            and _rows_in_columns(network, call, before)
        ):
            return
        if float((after - before)[1:].abs().max()) > small * float(before.abs().max()):
            self.watch.tell(
                "BH801",
                f"in {type(call.module).__name__} other values in one row move the scores of other"
                " rows of its batch, in eval mode too",
                call.place,
            )

    # --------------------------------------------------------------------------------------- tokens

    def _tokens(self, call: Call, target: Tensor, tokens: Tensor) -> None:
        """Which tokens the labels are, and whether scores at a place depend on tokens after it."""
        n, length = tokens.shape
        if (
            length < FEWEST
            or n < 1
            or target.dtype != torch.int64
            or target.numel() not in (n * length, n * (length - 1))
        ):
            return
        labels = target.reshape(n, -1)
        shown = labels >= 0
        self._ahead(call, tokens, labels, shown)
        if target.numel() != n * length:
            return
        network = twin(call.module)
        if network is None:
            return
        before, after, small = self._moved(network, call, tokens)
        if (
            before is None
            or after is None
            or before.shape != after.shape
            or before.numel() % (n * length)
        ):
            return
        turned = before.ndim > 2 and n != length and before.shape[:2] == (length, n)
        parts = [
            (s.transpose(0, 1) if turned else s).reshape(n, length, -1) for s in (before, after)
        ]
        # a place that attends to none has no number
        change = (parts[1] - parts[0]).nan_to_num(0.0).abs()
        moved, own, size = (
            change[:, :-1].max(),
            change[:, -1].max(),
            parts[0].nan_to_num(0.0).abs().max(),
        )
        ahead, own = (float(m / size.clamp(min=1e-12)) > small for m in (moved, own))
        following = bool(
            (
                (labels[:, :-1] == tokens[:, 1:])
                | (~shown | at_its_end(tokens))[:, 1:]
                | ~shown[:, :-1]
            ).all()
        ) and bool(shown[:, :-1].any())
        if following:
            self._places(call, target, certain=True)
        if following and ahead:
            self.watch.tell(
                "BH802",
                f"{type(call.module).__name__} learns the next token, and its scores depend on"
                " tokens that come after",
                call.place,
            )
        elif (
            not ahead and own and bool((labels == tokens)[shown].all()) and not following
        ):  # where none moves the network shifts them itself
            self.watch.tell(
                "BH817",
                f"the labels are the very tokens that {type(call.module).__name__} is given: they"
                " are not shifted",
                call.place,
            )
        elif (
            not ahead
            and bool((labels[:, 1:] == tokens[:, :-1])[shown[:, 1:]].all())
            and not following
        ):
            self.watch.tell(
                "BH817",
                f"the labels are the tokens before those that {type(call.module).__name__} is"
                " given: they are shifted the wrong way",
                call.place,
            )

    def _moved(
        self, network: nn.Module, call: Call, tokens: Tensor
    ) -> tuple[Tensor | None, Tensor | None, float]:
        """Scores before and after another last token, and from which share on they differ."""

        def other(t: Tensor) -> Tensor:
            return _other_last(t) if t.shape == tokens.shape and torch.equal(t, tokens) else t

        return self._exactly(network, call, other)

    def _exactly(
        self, network: nn.Module, call: Call, change: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor | None, Tensor | None, float]:
        """Scores before and after a change of the inputs, and from which share on they differ: in
        double precision, where the network bears it, noise is 0.
        """
        if all(
            t.dtype == torch.float32
            for t in (*network.parameters(), *network.buffers(), *call.inputs)
            if t.is_floating_point()
        ):
            try:
                exact = scores_of(network.double(), call, lambda t: t)
                if exact is not None and exact.numel() and self.exact(network, call):
                    return exact, scores_of(network, call, change), SAME_EXACTLY
            finally:
                network.float()
        return scores_of(network, call, lambda t: t), scores_of(network, call, change), SAME

    def exact(self, network: nn.Module, call: Call) -> bool:
        """Whether it gives the same scores twice."""
        a, b = scores_of(network, call, lambda t: t), scores_of(network, call, lambda t: t)
        return a is not None and b is not None and torch.equal(a, b)

    def _ahead(self, call: Call, tokens: Tensor, labels: Tensor, shown: Tensor) -> None:
        """Labels that are the tokens after the next ones."""
        places = labels.shape[1]
        rest = tokens.shape[1] - places  # 1 where the last scores are cut off
        next_ones = bool(
            (labels[:, : tokens.shape[1] - 1] == tokens[:, 1 : 1 + places])[
                shown[:, : tokens.shape[1] - 1]
            ].all()
        )
        beyond = labels[:, : tokens.shape[1] - 2] == tokens[:, 2 : 2 + places]
        two_ahead = (
            bool(beyond[shown[:, : beyond.shape[1]]].all()) and beyond.shape[1] > FEWEST - rest
        )
        known = self.far.setdefault(id(call.module), Far(call, call.place))
        known.next_ones |= next_ones
        known.two_ahead += two_ahead and not next_ones

    def ended(self) -> None:
        """Networks that never learned the next token, and the one after it instead."""
        for far in self.far.values():
            if far.two_ahead >= TWICE and not far.next_ones:
                told = (
                    "the labels are the tokens two places after those that"
                    f" {type(far.call.module).__name__} is given: they are shifted twice"
                )
                self.watch.tell("BH817", told, far.place)

    def _places(self, call: Call, target: Tensor, certain: bool = False) -> None:
        """Whether scores of a row depend on its place in the batch: the rows in another order, and
        what comes out in that order.

        `certain` where rows are known to be the first axis.
        """
        n, first = len(call.inputs[0]), call.inputs[0]
        if (
            n < FEWEST
            or not target.ndim
            or any(t.ndim == 0 or len(t) != n for t in call.inputs)
            or _by_row(call.given, n)
        ):
            return
        if not certain and (
            len(target) != n
            or (target.ndim > 1 and first.ndim > 2)
            or any(t.ndim > 1 and t.shape[1] == n for t in call.inputs)
        ):
            return
        network = twin(call.module)
        if network is None:
            return
        before, again, turned = (
            scores_of(network, call, change, seed)
            for change, seed in ((_same, 0), (_same, 1), (_turned, 0))
        )
        if (
            before is None
            or again is None
            or turned is None
            or not before.ndim
            or len(before) != n
            or not before.shape == turned.shape == again.shape
        ):
            return
        if (before.ndim == 2 and before.shape[1] == n) or not torch.equal(before, again):
            return  # each row against all others, or numbers drawn at random for each place
        if float((turned.flip(0) - before).abs().max()) > PLACED * float(
            (before - before.mean(0)).abs().max().clamp(min=1e-12)
        ):
            told = (
                f"gives rows of {list(call.inputs[0].shape)} other scores when they come in another"
                " order, in eval mode too: scores depend on the place in the batch"
            )
            self.watch.tell("BH801", f"{type(call.module).__name__} {told}", call.place)

    # ---------------------------------------------------------------------------------------- units

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Units of a layer that were made alike, and stay so."""
        steps = self.shifted[id(optimizer)] = self.shifted.get(id(optimizer), 0) + 1
        if steps != IDENTICAL_AFTER:
            return
        alike = [
            p
            for g in optimizer.param_groups
            for p in g["params"]
            if p.ndim >= 2 and len(p) > 2 and p.requires_grad and p.grad is not None
        ]
        tables = {
            id(m.weight)
            for root in self.loaders.forwards.roots
            for m in root.modules()
            if isinstance(m, nn.Embedding)
        }
        for p in alike:
            rows = p.detach().reshape(len(p), -1)
            if (
                rows.shape[1] > 1
                and bool((rows == rows[:1]).all())
                and bool(rows.any())
                and p.grad.any()
            ):
                self.watch.tell(
                    "BH809",
                    f"all {len(p)} units of a layer with weights {list(p.shape)} are identical and"
                    " stay so: they were made alike",
                )
            elif (
                id(p) in tables
                and rows.shape[1] > 1
                and bool((rows == rows[:, :1]).all())
                and bool(rows.any())
            ):
                told = (
                    f"the {rows.shape[1]} numbers of each row of an embedding {list(p.shape)} are"
                    " identical and stay so: it holds one number a row"
                )
                self.watch.tell("BH809", told)


def crossed(call: Call, scores: Tensor, target: Tensor) -> bool:
    """Whether scores [T, B, C] are flattened as they are, and labels that stand in the input [B, T]
    row by row.
    """
    out = next(iter(call.outputs), None)
    if (
        out is None
        or out.ndim != 3
        or scores.ndim != 2
        or target.dtype != torch.int64
        or target.numel() != len(scores)
        or scores.numel() != out.numel()
    ):
        return False
    places, rows = out.shape[:2]
    sequences = [
        t
        for t in call.inputs
        if t.dtype == torch.int64 and t.ndim == 2 and len(t) == rows and t.shape[1] >= places
    ]
    if places == rows or scores.shape[1] != out.shape[2] or not sequences:
        return False
    labels = target.reshape(rows, places)
    given = any(
        torch.equal(labels, t[:, k : k + places])
        for t in sequences
        for k in range(t.shape[1] - places + 1)
    )
    return (
        given
        and bool((labels != labels[:1]).any())
        and torch.equal(out.detach().argmax(2).flatten(), scores.detach().argmax(1))
    )


def at_its_end(tokens: Tensor) -> Tensor:
    """Which places of [B, T] belong to the padding at the end of rows, of which one row at least
    has several.

    >>> at_its_end(torch.tensor([[4, 0, 0], [5, 6, 0], [5, 6, 7]])).long().tolist()
    [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
    """
    ends = (tokens == tokens[:, -1:]).flip(1).long().cumprod(1).flip(1).bool()
    return ends & (tokens == ends_with(tokens))


def ends_with(tokens: Tensor) -> Tensor:
    """The value with which most rows that end in several alike end; -1 where none does."""
    last = tokens[:, -1][(tokens[:, -1] == tokens[:, -2])] if tokens.shape[1] > 1 else tokens[:0, 0]
    return (
        last.mode().values
        if len(last)
        else torch.full((), -1, dtype=tokens.dtype, device=tokens.device)
    )


def rows_first(call: Call) -> bool:
    """Whether rows are the first axis of what a network gives: other values in the first row of its
    inputs move nothing of the others.
    """
    network = twin(call.module)
    before, after = (
        (scores_of(network, call, change) for change in (lambda t: t, _other_first))
        if network is not None
        else (None, None)
    )
    return (
        before is not None
        and after is not None
        and before.shape == after.shape
        and not bool((after - before)[1:].any())
        and bool((after - before)[0].any())
    )


def _as_wide_without_a_row(network: nn.Module, call: Call, rows: int) -> bool:
    """Whether scores have as many columns for one row fewer: they are as many as rows by chance."""
    fewer = scores_of(network, call, lambda t: t[:-1])
    return fewer is not None and fewer.shape == (rows - 1, rows)


def _rows_in_columns(network: nn.Module, call: Call, before: Tensor) -> bool:
    """Whether rows lie along the second axis: neither the first nor the last of them moves the
    scores of another.
    """
    for at, others in ((0, slice(1, None)), (-1, slice(None, -1))):
        after = scores_of(network, call, lambda t, at=at: _other_column(t, at))
        if after is None or after.shape != before.shape:
            return True
        if float((after - before)[others].abs().max()) > SAME * float(before.abs().max()):
            return False
    return True


def scores_of(network: nn.Module, call: Call, change: Any, seed: int = 0) -> Tensor | None:
    """The first floating-point result for changed inputs, in eval mode; None where the copy cannot
    be run so.
    """
    double = any(p.dtype == torch.float64 for p in network.parameters())
    swapped = {id(t): change(_as_wide(t.detach().clone(), double)) for t in call.inputs}
    args, kwargs = (_swap(g, swapped) for g in call.given)
    found = None
    # fast kernels for inference give no number where attention is left nothing
    for with_gradients in (False, True):
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(with_gradients):
            torch.manual_seed(seed)
            try:
                found = _first(network(*args, **kwargs))
            except Exception:
                return None
        if found is None or not bool(found.isnan().any()):
            break
    return None if found is None else found.detach().double()


def _as_wide(t: Tensor, double: bool) -> Tensor:
    return t.double() if double and t.is_floating_point() else t


def _by_row(given: Any, rows: int, depth: int = 3) -> bool:
    """Whether a list that is no tensor, as of lengths or texts, has an entry for each row."""
    if isinstance(given, dict):
        return depth > 0 and any(_by_row(v, rows, depth - 1) for v in given.values())
    if not isinstance(given, list | tuple):
        return False
    plain = len(given) == rows and not all(isinstance(v, Tensor) for v in given)
    return plain or (depth > 0 and any(_by_row(v, rows, depth - 1) for v in given))


def _first(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.ndim else None
    items = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
    return next((t for t in map(_first, items) if t is not None), None)


def _swap(value: Any, by: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return by.get(id(value), value)
    if isinstance(value, dict):
        return {k: _swap(v, by) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_swap(v, by) for v in value))
    return type(value)(_swap(v, by) for v in value) if isinstance(value, list | tuple) else value


def _same(t: Tensor) -> Tensor:
    return t


def _turned(t: Tensor) -> Tensor:
    """The rows in the opposite order."""
    return t.flip(0)


def _other_first(t: Tensor) -> Tensor:
    """Other values in the first row: of whole numbers those of the last row."""
    changed = t.clone()
    changed[0] = t[0] * -1.5 + 1.0 if t.is_floating_point() else t[-1]
    return changed


def _other_column(t: Tensor, at: int) -> Tensor:
    """Other values in one column, all of one sign, so that a sum over it moves."""
    changed = t.clone()
    changed[:, at] = t[:, at].abs() + 1.0 if t.is_floating_point() else t[:, 1 - at]
    return changed


def _other_last(t: Tensor) -> Tensor:
    """Another last token in each row."""
    changed = t.clone()
    if t.ndim == 2 and not t.is_floating_point():
        changed[:, -1] = torch.where(t[:, -1] == t[:, 0], t.min(), t[:, 0])
    return changed
