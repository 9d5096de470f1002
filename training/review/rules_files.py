"""Rules BH701: to BH707: files that run code or lack something, and what torch has left behind."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model, is_optimizer, is_optimizer_origin, is_scheduler
from training.review.lookups import torch_calls
from training.review.program import Origin, Program, Scope
from training.review.settings import settings
from training.review.syntax import (
    constant,
    dotted,
    identifiers,
    is_false,
    keyword,
    last_name,
    method,
    nodes_of,
    receiver,
    words,
)

MOVED = {
    "torch.cuda.amp.autocast": "torch.amp.autocast('cuda')",
    "torch.cuda.amp.GradScaler": "torch.amp.GradScaler('cuda')",
    "torch.cpu.amp.autocast": "torch.amp.autocast('cpu')",
    "torch.cpu.amp.GradScaler": "torch.amp.GradScaler('cpu')",
    "torch.cuda.amp.custom_fwd": "torch.amp.custom_fwd",
    "torch.cuda.amp.custom_bwd": "torch.amp.custom_bwd",
    "torch.autograd.Variable": "the tensor itself",
    "torch.backends.cuda.sdp_kernel": "torch.nn.attention.sdpa_kernel",
    "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "torch.set_default_tensor_type": "torch.set_default_dtype and torch.set_default_device",
    "torch.symeig": "torch.linalg.eigh",
    "torch.qr": "torch.linalg.qr",
    "torch.lstsq": "torch.linalg.lstsq",
    "torch.nn.functional.upsample": "torch.nn.functional.interpolate",
    "torch.nn.init.xavier_uniform": "torch.nn.init.xavier_uniform_",
    "torch.nn.init.xavier_normal": "torch.nn.init.xavier_normal_",
    "torch.nn.init.kaiming_normal": "torch.nn.init.kaiming_normal_",
    "torch.nn.init.kaiming_uniform": "torch.nn.init.kaiming_uniform_",
    "torch.nn.init.normal": "torch.nn.init.normal_",
    "torch.nn.init.constant": "torch.nn.init.constant_",
    "torch.nn.init.orthogonal": "torch.nn.init.orthogonal_",
    "torch.distributed.checkpoint.save_state_dict": "torch.distributed.checkpoint.save",
    "torch.distributed.checkpoint.load_state_dict": "torch.distributed.checkpoint.load",
    "torch.optim.lr_scheduler._LRScheduler": "torch.optim.lr_scheduler.LRScheduler",
    "torch.distributed.launch": "torchrun",
}
LAST = {name.rpartition(".")[2] for name in MOVED}
LOST = {"size_average", "reduce", "verbose"}  # arguments
SAVES = {"torch.save", "pickle.dump", "joblib.dump", "dill.dump", "cloudpickle.dump"}
OTHERS = (
    "sklearn.",
    "xgboost.",
    "lightgbm.",
    "catboost.",
    "statsmodels.",
)  # networks of none of these are lost by a new torch


@rule("BH701")
def deprecated_api(subject: Subject) -> Iterator[Place]:
    """A name of the table above, a method that another one replaced, or an argument that losses and
    schedules have lost: the first of a file, and how many lines more have one.
    """
    found = {node.lineno: (node, message) for node, message in _deprecated(subject.program)}
    if found:
        node, message = found[min(found)]
        yield node, message + (f"; {len(found) - 1} more such lines" if len(found) > 1 else "")


def _deprecated(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """Every use of what torch has replaced, with what to write instead."""
    handlers = [
        h
        for h in program.nodes[ast.ExceptHandler]
        if {"ImportError", "ModuleNotFoundError", "AttributeError"} & identifiers(h)
    ]
    fallbacks = {
        a.asname or a.name for h in handlers for n in nodes_of(h, ast.ImportFrom) for a in n.names
    }  # of older versions
    imported = {n for n, of in program.aliases.items() if of in MOVED}
    named: list[ast.expr] = [n for n in program.nodes[ast.Attribute] if n.attr in LAST]
    named += [n for n in program.nodes[ast.Name] if n.id in imported]
    for node in named:
        name = program.resolve(node) if isinstance(getattr(node, "ctx", None), ast.Load) else ""
        if isinstance(node, ast.Name) and node.id in fallbacks:
            continue
        if name in MOVED and not isinstance(program.parents[node], ast.Attribute):
            yield node, f"{name} is deprecated or gone: use {MOVED[name]}"
    for call in program.all_calls:
        given = {k.arg for k in call.keywords} & LOST
        name = program.resolve(call.func) if given else ""
        if (
            name.startswith("torch.nn.")
            and given & {"size_average", "reduce"}
            and ("loss" in name.lower() or "entropy" in name)
        ):
            yield call, "size_average and reduce are deprecated: use reduction"
        elif name.startswith("torch.optim.lr_scheduler.") and "verbose" in given:
            yield call, "verbose is gone: read the rate with get_last_lr()"
        elif method(call) == "register_backward_hook" and not program.resolve(call.func):
            yield (
                call,
                (
                    "register_backward_hook sees the gradient of a module's last operation alone:"
                    " use register_full_backward_hook"
                ),
            )
        elif method(call) == "step" and len(call.args) == 1 and _counts_by_itself(program, call):
            yield (
                call,
                (
                    "step(epoch) is deprecated, and sets the schedule to that epoch each time: call"
                    " step() alone"
                ),
            )
        elif (
            method(call) == "get_lr"
            and not call.args
            and is_scheduler(program, receiver(call), program.scope(call))
        ):
            yield call, "get_lr() is a schedule's own step, not the rate in use: read get_last_lr()"


def _counts_by_itself(program: Program, call: ast.Call) -> bool:
    """Whether it steps a schedule that takes no score and no share of an epoch."""
    made = program.origins(receiver(call), program.scope(call))
    takes = {"ReduceLROnPlateau", "CosineAnnealingWarmRestarts"}
    return bool(made) and all(
        o.name.startswith("torch.optim.lr_scheduler.") and o.last not in takes for o in made
    )


@rule("BH702")
def whole_model_saved(subject: Subject) -> Iterator[Place]:
    """The first argument of `torch.save` or `pickle.dump` is a network, a dict or list that holds
    one, or a network's own `self`.
    """
    program = subject.program
    names = {"save", "dump", *(n for n, of in program.aliases.items() if of in SAVES)}
    for call in program.calls_of(*names) if "torch" in program.modules_imported else ():
        name = program.resolve(call.func)
        stored = keyword(call, "obj", 0) if name in SAVES else None
        if stored is None:
            continue
        if dotted(stored) == "self" and program.is_module(program.scope(call).owner):
            yield call, "self is pickled whole"
        for value, scope in _stored(program, stored, call):
            known = program.origins(value, scope)
            if not isinstance(value, (ast.Name, ast.Attribute)) or not is_model(
                program, value, scope
            ):
                continue
            if known and all(o.name.startswith(OTHERS) for o in known):
                continue
            if _annotated_module(program, value, scope):
                known = known or (Origin("torch.nn.Module", call, scope),)
            if (
                name == "torch.save"
                and not known
                and last_name(value).rstrip("s") not in ("model", "net", "network")
            ) or (name != "torch.save" and not known):
                continue
            yield call, f"{dotted(value)} is pickled whole"
            break


def _stored(program: Program, stored: ast.expr, call: ast.Call) -> list[tuple[ast.expr, Scope]]:
    """What a file holds: the elements of a dict or list, written there or followed through names
    and functions; else the value itself, without `.cpu()`.
    """
    scope = program.scope(call)
    if isinstance(stored, ast.Name):
        bound = program.bindings_of(stored, scope)
        if (
            len(bound) == 1
            and bound[0].index is None
            and isinstance(bound[0].value, (ast.List, ast.Tuple))
        ):
            stored, scope = bound[0].value, bound[0].scope
    held = settings(program, stored, scope, call)
    values = (
        list(held.values())
        if held is not None
        else stored.elts
        if isinstance(stored, (ast.List, ast.Tuple))
        else [stored]
    )
    bare = [receiver(v) if method(v) in ("cpu", "eval", "to") else v for v in values]
    return [(v, program.scope(v) if v in program.parents else scope) for v in bare if v is not None]


def _annotated_module(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a parameter is declared as a module of torch."""
    if not isinstance(node, ast.Name) or isinstance(scope.node, ast.Module):
        return False
    given = scope.node.args
    return any(
        a.arg == node.id and program.resolve(a.annotation) == "torch.nn.Module"
        for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)
    )


