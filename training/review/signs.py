"""With which sign a value goes into what `backward` is called on: through sums, names, lists, and what functions of the file return."""

from __future__ import annotations

import ast

from training.review.program import Binding, Program, Scope
from training.review.syntax import constant, defaults, identifiers, last_name, once, walk, words
from training.review.values import reaching

DEPTH = 8
INCREASING = {
    "mean", "sum", "squeeze", "view", "reshape", "flatten", "stack", "cat", "min", "max", "minimum", "maximum", "clamp", "nanmean", "to", "float", "double",
    "unsqueeze", "cumsum", "tensor", "scale", "masked_fill", "fsum",
}  # fmt: skip
READ = {
    "item",
    "detach",
    "tolist",
    "numpy",
    "cpu",
    "print",
    "isnan",
    "isfinite",
    "float",
    "round",
    "log",
    "info",
    "debug",
    "add_scalar",
    "write",
    "len",
    "log_metrics",
}
BACKWARD = {"backward", "manual_backward"}
UNKNOWN = 0


class Signs:
    r"""Follows one value outwards.

    >>> code = "loss = -(gain * weight).mean()\nloss.backward()"
    >>> program = Program(ast.parse(code))
    >>> product = next(n for n in program.nodes[ast.BinOp])
    >>> Signs(program).into_backward(product)
    {-1}
    """

    def __init__(self, program: Program, factors: set[str] | None = None) -> None:
        """`factors`: words by which a factor is known to be above 0, or to be better the greater it is; without them any name is."""
        self.program = program
        self.factors = factors
        self.done: set[tuple[int, int, int | None]] = set()

    def into_backward(self, node: ast.expr, sign: int = 1) -> set[int]:
        """The signs with which it arrives there: 1 or -1 for each way, 0 for a way that is lost; empty where it is only looked at or never used."""
        self.done.clear()
        return self._outwards(node, sign, None, 0)

    def _outwards(self, node: ast.expr, sign: int, index: int | None, depth: int) -> set[int]:
        """`index`: of which element, where the value is a tuple."""
        if depth > DEPTH * 4 or (id(node), sign, index) in self.done:
            return {UNKNOWN} if depth > DEPTH * 4 else set()
        self.done.add((id(node), sign, index))
        above = self.program.parents[node]
        match above:
            case ast.UnaryOp(op=ast.USub()):
                return self._outwards(above, -sign, None, depth + 1)
            case ast.BinOp():
                return self._of_sum_or_product(node, above, sign, depth)
            case ast.IfExp() if node is not above.test:
                return self._outwards(above, sign, index, depth + 1)
            case ast.List() | ast.Tuple() | ast.GeneratorExp() | ast.ListComp() | ast.Starred():
                at = above.elts.index(node) if isinstance(above, ast.Tuple) and not isinstance(above.ctx, ast.Store) else None
                return self._outwards(above, sign, at, depth + 1)
            case ast.Attribute():
                return self._of_method(above, sign, depth)
            case ast.Call() | ast.keyword():
                call = above if isinstance(above, ast.Call) else self.program.parents[above]
                return self._of_argument(call, sign, depth) if isinstance(call, ast.Call) else {UNKNOWN}
            case ast.Return():
                return self._of_callers(above, sign, index, depth)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr():
                return self._of_names(above, sign, index, depth)
            case ast.Expr() | ast.Compare() | ast.FormattedValue() | ast.If():
                return set()
        return {UNKNOWN}

    def _of_sum_or_product(self, node: ast.expr, above: ast.BinOp, sign: int, depth: int) -> set[int]:
        other = above.right if above.left is node else above.left
        match above.op:
            case ast.Add():
                return self._outwards(above, sign, None, depth + 1)
            case ast.Sub():
                return self._outwards(above, -sign if above.right is node else sign, None, depth + 1)
            case ast.Mult() | ast.Div() if not (isinstance(above.op, ast.Div) and above.right is node):
                if identifiers(other) & _negative_names(self.program) or self._is_strange(other):
                    return {UNKNOWN}
                value = constant(other)
                below = (isinstance(value, (int, float)) and value < 0) or (isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.USub))
                return self._outwards(above, -sign if below else sign, None, depth + 1)
        return {UNKNOWN}

    def _is_strange(self, factor: ast.expr) -> bool:
        """Whether nothing is known of the sign of a factor: a cost may stand there as well as a gain."""
        named = {w for n in identifiers(factor) for w in words(n)}
        return self.factors is not None and bool(named) and not named & self.factors

    def _of_method(self, above: ast.Attribute, sign: int, depth: int) -> set[int]:
        call = self.program.parents[above]
        if above.attr in BACKWARD:
            return {sign}
        if above.attr == "neg" and isinstance(call, ast.Call):
            return self._outwards(call, -sign, None, depth + 1)
        if above.attr in INCREASING - {"float"} and isinstance(call, ast.Call):
            return self._outwards(call, sign, None, depth + 1)
        if above.attr == "append":
            return set()
        return set() if above.attr in READ | {"data"} else {UNKNOWN}

    def _of_argument(self, call: ast.Call, sign: int, depth: int) -> set[int]:
        name = last_name(call.func)
        if name in BACKWARD:
            return {sign}
        if name in ("append", "extend") and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            return self._of_loads(call.func.value.id, None, self.program.scope(call), sign, None, depth)
        if name in ("neg", "negative"):
            return self._outwards(call, -sign, None, depth + 1)
        if name in READ and not (name == "float" and not isinstance(call.func, ast.Name)):
            return set()
        return self._outwards(call, sign, None, depth + 1) if name in INCREASING and not self.program.callees(call, self.program.scope(call)) else {UNKNOWN}

    def _of_callers(self, above: ast.Return, sign: int, index: int | None, depth: int) -> set[int]:
        scope = self.program.scope(above)
        sites = self.program.call_sites[scope]
        if not sites:
            return {UNKNOWN}
        return {s for call, _ in sites for s in self._outwards(call, sign, index, depth + 1)}

    def _of_names(self, above: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr, sign: int, index: int | None, depth: int) -> set[int]:
        targets = above.targets if isinstance(above, ast.Assign) else [above.target]
        if isinstance(above, ast.AugAssign):
            if not isinstance(above.op, (ast.Add, ast.Sub)):
                return {UNKNOWN}
            sign = sign if isinstance(above.op, ast.Add) else -sign
        found: set[int] = set()
        for target in targets:
            unpacked = isinstance(target, (ast.Tuple, ast.List)) and index is not None and index < len(target.elts)
            name = target.elts[index] if isinstance(target, (ast.Tuple, ast.List)) and unpacked and index is not None else target
            if not isinstance(name, ast.Name):
                return {UNKNOWN}
            found |= self._of_loads(name.id, above.value, self.program.scope(above), sign, None if unpacked else index, depth)
        return found

    def _of_loads(self, name: str, value: ast.expr | None, scope: Scope, sign: int, index: int | None, depth: int) -> set[int]:
        """What becomes of a name where it may hold that value; of a list, wherever it is read."""
        if depth > DEPTH * 2:
            return {UNKNOWN}
        found: set[int] = set()
        bound = [b for b in scope.bindings.get(name, ()) if b.how == "assign"]
        for node in walk(scope.node):
            if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
                continue
            if value is None or len(bound) <= 1 or self._holds(node, value, scope, bound):
                found |= self._outwards(node, sign, index, depth + 1)
        return found

    def _holds(self, node: ast.Name, value: ast.expr, scope: Scope, bound: list[Binding]) -> bool:
        """Whether a name may hold that value there; of an element of a tuple, whether it is the last one before."""
        known = reaching(self.program, node, scope)
        if known:
            return any(value is k for k in known)
        before = [b for b in bound if self.program.statement(b.statement).lineno <= node.lineno and self.program.statement(node) is not b.statement]
        return not before or max(before, key=lambda b: self.program.statement(b.statement).lineno).value is value


@once
def _negative_names(program: Program) -> frozenset[str]:
    """Names that are given a negative number somewhere: factors that turn a sign round."""
    found: set[str] = set()
    for kind in (ast.Assign, ast.AnnAssign):
        for node in program.nodes[kind]:
            value = getattr(node, "value", None)
            if isinstance(value, ast.expr) and _below_0(value):
                found |= {last_name(t) for t in getattr(node, "targets", None) or [getattr(node, "target", None)]}
    for call in program.all_calls:
        found |= {k.arg for k in call.keywords if k.arg and _below_0(k.value)}
    for scope in program.scopes:
        found |= {name for name, default in defaults(scope.node).items() if _below_0(default)}
    return frozenset(found - {""})


def _below_0(node: ast.expr) -> bool:
    value = constant(node)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0


def is_turned(program: Program, names: set[str]) -> bool:
    """Whether something of these names is negated anywhere in the file, or multiplied by what is below 0."""
    if not names:
        return False
    for node in program.nodes[ast.UnaryOp]:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and identifiers(node.operand) & names:
            return True
    for node in program.nodes[ast.BinOp]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if _below_0(one) and identifiers(other) & names:
                    return True
    return any(identifiers(c.func) & names for c in program.methods_of("neg", "neg_"))
