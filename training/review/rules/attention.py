"""Rules about sequences: recurrent layers, attention and their masks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_given, calls_to, torch_calls
from training.review.program import Program, Scope, argument
from training.review.syntax import (
    calls,
    constant,
    dotted,
    entry,
    has_unpacking,
    identifiers,
    is_false,
    keyword,
    last_name,
    method,
    nodes_of,
    own_nodes,
    receiver,
    words,
)
from training.review.values import loss_calls, reaching, reaching_elements

# Layers, and at which place `batch_first` may be given.
BATCH_FIRST_AT: dict[str, int | None] = {
    "LSTM": 4, "GRU": 4, "RNN": 5, "MultiheadAttention": None, "TransformerEncoderLayer": None,
    "TransformerDecoderLayer": None,
}  # fmt: skip
MASKS = tuple(f"{of}key_padding_mask" for of in ("", "src_", "tgt_", "memory_"))
SAME = {"bool", "to", "cuda", "contiguous", "detach", "clone", "unsqueeze", "view", "expand"}
TURNS = {"transpose", "permute", "rearrange", "swapaxes", "movedim", "t", "T", "mT"}
ALONG = re.compile(r"\[:, (-1|0)(?:, :)?\]$|\.mean\((?:dim=)?1\)$")  # the second dimension
PRODUCT = "torch.nn.functional.scaled_dot_product_attention"
DEPTH = 8  # names and calls that a mask is followed through

# words
PAD = {"pad", "padding"}
TOKENS = {"token", "tokens", "ids", "words", "input", "src", "seq", "sequence", "sequences"}
FRONT = PAD | {"padded", "skip", "start", "starts", "begin", "offset", "offsets", "first", "empty"}
SPEAK_OF_MASKS = {
    "mask", "masks", "masked", "causal", "tril", "triu", "future", "bias", "lengths", "window",
}  # fmt: skip


@rule("BH424")
def batch_first_missing(subject: Subject) -> Iterator[Place]:
    """Of a layer whose first dimension is time, the last step or the mean over steps is taken along
    dimension 1; or rows are padded with time in front for layers with rows in front.
    """
    program = subject.program
    layers = torch_calls(program, *BATCH_FIRST_AT)
    padded = calls_to(program, "torch.nn.utils.rnn.pad_sequence") if layers else []
    if not TURNS & program.identifiers and not any(_is_time_first(c) for c in layers):
        last = last_name(layers[0].func) if layers else ""
        for call in (c for c in padded if keyword(c, "batch_first", 1) is None):
            yield call, f"pad_sequence puts time first, and {last} has batch_first=True"
    for owner in program.module_classes if layers else ():
        for scope in program.methods[owner].values():
            for node in own_nodes(scope.node):
                source = node.value if isinstance(node, ast.Subscript) else receiver(node)
                told = ALONG.search(ast.unparse(node)) if source is not None else None
                made = _time_first_output(program, source, scope) if told else ""
                # Of a batch of one `[:, 0]` is all its steps.
                alone = made != "TransformerEncoder" or "unsqueeze" in identifiers(scope.node)
                if made and told and not (told[1] == "0" and alone):
                    wrong = "its dimension 1 is the batch, not time"
                    yield node, f"{made} was created without batch_first: {wrong}"


def _is_time_first(call: ast.Call) -> bool:
    """Whether a layer takes time in front, as it does by default."""
    given = keyword(call, "batch_first", BATCH_FIRST_AT.get(last_name(call.func)))
    return not has_unpacking(call) and (given is None or is_false(given))


def _time_first_output(program: Program, node: ast.expr | None, scope: Scope) -> str:
    """The layer without `batch_first` whose output a name is there, or `self.rnn(x)[0]`."""
    found: list[tuple[ast.expr, int | None]] = []
    if isinstance(node, ast.Subscript) and constant(node.slice) == 0:
        found = [(node.value, 0)]
    elif isinstance(node, ast.Name):
        found = reaching_elements(program, node, scope)
    call, index = found[0] if len(found) == 1 else (None, None)
    made = program.origins(call.func, scope) if isinstance(call, ast.Call) else ()
    if len(made) != 1 or not made[0].name.startswith("torch.nn."):
        return ""
    last, block = made[0].last, made[0]
    if last == "TransformerEncoder":
        blocks = program.origins(keyword(block.call, "encoder_layer", 0), block.scope)
        block = blocks[0] if len(blocks) == 1 else block
    expected = None if last == "TransformerEncoder" else 0
    known = block.last in BATCH_FIRST_AT and index == expected
    return last if known and _is_time_first(block.call) else ""


Mask = tuple[ast.expr | None, Scope, bool, bool]


def _behind(program: Program, mask: ast.expr | None, scope: Scope) -> Mask:
    """What a mask is made of behind names, casts and `~`, in which function; whether it is
    inverted, and certainly of booleans.
    """
    turned = boolean = False
    for _ in range(DEPTH):
        match mask:
            case ast.UnaryOp(op=ast.Invert(), operand=inner):
                mask, turned, boolean = inner, not turned, True
            case ast.Call(func=ast.Attribute(attr="logical_not"), args=[inner]):
                mask, turned, boolean = inner, not turned, True
            case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in SAME:
                boolean = boolean or name == "bool" or "bool" in identifiers(mask)
                mask = of
            case ast.Subscript(value=inner, slice=ast.Tuple() | ast.Slice()):
                mask = inner
            case ast.Name() | ast.Attribute():
                values = _values(program, mask, scope)
                if len(values) != 1:
                    break
                mask, scope = values[0]
            case _:
                break
    return mask, scope, turned, boolean


def _values(
    program: Program, node: ast.Name | ast.Attribute, scope: Scope
) -> list[tuple[ast.expr, Scope]]:
    """What a name holds there: its last value, a buffer, or what callers give."""
    found = [(b.value, b.scope) for b in program.bindings_of(node, scope) if b.index is None]
    if isinstance(node, ast.Name):
        found = [(v, scope) for v in reaching(program, node, scope)] or found
    if not found and dotted(node) in scope.parameters:
        given = [(argument(c, scope, dotted(node)), of) for c, of in program.call_sites[scope]]
        return [(v, of) for v, of in given if v is not None]
    for call in calls(scope.owner) if not found else ():
        named = constant(keyword(call, "name", 0)) if method(call) == "register_buffer" else None
        tensor = keyword(call, "tensor", 1)
        if tensor is not None and dotted(node) == f"self.{named}":
            found.append((tensor, program.scope(call)))
    return found


@rule("BH479")
def padding_mask_true_for_tokens(subject: Subject) -> Iterator[Place]:
    """What a layer of torch is given as a padding mask compares places with lengths, or tokens with
    the one for padding, and is true for what is to be seen.
    """
    program = subject.program
    for name, call in ((m, c) for m in MASKS for c in calls_given(program, m)):
        given, scope = keyword(call, name), program.scope(call)
        made = [o.name.startswith("torch.") for o in program.origins(call.func, scope)]
        if given is None or not all(made) or (not made and name == "key_padding_mask"):
            continue
        mask = _behind(program, given, scope)
        if _true_for(program, mask) == ("missing" if mask[2] else "there"):
            told = "these are excluded, and the padding is attended to"
            yield given, f"{name} is true for the tokens: {told}"


def _true_for(program: Program, mask: Mask) -> str:
    """Whether it is true for what is `there` or `missing`: `tokens != pad`, `arange(T)[None] <
    lengths[:, None]`, either way round, or the mask of a tokenizer; empty where nothing says so.
    """
    made, scope, _, boolean = mask
    match made:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            sign = type(op).__name__
        case ast.Call(func=ast.Attribute(value=left, attr="ne" | "eq" as sign), args=[right]):
            sign = {"ne": "NotEq", "eq": "Eq"}[sign]
        case _:
            name = last_name(made) or entry(made)
            tokens = {"attention", "mask"} <= words(name) and not scope.bindings.get(name)
            return "there" if boolean and tokens else ""
    if sign in ("Eq", "NotEq"):
        zero = constant(right) == 0 and TOKENS & words(last_name(left))
        named = zero or PAD & (words(last_name(left)) | words(last_name(right)))
        return ("missing" if sign == "Eq" else "there") if named else ""
    counted = [_counts(program, side, scope) for side in (left, right)]
    lengths = right if counted[0] else left
    if counted[0] == counted[1] or any(FRONT & words(n) for n in identifiers(lengths)):
        return ""
    below = {"Lt": counted[0], "LtE": counted[0], "Gt": counted[1], "GtE": counted[1]}.get(sign)
    return "" if below is None else "there" if below else "missing"


def _counts(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether places are counted from 0 by `arange`, there or under a name."""
    bound = [b.value for n in nodes_of(node, ast.Name) for b in program.bindings_of(n, scope)]
    return any(last_name(c.func) == "arange" for part in (node, *bound) for c in calls(part))


