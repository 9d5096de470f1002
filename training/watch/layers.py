"""What stands between layers and before losses: layers that follow each other with nothing between,
scores that are dropped.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, NamedTuple

from torch import Tensor, nn

from training.watch.forwards import Call, Forwards, tensors_in
from training.watch.losses import SUPERVISED, THROUGH, Functions, maker
from training.watch.record import Listener, Place, Watch, guarded

# and no subclasses: adapters and parametrised layers have reasons of their own
KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
SOME = 3  # forwards
STEPS_BACK = 6  # views and casts between dropout and loss
DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
LINEAR = ("Addmm", "Mm", "Bmm", "Convolution")
DISTANCES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
Key = tuple[int, int]


class Given(NamedTuple):
    """What a layer gave, until the outermost call ends."""

    tensor: weakref.ref[Tensor]
    version: int
    layer: nn.Module
    parent: nn.Module | None


class Pair(NamedTuple):
    """Two layers, the first of which gives its result to the second as it is."""

    first: nn.Module
    second: nn.Module
    place: Place


class Dropped:
    """Key of the node that dropout made: what made its input."""


class Layers(Listener):
    """Listens to layers, to dropout and to losses."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        self.given: dict[int, Given] = {}  # by id of the result
        self.calls: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        # layers whose results are used elsewhere, too
        self.spared: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.pairs: dict[Key, Pair] = {}
        self.followed: Counter[Key] = Counter()
        # pairs whose first result was seen to be used once in the graph of a loss
        self.alone: set[Key] = set()

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("detach",), before=self._used)
        self.functions.listen(DROPOUTS, after=self._dropped)
        self.functions.listen(SUPERVISED, before=self._scored)

    # ------------------------------------------------------------------------- nothing between
    # layers

    @guarded
    def called(self, module: nn.Module, given: Any, result: Any) -> None:
        """A module with weights was called with gradients on."""
        if self.given:
            self._given_back(module, result)
        if type(module) not in KINDS or not isinstance(result, Tensor):
            return
        parent = self.forwards.stack[-1] if self.forwards.stack else None
        self.calls[module] = self.calls.get(module, 0) + 1
        before = self._known(given[0][0]) if given[0] else None
        if (
            before is not None
            and before.parent is parent is not None
            and followed_for_nothing(before.layer, module, parent)
        ):
            key = (id(before.layer), id(module))
            self.pairs.setdefault(key, Pair(before.layer, module, self.watch.here()))
            self.followed[key] += 1
            given[0][0].grad_fn.metadata[Pair] = key
        self.given[id(result)] = Given(weakref.ref(result), result._version, module, parent)

    def _known(self, tensor: Any) -> Given | None:
        """The layer of which a tensor is the result, not changed since."""
        known = self.given.get(id(tensor))
        alive = known.tensor() if known is not None else None
        if known is None or alive is None or alive is not tensor:
            return None
        return known if known.version == alive._version and alive.grad_fn is not None else None

    def _given_back(self, module: nn.Module, result: Any) -> None:
        for t in tensors_in(
            vars(result)
            if hasattr(result, "__dict__") and not isinstance(result, Tensor | dict)
            else result
        ):
            known = self._known(t)
            if known is not None and known.layer is not module:
                self.spared.add(known.layer)

    def _used(self, name: str, tensor: Any, *_: Any, **__: Any) -> None:
        known = self._known(tensor)
        if known is not None:
            self.spared.add(known.layer)

    def forwarded(self, call: Call) -> None:
        """The outermost call ends; a layer that is called on its own is used on its own."""
        self.given.clear()
        if type(call.module) in KINDS:
            self.spared.add(call.module)

    def walked(self, nodes: list[Any]) -> None:
        """The graph of a loss: how often it uses the first results."""
        if not self.pairs:
            return
        uses = Counter(id(n) for node in nodes for n, _ in node.next_functions if n is not None)
        for node in nodes:
            key = node.metadata.get(Pair)
            if key is not None and uses[id(node)] == 1:
                self.alone.add(key)
            elif key is not None:
                self.spared.add(self.pairs[key].first)

    def ended(self) -> None:
        """Pairs that were seen in all forwards, and are trained."""
        # modules of each parameter: more than one where it is tied
        owners: dict[int, set[int]] = {}
        for module in (
            (m for root in self.forwards.roots for m in root.modules()) if self.pairs else ()
        ):
            for p in module.parameters(recurse=False):
                owners.setdefault(id(p), set()).add(id(module))
        for key, (first, second, place) in self.pairs.items():
            if (
                key not in self.alone
                or first in self.spared
                or not SOME <= self.followed[key] == self.calls.get(first)
            ):
                continue
            weights = [w for m in (first, second) if isinstance(w := m.weight, nn.Parameter)]
            if all(
                w.requires_grad
                and id(w) in self.forwards.trained
                and len(owners.get(id(w), ())) == 1
                for w in weights
            ):
                told = (
                    f"what {named(first)} gives is given to {named(second)} as it is: nothing"
                    " between them bends, so both are one layer"
                )
                self.watch.tell("BH838", told, place)

    # ---------------------------------------------------------------------------------- dropped
    # scores

    def _dropped(
        self,
        name: str,
        result: Tensor,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        *_: Any,
        **__: Any,
    ) -> None:
        if training and p > 0 and result.grad_fn is not None:
            result.grad_fn.metadata[Dropped] = maker(input) if input is not result else LINEAR[0]

    def _scored(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        made_by = dropped(input, through_softmax=name == "nll_loss")
        if made_by is None or target.requires_grad or (name in DISTANCES and made_by not in LINEAR):
            return  # features are learned from a teacher as they are, dropout and all
        self.functions.often(
            "BH837",
            f"{name} is given the result of dropout: scores are set to 0 at random, and the others"
            " are scaled up",
        )


def dropped(tensor: Tensor, through_softmax: bool = False) -> str | None:
    """What made the scores that dropout was given, where a tensor is its result or a view of it;
    None elsewhere.
    """
    node: Any = tensor.grad_fn
    for _ in range(STEPS_BACK):
        if node is None or Dropped in node.metadata:
            break
        name = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
        node = (
            node.next_functions[0][0]
            if node.next_functions
            and (name in THROUGH or (through_softmax and name == "LogSoftmax"))
            else None
        )
    return node.metadata.get(Dropped) if node is not None else None


def followed_for_nothing(first: nn.Module, second: nn.Module, parent: nn.Module) -> bool:
    """Whether two layers of one module are as good as one: of a kind, no factors of low rank, no
    steps of a convolution in parts.
    """
    lists = [c for c in parent.children() if isinstance(c, nn.ModuleList | nn.ModuleDict)]
    siblings = {id(m) for owner in (parent, *lists) for m in owner.children()}
    if (
        first is second
        or type(first) is not type(second)
        or not {id(first), id(second)} <= siblings
        or first._forward_hooks
    ):
        return False
    # computed from other parameters
    if any(m._parameters.get("weight") is None for m in (first, second)):
        return False
    if isinstance(first, nn.Linear) and isinstance(second, nn.Linear):
        return bool(first.out_features >= min(first.in_features, second.out_features))
    convolutions = [m for m in (first, second) if isinstance(m, nn.modules.conv._ConvNd)]
    in_parts = any(m.groups > 1 or 1 in m.kernel_size for m in convolutions)
    return not in_parts and bool(
        convolutions[0].out_channels
        >= min(convolutions[0].in_channels, convolutions[1].out_channels)
    )


def named(layer: nn.Module) -> str:
    """A layer by its kind and widths."""
    widths = (
        (layer.in_features, layer.out_features)
        if isinstance(layer, nn.Linear)
        else (layer.in_channels, layer.out_channels)
    )
    return f"{type(layer).__name__} ({widths[0]} → {widths[1]})"
