"""Rules BH701 to BH711: what torch has left behind, what files hold, and how a run goes on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, optimizers_made, torch_calls
from training.review.loops import innermost_loop
from training.review.program import Program, Scope, argument
from training.review.roles import is_model, is_optimizer, is_scaler, is_scheduler
from training.review.syntax import (
    calls,
    constant,
    dotted,
    entry,
    identifiers,
    is_false,
    is_true,
    keyword,
    last_name,
    method,
    nodes_of,
    own_nodes_of,
    receiver,
    words,
)

AMP = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
FILLS = ("xavier_uniform", "xavier_normal", "kaiming_normal", "kaiming_uniform", "normal",
         "constant", "orthogonal")  # fmt: skip
MOVED = {
    "torch.autograd.Variable": "the tensor itself",
    "torch.backends.cuda.sdp_kernel": "torch.nn.attention.sdpa_kernel",
    "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "torch.set_default_tensor_type": "torch.set_default_dtype and torch.set_default_device",
    "torch.symeig": "torch.linalg.eigh",
    "torch.qr": "torch.linalg.qr",
    "torch.lstsq": "torch.linalg.lstsq",
    "torch.nn.functional.upsample": "torch.nn.functional.interpolate",
    "torch.optim.lr_scheduler._LRScheduler": "torch.optim.lr_scheduler.LRScheduler",
    **{f"torch.{kind}.amp.{n}": f"torch.amp.{n}" for kind in ("cuda", "cpu") for n in AMP},
    **{f"torch.nn.init.{n}": f"torch.nn.init.{n}_" for n in FILLS},
}
TAKES = {"ReduceLROnPlateau", "CosineAnnealingWarmRestarts"}  # schedules whose step takes a number
SAVES = {"torch.save", "pickle.dump", "joblib.dump", "dill.dump", "cloudpickle.dump"}
OTHERS = ("sklearn.", "xgboost.", "lightgbm.", "catboost.", "statsmodels.")  # no networks of torch
CHECKS = {"isnan", "isfinite", "any", "all", "isinf", "isdisjoint", "duplicated", "isnull"}
PARALLEL = ("DistributedDataParallel", "DataParallel")
RENAMES = {"consume_prefix_in_state_dict_if_present", "removeprefix", "unwrap_model"}
# words
NETWORKS = {"model", "net", "network"}
PASSED = {"epoch", "step", "iteration", "iter"}
NOT_LAST = {"global", "best", "max", "num", "total", "next", "start", "epochs", "per"}
MORE = {"more", "extra", "additional", "further"}


@rule("BH701")
def deprecated_api(subject: Subject) -> Iterator[Place]:
    """A name, method or argument that torch has replaced: the first of the file."""
    found = {node.lineno: (node, message) for node, message in _deprecated(subject.program)}
    if found:
        node, message = found[min(found)]
        yield node, message + (f"; {len(found) - 1} more such lines" if len(found) > 1 else "")


def _deprecated(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """Every use of what torch has replaced, with what to write instead."""
    caught = [n for h in program.nodes[ast.ExceptHandler] for n in nodes_of(h, ast.ImportFrom)]
    fallbacks = {a.asname or a.name for n in caught for a in n.names}  # of older versions
    named: list[ast.expr] = [*program.nodes[ast.Attribute], *program.nodes[ast.Name]]
    for node in named:
        name = program.resolve(node) if isinstance(getattr(node, "ctx", None), ast.Load) else ""
        if name in MOVED and last_name(node) not in fallbacks:
            yield node, f"{name} is deprecated or removed: use {MOVED[name]}"
    for call in program.all_calls:
        name, given = program.resolve(call.func), {k.arg for k in call.keywords}
        called = method(call)
        if name.startswith("torch.nn.") and given & {"size_average", "reduce"}:
            yield call, "size_average and reduce are deprecated: use reduction"
        elif name.startswith("torch.optim.lr_scheduler.") and "verbose" in given:
            yield call, "verbose is removed: read the rate with get_last_lr()"
        elif called == "register_backward_hook" and not name:
            yield call, "register_backward_hook sees a part: use register_full_backward_hook"
        elif called == "step" and len(call.args) == 1:
            made = program.origins(receiver(call), program.scope(call))
            if made and all(".lr_scheduler." in o.name and o.last not in TAKES for o in made):
                yield call, "step(epoch) is deprecated, and sets the epoch: call step() alone"


@rule("BH702")
def whole_model_saved(subject: Subject) -> Iterator[Place]:
    """What is saved or pickled is a network, a dict or list that holds one, or its own `self`."""
    program = subject.program
    for call in calls_to(program, *SAVES) if "torch" in program.modules_imported else ():
        stored, scope = keyword(call, "obj", 0), program.scope(call)
        if dotted(stored) == "self" and program.is_module(scope.owner):
            yield call, "self is pickled whole"
        for value, inside in _held(program, stored, scope) if stored is not None else ():
            known = [o for o in program.origins(value, inside) if not o.name.startswith(OTHERS)]
            plain = not program.origins(value, inside) and method(call) == "save"
            plain = plain and last_name(value).rstrip("s") in NETWORKS
            given = nodes_of(getattr(inside.node, "args", None), ast.arg)
            said = {a.arg for a in given if program.resolve(a.annotation) == "torch.nn.Module"}
            certain = known or plain or dotted(value) in said
            if dotted(value) and certain and is_model(program, value, inside):
                yield call, f"{dotted(value)} is pickled whole"
                break


def _held(program: Program, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """What a value holds: of a dict, list or tuple its elements, through one name or function."""
    made = [(b.value, b.scope) for b in program.bindings_of(node, scope)]
    function = program.callees_by_name(node, scope) if isinstance(node, ast.Call) else None
    if function is not None:
        made = [(n.value, function) for n in own_nodes_of(function.node, ast.Return) if n.value]
    if len(made) == 1 and isinstance(made[0][0], (ast.Dict, ast.List, ast.Tuple)):
        node, scope = made[0]
    for value in getattr(node, "values", getattr(node, "elts", [node])):
        moved = receiver(value) if method(value) in ("cpu", "eval", "to") else None
        yield value if moved is None else moved, scope


@rule("BH703")
def unsafe_load(subject: Subject) -> Iterator[Place]:
    """`torch.load` with the literal `weights_only=False`."""
    for call in calls_to(subject.program, "torch.load"):
        if is_false(keyword(call, "weights_only")):
            yield call, "weights_only=False runs code from the file"


@rule("BH704")
def load_by_default(subject: Subject) -> Iterator[Place]:
    """`torch.load` without the argument."""
    for call in calls_to(subject.program, "torch.load"):
        if keyword(call, "weights_only") is None:
            yield call, "weights_only is not given: before torch 2.6 this runs code from the file"


@rule("BH705")
def assert_as_check(subject: Subject) -> Iterator[Place]:
    """An assert on a value of a tensor or table."""
    for node in subject.program.nodes[ast.Assert]:
        if CHECKS & identifiers(node.test):
            yield node, "python -O removes this check"


@rule("BH706")
def anomaly_detection_on(subject: Subject) -> Iterator[Place]:
    """`set_detect_anomaly(True)` as a statement, under no condition."""
    program = subject.program
    for call in torch_calls(program, "set_detect_anomaly"):
        on, alone = call.args and is_true(call.args[0]), isinstance(program.parents[call], ast.Expr)
        if on and alone and not any(isinstance(a, ast.If) for a in program.ancestors(call)):
            yield call, "anomaly detection is on for the whole run"


def _saved(program: Program) -> list[dict[str, ast.expr]]:
    """Every literal dict with a state in it, by its keys."""
    return [
        {str(constant(k)): v for k, v in zip(node.keys, node.values, strict=True)}
        for node in program.nodes[ast.Dict]
        if any(method(v) == "state_dict" for v in node.values)
    ]


def _key(node: ast.AST | None) -> str:
    """The key of `state["epoch"]` and `state.get("epoch", 0)`; empty for anything else."""
    if isinstance(node, ast.Call) and method(node) in ("get", "pop") and node.args:
        return str(constant(node.args[0]) or "")
    return entry(node) if isinstance(getattr(node, "ctx", None), ast.Load) else ""


def _keys_read(program: Program) -> set[str]:
    """The texts of a file that may ask for something: all but those under which it is kept."""
    kept = {id(k) for node in program.nodes[ast.Dict] for k in node.keys}
    kept |= {id(n.slice) for n in program.nodes[ast.Subscript] if isinstance(n.ctx, ast.Store)}
    return {str(n.value) for n in program.nodes[ast.Constant] if id(n) not in kept}


def _start(loop: ast.For) -> ast.expr | None:
    """Where a loop over `range` starts, unless that is a written number."""
    args = getattr(loop.iter, "args", [])
    ranged = last_name(getattr(loop.iter, "func", None)) == "range" and len(args) > 1
    return args[0] if ranged and constant(args[0]) is None else None


@rule("BH707")
def resume_without_optimizer(subject: Subject) -> Iterator[Place]:
    """A run goes on at a saved epoch with its network, and nobody saves the optimizer's state."""
    program = subject.program
    states = [(receiver(c), program.scope(c)) for c in program.methods_of("state_dict")]
    networks = {last_name(s) for s, scope in states if not is_scheduler(program, s, scope)}
    made = [c for c, _ in optimizers_made(program)]  # without its own state: plain SGD
    kept = any(last_name(c.func) != "SGD" or keyword(c, "momentum") for c in made)
    if not kept or len(networks) != 1 or any(is_optimizer(program, *s) for s in states):
        return
    read = set(map(_key, program.nodes[ast.Subscript]))
    goes_on = any(map(_start, program.nodes[ast.For]))
    asked = {n for loop in program.nodes[ast.While] for n in identifiers(loop.test)}
    for saved in _saved(program) if program.methods_of("load_state_dict") else ():
        places = {k for k in saved.keys() & read if PASSED & words(k)}
        if places and (goes_on or places & asked):
            what = f"{min(places)} and the network are saved to go on from, the optimizer's state"
            yield program.parents[saved[min(places)]], f"{what} is not"


