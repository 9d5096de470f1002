"""Rules BH482: and BH483: causal masks that are the wrong way round, or absent where the next token
is learnt.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, torch_calls
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    receiver,
    words,
)
from training.review.values import loss_calls

KEPT = {"to", "cuda", "contiguous", "unsqueeze", "view", "expand", "clone", "detach"}
SPEAK_OF_MASKS = {
    "mask", "masks", "masked", "causal", "tril", "triu", "future", "bias", "lengths", "window",
}  # fmt: skip
STEPS = 6


@rule("BH482")
def causal_mask_reversed(subject: Subject) -> Iterator[Place]:
    """The mask of an attention of torch is a triangle of booleans, by its name, its buffer or in
    place, and true on the wrong side.
    """
    program = subject.program
    asked = [
        (c, keyword(c, "attn_mask", 3), "triu")
        for c in calls_to(program, "torch.nn.functional.scaled_dot_product_attention")
    ]
    for call in program.all_calls if torch_calls(program, "MultiheadAttention") else ():
        given = keyword(call, "attn_mask")
        if given is not None and any(
            o.name == "torch.nn.MultiheadAttention"
            for o in program.origins(call.func, program.scope(call))
        ):
            asked.append((call, given, "tril"))
    for call, mask, wrong in asked:
        found = _triangle(program, mask, program.scope(call))
        if found == wrong:
            told = "true where it may look" if wrong == "triu" else "true where it may not look"
            yield (
                call,
                (
                    f"this mask is {told}, and {wrong} is true for"
                    f" {'what is to come' if wrong == 'triu' else 'what was'}"
                ),
            )


def _triangle(
    program: Program,
    mask: ast.expr | None,
    scope: Scope,
    turned: bool = False,
    boolean: bool = False,
    depth: int = 0,
) -> str:
    """`triu` or `tril` of ones, as booleans, that a mask is; the other one where it is turned
    round; empty where neither is certain.
    """
    if mask is None or depth > STEPS:
        return ""
    if isinstance(mask, ast.Subscript):
        return _triangle(program, mask.value, scope, turned, boolean, depth + 1)
    if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
        return _triangle(program, mask.operand, scope, not turned, True, depth + 1)
    if (
        isinstance(mask, ast.Compare)
        and len(mask.ops) == 1
        and constant(mask.comparators[0]) in (0, 1)
        and isinstance(mask.ops[0], ast.Eq)
    ):
        return _triangle(
            program,
            mask.left,
            scope,
            turned != (constant(mask.comparators[0]) == 0),
            True,
            depth + 1,
        )
    if isinstance(mask, ast.Call):
        name = last_name(mask.func)
        if name == "logical_not":
            return _triangle(
                program,
                mask.args[0] if mask.args else receiver(mask),
                scope,
                not turned,
                True,
                depth + 1,
            )
        if name == "bool" and method(mask):
            return _triangle(program, receiver(mask), scope, turned, True, depth + 1)
        if name in KEPT and method(mask):
            return _triangle(
                program,
                receiver(mask),
                scope,
                turned,
                boolean or "bool" in identifiers(mask),
                depth + 1,
            )
        ones = (
            mask.args[0]
            if mask.args and program.is_torch(mask.func, "triu", "tril")
            else receiver(mask)
        )
        if name not in ("triu", "tril") or last_name(getattr(ones, "func", None)) not in (
            "ones",
            "full",
            "ones_like",
        ):
            return ""
        if not boolean and "bool" not in identifiers(mask):
            return ""
        return name if not turned else {"triu": "tril", "tril": "triu"}[name]
    bound = program.bindings_of(mask, scope) if isinstance(mask, (ast.Name, ast.Attribute)) else []
    if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None:
        return _triangle(program, bound[0].value, bound[0].scope, turned, boolean, depth + 1)
    if not bound and isinstance(mask, ast.Attribute) and scope.owner is not None:
        made = [
            c
            for c in calls(scope.owner)
            if method(c) == "register_buffer" and constant(keyword(c, "name", 0)) == mask.attr
        ]
        return (
            _triangle(
                program,
                keyword(made[0], "tensor", 1),
                program.scope(made[0]),
                turned,
                boolean,
                depth + 1,
            )
            if len(made) == 1
            else ""
        )
    return ""


@rule("BH483")
def future_tokens_seen(subject: Subject) -> Iterator[Place]:
    """Self-attention of torch in a file that speaks of no mask, and in which one sequence is the
    input without its last, and the label without its first token.
    """
    program = subject.program
    if not calls_to(
        program, "torch.nn.functional.scaled_dot_product_attention"
    ) and not torch_calls(program, "MultiheadAttention"):
        return
    if SPEAK_OF_MASKS & {w for n in program.identifiers for w in words(n)} or not any(
        loss.kind == "cross_entropy" for loss in loss_calls(program)
    ):
        return
    apart = _a_token_apart(program)
    looks = [c for c in _self_attentions(program) if apart is not None]
    if apart is not None and looks:
        yield (
            looks[0],
            (
                f"each token sees all others, those behind it too, and line {apart.lineno} makes"
                " the next token its label"
            ),
            apart,
        )


def _self_attentions(program: Program) -> Iterator[ast.Call]:
    """Calls of attention whose queries, keys and values are of one tensor."""
    for call in calls_to(program, "torch.nn.functional.scaled_dot_product_attention"):
        scope = program.scope(call)
        if (
            scope.name == "forward"
            and len(scope.parameters) == 2
            and keyword(call, "attn_mask", 3) is None
            and not is_true(keyword(call, "is_causal", 5))
        ):
            yield call
    for call in program.all_calls if torch_calls(program, "MultiheadAttention") else ():
        same = len(call.args) >= 3 and len({ast.dump(a) for a in call.args[:3]}) == 1
        if same and any(
            o.name == "torch.nn.MultiheadAttention"
            for o in program.origins(call.func, program.scope(call))
        ):
            yield call


def _a_token_apart(program: Program) -> ast.Subscript | None:
    """`ids[:, :-1]` beside `ids[:, 1:]` in one function, not subtracted from each other."""
    first: dict[tuple[Scope, str], ast.Subscript] = {}
    last: dict[tuple[Scope, str], ast.Subscript] = {}
    for node in program.nodes[ast.Subscript]:
        cut = (
            node.slice.elts[-1]
            if isinstance(node.slice, ast.Tuple) and node.slice.elts
            else getattr(node, "slice", None)
        )
        if not isinstance(cut, ast.Slice) or not dotted(node.value):
            continue
        if isinstance(program.parents[node], (ast.BinOp, ast.Compare)):
            return None
        place = (program.scope(node), dotted(node.value))
        if cut.lower is None and constant(cut.upper) == -1:
            last[place] = node
        elif constant(cut.lower) == 1 and cut.upper is None:
            first[place] = node
    return next((first[p] for p in last if p in first), None)
