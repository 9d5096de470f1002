"""Rule BH545: labels are interpolated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    constant,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    words,
)

MASKS = {
    "mask",
    "masks",
    "label",
    "labels",
    "seg",
    "segmentation",
    "annotation",
    "annotations",
    "classes",
}
BLENDS = {"bilinear", "bicubic", "linear", "trilinear"}
THRESHOLDS = {"gt", "ge", "lt", "le", "gt_", "ge_", "lt_", "le_"}
WHOLE = {"long", "int", "short", "byte"}
RESIZE = "torchvision.transforms.functional.resize"
RESHAPES = {
    "flatten",
    "reshape",
    "view",
    "contiguous",
    "transpose",
    "permute",
    "to",
    "clone",
    "long",
}


@rule("BH545")
def labels_blended(subject: Subject) -> Iterator[Place]:
    """Something called a mask or labels is resized by a mode that blends, and made whole numbers
    again, with no comparison between; or by torchvision's default beside an image.
    """
    program = subject.program
    names = {"interpolate", "resize", *(n for n, of in program.aliases.items() if of == RESIZE)}
    for call in program.calls_of(*names):
        last, scope = last_name(call.func), program.scope(call)
        plain = program.resolve(call.func) == RESIZE and keyword(call, "interpolation", 2) is None
        if last != "interpolate" and not plain:
            continue
        of = {w for n in identifiers(call.args[0]) for w in words(n)} if call.args else set()
        if not of & MASKS or of & {
            "scores",
            "logits",
            "score",
            "probs",
            "probabilities",
            "alpha",
            "matte",
            "soft",
        }:
            continue
        if (
            last == "interpolate"
            and constant(keyword(call, "mode", 3)) in BLENDS
            and _made_whole(program, call, scope)
        ):
            yield call, f"{ast.unparse(call.args[0])} is blended, and made whole numbers again"
        image = plain and any(
            program.resolve(c.func) == program.resolve(call.func)
            and c is not call
            and not {w for n in identifiers(c.args[0]) for w in words(n)} & MASKS
            for c in calls(scope.node)
            if c.args
        )
        if image and not _compared(program, call, scope):
            yield (
                call,
                f"{ast.unparse(call.args[0])} is resized bilinearly, as the image is: by default",
            )


def _made_whole(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether what an interpolation gives is cast to whole numbers."""
    node: ast.AST = call
    while isinstance(above := program.parents[node], (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(above, ast.Attribute) and above.attr in WHOLE:
            return True
        if isinstance(above, ast.Attribute) and above.attr not in RESHAPES | {
            "squeeze",
            "unsqueeze",
        }:
            return False
        node = above
    name = last_name(above.targets[0]) if isinstance(above, ast.Assign) else ""
    cast = [
        c
        for c in calls(scope.node)
        if method(c) in WHOLE and names_read(receiver(c) or c) == {name}
    ]
    cut = any(method(c) in THRESHOLDS and name in names_read(c) for c in calls(scope.node))
    return (
        bool(name)
        and bool(cast)
        and not cut
        and not any(name in names_read(n) for n in nodes_of(scope.node, ast.Compare))
    )


def _compared(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether what is resized is cut at a threshold afterwards, at once or by its name."""
    if any(isinstance(a, ast.Compare) for a in program.ancestors(call)):
        return True
    names = {last_name(t) for t in getattr(program.statement(call), "targets", ())} - {""}
    return any(
        names_read(n) & names and n.lineno >= call.lineno for n in nodes_of(scope.node, ast.Compare)
    )
