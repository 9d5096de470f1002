"""Numbers of categories that get out of the function in which they are made: returned, kept by an
object, or given to a data set or a network.
"""

from __future__ import annotations

import ast

from training.review.program import Program, Scope
from training.review.syntax import (
    constant,
    last_name,
    method,
    names_read,
    own_nodes,
    own_nodes_of,
    receiver,
    words,
)

REDUCES = {
    "len", "bincount", "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce",
    "scatter_reduce_", "at", "mean", "sum", "min", "max", "any", "all", "nunique", "groupby",
    "print", "isinstance", "keys", "count", "set", "sorted", "range", "append", "zeros", "ones",
    "empty", "full", "roc_auc_score", "zeros_like", "add_at", "accuracy_score", "f1_score",
    "segment_reduce", "average", "std", "var", "median", "argsort", "argmax", "arange", "values",
}  # fmt: skip
THROUGH = {
    "tensor", "as_tensor", "from_numpy", "array", "asarray", "ascontiguousarray", "stack", "cat",
    "concatenate", "column_stack", "hstack", "vstack", "dstack", "pad_sequence", "pad", "DataFrame",
    "Series", "LongTensor", "Tensor", "FloatTensor", "TensorDataset", "DataLoader", "Subset",
    "Data", "concat", "zip", "list", "tuple", "dict", "enumerate", "reversed", "map", "one_hot",
    "where", "clip", "minimum", "maximum", "int", "float", "assign", "insert", "join", "merge",
    "replace", "fillna", "expand_dims", "next", "iter", "chain", "int64", "repeat", "tile",
    "nan_to_num", "index_select", "take", "to_categorical", "fit_transform", "transform",
    "csr_matrix", "get",
}  # fmt: skip
ENTERS = {"TensorDataset", "DataLoader", "one_hot"}
NETWORKS = {"model", "net", "network", "embedding", "embed"}
BY_HAND = {"eye", "identity"}  # `np.eye(n)[codes]` has the codes in it
ADDS = {"append", "extend", "add", "insert"}


