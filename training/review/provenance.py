"""Where a value of an evaluation comes from: what a network gave, or what a loader gives; and what
was done to it on the way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal, NamedTuple

from training.review.kinds import is_model
from training.review.loops import names_loader
from training.review.program import Binding, Program, Scope, argument
from training.review.syntax import (
    constant,
    last_name,
    method,
    own_nodes_of,
    receiver,
    words,
)

DEPTH, MOST = 14, 400
KEEPS_VALUES = {
    "cpu", "numpy", "detach", "float", "double", "half", "long", "int", "to", "cuda", "squeeze",
    "unsqueeze", "view", "reshape", "flatten", "ravel", "tolist", "item", "clone", "copy", "astype",
    "type", "type_as", "contiguous", "transpose", "permute", "t", "values", "bool", "items",
    "bfloat16", "expand_as", "view_as",
}  # fmt: skip
PUTS_TOGETHER = {
    "cat", "concat", "concatenate", "stack", "hstack", "vstack", "asarray", "array", "tensor",
    "as_tensor", "from_numpy", "squeeze", "ravel", "list", "tuple", "flatten", "reshape",
    "nan_to_num", "clip", "chain", "from_iterable", "float", "int",
}  # fmt: skip
DECIDES = {
    "argmax", "round", "rint", "gt", "ge", "lt", "le", "greater", "greater_equal", "less", "sign",
    "heaviside", "argsort",
}  # fmt: skip
SQUASHES = {"sigmoid", "softmax", "expit", "log_softmax", "logsigmoid"}
LABELS = {
    "label", "labels", "target", "targets", "truth", "truths", "true", "gt", "gts", "groundtruth",
}  # fmt: skip
SCORES = {
    "pred", "preds", "prediction", "predictions", "predicted", "score", "scores", "prob", "probs",
    "proba", "probas", "probabilities", "logits", "hat", "logit",
}  # fmt: skip
LOADERS = ("torch.utils.data.DataLoader", "torch_geometric.loader.DataLoader")


class Source(NamedTuple):
    """What a value was made of: an output of a network, or a part of a batch (`label`: the last
    part, or one that is called so); what was done to it.
    """

    kind: Literal["network", "label", "input"]
    node: ast.AST
    done: frozenset[str] = frozenset()


def sources(program: Program, node: ast.expr | None, scope: Scope) -> list[Source]:
    """Every source of a value that this file shows."""
    return list(_Follower(program).follow(node, scope, None, 0))


def role(program: Program, node: ast.expr | None, scope: Scope) -> str:
    """`scores` or `labels`, by where a value comes from, and where that is out of sight by its
    name; empty where neither says so.
    """
    kinds = {s.kind for s in sources(program, node, scope)}
    if kinds & {"network", "label"}:
        found = (
            "" if kinds >= {"network", "label"} else "scores" if "network" in kinds else "labels"
        )
        return found if named_role(node) in ("", found) else ""
    return named_role(node)


def named_role(node: ast.expr | None) -> str:
    """`scores` or `labels`, as the name says; empty where it says neither or both."""
    name = _core_name(node)
    named = words(name)
    labels = bool(named & LABELS) or name in ("y", "ys", "y_test", "y_val", "y_valid", "y_train")
    return "" if labels == bool(named & SCORES) else "labels" if labels else "scores"


def is_loader(program: Program, head: ast.expr, scope: Scope) -> bool:
    """Whether a loop goes over batches: over a loader that is made in this file, or over something
    that is called one.
    """
    if (
        isinstance(head, ast.Call)
        and last_name(head.func) in ("enumerate", "tqdm", "iter", "track")
        and head.args
    ):
        return is_loader(program, head.args[0], scope)
    return any(o.name in LOADERS for o in program.origins(head, scope)) or names_loader(head)


def _core_name(node: ast.expr | None) -> str:
    """The name that is left of `labels.cpu().numpy()[:, 0]`, or of a comparison."""
    while True:
        if isinstance(node, ast.Call) and method(node) in KEEPS_VALUES:
            node = receiver(node)
        elif isinstance(node, ast.Call) and node.args and last_name(node.func) in PUTS_TOGETHER:
            node = node.args[0]
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Compare):
            node = node.left
        else:
            return last_name(node)


class _Follower:
    """Follows one value back, each expression once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.seen: set[tuple[int, int | None, frozenset[str]]] = set()

    def follow(
        self,
        node: ast.expr | None,
        scope: Scope,
        index: int | None,
        depth: int,
        done: frozenset[str] = frozenset(),
    ) -> Iterator[Source]:
        """The sources of one expression; `index`: of which element, where it gives several."""
        key = (id(node), index, done)
        if node is None or depth > DEPTH or key in self.seen or len(self.seen) > MOST:
            return
        self.seen.add(key)
        match node:
            case ast.Name():
                yield from self.name(node, scope, index, depth, done)
            case ast.Attribute():
                found = list(
                    self.follow(
                        node.value,
                        scope,
                        None,
                        depth + 1,
                        done | ({"decided"} if node.attr == "indices" else frozenset()),
                    )
                )
                batch = [s for s in found if s.kind != "network"]
                same = node.attr in KEEPS_VALUES or node.attr in ("data", "T", "mT", "grad", "real")
                yield from (
                    found
                    if same or not batch
                    else (Source(_part(node.attr), node, s.done) for s in batch[:1])
                )
            case ast.Subscript():
                yield from self.subscript(node, scope, index, depth, done)
            case ast.Call():
                yield from self.call(node, scope, index, depth, done)
            case ast.Tuple() | ast.List():
                chosen = (
                    node.elts[index : index + 1]
                    if index is not None and -len(node.elts) <= index < len(node.elts)
                    else node.elts
                )
                for element in chosen:
                    yield from self.follow(element, scope, None, depth + 1, done)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                yield from self.follow(node.elt, scope, index, depth + 1, done)
            case _:
                passed = done | ({"decided"} if isinstance(node, ast.Compare) else frozenset())
                for side in _sides(node):
                    yield from self.follow(side, scope, index, depth + 1, passed)

    def name(
        self, node: ast.Name, scope: Scope, index: int | None, depth: int, done: frozenset[str]
    ) -> Iterator[Source]:
        """What the name was bound to last, and what was appended to it."""
        home: Scope | None = scope
        while home is not None and node.id not in home.bindings and node.id not in home.parameters:
            home = home.parent
        if home is None:
            return
        for binding in self.bound(node, home, scope):
            if binding.how == "loop":
                yield from self.looped(binding, node, depth, done, index)
            elif binding.how in ("assign", "augment"):
                yield from self.follow(
                    binding.value,
                    binding.scope,
                    binding.index if binding.index is not None else index,
                    depth + 1,
                    done,
                )
        for call in self.program.methods_of("append", "extend"):
            if (
                call.args
                and last_name(receiver(call)) == node.id
                and self.program.scope(call) is home
            ):
                yield from self.follow(call.args[0], home, index, depth + 1, done)
        if node.id in home.parameters and node.id not in home.bindings:
            for site, caller in self.program.call_sites[home]:
                yield from self.given(site, home, node.id, caller, depth, done, index)

    def bound(self, node: ast.Name, home: Scope, scope: Scope) -> list[Binding]:
        """The last binding before a use, with those before it as long as that one is in a branch or
        adds something.
        """
        everything = home.bindings.get(node.id, [])
        if home is not scope:
            return everything
        statement = self.program.statement(node)
        inner = [
            b
            for b in everything
            if isinstance(b.statement, ast.comprehension)
            and self.program.parents[b.statement] in self.program.ancestors(node)
        ]
        if inner:
            return inner
        plain = [
            b
            for b in everything
            if not isinstance(b.statement, ast.comprehension) and b.statement is not statement
        ]
        before = [
            b for b in plain if self.program.statement(b.statement).lineno <= statement.lineno
        ]
        found: list[Binding] = []
        around = set(self.program.ancestors(node))
        for binding in sorted(
            before, key=lambda b: self.program.statement(b.statement).lineno, reverse=True
        ):
            found.append(binding)
            branches = [
                a
                for a in self.program.ancestors(binding.statement)
                if isinstance(a, (ast.If, ast.Try))
            ]
            if binding.how != "augment" and all(b in around for b in branches):
                break
        return found

    def looped(
        self, binding: Binding, node: ast.Name, depth: int, done: frozenset[str], index: int | None
    ) -> Iterator[Source]:
        """A part of a batch, or an element of what a loop goes over."""
        head, at = binding.value, binding.index
        if is_loader(self.program, head, binding.scope):
            target = getattr(binding.statement, "target", None)
            parts = target.elts if isinstance(target, ast.Tuple) else []
            if (
                isinstance(head, ast.Call)
                and last_name(head.func) == "enumerate"
                and len(parts) == 2
            ):
                parts = parts[1].elts if isinstance(parts[1], ast.Tuple) else []
            last = (
                bool(parts)
                and len(parts) > 1
                and isinstance(parts[-1], ast.Name)
                and parts[-1].id == node.id
            )
            chosen = index is not None and at is None and index in (1, -1)
            yield Source(
                "label" if last or chosen or _part(node.id) == "label" else "input", node, done
            )
            return
        if isinstance(head, ast.Call) and last_name(head.func) == "enumerate" and head.args:
            yield from (
                self.follow(head.args[0], binding.scope, index, depth + 1, done) if at != 0 else ()
            )
        elif isinstance(head, ast.Call) and last_name(head.func) == "zip":
            chosen_args = head.args[at : at + 1] if at is not None else head.args
            for value in chosen_args:
                yield from self.follow(value, binding.scope, None, depth + 1, done)
        else:
            yield from self.follow(
                head, binding.scope, at if at is not None else index, depth + 1, done
            )

    def given(
        self,
        site: ast.Call,
        home: Scope,
        name: str,
        caller: Scope,
        depth: int,
        done: frozenset[str],
        index: int | None,
    ) -> Iterator[Source]:
        """What a caller passes, out of `*pair` too."""
        value = argument(site, home, name)
        if value is not None:
            yield from self.follow(value, caller, index, depth + 1, done)
            return
        star = next((i for i, a in enumerate(site.args) if isinstance(a, ast.Starred)), None)
        position = home.parameters.index(name) - bool(
            home.owner and home.parameters[0] in ("self", "cls")
        )
        if star is not None and position >= star:
            yield from self.follow(site.args[star], caller, position - star, depth + 1, done)

    def subscript(
        self, node: ast.Subscript, scope: Scope, index: int | None, depth: int, done: frozenset[str]
    ) -> Iterator[Source]:
        """An element by number, a part of a batch by key, or a slice."""
        at = constant(node.slice)
        if isinstance(at, str):
            for found in self.follow(node.value, scope, None, depth + 1, done):
                yield found if found.kind == "network" else Source(_part(at), node, found.done)
            return
        yield from self.follow(
            node.value,
            scope,
            at if isinstance(at, int) and not isinstance(at, bool) else index,
            depth + 1,
            done,
        )

    def call(
        self, node: ast.Call, scope: Scope, index: int | None, depth: int, done: frozenset[str]
    ) -> Iterator[Source]:
        """A forward pass, or what a function does to its argument."""
        program, name = self.program, last_name(node.func)
        resolved = program.resolve(node.func)
        of_value = bool(method(node)) and not resolved
        on = receiver(node) if of_value else node.args[0] if node.args else None
        function = program.callees_by_name(node, scope)
        if function is not None:
            for returned in (n.value for n in own_nodes_of(function.node, ast.Return)):
                yield from self.follow(returned, function, index, depth + 1, done)
        elif is_model(program, node.func, scope) and not resolved:
            yield Source("network", node, done)
        elif name == "round" and (
            len(node.args) > (not of_value) or node.keywords
        ):  # to some decimals
            yield from self.follow(on, scope, index, depth + 1, done)
        elif (
            name == "argsort" and isinstance(on, ast.Call) and last_name(on.func) == "argsort"
        ):  # ranks, in the order of the scores
            yield from self.follow(
                (
                    receiver(on)
                    if method(on) and not program.resolve(on.func)
                    else on.args[0]
                    if on.args
                    else None
                ),
                scope,
                index,
                depth + 1,
                done,
            )
        elif (
            name in DECIDES
            or (name in ("max", "topk", "min", "sort") and index == 1)
            or (of_value and _made_whole(node))
        ):
            yield from self.follow(on, scope, None, depth + 1, done | {"decided"})
        elif name in SQUASHES:
            yield from self.follow(on, scope, None, depth + 1, done | {"squashed"})
        elif (
            name == "where"
            and len(node.args) == 3
            and any(
                ast.dump(a) == ast.dump(getattr(node.args[0], "left", node)) for a in node.args[1:]
            )
        ):  # clipped
            yield from self.follow(
                getattr(node.args[0], "left", None), scope, index, depth + 1, done
            )
        elif name == "where" and len(node.args) == 3 and isinstance(node.args[0], ast.Compare):
            yield from self.follow(node.args[0], scope, None, depth + 1, done | {"decided"})
        elif (of_value and name in KEEPS_VALUES) or (not of_value and name in PUTS_TOGETHER):
            yield from self.follow(on, scope, index, depth + 1, done)


def _part(name: str) -> Literal["label", "input"]:
    """What a part of a batch is, by its name."""
    return "label" if words(name) & LABELS or name in ("y", "y_true") else "input"


def _sides(node: ast.expr) -> list[ast.expr]:
    """The operands of an operator, a comparison or a conditional expression."""
    match node:
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.BinOp():
            return [node.left, node.right]
        case ast.UnaryOp():
            return [node.operand]
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.Starred():
            return [node.value]
    return []


def _made_whole(call: ast.Call) -> bool:
    """Whether numbers become whole ones or truth values."""
    kinds = call.args[:1] if method(call) in ("astype", "to", "type") else []
    return method(call) in ("int", "long", "bool") or any(
        w in last_name(k) or w in str(constant(k)) for k in kinds for w in ("int", "long", "bool")
    )
