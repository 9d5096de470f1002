"""Rules about the parameters that an optimizer holds, and how they are updated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from itertools import permutations
from typing import NamedTuple

from training.review.findings import Place, Subject, rule
from training.review.lookups import attributes_of, names_of, optimizers_made
from training.review.program import Program, Scope, argument
from training.review.roles import is_frozen_name, makes_layer
from training.review.sides import targets_of
from training.review.splitting import line_of
from training.review.syntax import (
    FUNCTIONS,
    LOOPS,
    calls,
    constant,
    dotted,
    identifiers,
    is_false,
    last_name,
    method,
    names_read,
    once,
    own_nodes,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.values import value_of

BRANCHES = (ast.If, ast.For, ast.While, ast.Try)
LISTED = {"parameters", "named_parameters"}
NO_GRADIENTS = {"no_grad", "inference_mode"}
CUTS = {"detach", "data", "item"}
SHARDS = ("fully_shard", "FullyShardedDataParallel")
MOVES = ("to", "cuda", "half", "bfloat16")
# What may be asked of a network without a change of its gradients.
ASKED = {"train", "eval", "to", "cuda", "cpu", "state_dict", "load_state_dict", "zero_grad"}
ADDS = {"add_module", "register_module", "append", "extend", "insert", "set_submodule"}
# `for p in net.parameters(): p.requires_grad = False`, perhaps under `if "head" not in name:`, or
# `net.requires_grad_(False)`.
SWITCH = re.compile(
    r"(?:for (?:\w+, )?(\w+) in (?P<all>[\w.]+)\.(?:named_)?parameters\(\):\s+"
    r"(?:if (?:not \w+\.startswith\()?'(?P<spared>[\w.]+)'(?:\)| not in \w+):\s+)?(?=\1\.))?"
    r"(?P<one>[\w.]+)\.requires_grad(?: = |_\()(?P<free>True|False|)\)?"
)

# words
TRAINS = {"train", "fit", "pretrain", "finetune"}
FREES = re.compile("unfreeze|trainable|peft|lora")
LOOKS = {"print", "len", "sum", "count_parameters", "id", "summary"}  # at what they are given


class Held(NamedTuple):
    """An optimizer, what it is given, and the networks whose parameters these are."""

    call: ast.Call
    scope: Scope
    given: ast.expr
    networks: list[str]


@once
def _held(program: Program) -> tuple[Held, ...]:
    """Every optimizer of torch that is given parameters of networks by their names."""
    found = []
    for call, scope in optimizers_made(program):
        given = value_of(program, call.args[0], scope)
        networks = [_name(receiver(c)) for c in calls(given) if method(c) in LISTED]
        found += [Held(call, scope, given, networks)] if networks and all(networks) else []
    return tuple(found)


def _name(node: ast.expr | None) -> str:
    """`net.classifier` of `net.classifier[3]`; empty where it has no name."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return dotted(node)


def _within(name: str, network: str) -> bool:
    """Whether a name is that of a network or of a part of it."""
    return name == network or name.startswith(network + ".")


def _same_branches(program: Program, earlier: ast.AST, later: ast.AST) -> bool:
    """Whether what comes earlier has run wherever the later one runs."""
    around = program.ancestors(later)
    return all(a in around for a in program.ancestors(earlier) if isinstance(a, BRANCHES))


def _goes_on(program: Program, held: Held, network: str, node: ast.AST) -> bool:
    """Whether a statement comes after an optimizer that is used further, and no other one is made
    of its network after that.
    """
    targets = [dotted(t) for t in getattr(program.statement(held.call), "targets", ())]
    later = [n for n in own_nodes(held.scope.node) if line_of(n) > line_of(node)]
    named = [n for n in later if dotted(n) and dotted(n) in targets]
    anew = any(isinstance(getattr(n, "ctx", None), ast.Store) for n in named) or any(
        h.call in later and any(_within(n, network) for n in h.networks) for h in _held(program)
    )
    used = named or not held.scope.name or not any(targets) or targets[0].startswith("self.")
    behind = line_of(node) > held.call.lineno and _same_branches(program, held.call, node)
    return behind and bool(used) and not anew


def _made_at(value: ast.expr) -> ast.expr:
    """`nn.Linear(…)` of `nn.Linear(…).to(device)`."""
    return receiver(value) or value if method(value) in MOVES else value


