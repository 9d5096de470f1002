"""Rule BH608: every rank uses the same device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program
from training.review.rules_loader import PREPARES, is_distributed
from training.review.syntax import constant, keyword, method, words

ALONE = {
    "predict",
    "infer",
    "inference",
    "serve",
    "export",
    "demo",
    "benchmark",
}  # in a process of their own


@rule("BH608")
def ranks_share_a_device(subject: Subject) -> Iterator[Place]:
    """In a file that runs a process for each device, a wrapper or a move names a device by a
    literal index.
    """
    program = subject.program
    if (
        program.modules_imported & PREPARES
        or not any("init_process_group" in n for n in program.called_names)
        or not is_distributed(program)
    ):
        return
    if any("CUDA_VISIBLE_DEVICES" in str(constant(n)) for n in program.nodes[ast.Constant]):
        return  # each process sees a device of its own
    for call in program.all_calls:
        if words(program.scope(call).name) & ALONE:
            continue
        if _one_device(program, call) and not any(
            isinstance(a, (ast.If, ast.IfExp)) for a in program.ancestors(call)
        ):
            yield call, "the same device for every rank"
            return


def _one_device(program: Program, call: ast.Call) -> bool:
    """Whether it is `device_ids=[0]` of DDP, `set_device(0)`, or `.to("cuda:0")` and `.cuda(0)`."""
    if program.is_torch(call.func, "DistributedDataParallel"):
        given = keyword(call, "device_ids", 1)
        return isinstance(given, ast.List) and len(given.elts) == 1 and _is_index(given.elts[0])
    if program.resolve(call.func) == "torch.cuda.set_device":
        return bool(call.args) and _is_index(call.args[0])
    first = constant(call.args[0]) if call.args and not program.resolve(call.func) else None
    return (method(call) == "to" and isinstance(first, str) and first.startswith("cuda:")) or (
        method(call) == "cuda" and _is_index(call.args[0] if call.args else None)
    )


def _is_index(node: ast.expr | None) -> bool:
    value = constant(node)
    return isinstance(value, int) and not isinstance(value, bool)