@rule("BH703")
def unsafe_load(subject: Subject) -> Iterator[Place]:
    """`torch.load` with the literal `weights_only=False`."""
    for call in torch_calls(subject.program, "load"):
        if subject.program.resolve(call.func) == "torch.load" and is_false(
            keyword(call, "weights_only")
        ):
            yield call, "weights_only=False runs code from the file"


@rule("BH704")
def load_by_default(subject: Subject) -> Iterator[Place]:
    """`torch.load` without the argument."""
    for call in torch_calls(subject.program, "load"):
        if (
            subject.program.resolve(call.func) == "torch.load"
            and keyword(call, "weights_only") is None
        ):
            yield call, "weights_only is not given: before torch 2.6 this runs code from the file"


@rule("BH705")
def assert_as_check(subject: Subject) -> Iterator[Place]:
    """An assert on a value of a tensor or table."""
    for node in subject.program.nodes[ast.Assert]:
        if {
            "isnan",
            "isfinite",
            "any",
            "all",
            "isinf",
            "isdisjoint",
            "duplicated",
            "isnull",
            "is_unique",
            "notnull",
        } & identifiers(node.test):
            yield node, "python -O leaves this check out"


@rule("BH706")
def anomaly_detection_on(subject: Subject) -> Iterator[Place]:
    """`set_detect_anomaly(True)` as a statement, under no condition."""
    program = subject.program
    for call in torch_calls(program, "set_detect_anomaly"):
        literal = (
            bool(call.args)
            and isinstance(call.args[0], ast.Constant)
            and call.args[0].value is True
        )
        if (
            program.resolve(call.func) == "torch.autograd.set_detect_anomaly"
            and literal
            and isinstance(program.parents[call], ast.Expr)
            and not any(isinstance(a, ast.If) for a in program.ancestors(call))
            and not method(receiver(call))
        ):
            yield call, "anomaly detection is on for the whole run"


