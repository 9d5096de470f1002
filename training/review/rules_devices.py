"""Rules BH608 and BH542: the device of a rank, and one that workers cannot use."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to
from training.review.program import Program
from training.review.rules_loader import PREPARES, is_distributed
from training.review.syntax import calls, constant, dotted, keyword, last_name, method, walk, words

ALONE = {"predict", "infer", "inference", "serve", "export", "demo", "benchmark"}  # in a process of their own


@rule(
    "BH608",
    "ranks-share-a-device",
    "error",
    title="Every rank uses the same device",
    why="Each process puts its network on GPU 0: its memory fills with as many copies as there are ranks, NCCL refuses or hangs, and the other GPUs idle.",
    remedy="take the index from `LOCAL_RANK`: `torch.device('cuda', int(os.environ['LOCAL_RANK']))`",
    bad="""
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        def build(model):
            dist.init_process_group("nccl")
            return DistributedDataParallel(model.to("cuda:0"), device_ids=[0])
        """,
    good="""
        import os

        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        def build(model):
            dist.init_process_group("nccl")
            local = int(os.environ["LOCAL_RANK"])
            return DistributedDataParallel(model.to(local), device_ids=[local])
        """,
)
def ranks_share_a_device(subject: Subject) -> Iterator[Place]:
    """In a file that runs a process for each device, a wrapper or a move names a device by a literal index."""
    program = subject.program
    if program.modules_imported & PREPARES or not any("init_process_group" in n for n in program.called_names) or not is_distributed(program):
        return
    if any("CUDA_VISIBLE_DEVICES" in str(constant(n)) for n in program.nodes[ast.Constant]):
        return  # each process sees a device of its own
    for call in program.all_calls:
        if words(program.scope(call).name) & ALONE:
            continue
        if _one_device(program, call) and not any(isinstance(a, (ast.If, ast.IfExp)) for a in program.ancestors(call)):
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


@rule(
    "BH542",
    "device-in-worker",
    "error",
    title="A data set moves its rows to the GPU, and workers read it",
    why="A worker process is forked from one that has used CUDA, and cannot use it: `Cannot re-initialize CUDA in forked subprocess`, at the first batch on a machine with a GPU.",
    remedy="give tensors on the CPU, and move the batch in the loop: `x.to(device, non_blocking=True)`",
    bad="""
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Rows(Dataset):
            def __init__(self, x):
                self.x = x

            def __len__(self):
                return len(self.x)

            def __getitem__(self, i):
                return torch.tensor(self.x[i]).cuda()

        def loader(x):
            return DataLoader(Rows(x), batch_size=64, num_workers=4)
        """,
    good="""
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Rows(Dataset):
            def __init__(self, x):
                self.x = x

            def __len__(self):
                return len(self.x)

            def __getitem__(self, i):
                return torch.tensor(self.x[i])

        def loader(x):
            return DataLoader(Rows(x), batch_size=64, num_workers=4)
        """,
)
def device_in_worker(subject: Subject) -> Iterator[Place]:
    """`__getitem__` of a data set moves something to CUDA or to what is called a device, and every loader of the file has workers that are forked."""
    program = subject.program
    loaders = calls_to(program, "torch.utils.data.DataLoader")
    workers = [constant(keyword(c, "num_workers", 5)) for c in loaders]
    if not loaders or not all(isinstance(w, int) and w > 0 for w in workers) or {"spawn", "forkserver"} & {constant(n) for n in program.nodes[ast.Constant]}:
        return
    for owner, own in program.methods.items():
        getter = own.get("__getitem__")
        if getter is None or not any(last_name(b) == "Dataset" for b in owner.bases):
            continue
        for call in calls(getter.node):
            given = keyword(call, "device", 0) if method(call) == "to" else None
            named = (
                isinstance(given, (ast.Name, ast.Attribute)) and last_name(given) == "device" and len(call.args) == 1 and not _of_a_row(program, given, owner)
            )
            on_cuda = method(call) == "cuda" or (given is not None and (str(constant(given)).startswith("cuda") or named))
            if on_cuda and not program.resolve(call.func):
                yield call, f"{owner.name} moves its rows to the device in the {workers[0]} workers of the loader"


def _of_a_row(program: Program, device: ast.expr, owner: ast.ClassDef) -> bool:
    """Whether a device is that of another tensor, or the CPU by what it was made of."""
    if isinstance(device, ast.Attribute) and dotted(device.value) != "self":
        return True
    made = program.attributes[owner].get(last_name(device), []) if isinstance(device, ast.Attribute) else []
    return bool(made) and all("cpu" in {constant(n) for n in walk(b.value)} and "cuda" not in {constant(n) for n in walk(b.value)} for b in made)
