"""Rules BH441: to BH444: layers that are given something else than they take."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.syntax import is_true, keyword, last_name, words

DROPOUTS = (
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "AlphaDropout",
    "FeatureAlphaDropout",
    "dropout",
)
KEPT = {"keep", "keeprate", "keepprob", "retain", "keeping", "kept"}


@rule("BH441")
def keep_rate_as_drop_rate(subject: Subject) -> Iterator[Place]:
    """The probability of a torch dropout is a name that speaks of keeping, as it is."""
    program = subject.program
    for call in torch_calls(program, *DROPOUTS):
        given = keyword(call, "p", 1 if last_name(call.func) == "dropout" else 0)
        if isinstance(given, (ast.Name, ast.Attribute)) and KEPT & words(last_name(given)):
            yield call, f"{ast.unparse(given)} is dropped, by its name it is to be kept"


@rule("BH444")
def skip_changed_in_place(subject: Subject) -> Iterator[Place]:
    """`x + self.body(x)`, where the body is a Sequential of this class whose first layer has
    `inplace=True`.
    """
    program = subject.program
    for node in program.nodes[ast.BinOp] if torch_calls(program, "Sequential") else ():
        if not isinstance(node.op, ast.Add):
            continue
        scope = program.scope(node)
        for skip, branch in ((node.left, node.right), (node.right, node.left)):
            factors = (
                [branch.left, branch.right]
                if isinstance(branch, ast.BinOp) and isinstance(branch.op, ast.Mult)
                else [branch]
            )
            called = next((f for f in factors if isinstance(f, ast.Call)), None)
            if not (
                isinstance(skip, ast.Name)
                and isinstance(called, ast.Call)
                and len(called.args) == 1
                and last_name(called.args[0]) == skip.id
            ):
                continue
            made = [
                o.call
                for o in program.origins(called.func, scope)
                if o.name == "torch.nn.Sequential" and o.call.args
            ]
            first = made[0].args[0] if len(made) == 1 else None
            if isinstance(first, ast.Call) and is_true(
                keyword(
                    first, "inplace", 0 if last_name(first.func) in ("ReLU", "SiLU", "Mish") else 1
                )
            ):
                yield (
                    first,
                    (
                        f"{last_name(first.func)} changes {skip.id} in place, which is added in"
                        f" line {node.lineno}"
                    ),
                    node,
                )