@rule("BH708")
def saved_state_not_loaded(subject: Subject) -> Iterator[Place]:
    """Of the states in a saved dict one is loaded by its key to go on, another is read nowhere."""
    program, kinds = subject.program, (is_optimizer, is_scheduler, is_scaler)
    loads = [c for c in program.methods_of("load_state_dict") if c.args]
    if any(isinstance(c.args[0], ast.Subscript) and not _key(c.args[0]) for c in loads):
        return  # keys that come out of a loop
    if not any(map(_start, program.nodes[ast.For])):
        loads = [c for c in loads if any(k(program, receiver(c), program.scope(c)) for k in kinds)]
    loaded, read = {_key(c.args[0]) for c in loads}, _keys_read(program)
    for saved in _saved(program):
        states = {k: v for k, v in saved.items() if method(v) == "state_dict" and k != "None"}
        for name in sorted(states.keys() - read) if loaded & states.keys() else ():
            yield states[name], f"the state under {name!r} is saved, and nothing reads it again"


@rule("BH709")
def wrapper_prefix_in_keys(subject: Subject) -> Iterator[Place]:
    """A state is saved of a network in its wrapper, and loaded into one outside, or vice versa."""
    program = subject.program
    named = any("module." in str(n.value) for n in program.nodes[ast.Constant])
    if named or RENAMES & program.identifiers or not torch_calls(program, *PARALLEL):
        return
    states = [item for saved in _saved(program) for item in saved.items()]
    for call in program.methods_of("load_state_dict"):
        key, into = _key(next(iter(call.args), None)), _side(program, receiver(call))
        of = {_side(program, receiver(v)) for k, v in states if k == key}
        if into and of and of == {"wrapped", "bare"} - {into}:
            yield call, f"{key!r} is of a {min(of)} network, this one is {into}: no key matches"


