"""Calls and assignments of a program in order of execution, with helpers of the same file inlined.

Every function is followed once from each place that calls it. A function that nobody calls here
is followed on its own.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from training.review.program import Program, Scope, argument
from training.review.roles import is_model, is_optimizer, is_scaler, is_scheduler
from training.review.syntax import (
    FUNCTIONS,
    LoopNode,
    children,
    dotted,
    is_false,
    keyword,
    last_name,
    method,
    receiver,
)

MOST_EVENTS = 4000  # of one trace
DEPTH = 4
FOLLOWED = {
    "backward", "step", "zero_grad", "eval", "train", "save", "barrier", "all_reduce",
    "clip_grad_norm_", "clip_grad_value_", "manual_backward", "unscale_", "load_state_dict",
    "destroy_process_group", "state_dict", "no_grad", "inference_mode", "item", "module",
}  # fmt: skip
DELEGATES = {"accelerator", "fabric", "engine", "model", "self", "trainer"}


@dataclass(eq=False)
class Loop:
    """One visit of a loop; a loop that is reached in two ways counts twice."""

    node: LoopNode | ast.comprehension
    scope: Scope


@dataclass(eq=False)
class Frame:
    """A followed function, and the arguments of its caller."""

    scope: Scope
    call: ast.Call | None = None
    caller: Frame | None = None
    self_key: str = "self"
    depth: int = 0
    cache: dict[str, str] = field(default_factory=dict)

    def key(self, node: ast.AST | None) -> str:
        """Return a name for a value that is the same in caller and callee; else empty."""
        if isinstance(node, ast.Subscript):
            return self.key(node.value) + f"[{ast.unparse(node.slice)}]"
        text = dotted(node)
        if not text:
            return ""
        root, dot, rest = text.partition(".")
        if root not in self.cache:
            self.cache[root] = self._root(root)
        return self.cache[root] + dot + rest

    def _root(self, root: str) -> str:
        if root == "self":
            return self.self_key
        if self.caller is None or self.call is None:
            return root
        if root in self.scope.parameters:
            given = argument(self.call, self.scope, root)
            return (
                self.caller.key(given) if given is not None else ""
            ) or f"{self.scope.name}:{root}"
        if root in self.scope.bindings:
            return f"{self.scope.name}:{root}"
        around: Frame | None = self.caller  # in a closure: arguments of the function around it
        while around is not None and around.scope is not self.scope.parent:
            around = around.caller
        return around._root(root) if around is not None else root


@dataclass(eq=False, slots=True)
class Event:
    """An event: `kind` is what happens, `key` the object. Loops, branches and contexts around it
    are ordered from the outside in.
    """

    kind: str
    key: str
    node: ast.AST
    frame: Frame
    loops: tuple[Loop, ...]
    branches: tuple[tuple[ast.AST, bool], ...]
    contexts: tuple[tuple[str, ast.AST], ...]
    via: str = ""

    @property
    def scope(self) -> Scope:
        """Return the function that contains the event."""
        return self.frame.scope

    @property
    def call(self) -> ast.Call:
        """Return the node of an event that is a call."""
        if not isinstance(self.node, ast.Call):
            raise TypeError(f"a {self.kind} event is no call")
        return self.node

    def within(self, *names: str) -> bool:
        """Return whether the event is inside one of these context managers or decorators."""
        return any(context.rpartition(".")[2] in names for context, _ in self.contexts)

    def under(self, other: Event) -> bool:
        """Return whether the branches let the event happen only where the other one does."""
        return self.branches[: len(other.branches)] == other.branches


class Tracer:
    """Follow one root function."""

    def __init__(self, program: Program, followed: set[Scope]) -> None:
        self.program = program
        self.followed = followed
        names = {s.name for s in followed}
        self.leading = (
            names | program.classes.keys() if "__init__" in names else names
        )  # calls that may enter a helper
        self.events: list[Event] = []
        self.visited: set[Scope] = set()
        self.loops: tuple[Loop, ...] = ()
        self.branches: tuple[tuple[ast.AST, bool], ...] = ()
        self.contexts: tuple[tuple[str, ast.AST], ...] = ()

    def run(self, frame: Frame) -> list[Event]:
        """Return the events of a function; its decorators count as contexts."""
        node = frame.scope.node
        self.visited.add(frame.scope)
        kept = self.contexts, self.branches
        if isinstance(node, FUNCTIONS):
            for decorator in node.decorator_list:
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                self.contexts += ((self.program.resolve(target) or dotted(target), decorator),)
        self.block(node.body, frame)
        self.contexts, self.branches = kept
        return self.events

    def block(self, body: list[ast.stmt], frame: Frame) -> None:
        """Follow the statements in order; after an `if` that leaves, the rest is its else part."""
        kept = self.branches
        for statement in body:
            self.statement(statement, frame)
            if (
                isinstance(statement, ast.If)
                and not statement.orelse
                and isinstance(statement.body[-1], (ast.Return, ast.Continue, ast.Raise, ast.Break))
            ):
                self.branches += ((statement, False),)
        self.branches = kept

    def statement(self, node: ast.stmt, frame: Frame) -> None:
        """Follow one statement and those inside it."""
        if len(self.events) > MOST_EVENTS:
            return
        match node:
            case ast.If():
                self.expression(node.test, frame)
                self.arm(node, True, node.body, frame)
                self.arm(node, False, node.orelse, frame)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.loop(node, frame)
            case ast.With() | ast.AsyncWith():
                self.with_block(node, frame)
            case ast.Try() | ast.TryStar():
                self.block(node.body, frame)
                for handler in node.handlers:
                    self.arm(handler, True, handler.body, frame)
                self.block(node.orelse, frame)
                self.block(node.finalbody, frame)
            case ast.Match():
                for case in node.cases:
                    self.arm(case, True, case.body, frame)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _:
                self.simple(node, frame)

    def simple(self, node: ast.stmt, frame: Frame) -> None:
        """Follow a statement without a body: its calls, then its assignments."""
        for child in children(node):
            if isinstance(child, ast.expr):
                self.expression(child, frame)
        if isinstance(node, ast.AugAssign):
            self.add("augment", frame.key(node.target), node, frame)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                cleared = (
                    isinstance(target, ast.Attribute)
                    and target.attr == "grad"
                    and isinstance(node.value, ast.Constant)
                )
                self.add(
                    "zero" if cleared else "assign",
                    "*" if cleared else frame.key(target),
                    node,
                    frame,
                )

    def arm(self, owner: ast.AST, taken: bool, body: list[ast.stmt], frame: Frame) -> None:
        """Follow the statements of one branch."""
        kept = self.branches
        self.branches += ((owner, taken),)
        self.block(body, frame)
        self.branches = kept

    def loop(self, node: LoopNode, frame: Frame) -> None:
        """Follow the body of a loop once."""
        kept = self.loops
        if isinstance(node, ast.While):
            self.loops += (Loop(node, frame.scope),)
            self.expression(node.test, frame)
        else:
            self.expression(node.iter, frame)
            self.loops += (Loop(node, frame.scope),)
        self.block(node.body, frame)
        self.loops = kept
        self.block(node.orelse, frame)

    def with_block(self, node: ast.With | ast.AsyncWith, frame: Frame) -> None:
        """Follow the body under the names of its context managers."""
        kept = self.contexts
        for item in node.items:
            self.expression(item.context_expr, frame)
            self.contexts += tuple(
                (name, item.context_expr) for name in self.context_names(item.context_expr, frame)
            )
        self.block(node.body, frame)
        self.contexts = kept

    def context_names(self, node: ast.expr, frame: Frame) -> list[str]:
        """Return the canonical names of a context manager, even if it is stored in a variable."""
        if isinstance(node, ast.Call):
            name = self.program.resolve(node.func) or dotted(node.func) or method(node)
            if name.rpartition(".")[2] == "set_grad_enabled":
                return (
                    ["torch.no_grad"]
                    if node.args and is_false(node.args[0])
                    else ["torch.set_grad_enabled"]
                )
            return [name]
        return [o.name for o in self.program.origins(node, frame.scope)] or [dotted(node)]

    def expression(self, node: ast.expr, frame: Frame) -> None:
        """Follow the calls of an expression, arguments before the call."""
        if isinstance(node, (ast.Name, ast.Constant, ast.Lambda)):
            return
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            self.comprehension(node, frame)
            return
        for child in children(node):
            if isinstance(child, ast.expr):
                self.expression(child, frame)
            elif isinstance(child, ast.keyword):
                self.expression(child.value, frame)
        if isinstance(node, ast.Call):
            self.called(node, frame)

    def comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
    ) -> None:
        """Follow the elements once, in a loop for each `for`."""
        kept = self.loops
        for generator in node.generators:
            self.expression(generator.iter, frame)
            self.loops += (Loop(generator, frame.scope),)
        for element in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.expression(element, frame)
        self.loops = kept

    def called(self, node: ast.Call, frame: Frame) -> None:
        """Record a call, or the events of the helper that it runs."""
        if method(node) == "step":
            for given in (*node.args, *(k.value for k in node.keywords)):
                closure = (
                    self.program.local_function(given.id, frame.scope)
                    if isinstance(given, ast.Name)
                    else None
                )
                if closure is not None:
                    self.enter(closure, node, frame)
        kind, key, via = classify(self.program, node, frame)
        self.add(kind, key, node, frame, via)
        if (
            kind in ("call", "train", "eval", "step", "zero")
            and last_name(node.func) in self.leading
        ):
            for function in self.program.callees(node, frame.scope):
                self.enter(function, node, frame)

    def enter(self, function: Scope, call: ast.Call, frame: Frame) -> None:
        """Put a helper in place of its call."""
        stack, current = set(), frame
        while current.caller is not None:
            stack.add(current.scope)
            current = current.caller
        if (
            frame.depth >= DEPTH
            or function in stack | {current.scope}
            or function not in self.followed
        ):
            return
        target = receiver(call)
        key = frame.key(target) if target is not None else frame.self_key
        self.run(Frame(function, call, frame, key or "self", frame.depth + 1))

    def add(self, kind: str, key: str, node: ast.AST, frame: Frame, via: str = "") -> None:
        """Record an event with its surroundings."""
        self.events.append(
            Event(kind, key, node, frame, self.loops, self.branches, self.contexts, via)
        )


def classify(program: Program, node: ast.Call, frame: Frame) -> tuple[str, str, str]:
    """Return the kind of a call, its object, and its means (`scaler`, `accelerator`, `closure`)."""
    name, target, scope = method(node), receiver(node), frame.scope
    if target is None or program.resolve(node.func):
        return _plain(program, node, frame)
    match name:
        case "backward" | "manual_backward":
            return ("backward", *_loss_of(node, frame))
        case "step":
            return _step(program, node, frame)
        case "zero_grad" | "zero_":
            if name == "zero_grad":
                return "zero", frame.key(target), ""
            return (
                ("zero", "*", "")
                if last_name(target) == "grad"
                else ("call", frame.key(target), "")
            )
        case "unscale_":
            return "unscale", frame.key(node.args[0]) if node.args else "", "scaler"
        case "update" if (
            is_scaler(program, target, scope) and len(node.args) <= 1 and not node.keywords
        ):
            return "scaler_update", frame.key(target), ""
        case "clip_grad_norm_" | "clip_grad_value_" | "clip_gradients":
            return "clip", "", "accelerator"
        case "eval" if not node.args:
            return "eval", frame.key(target), ""
        case "train" if len(node.args) + len(node.keywords) <= 1 and is_model(
            program, target, scope
        ):
            mode = node.args[0] if node.args else keyword(node, "mode")
            return (
                ("eval" if is_false(mode) else "train"),
                frame.key(target),
                "" if mode is None or is_false(mode) else "conditional",
            )
    if is_model(program, node.func, scope):
        return "forward", frame.key(node.func), ""
    return "call", frame.key(node.func), ""


def _plain(program: Program, node: ast.Call, frame: Frame) -> tuple[str, str, str]:
    name = program.resolve(node.func)
    last = name.rpartition(".")[2]
    if name.startswith("torch.") and last.startswith("clip_grad"):
        return "clip", "", ""
    if name == "torch.autograd.backward":
        return "backward", frame.key(node.args[0]) if node.args else "", ""
    if name == "torch.save":
        return "save", "", ""
    if (
        not name
        and isinstance(node.func, (ast.Name, ast.Attribute))
        and is_model(program, node.func, frame.scope)
    ):
        return "forward", frame.key(node.func), ""
    return "call", name or dotted(node.func), ""


def _loss_of(node: ast.Call, frame: Frame) -> tuple[str, str]:
    """Return the loss of a backward call, and the means of the call."""
    target = receiver(node)
    if isinstance(target, ast.Call) and method(target) == "scale" and target.args:
        return frame.key(target.args[0]), "scaler"
    delegated = bool(node.args) and (
        last_name(target) in DELEGATES or "accelerat" in last_name(target) or not frame.key(target)
    )
    if delegated:
        return frame.key(node.args[0]), "accelerator"
    return frame.key(target), ""


def _step(program: Program, node: ast.Call, frame: Frame) -> tuple[str, str, str]:
    target, scope = receiver(node), frame.scope
    if node.args and (
        is_scaler(program, target, scope) or is_optimizer(program, node.args[0], scope)
    ):
        return "step", frame.key(node.args[0]), "scaler"
    if is_scheduler(program, target, scope):
        return "schedule", frame.key(target), ""
    if is_optimizer(program, target, scope):
        return "step", frame.key(target), "closure" if node.args or node.keywords else ""
    return "call", frame.key(node.func), ""


def traces(program: Program) -> list[list[Event]]:
    """Return one trace for each function that nobody in the file calls, and for the file itself."""
    followed = _followed(program)
    found: list[list[Event]] = []
    seen: set[Scope] = set()
    roots = [s for s in program.scopes if s is program.top or not program.call_sites[s]]
    for scope in (*roots, *program.scopes):
        if scope not in seen:
            tracer = Tracer(program, followed)
            found.append(tracer.run(Frame(scope)))
            seen |= tracer.visited
    return found


def _followed(program: Program) -> set[Scope]:
    """Return the helpers with events that rules ask about, directly or through other helpers."""
    found: set[Scope] = set()
    callers: dict[Scope, set[Scope]] = {}
    for called, sites in program.call_sites.items():
        callers[called] = {scope for _, scope in sites}
    for node in program.nodes[ast.Attribute]:
        if node.attr in FOLLOWED:
            found.add(program.scope(node))
    pending = list(found)
    while pending:
        for caller in callers.get(pending.pop(), ()):
            if caller not in found:
                found.add(caller)
                pending.append(caller)
    return {scope for scope in found if scope is not program.top}