@rule("BH482")
def causal_mask_reversed(subject: Subject) -> Iterator[Place]:
    """The mask of an attention of torch is a triangle of booleans, by its name, its buffer or in
    place, and true in the wrong triangle.
    """
    program = subject.program
    asked = [(c, keyword(c, "attn_mask", 3), "triu", "") for c in calls_to(program, PRODUCT)]
    asked += [(c, keyword(c, "attn_mask"), "tril", " not") for c in _attentions(program)]
    for call, mask, wrong, sign in asked:
        if _triangle(program, mask, program.scope(call)) == wrong:
            shown = "the future" if wrong == "triu" else "the past"
            yield (
                call,
                f"attention may{sign} look where the mask is true, and {wrong} is true for {shown}",
            )


def _attentions(program: Program) -> list[ast.Call]:
    """The calls of layers of attention."""
    found = program.all_calls if torch_calls(program, "MultiheadAttention") else []
    made = [(c, program.origins(c.func, program.scope(c))) for c in found]
    return [c for c, origins in made if any(o.last == "MultiheadAttention" for o in origins)]


def _triangle(program: Program, given: ast.expr | None, scope: Scope) -> str:
    """Whether a mask is `triu` or `tril` of ones as booleans; empty where that is not certain."""
    made, scope, turned, boolean = _behind(program, given, scope)
    if isinstance(made, ast.Compare) and ast.unparse(made).endswith(" == 0"):
        made, _, again, _ = _behind(program, made.left, scope)
        turned, boolean = turned == again, True
    if not isinstance(made, ast.Call) or last_name(made.func) not in ("triu", "tril"):
        return ""
    ones = made.args[0] if program.resolve(made.func) and made.args else receiver(made)
    filled = last_name(getattr(ones, "func", None)) in ("ones", "full", "ones_like")
    if not filled or not (boolean or "bool" in identifiers(made)):
        return ""
    return "triu" if (last_name(made.func) == "triu") != turned else "tril"