@rule("BH415")
def parameters_changed_after_optimizer(subject: Subject) -> Iterator[Place]:
    """In one function: an optimizer over `m.parameters()`, later `m.x = Layer(…)`, and no optimizer
    after that.
    """
    program = subject.program
    for held in _held(program) if "add_param_group" not in program.called_names else ():
        for node in own_nodes_of(held.scope.node, ast.Assign):
            part = _name(node.targets[0])
            inside = [n for n in held.networks if _within(part, n) and "." in part]
            new = bool(inside) and makes_layer(program, _made_at(node.value))
            if new and _goes_on(program, held, inside[0], node):
                target, line = ast.unparse(node.targets[0]), held.call.lineno
                yield node, f"{target} is new, and the optimizer of line {line} does not know it"


@rule("BH416")
def optimizer_before_device(subject: Subject) -> Iterator[Place]:
    """In one function: an optimizer over `m.parameters()`, and only later `m.to(…)`, `m.cuda()` or
    sharding of `m`.
    """
    program = subject.program
    for held, network in ((h, n) for h in _held(program) for n in h.networks):
        found = sorted(calls(held.scope.node), key=line_of)
        moved = [c for c in found if method(c) in MOVES and dotted(receiver(c)) == network]
        moved = [c for c in moved if not re.search("cpu|memory_format", ast.unparse(c))]
        sharded = [c for c in found if program.is_torch(c.func, *SHARDS)]
        sharded = [c for c in sharded if c.args and dotted(c.args[0]) == network]
        for first in (moved or sharded)[:1]:
            branched = any(isinstance(a, (ast.If, ast.For)) for a in program.ancestors(first))
            if not branched and _goes_on(program, held, network, first):
                how, line = "moved" if moved else "sharded", held.call.lineno
                yield first, f"{network} is {how} after its optimizer was created in line {line}"


@rule("BH417")
def update_in_graph(subject: Subject) -> Iterator[Place]:
    """A loop variable over `parameters()` is changed with its own gradient, and no `no_grad` is
    around, in callers neither.
    """
    for event in (e for t in subject.traces if any(e.kind == "backward" for e in t) for e in t):
        node, function = event.node, event.scope.node
        loop = event.loops[-1].node if event.loops else None
        if not isinstance(loop, ast.For) or method(loop.iter) not in LISTED:
            continue
        target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
        name = dotted(receiver(node) if method(node).endswith("_") else target)
        if name not in names_read(loop.target) or f"{name}.grad" not in ast.unparse(node):
            continue
        switches = {last_name(c.func) for c in calls(function)}
        decorated = isinstance(function, FUNCTIONS) and function.decorator_list
        off = event.within(*NO_GRADIENTS) or {"enter_context", "set_grad_enabled"} & switches
        # A new tensor that is put away behind it: fast weights, figures.
        stored = [n for n in walk(loop) if line_of(n) > line_of(node) and name in names_read(n)]
        kept = any(method(n) == "append" or isinstance(n, ast.Assign) for n in stored)
        if not off and not decorated and not (isinstance(node, ast.Assign) and kept):
            yield node, f"{name} is changed with gradients on"


@rule("BH419")
def data_attribute(subject: Subject) -> Iterator[Place]:
    """A method that changes in place is called on `.data`."""
    for call in subject.program.all_calls if "torch" in subject.program.modules_imported else ():
        target, name = receiver(call), method(call)
        data = isinstance(target, ast.Attribute) and target.attr == "data"
        if data and name.endswith("_") and not name.startswith("_"):
            yield call, "changed through .data: autograd does not see it"


@rule("BH421")
def parameters_in_two_groups(subject: Subject) -> Iterator[Place]:
    """Two groups of an optimizer hold `a.parameters()` and `a.parameters()`, or `a.b.parameters()`;
    or a discriminator is in its own optimizer and in the generator's.
    """
    program = subject.program
    for call, scope in optimizers_made(program):
        held: list[str] = []
        for value in _groups(value_of(program, call.args[0], scope)):
            name = dotted(receiver(value)) if method(value) == "parameters" else ""
            twice = [o for o in held if name and (_within(name, o) or _within(o, name))]
            if twice:
                inner = max(name, twice[0], key=len)
                yield value, f"the parameters of {inner} are in an earlier group too"
            held += [name] if name else []
    judges = {dotted(c.func) for c in program.all_calls for a in c.args if method(a) == "detach"}
    for own, other in permutations(_held(program), 2):
        judge, line = own.networks[0], own.call.lineno
        both = own.networks == [judge] and len(other.networks) > 1 and judge in other.networks
        if both and judge in judges and _step_in_one_loop(program, own.call, other.call):
            told = f"are also in the optimizer of line {line}, which trains against this one"
            yield other.call, f"the parameters of {judge} {told}"