def _side(program: Program, node: ast.expr | None) -> str:
    """`wrapped` of a network in DDP, `bare` of the one inside or of a class of this file."""
    if isinstance(node, ast.Attribute) and node.attr == "module":
        return "bare" if _side(program, node.value) == "wrapped" else ""
    bound = program.bindings_of(node, program.scope(node)) if node is not None else []
    func = getattr(bound[0].value, "func", None) if len(bound) == 1 else None
    if program.is_torch(func, *PARALLEL):
        return "wrapped"
    return "bare" if program.is_module(program.classes.get(dotted(func))) else ""


@rule("BH710")
def missing_keys_unread(subject: Subject) -> Iterator[Place]:
    """`load_state_dict(..., strict=False)` as a statement."""
    for call in subject.program.methods_of("load_state_dict"):
        alone = isinstance(subject.program.parents[call], ast.Expr)
        if alone and is_false(keyword(call, "strict", 1)):
            yield call, "strict=False, and the keys that did not match are not checked"


@rule("BH711")
def resumed_at_wrong_epoch(subject: Subject) -> Iterator[Place]:
    """A loop saves its number after training, and starts at that number again, or at the first."""
    program = subject.program
    loads = program.methods_of("load_state_dict")
    resumed = any(is_optimizer(program, receiver(c), program.scope(c)) for c in loads)
    if not resumed or not any(map(_key, program.nodes[ast.Subscript])):
        return
    for key, loop in _passages_saved(program):
        more = any(MORE & words(n) for n in identifiers(loop.iter))
        if more or any(loop in program.ancestors(c) for c in loads):
            continue
        start, line = _start(loop), loop.lineno
        if start is None and key not in _keys_read(program):
            yield loop.iter, f"{key!r} is saved and never read: this loop starts from scratch", loop
        bound = program.bindings_of(start, program.scope(loop)) if start is not None else []
        for value in [start or loop, *(b.value for b in bound)]:
            if _key(value) == key and all(b.how == "assign" for b in bound):
                yield value, f"{key!r} was complete when it was saved: line {line} repeats it", loop


def _passages_saved(program: Program) -> Iterator[tuple[str, ast.For]]:
    """Each key under which a loop's number is saved after its training, here or by a function."""
    for key, value in (item for saved in _saved(program) for item in saved.items()):
        if not PASSED & words(key) or NOT_LAST & words(key) or not dotted(value):
            continue
        scope, places = program.scope(value), [(dotted(value), value)]
        if dotted(value) in scope.parameters:
            sites = program.call_sites[scope]
            places = [(dotted(argument(c, scope, dotted(value))), c) for c, _ in sites]
        for number, at in places:
            loop = innermost_loop(program, at)
            if isinstance(loop, ast.For) and number and number == dotted(loop.target):
                before = [s for s in loop.body if s.lineno < at.lineno]
                if "range" in identifiers(loop.iter) and any(_trains(program, s) for s in before):
                    yield key, loop


def _trains(program: Program, node: ast.AST) -> bool:
    """Whether a backward is within or in a function called there, or a call is named training."""
    inside = [f.node for c in calls(node) for f in program.callees(c, program.scope(c))]
    named = any({"train", "fit"} & words(last_name(c.func)) and c.args for c in calls(node))
    return named or any("backward" in identifiers(n) for n in (node, *inside))