@rule("BH483")
def future_tokens_seen(subject: Subject) -> Iterator[Place]:
    """Self-attention of torch in a file that speaks of no mask, and in which one sequence is the
    input without its last, and the label without its first token.
    """
    program = subject.program
    same = [c for c in _attentions(program) if len(c.args) > 2]
    looks = [c for c in same if len({ast.unparse(a) for a in c.args[:3]}) == 1]
    for call in calls_to(program, PRODUCT):
        alone = program.scope(call).name == "forward" and len(program.scope(call).parameters) == 2
        unmasked = len(call.args) < 4 and {k.arg for k in call.keywords} <= {"dropout_p", "scale"}
        looks += [call] if alone and unmasked else []
    learns = any(loss.kind == "cross_entropy" for loss in loss_calls(program))
    apart = _a_token_apart(program) if looks and learns else None
    if apart is not None and not any(SPEAK_OF_MASKS & words(n) for n in program.identifiers):
        told = f"line {apart.lineno} makes the next token its label"
        yield looks[0], f"each token sees all others, those behind it too, and {told}", apart


def _a_token_apart(program: Program) -> ast.Subscript | None:
    """`ids[:, :-1]` next to `ids[:, 1:]` in one function, not subtracted from each other."""
    cuts: dict[tuple[Scope, str, str], ast.Subscript] = {}
    for node in program.nodes[ast.Subscript]:
        found = re.search(r"[\[ ](:-1|1:)\]$", ast.unparse(node))
        if found and dotted(node.value):
            if isinstance(program.parents[node], (ast.BinOp, ast.Compare)):
                return None
            cuts[program.scope(node), dotted(node.value), found[1]] = node
    labels = (n for (s, of, cut), n in cuts.items() if cut == "1:" and (s, of, ":-1") in cuts)
    return next(labels, None)