class Carried:
    """What of a function has numbers of categories in it, from the names and expressions that have
    them first.
    """

    def __init__(
        self,
        program: Program,
        scope: Scope,
        names: set[str],
        nodes: set[int],
        kept: set[str] | None = None,
    ) -> None:
        self.program, self.scope, self.nodes = program, scope, nodes
        self.names, self.kept = set(names), set(kept or ())
        before: tuple[int, int] | None = None
        while before != (len(self.names), len(self.kept)):
            before = len(self.names), len(self.kept)
            self._go_over()

    def _go_over(self) -> None:
        for name, bindings in self.scope.bindings.items():
            for b in bindings:
                if self.is_kept(b.value) and b.index is None and b.how == "assign":
                    self.kept.add(name)
                whole = b.index is None and b.how != "loop"
                if (whole or id(b.value) not in self.nodes) and self.has(b.value):
                    self.names.add(name)
        for node in own_nodes(self.scope.node):
            if (
                isinstance(node, ast.Call)
                and method(node) in ADDS
                and any(self.has(a) for a in node.args)
            ):
                self.names |= _root(receiver(node))
            elif isinstance(node, (ast.Assign, ast.AugAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Subscript) and (
                        self.has(node.value) or self._is_column(target)
                    ):
                        self.names |= _root(target)

    def _is_column(self, target: ast.Subscript) -> bool:
        """Whether codes say into which column is written, not into which row: of `counts[i,
        number[word]]`, or of a row that is made in the same loop.
        """
        if isinstance(target.slice, ast.Tuple):
            return not self.has(target.slice.elts[0]) and any(
                self.has(e) for e in target.slice.elts[1:]
            )
        loops = [a for a in self.program.ancestors(target) if isinstance(a, ast.For)]
        made = [
            b.statement
            for b in self.scope.bindings.get(last_name(target.value), ())
            if isinstance(b.value, ast.Call)
        ]
        return self.has(target.slice) and any(
            m in ast.walk(loop) for loop in loops[1:] for m in made
        )

    def is_kept(self, node: ast.expr | None) -> bool:
        """Whether it is what could number other rows alike: the mapping, alone or one for each
        column.
        """
        match node:
            case ast.Name():
                return node.id in self.kept
            case ast.DictComp() if id(node) not in self.nodes:
                return self.is_kept(node.value) or id(node.value) in self.nodes
        return False

    def has(self, node: ast.AST | None) -> bool:
        """Whether the value of an expression has codes in it."""
        if node is None:
            return False
        if id(node) in self.nodes:
            return True
        match node:
            case ast.Name():
                return node.id in self.names
            case ast.Attribute():
                return node.attr not in ("shape", "size", "dtype", "index", "columns") and self.has(
                    node.value
                )
            case ast.Subscript():
                return self.has(node.value) or (
                    last_name(getattr(node.value, "func", None)) in BY_HAND and self.has(node.slice)
                )
            case ast.Call():
                return self._of_call(node)
            case ast.Compare() | ast.JoinedStr() | ast.Constant() | ast.Lambda():
                return False
            case ast.IfExp():
                return self.has(node.body) or self.has(node.orelse)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self.has(node.elt)
            case ast.DictComp():
                return self.has(node.value)
            case ast.Dict():
                return any(self.has(v) for v in node.values)
        return any(self.has(c) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr))

    def _of_call(self, call: ast.Call) -> bool:
        name, of = last_name(call.func), receiver(call)
        if name in REDUCES:
            return False
        if method(call) and not self.program.resolve(call.func) and self.has(of):
            return True
        given = [a for a in (*call.args, *(k.value for k in call.keywords)) if self.has(a)]
        if not given or name in self.program.classes:
            return bool(given)
        through = name in THROUGH or bool(words(name) & NETWORKS)
        return through and not self.program.callees(call, self.scope)

    def ways_out(self) -> list[ast.expr]:
        """The expressions by which codes get out, those left out by which a mapping alone
        is lent.
        """
        found: list[ast.expr] = []
        for node in own_nodes(self.scope.node):
            if (
                isinstance(node, (ast.Return, ast.Yield))
                and node.value is not None
                and not self._lends(node.value)
                and self.has(node.value)
            ):
                found.append(node.value)
            elif (
                isinstance(node, ast.Assign)
                and node.targets[0:1]
                and self._is_own(node.targets[0])
                and not self.is_kept(node.value)
                and self.has(node.value)
            ):
                found += (
                    []
                    if id(node.value) in self.nodes and isinstance(node.value, ast.DictComp)
                    else [node.value]
                )
            elif isinstance(node, ast.Call) and (
                last_name(node.func) in ENTERS or words(last_name(node.func)) & NETWORKS
            ):
                found += [a for a in node.args if self.has(a) and not self.is_kept(a)]
        return found

    def _lends(self, value: ast.expr) -> bool:
        elements = value.elts if isinstance(value, ast.Tuple) else [value]
        with_codes = [e for e in elements if self.has(e)]
        return all(
            self.is_kept(e) or (id(e) in self.nodes and isinstance(e, (ast.DictComp, ast.Dict)))
            for e in with_codes
        )

    def _is_own(self, target: ast.expr) -> bool:
        return (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        )

    def lent_at(self) -> set[int]:
        """The places in a returned tuple where the mapping goes along with the codes."""
        returned = [
            n.value
            for n in own_nodes_of(self.scope.node, ast.Return)
            if isinstance(n.value, ast.Tuple)
        ]
        return {i for value in returned for i, e in enumerate(value.elts) if self.is_kept(e)}


def _root(node: ast.expr | None) -> set[str]:
    while isinstance(node, (ast.Subscript, ast.Attribute)) and not (
        isinstance(node, ast.Subscript) and constant(node.slice) == "self"
    ):
        node = node.value
    return {node.id} - {"self"} if isinstance(node, ast.Name) else set()


def conditions_met(program: Program, node: ast.AST, known: set[str]) -> bool:
    """Whether all conditions around ask only for what is known: the rows, what is made of them, or
    in which list a column stands.
    """
    for around in program.ancestors(node):
        test = (
            around.test
            if isinstance(around, (ast.If, ast.IfExp))
            else around
            if isinstance(around, ast.BoolOp)
            else None
        )
        if test is None:
            continue
        listed = {
            last_name(n.comparators[0])
            for n in ast.walk(test)
            if isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.In, ast.NotIn))
        }
        asked = {
            n
            for n in names_read(test)
            if n not in program.aliases
            and n not in ("isinstance", "len", "str", "object", "hasattr", "int")
        }
        if isinstance(around, ast.BoolOp) or {
            n for n in asked - known if n not in listed or not n.isupper()
        }:
            return False
    return True
