"""Rule BH336: labels that are padded, and a loss that counts the padding."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to
from training.review.program import Program, Scope
from training.review.syntax import constant, identifiers, keyword, nodes_of, words
from training.review.values import loss_calls, number

LABELS = {
    "tag", "tags", "label", "labels", "target", "targets", "y", "ys", "tgt", "tgts", "pos", "slots",
}  # fmt: skip
MASKS = {"mask", "masks", "masked", "keep"}
IGNORED = -100  # what torch leaves out by default


@rule("BH336")
def padded_labels_count(subject: Subject) -> Iterator[Place]:
    """Inputs and labels are padded in one function, and every cross-entropy of the file is a mean
    over flat labels that leaves out another number, or none.
    """
    program = subject.program
    padded = calls_to(program, "torch.nn.utils.rnn.pad_sequence")
    if (
        len(padded) < 2
        or {"masked_select", "pack_sequence", "masked_scatter"} & program.called_names
    ):
        return
    losses = [loss for loss in loss_calls(program) if loss.kind in ("cross_entropy", "nll")]
    for call in padded:
        scope = program.scope(call)
        value = keyword(call, "padding_value", 2)
        pad = 0 if value is None else number(program, value, scope)
        if (
            pad is None
            or pad == IGNORED
            or not _named_as_labels(program, call)
            or sum(program.scope(c) is scope for c in padded) < 2
        ):
            continue
        counted = [
            loss
            for loss in losses
            if loss.target is not None and _flat(loss.target) and LABELS & _words_of(loss.target)
        ]
        if (
            counted
            and len(counted) == len(losses)
            and all(_counts(program, loss.call, loss.scope, int(pad)) for loss in counted)
        ):
            yield (
                counted[0].call,
                (
                    f"labels are padded with {int(pad)} in line {call.lineno}, and the loss takes"
                    " that for a class"
                ),
                call,
            )
            return


def _named_as_labels(program: Program, call: ast.Call) -> bool:
    """Whether what is padded, or what it becomes, is named after labels."""
    statement = program.statement(call)
    targets = [
        t for t in getattr(statement, "targets", ()) if isinstance(t, (ast.Name, ast.Attribute))
    ]
    spoken = {w for n in [*call.args[:1], *targets] for w in _words_of(n)}
    return bool(LABELS & spoken)


def _words_of(node: ast.AST) -> set[str]:
    return {w for n in identifiers(node) for w in words(n)}


def _flat(target: ast.expr) -> bool:
    """Whether labels are laid flat, or scores turned for them, and none of them is picked out."""
    return not any(
        not isinstance(n.slice, (ast.Slice, ast.Tuple)) for n in nodes_of(target, ast.Subscript)
    )


def _counts(program: Program, call: ast.Call, scope: Scope, pad: int) -> bool:
    """Whether a loss is a mean over all labels, those of that number too, in a function that speaks
    of no mask.
    """
    made = [call, *(o.call for o in program.origins(call.func, scope))]
    if any(k.arg is None for c in made for k in c.keywords):
        return False
    ignored = [k.value for c in made for k in c.keywords if k.arg == "ignore_index"]
    if any(
        constant(k.value) in ("none", "sum") or not isinstance(constant(k.value), str)
        for c in made
        for k in c.keywords
        if k.arg == "reduction"
    ):
        return False
    if any(k.arg == "weight" for c in made for k in c.keywords):
        return False
    if any((known := number(program, given, scope)) is None or known == pad for given in ignored):
        return False
    spoken = (
        _words_of(scope.node)
        if scope.name
        else {w for n in nodes_of(program.statement(call), ast.Name) for w in words(n.id)}
    )
    return not MASKS & spoken
