"""Rule BH550: values that are scaled back by other steps than those that scaled them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program
from training.review.syntax import last_name, words

CENTERS = {"mean", "means", "mu", "avg", "average", "center", "centre", "loc", "median", "min", "lo", "low", "offset", "shift", "level", "mid", "m", "minimum"}
WIDTHS = {"std", "stds", "sd", "sigma", "scale", "width", "span", "range", "deviation", "dev", "iqr", "s", "spread", "stdev"}
SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@rule(
    "BH550",
    "scaled-back-otherwise",
    "error",
    title="Values are scaled back by other steps than those that scaled them",
    why="What was made by `(x - mean) / std` is got back by `z * std + mean` alone. With the two exchanged, or one of them the same way again, every error after it is in no unit at all.",
    remedy="undo the steps from the last to the first: `z * std + mean`",
    bad="""
        import torch

        def scale(x, mean, std):
            return (x - mean) / std

        def unscale(z, mean, std):
            return z * mean + std
        """,
    good="""
        import torch

        def scale(x, mean, std):
            return (x - mean) / std

        def unscale(z, mean, std):
            return z * std + mean
        """,
)
def scaled_back_otherwise(subject: Subject) -> Iterator[Place]:
    """The file has `(x - a) / b`, and beside it `z * a + b`, `z / b + a` or `z * b - a` of the same two names."""
    program = subject.program
    scaled = {(c, b) for a in program.nodes[ast.BinOp] for c, b in _scaled(a)}
    if not scaled:
        return
    back = {tuple(p) for n in program.nodes[ast.BinOp] for p in _pairs(n, "*", "+")}
    for node in program.nodes[ast.BinOp]:
        for center, width in scaled:
            turned = (center, width) in _pairs(node, "*", "+") and (width, center) not in scaled
            again = (width, center) not in back and ((width, center) in _pairs(node, "/", "+") or (width, center) in _pairs(node, "*", "-"))
            if turned or (again and _goes_back(program, node)):
                yield node, f"{ast.unparse(node)} does not undo (x - {center}) / {width}"


def _goes_back(program: Program, node: ast.AST) -> bool:
    """Whether the function's name says that it undoes something."""
    name = program.scope(node).name.lower()
    return any(
        word in name
        for word in ("undo", "inverse", "invert", "unscale", "denorm", "unnorm", "destandard", "unstandard", "restore", "decode", "descale", "rescale", "back")
    )


def _scaled(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Center and width of `(x - center) / width`, also of `/ (width + 1e-8)` and `/ width.clamp(min=1e-8)`."""
    match node:
        case ast.BinOp(op=ast.Div(), left=ast.BinOp(op=ast.Sub(), right=center), right=width):
            width = _bare(width)
            if CENTERS & _words(center) and WIDTHS & _words(width):
                yield ast.unparse(center), ast.unparse(width)


def _bare(width: ast.expr) -> ast.expr:
    """A width without what keeps it from being 0."""
    match width:
        case ast.BinOp(op=ast.Add(), left=inner, right=ast.Constant()) | ast.Call(func=ast.Attribute(value=inner, attr="clamp" | "clip" | "clamp_min")):
            return inner
    return width


def _pairs(node: ast.AST, first: str, second: str) -> list[tuple[str, str]]:
    """The operands by which a value is first multiplied or divided and then moved: (std, mean) of `z * std + mean`, in either order where that is the same."""
    if not (isinstance(node, ast.BinOp) and SIGNS.get(type(node.op)) == second):
        return []
    ends = [(node.left, node.right), *([(node.right, node.left)] if second == "+" else [])]
    found = []
    for inner, moved in ends:
        if isinstance(inner, ast.BinOp) and SIGNS.get(type(inner.op)) == first and _named(moved):
            factors = [_bare(inner.right), *([_bare(inner.left)] if first == "*" else [])]
            found += [(ast.unparse(f), ast.unparse(moved)) for f in factors if _named(f)]
    return found


def _named(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant))


def _words(node: ast.AST) -> frozenset[str]:
    """The words of a name, of its key in `stats["mean"]`; none of anything else."""
    if not _named(node):
        return frozenset()
    return words(str(node.slice.value)) if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else words(last_name(node))