@rule("BH707")
def resume_without_optimizer(subject: Subject) -> Iterator[Place]:
    """A dict of one state and an epoch or step is saved, both are read again, and the file has an
    optimizer whose state nobody asks for.
    """
    program = subject.program
    if not {"load_state_dict", "load", "save"} <= program.called_names:
        return
    states = [receiver(c) for c in program.methods_of("state_dict")]
    others = [s for s in states if s is None or not is_scheduler(program, s, program.scope(s))]
    if len({last_name(s) for s in others}) != 1:
        return
    optimizers = [
        c
        for c in program.all_calls
        if any(is_optimizer_origin(o) and o.call is c for o in program.origins(c, program.scope(c)))
    ]
    kept = [
        c for c in optimizers if last_name(c.func) != "SGD" or keyword(c, "momentum") is not None
    ]
    if not kept or any(is_optimizer(program, s, program.scope(s)) for s in states if s is not None):
        return
    read = {constant(n.slice) for n in program.nodes[ast.Subscript] if isinstance(n.ctx, ast.Load)}
    for call in torch_calls(program, "save"):
        saved = call.args[0] if program.resolve(call.func) == "torch.save" and call.args else None
        keys = {constant(k) for k in saved.keys} if isinstance(saved, ast.Dict) else set()
        places = {
            k
            for k in keys & read
            if isinstance(k, str) and words(k) & {"epoch", "step", "iteration", "iter"}
        }
        goes_on = any(_starts_there(n.iter) for n in program.nodes[ast.For])
        goes_on |= any(
            identifiers(n.test) & {str(p) for p in places} for n in program.nodes[ast.While]
        )
        if (
            places
            and goes_on
            and any(
                isinstance(v, ast.Call) and method(v) == "state_dict"
                for v in getattr(saved, "values", ())
            )
        ):
            yield (
                call,
                (
                    f"{sorted(places)[0]} and the network are saved to go on from, the optimizer's"
                    " state is not"
                ),
            )


def _starts_there(head: ast.expr) -> bool:
    """Whether a loop counts from a number that is not written down: `range(start, epochs)`."""
    return (
        isinstance(head, ast.Call)
        and last_name(head.func) == "range"
        and len(head.args) >= 2
        and constant(head.args[0]) is None
    )