def _step_in_one_loop(program: Program, *optimizers: ast.Call) -> bool:
    """Check that one loop steps all of these optimizers."""
    around = []
    for made in optimizers:
        steps = [
            c
            for c in program.methods_of("step")
            if dotted(receiver(c)) in targets_of(program, made)
        ]
        around.append({a for c in steps for a in program.ancestors(c) if isinstance(a, LOOPS)})
    return bool(set.intersection(*around))


def _groups(given: ast.expr) -> Iterator[ast.expr]:
    """What each group of an optimizer holds."""
    for element in given.elts if isinstance(given, (ast.List, ast.Tuple)) else ():
        if isinstance(element, ast.Dict):
            pairs = zip(element.keys, element.values, strict=True)
            yield from (v for k, v in pairs if constant(k) == "params")
        elif isinstance(element, ast.Call) and last_name(element.func) == "dict":
            yield from (k.value for k in element.keywords if k.arg == "params")


@rule("BH422")
def parameters_without_optimizer(subject: Subject) -> Iterator[Place]:
    """Next to an optimizer a network of the file with parameters is called where gradients are
    computed, and used for nothing else; or one is set free after the optimizer was made.
    """
    program = subject.program
    if {"add_param_group", "vars", "getattr", "__dict__"} & program.identifiers:
        return
    for scope in dict.fromkeys(scope for _, scope in optimizers_made(program)):
        owner = scope.owner if not program.is_module(scope.owner) else None
        kept = {f"self.{n}": b for n, b in program.attributes[owner].items()} if owner else {}
        for name, bound in (scope.bindings | kept).items():
            made = [o for b in bound if b.index is None for o in program.origins(b.value, b.scope)]
            own = [program.classes[o.name] for o in made if o.name in program.classes]
            learns = len(own) == len(made) > 0 and all(makes_layer(program, o.call) for o in made)
            frozen = is_frozen_name(name) or any(_freezes(o) for o in own)
            used = _calls_alone(program, name, ASKED) if learns and not frozen else []
            if used and not any(_is_cut(program, c) or not _learns(program, c) for c in used):
                told = f"{name} has parameters, and no optimizer holds them"
                yield bound[0].value, told
    yield from _freed_too_late(program)


def _freezes(node: ast.AST) -> bool:
    return bool({"requires_grad", "requires_grad_"} & identifiers(node))


def _calls_alone(program: Program, name: str, asked: Set[str]) -> list[ast.Call]:
    """The calls of a network by its name; none where it is used for more than what is asked."""
    last = name.rpartition(".")[2]
    places = attributes_of(program, last) if "." in name else names_of(program, name)
    above = [(n, program.parents[n]) for n in places if isinstance(n.ctx, ast.Load)]
    found = [p for n, p in above if isinstance(p, ast.Call) and p.func is n]
    plain = [p for _, p in above if isinstance(p, ast.Attribute) and p.attr in asked]
    return found if len(found) + len(plain) == len(above) else []


def _learns(program: Program, node: ast.AST) -> bool:
    """Whether a gradient is computed in the function of a node."""
    return any(method(c) == "backward" for c in calls(program.scope(node).node))


def _freed_too_late(program: Program) -> Iterator[Place]:
    """A network is frozen, an optimizer made without its parameters, and it is set free then."""
    for held in _held(program):
        line, switches = held.call.lineno, list(_switches(program, held.scope))
        frozen = [s.network for s in switches if not s.free and line_of(s.node) < line]
        for s in (s for s in switches if s.free and s.network in frozen):
            apart = not any(s.network.startswith(n) for n in held.networks)
            left_out = apart or "requires_grad" in identifiers(held.given)
            if left_out and _goes_on(program, held, s.network, s.node):
                told = f"the optimizer of line {line} does not hold its parameters"
                yield s.node, f"{s.network} is unfrozen here, and {told}"


class Switch(NamedTuple):
    """All parameters of a network are frozen or set free, but those whose name holds `spared`."""

    node: ast.stmt
    network: str
    free: bool
    spared: str


