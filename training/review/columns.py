"""Columns of pandas tables that are read as attributes, `table.age`, put in the one form that rules
ask for: `table["age"]`.
"""

from __future__ import annotations

import ast
from typing import cast

from training.review.syntax import Rewriter, last_name, located, method, of_kind

OF_TABLES = {
    *(
        "index",
        "values",
        "columns",
        "shape",
        "size",
        "dtypes",
        "dtype",
        "T",
        "loc",
        "iloc",
        "at",
        "iat",
        "str",
        "dt",
        "cat",
        "name",
        "names",
        "empty",
    ),
    *(
        "ndim",
        "plot",
        "axes",
        "array",
        "sparse",
        "hist",
        "flags",
        "attrs",
        "nbytes",
        "indices",
        "groups",
        "ngroups",
    ),
}
NO_TABLES = {
    "self", "cls", "args", "opt", "opts", "cfg", "config", "hparams", "settings", "params",
    "namespace",
}  # fmt: skip


def with_columns(tree: ast.Module, aliases: dict[str, str]) -> ast.Module:
    """The tree with columns as subscripts, where the file uses pandas and names the column as a
    text elsewhere.

    >>> tree = ast.parse("import pandas as pd; t = pd.DataFrame({'age': ages}); m = t.age.mean()")
    >>> ast.unparse(with_columns(tree, {"pd": "pandas"}).body[-1])
    "m = t['age'].mean()"
    """
    if not any(name.partition(".")[0] == "pandas" for name in aliases.values()):
        return tree
    columns = _columns(tree)
    classes = {n.name for n in of_kind(tree, ast.ClassDef)} | {
        "parse_args",
        "SimpleNamespace",
        "namedtuple",
    }
    objects = {
        last_name(t)
        for n in of_kind(tree, ast.Assign)
        if isinstance(n.value, ast.Call) and last_name(n.value.func) in classes
        for t in n.targets
    }
    other = objects | NO_TABLES | set(aliases)
    return located(cast(ast.Module, _Columns(columns, other).visit(tree))) if columns else tree


def _columns(tree: ast.Module) -> set[str]:
    """Texts that name a column: keys of a table that is made, and what is written or read by a
    text.
    """
    found: set[str] = set()
    keys: list[ast.expr | None] = []
    for call in of_kind(tree, ast.Call):
        if last_name(call.func) in ("DataFrame", "assign"):
            keys += [k for a in call.args if isinstance(a, ast.Dict) for k in a.keys]
            found |= {k.arg for k in call.keywords if k.arg and last_name(call.func) == "assign"}
    for node in of_kind(tree, ast.Subscript):
        keys += node.slice.elts if isinstance(node.slice, ast.List) else [node.slice]
    found |= {
        k.value
        for k in keys
        if isinstance(k, ast.Constant) and isinstance(k.value, str) and k.value.isidentifier()
    }
    return found - OF_TABLES


class _Columns(Rewriter):
    def __init__(self, columns: set[str], other: set[str]) -> None:
        self.columns, self.other = columns, other

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Calls of a method are none: only what it is called on, and what it is given, may be."""
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
            node.args = [self.visit(a) for a in node.args]
            node.keywords = [self.visit(k) for k in node.keywords]
            return node
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """`t.age` and `t.groupby("ward").age`."""
        self.generic_visit(node)
        of = node.value
        table = (isinstance(of, ast.Name) and of.id not in self.other) or (
            isinstance(of, ast.Call) and bool(method(of)) and last_name(of.func) not in ("super",)
        )
        if node.attr not in self.columns or not table:
            return node
        column = ast.copy_location(ast.Constant(node.attr), node)
        return ast.copy_location(ast.Subscript(of, column, node.ctx), node)
