"""Every mention of a network in a file, under all names that it has there: whether anything learned can reach it."""

from __future__ import annotations

import ast

from training.review.program import SAME_OBJECT, Binding, Program, Scope, argument
from training.review.syntax import FUNCTIONS, LOOPS, constant, is_false, last_name, method, receiver, walk

HARMLESS = {"eval", "train", "to", "cuda", "cpu", "requires_grad_", "half", "float", "double", "share_memory", "compile", "state_dict", "training"}
THROUGH = {"parameters", "named_parameters", "modules", "children", "named_modules", "named_children", "__dict__", "load_state_dict"}
REFLECTION = {"getattr", "setattr", "vars", "globals", "locals", "exec", "__dict__"}
MOST = 30  # names


class Mentions:
    """Follows one network to all places that name it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.seen: set[tuple[str, Scope | ast.ClassDef]] = set()
        self.made: list[Binding] = []

    def left_behind(self, node: ast.expr, scope: Scope) -> ast.AST | None:
        """Where a network is made of which every mention is harmless; None where one is not, or where it is not made in this file."""
        if not self._is_left(node, scope) or len({id(b.statement) for b in self.made}) != 1:
            return None
        made = self.made[0]
        in_loop = any(isinstance(a, LOOPS) for a in self.program.ancestors(made.statement))
        return made.statement if self._is_seen(made) and not in_loop and not REFLECTION & self.program.identifiers else None

    def _is_seen(self, made: Binding) -> bool:
        """Whether what makes the network is a copy, or stands in this file, or is a layer of torch; nothing that may keep hold of it elsewhere."""
        value: ast.expr | None = made.value
        while isinstance(value, ast.Call) and method(value) in SAME_OBJECT:
            value = receiver(value)
        if not isinstance(value, ast.Call):
            return False
        name, resolved = last_name(value.func), self.program.resolve(value.func)
        here = isinstance(value.func, ast.Name) and (name in self.program.classes or self.program.local_function(name, made.scope) is not None)
        return here or name == "deepcopy" or resolved.startswith("torch.nn.")

    def _is_closed(self, owner: ast.ClassDef) -> bool:
        """Whether a class derives from nothing outside this file, and goes through none of its networks without naming them."""
        outside = {last_name(b) for known in self.program.bases(owner) for b in known.bases} - set(self.program.classes)
        through = {n.attr for n in walk(owner) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"} & THROUGH
        return outside <= {"object", "Module", "ABC"} and not through

    def _is_left(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the name, and those that it is passed on from and to, are mentioned in no way that changes the weights."""
        home = self._home(node, scope)
        if home is None or len(self.seen) > MOST:
            return False
        name, where = last_name(node), home
        if (name, where) in self.seen:
            return True
        self.seen.add((name, where))
        if isinstance(where, ast.ClassDef):
            if not self._is_closed(where):
                return False
            bound = [b for b in self.program.attributes[where].get(name, []) if not (isinstance(b.value, ast.Name) and b.value.id in b.scope.parameters)]
            passed = [b for b in self.program.attributes[where].get(name, []) if b not in bound]
            if any(b.scope.name != "__init__" for b in (*bound, *passed)):
                return False
            self.made += bound
            tree: ast.AST = self.program.tree
            mentioned: list[ast.expr] = [n for n in walk(tree) if isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Load)]
            return all(self._is_left(b.value, b.scope) for b in passed) and all(self._is_harmless(m) for m in mentioned)
        self.made += where.bindings.get(name, [])
        if name in where.parameters and not self._given(name, where):
            return False
        named = [n for n in walk(where.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        return all(self._is_harmless(n) for n in named)

    def _home(self, node: ast.expr, scope: Scope) -> Scope | ast.ClassDef | None:
        """The function in which a name is bound, or the class of an attribute of `self`."""
        if isinstance(node, ast.Attribute):
            return scope.owner if isinstance(node.value, ast.Name) and node.value.id == "self" else None
        current: Scope | None = scope if isinstance(node, ast.Name) else None
        while current is not None and isinstance(node, ast.Name):
            if node.id in current.bindings or node.id in current.parameters:
                return current
            current = current.parent
        return None

    def _given(self, name: str, scope: Scope) -> bool:
        """Whether all callers pass a name for a parameter that is left behind there too."""
        from_callers = [(argument(call, scope, name), caller) for call, caller in self.program.call_sites[scope]]
        if not from_callers or scope.bindings.get(name):
            # a parameter of a function that nobody calls here may be given anything; its own copy is what counts
            return False
        return all(given is not None and self._is_left(given, caller) for given, caller in from_callers)

    def _is_harmless(self, node: ast.expr) -> bool:
        above = self.program.parents[node]
        if isinstance(above, ast.Call) and above.func is node:
            return True
        if isinstance(above, (ast.Call, ast.keyword)):
            return self._is_passed_on(node, above)
        if not isinstance(above, ast.Attribute):
            return False
        if above.attr == "load_state_dict":
            return self._is_first_copy(node, above)
        if above.attr in ("parameters", "modules"):
            return self._is_freezing(above)
        return above.attr in HARMLESS

    def _is_passed_on(self, node: ast.expr, above: ast.Call | ast.keyword) -> bool:
        """Whether it goes to a function of this file that leaves it as it is."""
        call = above if isinstance(above, ast.Call) else self.program.parents[above]
        if not isinstance(call, ast.Call):
            return False
        callees = self.program.callees(call, self.program.scope(call))
        for function in callees:
            name = next((p for p in function.parameters if argument(call, function, p) is node), "")
            if not name or function.bindings.get(name):
                return False
            self.seen.add((name, function))
            held = [b for own in self.program.attributes.values() for at in own.values() for b in at if b.scope is function and last_name(b.value) == name]
            named = [n for n in walk(function.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
            kept = {id(b.value) for b in held}
            if not all(id(n) in kept or self._is_harmless(n) for n in named):
                return False
            for binding in held:
                target = binding.statement.targets[0] if isinstance(binding.statement, ast.Assign) else None
                if target is None or not self._is_left(target, function):
                    return False
        return bool(callees)

    def _is_first_copy(self, node: ast.expr, above: ast.Attribute) -> bool:
        """Whether weights are copied into it once, where it was made; or in a function that a program that runs never mentions."""
        scope, statement = self.program.scope(node), self.program.statement(node)
        if scope.name and scope.name != "__init__" and isinstance(scope.node, FUNCTIONS):
            named = {n.attr if isinstance(n, ast.Attribute) else n.id for n in walk(self.program.tree) if isinstance(n, (ast.Attribute, ast.Name))}
            if scope.name not in named and "__name__" in named:
                return True
        given = self.program.parents[above]
        state = isinstance(given, ast.Call) and len(given.args) == 1 and method(given.args[0]) == "state_dict"
        looped = any(isinstance(a, LOOPS) for a in self.program.ancestors(statement))
        here = scope.name == "__init__" or (isinstance(node, ast.Name) and node.id in scope.bindings)
        return state and not looped and here

    def _is_freezing(self, above: ast.Attribute) -> bool:
        """Whether its parameters are gone through to be frozen alone."""
        call = self.program.parents[above]
        loop = self.program.parents[call]
        if not isinstance(loop, ast.For) or loop.iter is not call:
            return False
        return all(_freezes(s) for s in loop.body)


def _freezes(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return last_name(statement.targets[0]) == "requires_grad" and constant(statement.value) is False
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and method(call) == "requires_grad_" and len(call.args) == 1 and is_false(call.args[0])
