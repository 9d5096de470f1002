"""Rule BH565: who was lost before the horizon counts as one to whom nothing happened."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.censoring import BOUNDS, FOLLOWED, TIMES, Within, accounts_for_censoring, is_zero, ordered, told_apart
from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import constant, last_name, method, receiver, walk, words

SURE = {
    *("died", "dead", "death", "deaths", "deceased", "mortality", "churn", "churned", "relapse", "relapsed", "readmitted", "readmission", "recurrence"),
    *("progressed", "progression", "lapsed"),
}  # fmt: skip
EVENTS = SURE | {"event", "events", "fail", "failed", "failure", "status", "observed", "defaulted", "cancelled"}
KEEPS = {
    *("astype", "float", "long", "int", "bool", "to", "double", "type", "to_numpy", "numpy", "fillna", "view", "copy", "reshape", "values", "unsqueeze", "squeeze"),
}  # fmt: skip
CASTS = {"astype", "float", "long", "int", "to", "double", "type"}
WRAPS = {"array", "asarray", "tensor", "as_tensor", "from_numpy", "Series", "float32", "int64"}
LABELS = {"y", "label", "labels", "target", "targets", "outcome", "outcomes"}
DEPTH = 4


@rule(
    "BH565",
    "censored-is-negative",
    "error",
    title="Who was lost before the horizon counts as a negative",
    why="A follow-up ends with the event or with the last contact. One that ended without the event before the horizon says nothing of the horizon, yet gets label 0: the model learns, and is measured by, how soon people are lost.",
    remedy="leave out the rows that were followed for less than the horizon without the event, weight the others by the inverse probability of censoring, or train with a survival loss",
    bad="""
        import torch

        def add_outcome(frame, horizon):
            frame = frame.copy()
            frame["label"] = ((frame["died"] == 1) & (frame["followup_days"] <= horizon)).astype(int)
            return torch.tensor(frame[["age", "pressure"]].to_numpy()), torch.tensor(frame["label"].to_numpy())
        """,
    good="""
        import torch

        def add_outcome(frame, horizon):
            frame = frame[(frame["died"] == 1) | (frame["followup_days"] >= horizon)].copy()
            frame["label"] = ((frame["died"] == 1) & (frame["followup_days"] <= horizon)).astype(int)
            return torch.tensor(frame[["age", "pressure"]].to_numpy()), torch.tensor(frame["label"].to_numpy())
        """,
)
def censored_is_negative(subject: Subject) -> Iterator[Place]:
    """A label is that an event happened and the follow-up is at most a horizon, and nothing in the file tells those followed for less apart, or weights for them."""
    program = subject.program
    made = [w for w in _conjunctions(program) if _is_label(program, w.node) and _ends_with_either(program, w)]
    if not made or accounts_for_censoring(program):
        return
    own = {id(n) for w in made for n in walk(w.compare)}
    for within in made:
        if not told_apart(program, within, own):
            event, time = max(within.event, key=len), max(within.time, key=len)
            yield (
                within.node,
                f"{time} ends with the last contact where {event} is 0: a row that was lost before {ast.unparse(within.bound)} gets label 0, though nobody knows",
            )


def _conjunctions(program: Program) -> Iterator[Within]:
    """Conjunctions of an event and a time within a bound, and of nothing else, and of choices in each other."""
    for kind in (ast.BinOp, ast.BoolOp, ast.Call):
        for node in program.nodes[kind]:
            found = _within(program, node) if isinstance(node, ast.expr) else None
            if found is not None:
                yield found


def _within(program: Program, node: ast.expr) -> Within | None:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.Mult(), right=right):
            parts = [left, right]
        case ast.BoolOp(op=ast.And(), values=[left, right]):
            parts = [left, right]
        case ast.Call(args=[left, right]) if last_name(node.func) in ("logical_and", "bitwise_and"):
            parts = [left, right]
        case ast.Call(func=ast.Attribute(value=left), args=[right]) if method(node) in ("logical_and", "mul", "__and__"):
            parts = [left, right]
        case ast.Call(args=[left, ast.Call(args=[right, one, zero]), none]) if last_name(node.func) == "where" and last_name(node.args[1].func) == "where":  # type: ignore[attr-defined]
            if not (_is_one(one) and is_zero(zero) and is_zero(none)):
                return None
            parts = [left, right]
        case _:
            return None
    scope = program.scope(node)
    for first, second in (parts, parts[::-1]):
        compared = _bounded(program, second, scope)
        event = _event(program, first, scope) if compared is not None else frozenset()
        if compared is not None and event and not event & compared[0]:
            return Within(node, event, compared[0], compared[1], compared[2])
    return None


def _is_one(node: ast.AST | None) -> bool:
    return constant(node) in (1, True) and not isinstance(constant(node), str)


def _whole(program: Program, node: ast.expr, scope: Scope) -> ast.expr:
    """What a name stands for that is bound once, casts taken off."""
    for _ in range(DEPTH * 2):
        if isinstance(node, ast.Call) and method(node) in KEEPS and receiver(node) is not None and not program.resolve(node.func):
            node = receiver(node) or node
        elif isinstance(node, ast.Call) and last_name(node.func) in WRAPS | {"bool", "int", "float"} and node.args:
            node = node.args[0]
        elif isinstance(node, ast.Attribute) and node.attr == "values":
            node = node.value
        elif isinstance(node, ast.Name):
            bound = program.bindings_of(node, scope)
            if len(bound) != 1 or bound[0].how != "assign" or bound[0].index is not None or node.id in scope.parameters:
                return node
            node, scope = bound[0].value, bound[0].scope
        else:
            return node
    return node


def _keys(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> frozenset[str]:
    """The names of a column or variable: `died` of `frame["died"]`, `row.died`, `died`, and of a name that is set to one of these."""
    node = _stripped(program, node)
    if isinstance(node, ast.Attribute):
        return frozenset([node.attr])
    if isinstance(node, ast.Subscript):
        named = [i for i in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]) if isinstance(constant(i), str)]
        if named:
            return frozenset([str(constant(named[0]))])
        if isinstance(node.slice, (ast.Name, ast.Attribute)):
            values = program.bindings_of(node.slice, scope)
            if len(values) == 1 and isinstance(constant(values[0].value), str):
                return frozenset([str(constant(values[0].value))])
            if last_name(node.slice).isupper() or {"col", "column"} & words(last_name(node.slice)):
                return frozenset([last_name(node.slice)])
        return _keys(program, node.value, scope, depth + 1) if depth < DEPTH else frozenset()
    if isinstance(node, ast.Name):
        bound = program.bindings_of(node, scope)
        further = _keys(program, bound[0].value, bound[0].scope, depth + 1) if len(bound) == 1 and bound[0].how == "assign" and depth < DEPTH else frozenset()
        return frozenset([node.id]) | (further if bound and bound[0].index is None else frozenset())
    return frozenset()


def _stripped(program: Program, node: ast.expr) -> ast.expr:
    for _ in range(DEPTH * 2):
        if isinstance(node, ast.Call) and method(node) in KEEPS | {"get"} and not program.resolve(node.func):
            if method(node) == "get" and node.args:
                return ast.Subscript(node.func.value, node.args[0], ast.Load()) if isinstance(node.func, ast.Attribute) else node
            node = receiver(node) or node
        elif isinstance(node, ast.Call) and last_name(node.func) in WRAPS | {"bool", "int", "float"} and node.args:
            node = node.args[0]
        elif isinstance(node, ast.Attribute) and node.attr in ("values", "days", "dt"):
            node = node.value
        else:
            break
    return node


def _event(program: Program, node: ast.expr, scope: Scope) -> frozenset[str]:
    """The names of an event indicator that is asked to be set; empty of anything else."""
    for _ in range(DEPTH):
        keys = _keys(program, node, scope)
        named = {k for k in keys if EVENTS & words(k) and not (TIMES - {"t"}) & words(k)}
        whole = _whole(program, node, scope)
        of_two = isinstance(whole, ast.Compare) and not any(constant(side) is not None for side in (whole.left, *whole.comparators))  # `died_at <= lost_at`
        if named and (not isinstance(node, ast.Name) or of_two or isinstance(whole, (ast.Subscript, ast.Attribute, ast.Name))):
            return keys
        node = whole
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]) if _is_one(right) or isinstance(constant(right), str):
                node = left
            case ast.Compare(left=left, ops=[ast.NotEq() | ast.Gt()], comparators=[right]) if is_zero(right):
                node = left
            case ast.Call(args=[right]) if method(node) == "eq" and (_is_one(right) or isinstance(constant(right), str)):
                node = receiver(node) or node
            case _:
                return frozenset()
    return frozenset()


def _bounded(program: Program, node: ast.expr, scope: Scope) -> tuple[frozenset[str], ast.expr, ast.expr] | None:
    """The names of a time that is compared to be at most a bound, the bound, and the comparison."""
    whole = _whole(program, node, scope)
    sides = ordered(whole)
    if sides is None:
        return None
    time, _, bound = sides if sides[1] in (ast.Lt, ast.LtE) else (sides[2], sides[1], sides[0])
    keys = _keys(program, time, scope)
    if not any((FOLLOWED | TIMES) & words(k) for k in keys) or is_zero(bound):
        return None
    plain = not any(
        isinstance(n, ast.Subscript) and isinstance(constant(n.slice), str) and (FOLLOWED | {"date"}) & words(str(constant(n.slice))) for n in walk(bound)
    )
    return (keys, bound, whole) if plain and not isinstance(constant(bound), str) else None


def _is_label(program: Program, node: ast.expr, depth: int = 0) -> bool:
    """Whether a condition is made a number or a column, and is no filter and no count."""
    cast, inner = isinstance(node, ast.Call) and last_name(node.func) == "where", node
    while (outer := _cast(program, inner)) is not None:
        inner = outer
        cast = cast or not (isinstance(outer, ast.Call) and method(outer) in KEEPS - CASTS)
    above = program.parents.get(inner)
    match above:
        case ast.IfExp(test=test, body=body, orelse=orelse) if test is inner:
            return _is_one(body) and is_zero(orelse)
        case ast.Assign(targets=[ast.Subscript(slice=key)]):
            return cast or isinstance(constant(key), str)
        case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)]):
            return cast or bool(LABELS & words(name)) or (depth < DEPTH and _read_as_label(program, name, inner, depth))
        case ast.keyword(arg=str()):
            return cast or last_name(getattr(program.parents.get(above), "func", None)) == "assign"
        case ast.Subscript(slice=index, ctx=ast.Store()) if inner is index:
            return _is_set_to_one(program, above)
        case ast.Tuple(elts=[first, *_]) if first is inner and isinstance(program.parents.get(above), ast.Subscript):
            return _is_set_to_one(program, program.parents[above])
        case ast.Return():
            return cast or bool(LABELS & words(program.scope(above).name))
        case ast.Call(args=arguments):
            return cast and inner in arguments
    return cast and isinstance(above, (ast.Lambda, ast.Tuple, ast.Dict, ast.List, ast.ListComp))


def _cast(program: Program, node: ast.expr) -> ast.expr | None:
    """A cast or the like that is made of an expression: `.astype(int)`, `np.where(…, 1, 0)`, `torch.tensor(…)`; None where nothing is."""
    above = program.parents.get(node)
    call = program.parents.get(above) if isinstance(above, ast.Attribute) else None
    if isinstance(above, ast.Attribute) and above.attr in KEEPS and isinstance(call, ast.Call) and call.func is above:
        return call
    match above:
        case ast.Call(args=[first, one, zero]) if first is node and last_name(above.func) == "where" and _is_one(one) and is_zero(zero):
            return above
        case ast.Call(args=[first, *_]) if first is node and last_name(above.func) in WRAPS | {"int", "float"}:
            return above
    return None


def _is_set_to_one(program: Program, subscript: ast.AST) -> bool:
    """Whether 1 is put where an index says."""
    statement = program.parents.get(subscript)
    return subscript in getattr(statement, "targets", ()) and isinstance(statement, ast.Assign) and _is_one(statement.value)


def _read_as_label(program: Program, name: str, value: ast.expr, depth: int) -> bool:
    """Whether a condition that a name holds is made a label where the name is read."""
    scope = program.scope(value)
    if len(scope.bindings.get(name, ())) != 1:
        return False
    read = [n for n in program.nodes[ast.Name] if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and program.scope(n) is scope]
    return any(_is_label(program, n, depth + 1) for n in read)


def _ends_with_either(program: Program, within: Within) -> bool:
    """Whether a time ends with the event or with the loss: by its name, or as it is made here."""
    named = frozenset(w for k in within.time for w in words(k))
    event = frozenset(w for k in within.event for w in words(k))
    if FOLLOWED & named or ({"duration", "durations"} & named and (SURE | {"event"}) & event):
        return True
    for node in program.nodes[ast.Assign]:
        if isinstance(node, ast.Assign) and any(_stored(t) in within.time for t in node.targets) and _first_of_two(program, node.value, program.scope(node)):
            return True
    for node in program.nodes[ast.Dict]:
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if constant(key) in within.time and _first_of_two(program, value, program.scope(node)):
                return True
    return any(k.arg in within.time and _first_of_two(program, k.value, program.scope(c)) for c in program.all_calls for k in c.keywords)


def _stored(target: ast.expr) -> str:
    """The name or column that an assignment sets."""
    key = constant(target.slice) if isinstance(target, ast.Subscript) else None
    return key if isinstance(key, str) else last_name(target)


def _first_of_two(program: Program, value: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a value is made as the earlier of two times, neither of which is a bound for all: `np.minimum(death, contact)`, `died_on.fillna(last_seen)`."""
    for call in (n for n in walk(value) if isinstance(n, ast.Call)):
        pair: list[ast.expr] = []
        if last_name(call.func) in ("minimum", "fmin") and call.args:
            pair = call.args[:2] if len(call.args) > 1 else [receiver(call) or call, call.args[0]]
        elif method(call) in ("fillna", "combine_first") and len(call.args) == 1:
            pair = [receiver(call) or call, call.args[0]]
        if len(pair) == 2 and all(_varies(program, p, scope) for p in pair):
            return True
    if depth < DEPTH and isinstance(value, ast.Name):
        return any(_first_of_two(program, b.value, b.scope, depth + 1) for b in program.bindings_of(value, scope) if b.how == "assign" and b.index is None)
    return False


def _varies(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a time is one for each row, as far as its name tells."""
    whole = _whole(program, node, scope)
    if constant(whole) is not None or isinstance(whole, ast.Attribute) or last_name(node).isupper():
        return False
    return not ({"max", "limit", "cap", "end", "study", "window", "administrative", "admin"} | BOUNDS) & {
        w for n in _keys(program, node, scope) for w in words(n)
    }
