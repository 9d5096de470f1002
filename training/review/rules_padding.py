"""Rule BH479: padding masks that are true for what is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.syntax import (
    calls,
    constant,
    identifiers,
    keyword,
    last_name,
    method,
    receiver,
    words,
)
from training.review.values import reaching

MASKS = (
    "key_padding_mask",
    "src_key_padding_mask",
    "tgt_key_padding_mask",
    "memory_key_padding_mask",
)
SAME = {"bool", "to", "cuda", "contiguous", "detach", "clone"}
FRONT = {
    "pad",
    "pads",
    "padding",
    "padded",
    "skip",
    "skipped",
    "start",
    "starts",
    "begin",
    "offset",
    "offsets",
    "first",
    "empty",
    "missing",
}  # counted from the left
PAD = {"pad", "padding"}
TOKENS = {"token", "tokens", "ids", "words", "input", "src", "seq", "sequence", "sequences"}
FURTHER = 4  # names
OTHER = {"there": "missing", "missing": "there", "": ""}


@rule("BH479")
def padding_mask_true_for_tokens(subject: Subject) -> Iterator[Place]:
    """What a layer of torch is given as a padding mask compares places with lengths, or tokens with
    the one for padding, and is true for what is to be seen.
    """
    program = subject.program
    if not set(MASKS) & {k.arg for c in program.all_calls for k in c.keywords}:
        return
    for call in program.all_calls:
        for name in MASKS:
            given = keyword(call, name)
            if given is None or isinstance(given, ast.Constant):
                continue
            scope = program.scope(call)
            made = {o.name.startswith("torch.") for o in program.origins(call.func, scope)}
            if (
                made <= {True}
                and (made or name != "key_padding_mask")
                and true_for(program, given, scope) == "there"
            ):
                yield (
                    given,
                    (
                        f"{name} is true for the places that are there: these are left out, and the"
                        " padding is seen"
                    ),
                )


def true_for(program: Program, node: ast.expr | None, scope: Scope, depth: int = 0) -> str:
    """Whether a mask is true for what is `there` or for what is `missing`; empty where nothing says
    so, or two callers differ.
    """
    match node:
        case ast.UnaryOp(op=ast.Invert() | ast.Not()):
            return OTHER[true_for(program, node.operand, scope, depth)]
        case ast.Compare(ops=[ast.Eq() | ast.NotEq()], comparators=[other]):
            return _of_tokens(node, other)
        case ast.Compare(ops=[_], comparators=[_]):
            return _of_places(program, node, scope)
        case ast.Name():
            values = [(v, scope) for v in reaching(program, node, scope)]
            if not values and node.id in scope.parameters and depth < FURTHER:
                values = [
                    (v, caller)
                    for c, caller in program.call_sites[scope]
                    if (v := argument(c, scope, node.id)) is not None
                ]
                values = values or _by_layers(program, node.id, scope)
            said = (
                {true_for(program, v, s, depth + 1) for v, s in values}
                if depth < FURTHER
                else set()
            )
            return said.pop() if len(said) == 1 else ""
        case ast.Call():
            return _of_call(program, node, scope, depth)
    return ""


def _by_layers(program: Program, name: str, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """What networks of the file hand to a layer that they hold, in a list too: `for layer in
    self.layers: x = layer(x, mask)`.
    """
    found: list[tuple[ast.expr, Scope]] = []
    for owner in (
        program.module_classes if scope.name == "forward" and scope.owner is not None else ()
    ):
        for other in program.methods[owner].values():
            for call in (c for c in calls(other.node) if len(c.args) + len(c.keywords) > 1):
                given = argument(call, scope, name)
                of = scope.owner.name if scope.owner is not None else ""
                if given is not None and any(
                    o.name == of or (o.last == "ModuleList" and of in identifiers(o.call))
                    for o in program.origins(call.func, other)
                ):
                    found.append((given, other))
    return found


def _of_call(program: Program, node: ast.Call, scope: Scope, depth: int) -> str:
    of, name = receiver(node), method(node)
    if name in ("logical_not", "bitwise_not"):
        return OTHER[true_for(program, node.args[0] if node.args else of, scope, depth)]
    if (
        name in ("ne", "eq")
        and len(node.args) == 1
        and of is not None
        and not program.resolve(node.func)
    ):
        return _of_tokens(
            ast.Compare(of, [ast.Eq() if name == "eq" else ast.NotEq()], node.args), node.args[0]
        )
    if name in SAME and of is not None:
        if (
            isinstance(of, ast.Name)
            and {"attention", "mask"} <= words(of.id)
            and name in ("bool", "to")
            and not scope.bindings.get(of.id)
        ):
            return (
                "there"
                if name == "bool" or last_name(node.args[0] if node.args else None) == "bool"
                else ""
            )  # of a tokenizer: 1 for tokens
        return true_for(program, of, scope, depth)
    return ""


def _of_tokens(test: ast.Compare, pad: ast.expr) -> str:
    """Of `tokens != pad`."""
    sides = (test.left, pad)
    named = any(PAD & words(last_name(s)) for s in sides) or (
        constant(pad) == 0 and bool(TOKENS & words(last_name(test.left)))
    )
    return ("missing" if isinstance(test.ops[0], ast.Eq) else "there") if named else ""


def _of_places(program: Program, test: ast.Compare, scope: Scope) -> str:
    """Of `arange(T)[None] < lengths[:, None]`, or the other way round."""
    left, right = (_counts(program, side, scope) for side in (test.left, test.comparators[0]))
    if left == right or not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return ""
    lengths = test.comparators[0] if left else test.left
    if FRONT & {w for n in identifiers(lengths) for w in words(n)}:
        return ""
    return "there" if isinstance(test.ops[0], (ast.Lt, ast.LtE)) == left else "missing"


def _counts(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether places are counted from 0 by `arange`, there or under a name."""
    if any(last_name(c.func) == "arange" for c in calls(node)):
        return True
    inner = node
    while isinstance(inner, (ast.Subscript, ast.Call)):
        inner = (
            inner.value
            if isinstance(inner, ast.Subscript)
            else receiver(inner) or ast.Constant(None)
        )
    values = (
        [b.value for b in program.bindings_of(inner, scope)]
        if isinstance(inner, (ast.Name, ast.Attribute))
        else []
    )
    return len(values) == 1 and any(last_name(c.func) == "arange" for c in calls(values[0]))
