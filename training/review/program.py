"""Scopes and bindings of one file, and the origin of a value: through names, `self`, tuples,
helpers of the same file and call sites.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from training.review.syntax import (
    FUNCTIONS,
    LEAVES,
    FunctionNode,
    Kind,
    children,
    defaults,
    dotted,
    forget,
    import_aliases,
    kinds,
    last_name,
    method,
    own_nodes,
    own_nodes_of,
    receiver,
    words,
)

DEPTH = 6  # names through which a value is followed
WORK = 500  # steps after which a search stops
SAME_OBJECT = {
    "fit", "to", "cuda", "cpu", "eval", "train", "half", "float", "double", "bfloat16",
    "requires_grad_", "compile", "share_memory",
}  # fmt: skip
WRAPPERS = {
    "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "fully_shard", "compile",
    "deepcopy", "convert_sync_batchnorm", "SequentialLR", "ChainedScheduler", "tqdm", "enumerate",
    "iter",
}  # fmt: skip
NO_ORIGIN = {
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Dict,
    ast.JoinedStr,
    ast.Lambda,
    ast.Starred,
    ast.Set,
    ast.Slice,
}
BINDING = {
    ast.Assign,
    ast.AnnAssign,
    ast.NamedExpr,
    ast.AugAssign,
    ast.For,
    ast.AsyncFor,
    ast.comprehension,
    ast.withitem,
}
MODULE_BASES = ("Module", "LightningModule", "PreTrainedModel")


@dataclass(eq=False)
class Scope:
    """A function or the file itself."""

    node: FunctionNode | ast.Module
    owner: ast.ClassDef | None = None
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    functions: dict[str, Scope] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """Return the function's name; empty for the file."""
        return "" if isinstance(self.node, ast.Module) else self.node.name

    @cached_property
    def parameters(self) -> list[str]:
        """Return the names of the function's parameters, in order of position."""
        if isinstance(self.node, ast.Module):
            return []
        given = self.node.args
        return [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


@dataclass(frozen=True, eq=False)
class Binding:
    """A name that gets a value: the whole value, or its element `index`; `how` is assign, loop,
    with, or augment.
    """

    statement: ast.AST
    value: ast.expr
    scope: Scope
    index: int | None = None
    how: str = "assign"


@dataclass(frozen=True)
class Origin:
    """The call that made a value, by canonical name, or by the name of a class of this file."""

    name: str
    call: ast.Call
    scope: Scope

    @property
    def last(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition(".")[2]


class Nodes(dict[type[ast.AST], list[Any]]):
    """All nodes of a file by type, in order of the tree walk."""

    def __getitem__(self, kind: type[Kind]) -> list[Kind]:
        """Return the nodes of a type; none where the file has none."""
        return self.get(kind, [])


class Program:
    """A parsed file and the questions that rules ask about it."""

    def __init__(self, tree: ast.Module, path: str = "") -> None:
        self.path = path
        self.aliases = import_aliases(tree)
        self.tree = tree
        self.nodes = Nodes(kinds(tree))
        self.parents: dict[ast.AST, ast.AST] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.methods: dict[ast.ClassDef, dict[str, Scope]] = defaultdict(dict)
        self.attributes: dict[ast.ClassDef, dict[str, list[Binding]]] = defaultdict(dict)
        self.scopes: list[Scope] = []
        self.scope_of: dict[ast.AST, Scope] = {}
        self.call_sites: dict[Scope, list[tuple[ast.Call, Scope]]] = defaultdict(list)
        self._linked = False
        self._work = 0  # steps of the current search
        self._cuts = 0  # searches that stopped: circular, too deep or too long
        self._following: set[tuple[int, int | None]] = set()
        self._origins: dict[tuple[int, int | None], tuple[Origin, ...]] = {}
        self.top = self._enter(tree, None, None)
        self._link_calls()

    def _enter(
        self, node: FunctionNode | ast.Module, owner: ast.ClassDef | None, parent: Scope | None
    ) -> Scope:
        scope = Scope(node, owner, parent)
        self.scopes.append(scope)
        self.scope_of[node] = scope
        self._visit(node, scope, owner)
        return scope

    def _visit(self, node: ast.AST, scope: Scope, owner: ast.ClassDef | None) -> None:
        forget(node)
        for child in children(node):
            self.parents[child] = node
            if child.__class__ in LEAVES:
                self.scope_of[child] = scope
            elif isinstance(child, FUNCTIONS):
                inner = self._enter(
                    child, owner if isinstance(node, ast.ClassDef) else scope.owner, scope
                )
                (self.methods[node] if isinstance(node, ast.ClassDef) else scope.functions)[
                    child.name
                ] = inner
            elif isinstance(child, ast.ClassDef):
                self.classes[child.name] = child
                self._visit(child, scope, child)
            else:
                if child.__class__ in BINDING:
                    self._bind(child, scope)
                self.scope_of[child] = scope
                self._visit(child, scope, owner)

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._bind_target(target, node.value, node, scope)
            case ast.AnnAssign(value=ast.expr() as value):
                self._bind_target(node.target, value, node, scope)
            case ast.NamedExpr():
                self._bind_target(node.target, node.value, node, scope)
            case ast.AugAssign():
                self._bind_target(node.target, node.value, node, scope, how="augment")
            case ast.For() | ast.AsyncFor():
                self._bind_target(node.target, node.iter, node, scope, how="loop")
            case ast.comprehension():
                self._bind_target(node.target, node.iter, node, scope, how="loop")
            case ast.withitem(optional_vars=ast.expr() as target):
                self._bind_target(target, node.context_expr, node, scope, how="with")

    def _bind_target(
        self,
        target: ast.expr,
        value: ast.expr,
        statement: ast.AST,
        scope: Scope,
        index: int | None = None,
        how: str = "assign",
    ) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for i, element in enumerate(target.elts):
                if (
                    isinstance(value, (ast.Tuple, ast.List))
                    and len(value.elts) == len(target.elts)
                    and how == "assign"
                ):
                    self._bind_target(element, value.elts[i], statement, scope)
                else:
                    self._bind_target(element, value, statement, scope, i, how)
            return
        binding = Binding(statement, value, scope, index, how)
        if isinstance(target, ast.Name):
            scope.bindings.setdefault(target.id, []).append(binding)
            owner = self.parents.get(statement)
            if isinstance(
                owner, ast.ClassDef
            ):  # read a class's `columns = [...]` as `self.columns`
                self.attributes[owner].setdefault(target.id, []).append(binding)
        elif (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
            and scope.owner
        ):
            self.attributes[scope.owner].setdefault(target.attr, []).append(binding)

    def _link_calls(self) -> None:
        made = [
            (node, scope) for node, scope in self.scope_of.items() if isinstance(node, ast.Call)
        ]
        for node, scope in made:
            for called in self.callees(node, scope):
                self.call_sites[called].append((node, scope))
        self._linked = True
        for node, scope in made:  # methods of arguments: known once the callers are
            if (
                method(node) in self.defined
                and isinstance(of := receiver(node), ast.Name)
                and of.id in scope.parameters
            ):
                for called in self.callees(node, scope) if of.id not in ("self", "cls") else ():
                    self.call_sites[called].append((node, scope))
        self._origins.clear()

    @cached_property
    def defined(self) -> set[str]:
        """Return the names of all methods of the file's classes."""
        return {name for own in self.methods.values() for name in own}

    def resolve(self, node: ast.AST | None) -> str:
        """Return the canonical dotted name, e.g. `torch.nn.functional.softmax`.

        Empty if its root is not imported.
        """
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return ""
        known: str | None = getattr(node, "_resolved", None)
        if known is None:
            root, dot, rest = dotted(node).partition(".")
            known = (
                self.aliases[root] + dot + rest
                if root in self.aliases and not self._hidden(root, node)
                else ""
            )
            node._resolved = known  # type: ignore[union-attr]
        return known

    def _hidden(self, root: str, node: ast.AST) -> bool:
        """Return whether an enclosing function assigns another value to an imported name: `loss` of
        `from . import loss` in a function with `loss = loss_fn(x)`.
        """
        around: ast.AST | None = node
        while around is not None and around not in self.scope_of:
            around = self.parents.get(around)
        scope = self.scope_of[around] if around is not None else None
        while scope is not None and scope.name:
            if root in scope.parameters or any(
                b.how != "augment" for b in scope.bindings.get(root, ())
            ):
                return not any(
                    root in import_aliases(ast.Module([n], []))
                    for n in own_nodes(scope.node)
                    if isinstance(n, (ast.Import, ast.ImportFrom))
                )
            scope = scope.parent
        return False

    def is_torch(self, node: ast.AST | None, *names: str) -> bool:
        """Return whether a node is one of these names from anywhere in torch."""
        if isinstance(node, ast.Attribute) and node.attr not in names:
            return False
        name = self.resolve(node)
        return name.startswith("torch.") and name.rpartition(".")[2] in names

    @cached_property
    def modules_imported(self) -> set[str]:
        """Return the top-level packages that the file imports."""
        return {name.partition(".")[0] for name in self.aliases.values()}

    @cached_property
    def all_calls(self) -> list[ast.Call]:
        """Return every call of the file."""
        return self.nodes[ast.Call]

    @cached_property
    def _calls_by_name(self) -> dict[str, list[tuple[int, ast.Call]]]:
        found: dict[str, list[tuple[int, ast.Call]]] = defaultdict(list)
        for at, call in enumerate(self.all_calls):
            found[last_name(call.func)].append((at, call))
        return found

    def calls_of(self, *names: str) -> list[ast.Call]:
        """Return the calls whose last name is one of these, in the order of `all_calls`."""
        found = [c for name in names for c in self._calls_by_name.get(name, ())]
        return [call for _, call in (sorted(found) if len(names) > 1 else found)]

    def methods_of(self, *names: str) -> list[ast.Call]:
        """Return the calls of these methods: `step` of `optimizer.step()`, not `step()`."""
        return [call for call in self.calls_of(*names) if isinstance(call.func, ast.Attribute)]

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """Return all names and attributes of the file."""
        return frozenset(
            [n.id for n in self.nodes[ast.Name]] + [n.attr for n in self.nodes[ast.Attribute]]
        )

    @cached_property
    def rank_names(self) -> set[str]:
        """Return the names that some call takes as its `rank`, whatever they are called."""
        return {
            k.value.id
            for call in self.all_calls
            for k in call.keywords
            if k.arg == "rank" and isinstance(k.value, ast.Name)
        }

    @cached_property
    def network_names(self) -> set[str]:
        """Return the names of networks: code asks for their parameters or sets eval mode."""
        found = set()
        for call in self.all_calls:
            asks = method(call) in ("parameters", "named_parameters") or (
                method(call) in ("eval", "train") and not call.args and not call.keywords
            )
            name = dotted(receiver(call)).rpartition(".")[2] if asks else ""
            if (
                not {
                    "trainer",
                    "learner",
                    "runner",
                    "engine",
                    "agent",
                    "estimator",
                    "experiment",
                    "self",
                    "",
                }
                & words(name)
                and name
            ):
                found.add(name)
        return found

    @cached_property
    def optimizer_names(self) -> set[str]:
        """Return the names of optimizers: code both clears and steps them."""
        used = {
            name: {last_name(receiver(c)) for c in self.methods_of(name)}
            for name in ("zero_grad", "step")
        }
        used["step"] |= {
            last_name(a) for c in self.methods_of("step") for a in c.args[:1]
        }  # by a scaler
        return (used["zero_grad"] & used["step"]) - {"", "self"}

    @cached_property
    def called_names(self) -> set[str]:
        """Return the last name of every call of the file."""
        return {
            n.func.attr if isinstance(n.func, ast.Attribute) else n.func.id
            for n in self.all_calls
            if isinstance(n.func, (ast.Attribute, ast.Name))
        }

    @cached_property
    def method_names(self) -> set[str]:
        """Return the methods of the file's classes other than networks, without properties."""
        plain = [
            s
            for owner, own in self.methods.items()
            if not self.is_module(owner)
            for s in own.values()
            if isinstance(s.node, FUNCTIONS)
        ]
        return {
            s.name
            for s in plain
            if isinstance(s.node, FUNCTIONS)
            and not any("property" in last_name(d) for d in s.node.decorator_list)
        }

    def scope(self, node: ast.AST) -> Scope:
        """Return the function that contains a node."""
        found = self.scope_of.get(node)
        while found is None:
            node = self.parents[node]
            found = self.scope_of.get(node)
        return found

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that contains an expression."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def ancestors(self, node: ast.AST) -> list[ast.AST]:
        """Return the nodes around a node, from the inside out, up to its function."""
        found: list[ast.AST] = []
        while (node := self.parents.get(node, self.tree)) is not self.tree and not isinstance(
            node, FUNCTIONS
        ):
            found.append(node)
        return found

    def bases(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """Return the class and those of its bases that are in this file."""
        found, pending = [owner], [owner]
        while pending:
            for base in pending.pop().bases:
                known = self.classes.get(dotted(base))
                if known is not None and known not in found:
                    found.append(known)
                    pending.append(known)
        return found

    def is_module(self, owner: ast.ClassDef | None) -> bool:
        """Return whether a class derives from a torch module, here or by the name of its base."""
        if owner is None:
            return False
        return any(
            dotted(base).rpartition(".")[2].endswith(MODULE_BASES)
            for known in self.bases(owner)
            for base in known.bases
        )

    @cached_property
    def module_classes(self) -> list[ast.ClassDef]:
        """Return the torch modules of the file."""
        return [owner for owner in self.classes.values() if self.is_module(owner)]

    def module_named(self, name: str) -> ast.ClassDef | None:
        """Return the torch module that a name is named after, as `melody` after `Melody`."""
        plain = name.replace("_", "").lower()
        return next(
            (
                owner
                for owner in self.module_classes
                if owner.name.lower() == plain and owner.name != name
            ),
            None,
        )

    def find_method(self, owner: ast.ClassDef, name: str) -> Scope | None:
        """Return a method of the class or of its bases in this file."""
        return next(
            (
                self.methods[known][name]
                for known in self.bases(owner)
                if name in self.methods[known]
            ),
            None,
        )

    def callees(self, call: ast.Call, scope: Scope) -> list[Scope]:
        """Return the functions of this file that a call may run; for a class, its `__init__`."""
        if isinstance(call.func, ast.Name):
            found = self.local_function(call.func.id, scope)
            if found is None and call.func.id in self.classes:
                found = self.find_method(self.classes[call.func.id], "__init__")
            return [found] if found else []
        target, name = receiver(call), method(call)
        if isinstance(target, ast.Name) and target.id in ("self", "cls") and scope.owner:
            found = self.find_method(scope.owner, name)
            return [found] if found else []
        if name not in self.defined:
            return []
        owners = (
            {self.classes[o.name] for o in self.origins(target, scope) if o.name in self.classes}
            if target is not None
            else set()
        )
        return [m for m in (self.find_method(owner, name) for owner in owners) if m]

    def local_function(self, name: str, scope: Scope | None) -> Scope | None:
        """Return the function of that name that is visible in a scope."""
        while scope is not None:
            if name in scope.functions:
                return scope.functions[name]
            scope = scope.parent
        return None

    def bindings_of(self, node: ast.expr, scope: Scope) -> list[Binding]:
        """Return every value that is assigned to a name or to an attribute of `self`."""
        if isinstance(node, ast.Name):
            current: Scope | None = scope
            while current is not None:
                if node.id in current.bindings or node.id in current.parameters:
                    return current.bindings.get(node.id, [])
                current = current.parent
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and scope.owner
        ):
            return [
                b
                for known in self.bases(scope.owner)
                for b in self.attributes[known].get(node.attr, [])
            ]
        return []

    def origins(
        self, node: ast.expr | None, scope: Scope, index: int | None = None
    ) -> tuple[Origin, ...]:
        """Return the calls that made a value, as far as this file shows; else nothing."""
        if node.__class__ in NO_ORIGIN or (
            isinstance(node, ast.Attribute)
            and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        ):
            return ()
        key = (id(node), index)
        if key in self._origins:
            return self._origins[key]
        self._work = self._work + 1 if self._following else 0
        if (
            node is None
            or key in self._following
            or len(self._following) > DEPTH * 4
            or self._work > WORK
        ):
            self._cuts += 1
            return ()
        before = self._cuts
        self._following.add(key)
        found = tuple(dict.fromkeys(self._follow(node, scope, index)))
        self._following.discard(key)
        if self._linked and (before == self._cuts or not self._following):
            self._origins[key] = found
        return found

    def _follow(self, node: ast.expr, scope: Scope, index: int | None) -> list[Origin]:
        match node:
            case ast.Call():
                return self._from_call(node, scope, index)
            case ast.IfExp():
                return [
                    *self.origins(node.body, scope, index),
                    *self.origins(node.orelse, scope, index),
                ]
            case ast.BoolOp():
                return [o for value in node.values for o in self.origins(value, scope, index)]
            case ast.Tuple() | ast.List() if index is not None and index < len(node.elts):
                return list(self.origins(node.elts[index], scope))
            case ast.ListComp() | ast.GeneratorExp() if index is not None:
                return list(self.origins(node.elt, scope))
            case ast.Subscript():
                at = (
                    node.slice.value
                    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)
                    else None
                )
                return list(self.origins(node.value, scope, at)) if at is not None else []
            case ast.Name() | ast.Attribute():
                bound = [b for b in self.bindings_of(node, scope) if b.how != "augment"]
                found = [
                    o
                    for b in bound
                    for o in self.origins(b.value, b.scope, index if b.index is None else b.index)
                ]
                return found or self._from_parameter(node, scope)
        return []

    def _from_call(self, node: ast.Call, scope: Scope, index: int | None) -> list[Origin]:
        name = self.resolve(node.func) or dotted(node.func)
        last = name.rpartition(".")[2] or method(node)
        if method(node) in SAME_OBJECT and not self.resolve(node.func):
            return list(self.origins(receiver(node), scope, index))
        if last in ("prepare", "setup", "initialize") and not self.callees_by_name(node, scope):
            at = index or 0
            return list(self.origins(node.args[at], scope)) if at < len(node.args) else []
        if last in WRAPPERS and node.args:
            return [Origin(name, node, scope), *self.origins(node.args[0], scope, index)]
        function = self.callees_by_name(node, scope)
        if function is None and method(node) in self.fluent:
            made = self.origins(receiver(node), scope, index)
            if any(o.name in self.classes for o in made):
                return list(made)
        if function is not None:
            returned = [n.value for n in own_nodes_of(function.node, ast.Return) if n.value]
            return [o for value in returned for o in self.origins(value, function, index)]
        return [Origin(name, node, scope)]

    @cached_property
    def fluent(self) -> set[str]:
        """Return the methods of the file's classes that return `self`, as `fit` does."""
        own = [s for methods in self.methods.values() for s in methods.values()]
        return {
            s.name
            for s in own
            if any(
                isinstance(n.value, ast.Name) and n.value.id == "self"
                for n in own_nodes_of(s.node, ast.Return)
            )
        }

    def callees_by_name(self, node: ast.Call, scope: Scope) -> Scope | None:
        """Return the function of this file that is called by name, or as a method of `self`."""
        if isinstance(node.func, ast.Name):
            return self.local_function(node.func.id, scope)
        if dotted(receiver(node)) == "self" and scope.owner:
            return self.find_method(scope.owner, method(node))
        return None

    def _from_parameter(self, node: ast.expr, scope: Scope | None) -> list[Origin]:
        """Return what the callers in this file pass, else the parameter's default."""
        if not isinstance(node, ast.Name):
            return []
        while scope is not None and node.id not in scope.parameters:
            scope = scope.parent
        if scope is None or not self._linked:
            return []
        found: list[Origin] = []
        for call, caller in self.call_sites[scope]:
            given = argument(call, scope, node.id)
            found += self.origins(given, caller) if given is not None else ()
        return found or list(self.origins(defaults(scope.node).get(node.id), scope.parent or scope))


def argument(call: ast.Call, function: Scope, name: str) -> ast.expr | None:
    """Return the argument that a call passes to the parameter of that name."""
    for item in call.keywords:
        if item.arg == name:
            return item.value
    parameters = function.parameters
    bound = bool(function.owner and parameters and parameters[0] in ("self", "cls"))
    position = parameters.index(name) - bound if name in parameters else -1
    if 0 <= position < len(call.args) and not any(
        isinstance(a, ast.Starred) for a in call.args[: position + 1]
    ):
        return call.args[position]
    return None
