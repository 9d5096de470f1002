"""Rule BH467: a parameter is moved as it is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.syntax import method, receiver

MOVES = {"to", "cuda", "half", "float", "double", "bfloat16", "cpu"}


@rule("BH467")
def parameter_moved_away(subject: Subject) -> Iterator[Place]:
    """An attribute is assigned what a move gives of a `nn.Parameter` that is made there."""
    program = subject.program
    for call in program.methods_of(*MOVES):
        made, statement = receiver(call), program.parents[call]
        if isinstance(made, ast.Call) and program.resolve(made.func) in (
            "torch.nn.Parameter",
            "torch.nn.parameter.Parameter",
        ):
            target = (
                statement.targets[0]
                if isinstance(statement, ast.Assign) and statement.value is call
                else None
            )
            if isinstance(target, ast.Attribute) and program.is_module(program.scope(call).owner):
                yield (
                    call,
                    f"{ast.unparse(target)} is no parameter where {method(call)} changes anything",
                )