def _switches(program: Program, scope: Scope, depth: int = 0) -> Iterator[Switch]:
    """Every statement of a function that freezes or frees a network, itself or by a helper."""
    for node in (n for n in own_nodes(scope.node) if isinstance(n, (ast.For, ast.Expr))):
        told = SWITCH.fullmatch(ast.unparse(node)) if _freezes(node) else None
        if told is not None:
            network, spared = told["all"] or told["one"], told["spared"] or ""
            yield Switch(node, network, told["free"] != "False", spared)
        call = node.value if isinstance(node, ast.Expr) else None
        if depth or not isinstance(call, ast.Call):
            continue
        for function in program.callees(call, scope):
            for s in _switches(program, function, depth + 1):
                root, dot, rest = s.network.partition(".")
                given = receiver(call) if root == "self" else argument(call, function, root)
                if dotted(given):
                    yield Switch(node, dotted(given) + dot + rest, s.free, s.spared)


@rule("BH427")
def new_layer_frozen(subject: Subject) -> Iterator[Place]:
    """A network is frozen as a whole after a layer of it was replaced, or all that an optimizer
    holds is frozen, and nothing sets it free again.
    """
    program = subject.program
    for scope in program.scopes if subject.trains else ():
        held = [h for h in _held(program) if h.scope is scope]
        assigned = own_nodes_of(scope.node, ast.Assign) if held else []
        for s in (s for s in _switches(program, scope) if held and not s.free):
            line, network = s.node.lineno, s.network
            parts = [n for n in assigned if _name(n.targets[0]).startswith(network + ".")]
            later = any(n.lineno > line for n in parts)
            if later or is_frozen_name(network) or _is_freed(program, s, scope):
                continue
            ours = [h for h in held if any(_within(n, network) for n in h.networks)]
            new = [n for n in parts if makes_layer(program, _made_at(n.value))]
            for node in new[-1:] if ours else ():
                target, spared = ast.unparse(node.targets[0]), s.spared or " "
                known = spared not in target and _same_branches(program, node, s.node)
                if known and not _is_touched(scope, network, node.lineno, line):
                    yield s.node, f"{target} is new, and frozen here with the rest"
            for h in ours if not new and not s.spared and "." not in network else ():
                alone = all(_within(n, network) for n in h.networks) and h.call.lineno > line
                if alone and not _is_touched(scope, network, line, h.call.lineno):
                    yield h.call, f"all that this optimizer holds was frozen in line {line}"


def _is_freed(program: Program, switch: Switch, scope: Scope) -> bool:
    """Whether anything elsewhere, or behind it, sets parameters free, or may do so."""
    sets = [n for n in program.nodes[ast.Assign] if last_name(n.targets[0]) == "requires_grad"]
    frees = [c for c in program.all_calls if FREES.search(last_name(c.func))]
    frees += [c for c in program.methods_of("requires_grad_") if not any(map(is_false, c.args))]
    places = [*(n for n in sets if not is_false(n.value)), *frees]
    return any(program.scope(n) is not scope or line_of(n) > switch.node.lineno for n in places)


def _is_touched(scope: Scope, network: str, first: int, last: int) -> bool:
    """Whether something is trained, or given the network or a part of it, between two lines."""
    for call in (c for c in calls(scope.node) if first < c.lineno < last):
        name, given = last_name(call.func), [receiver(call)] if method(call) in ADDS else call.args
        trains = name == "backward" or (method(call) != "train" and TRAINS & words(name))
        if trains or (name not in LOOKS and any(_within(_name(a), network) for a in given)):
            return True
    return False


@rule("BH428")
def trained_network_detached(subject: Subject) -> Iterator[Place]:
    """An optimizer holds a network that is used for nothing but calls, all of them without
    gradients, one at least where gradients are computed.
    """
    program = subject.program
    written = any(isinstance(n.ctx, ast.Store) for n in attributes_of(program, "grad"))
    if not subject.trains or written or _freezes(program.tree):
        return
    for name in dict.fromkeys(n for held in _held(program) for n in held.networks):
        used = _calls_alone(program, name, ASKED | LISTED)
        learning = [c for c in used if _learns(program, c)]
        if learning and all(_is_cut(program, c) for c in used):
            told = f"an optimizer holds {name}, and all that it computes is without gradients"
            yield learning[0], told


def _is_cut(program: Program, call: ast.Call) -> bool:
    """Whether a call runs under `no_grad`, or its output is detached at once."""
    function, above = program.scope(call).node, program.parents[call]
    blocks = [a for a in program.ancestors(call) if isinstance(a, ast.With)]
    around = [i.context_expr for block in blocks for i in block.items]
    around += function.decorator_list if isinstance(function, FUNCTIONS) else []
    off = any(NO_GRADIENTS & identifiers(c) for c in around)
    return off or (isinstance(above, ast.Attribute) and above.attr in CUTS)
