"""Rules about what is measured and said: sums of an evaluation, splits of rows, what is unread."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import attributes_of, keywords_of, names_of, places_of
from training.review.loops import innermost_loop, step_groups
from training.review.program import Program, Scope, argument
from training.review.roles import EVALUATES, MASKS, is_model, looks_held_out
from training.review.rules.best import DATA, names_rows, row_side
from training.review.sides import all_names, side_of, targets_of
from training.review.syntax import (
    FUNCTIONS,
    LOOPS,
    calls,
    constant,
    dotted,
    entry,
    exponent,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    once,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.values import reaching_elements, value_of

# words
MEANS = {"loss", "nll", "mse", "ce", "criterion", "mean"}
SCORES = {"scores", "logits", "output", "outputs", "out", "probs", "preds", "pred"}
LABELS = {"label", "labels", "target", "targets", "y", "gold", "truth"}
HISTORY = {"history", "log", "logs", "curve", "curves", "trace", "record", "records"}
NO_ROWS = {"labels", "vocab", "columns", "cols", "index", "all", "transform", "time", "size", "ab"}
FINAL = {"final", "deployed", "deployment", "production", "refit"}
MEASURES = {"evaluate", "eval", "accuracy", "acc", "score", "scores", "metrics", "test", "validate"}
MEASURES |= {"loss", "error", "auc", "auroc", "f1", "rmse", "mae", "mse", "report", "measure"}
MATTERS = {
    "length", "lengths", "lens", "weight", "weights", "groups", "stratify", "generator", "rng",
    "seed", "checkpoint", "pretrained", "teacher", "temperature", "alpha", "beta", "gamma", "decay",
    "momentum", "smoothing", "dropout", "rate", "lr", "noise", "timestep", "condition", "memory",
    "hidden", "threshold", "clip", "margin", "discount", "dones", "target", "targets", "labels",
}  # fmt: skip
FOR_USE = {"sampler", "scaler", "generator", "mask", "masks", "lengths", "ema", "teacher", "groups"}
FOR_USE |= {"transform", "augmentation", "stopper", "stopping"}
WEIGHING = {"class", "pos", "sample", "loss", "balanced", "label"}

RANK_METRICS = {
    "roc_auc_score", "average_precision_score", "f1_score", "precision_score", "recall_score",
    "r2_score", "matthews_corrcoef", "balanced_accuracy_score", "spearmanr", "pearsonr",
    "binary_auroc", "multiclass_auroc", "binary_average_precision", "binary_auprc",
}  # fmt: skip
METRICS = ("sklearn.metrics.", "scipy.stats.", "torchmetrics.functional.", "torcheval.metrics.")
TRAINS = {"backward", "step", "manual_backward", "train_step", "training_step"}
SWITCHES = {"no_grad", "inference_mode", "eval", "set_grad_enabled"}
NUMBER = {"item", "cpu", "detach", "float", "numpy"}
PASSED_ON = {"view", "reshape", "squeeze", "flatten", "long", "int", "to"} | NUMBER
DECIDED = {"argmax", "round", "gt", "ge", "lt", "le", "max", "min", "amax", "amin"}
MAKES = {"DataLoader", "ConcatDataset", "TensorDataset", "cat", "concatenate", "concat", "vstack"}
AVERAGES = {"mean", "fmean", "average", "cat", "concatenate", "stack", "vstack", "sum"}
EMPTIES = {"clear", "reset", "zero_"}
PLAIN_BASES = {"Module", "object", "ABC", "Dataset", "Generic", "Protocol"}


def _runs_network(program: Program, node: ast.AST, scope: Scope) -> bool:
    asked = (c for c in calls(node) if not program.resolve(c.func))
    return any(is_model(program, c.func, scope) for c in asked)


@once
def evaluation_loops(program: Program) -> dict[ast.AST, tuple[ast.For, Scope]]:
    """Loops over more than single rows that run a network to evaluate it, and train nothing."""
    found: dict[ast.AST, tuple[ast.For, Scope]] = {}
    for loop in program.nodes[ast.For]:
        scope, called = program.scope(loop), {last_name(c.func) for c in calls(loop)}
        named = EVALUATES & words(scope.name) or any(map(looks_held_out, identifiers(loop.iter)))
        trains = called & TRAINS or any({"train", "fit"} & words(n) for n in called)
        if trains or scope.name == "forward" or not (named or SWITCHES & identifiers(scope.node)):
            continue
        heads = [o.call for n in nodes_of(loop.iter, ast.Name) for o in program.origins(n, scope)]
        sizes = [keyword(c, "batch_size", 1) for c in heads if last_name(c.func) == "DataLoader"]
        several = all(s is not None and constant(s) != 1 for s in sizes)
        if several and _runs_network(program, loop, scope):
            found[loop] = loop, scope
    return found


def _added(loop: ast.For) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
    """What a loop adds to a sum or appends to a list: the name of that, the term, the statement."""
    for node in walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield dotted(node.target), node.value, node
        elif isinstance(node, ast.Expr) and method(node.value) in ("append", "extend"):
            for value in getattr(node.value, "args", ())[:1]:
                yield dotted(receiver(node.value)), value, node


def _is_averaged(program: Program, name: str, within: ast.AST, loop: ast.For) -> bool:
    """Whether a quotient or a mean is made of a whole sum or list behind a loop."""
    found = False
    for node in walk(within):
        above = program.ancestors(node) if name and dotted(node) == name else [loop]
        if loop in above or getattr(node, "lineno", 0) < loop.lineno:
            continue
        ops = [type(a.op) for a in above if isinstance(a, ast.BinOp)]
        if ast.Sub in ops or any(isinstance(a, ast.Subscript) for a in above):
            return False  # a part, or a difference from what was there before
        joined = any(last_name(getattr(a, "func", None)) in AVERAGES for a in above)
        found |= joined or ast.Div in ops
    return found


@rule("BH204")
def rank_metric_per_batch(subject: Subject) -> Iterator[Place]:
    """A metric of all rows, or exp or the root of a mean loss, is averaged over batches."""
    program, loops = subject.program, evaluation_loops(subject.program)
    metrics = program.calls_of(*RANK_METRICS)
    for metric in (m for m in metrics if program.resolve(m.func).startswith(METRICS)):
        name = last_name(metric.func)
        for call in (metric, *(c for c, _ in program.call_sites[program.scope(metric)])):
            loop, _ = loops.get(innermost_loop(program, call) or call, (None, None))
            terms = [v for _, v, _ in _added(loop)] if loop is not None else []
            drawn = names_read(getattr(loop, "target", None)) & names_read(call)
            if drawn and any(call in walk(v) for v in terms):
                yield call, f"{name} of each batch is averaged: that is not {name} of the rows"
    for loop, scope in loops.values() if not keywords_of(program, "reduction") else ():
        for name, value, _ in _added(loop):
            of = _bent(program, value, scope)
            if of and _is_averaged(program, name, scope.node, loop):
                told = f"{of} of each batch's mean loss is averaged"
                yield value, f"{told}: that is not {of} of the mean over all rows", loop


def _bent(program: Program, value: ast.expr, scope: Scope) -> str:
    """`exp` or `the root` where a value is one of a mean over the batch; empty where it is not."""
    while method(value) in NUMBER and (inner := receiver(value)) is not None:
        value = inner
    value = value_of(program, value, scope)
    taken, of = exponent(value), "exp"
    if isinstance(value, ast.BinOp) and constant(value.right) == 0.5:
        taken, of = value.left if isinstance(value.op, ast.Pow) else None, "the root"
    elif isinstance(value, ast.Call) and last_name(value.func) == "sqrt":
        taken, of = value.args[0] if value.args else receiver(value), "the root"
    spoken = {w for n in identifiers(taken) for w in words(n)}
    return of if spoken & MEANS and "sum" not in spoken else ""


@rule("BH205")
def mean_of_batch_means(subject: Subject) -> Iterator[Place]:
    """A sum of held-out batch means is divided by the number of batches."""
    for loop, scope in evaluation_loops(subject.program).values():
        sums, counts = set(), {f"len({n})" for n in map(dotted, walk(loop.iter)) if n}
        for name, value, statement in _added(loop):
            read = identifiers(value)
            if {"item", "mean"} & read and "sum" not in read and not nodes_of(value, ast.Mult):
                sums.add(name)
            if constant(value) == 1 and statement in loop.body:
                counts.add(name)
        held_out = EVALUATES & words(scope.name) or any(map(looks_held_out, identifiers(loop.iter)))
        for node in own_nodes_of(scope.node, ast.BinOp) if held_out else ():
            divided = isinstance(node.op, ast.Div) and node.lineno >= loop.lineno
            if divided and dotted(node.left) in sums - {""} and ast.unparse(node.right) in counts:
                told = f"{dotted(node.left)} is a sum of batch means"
                yield node, f"{told}: the last, shorter batch weighs as much as the others", loop


@rule("BH229")
def greatest_score_as_class(subject: Subject) -> Iterator[Place]:
    """The values of `max` over one axis of a network's scores are compared by == with labels."""
    program = subject.program
    equal = [n for n in program.nodes[ast.Compare] if isinstance(n.ops[0], ast.Eq)]
    sides: list[tuple[ast.expr, list[ast.expr]]] = [(n, [n.left, *n.comparators]) for n in equal]
    asked = [(c, receiver(c)) for c in program.methods_of("eq")]
    sides += [(c, [on, *c.args]) for c, on in asked if on is not None and dotted(on) != "torch"]
    for node, one, other in ((n, *p) for n, s in sides if len(s) == 2 for p in (s, s[::-1])):
        scope = program.scope(node)
        scores = _values_of_max(program, one, scope)
        bound = isinstance(other, (ast.Constant, ast.UnaryOp)) or {"float", "inf"} & identifiers(
            other
        )
        if scores is None or bound:
            continue
        behind = [reaching_elements(program, n, scope) for n in nodes_of(other, ast.Name)]
        made = [other, *(v for found in behind for v, _ in found)]
        given = value_of(program, scores, scope)
        decided = any(last_name(c.func) in DECIDED for v in (given, other) for c in calls(v))
        named = SCORES & words(last_name(scores)) or LABELS & words(last_name(other))
        if not decided and not any(names_read(v) & names_read(scores) for v in made):
            told = f"{ast.unparse(one)} holds the greatest values of {ast.unparse(scores)}"
            if named or _runs_network(program, given, scope):
                yield node, f"{told}, not their indices"


def _values_of_max(program: Program, node: ast.expr, scope: Scope) -> ast.expr | None:
    """The scores of which these are the greatest along an axis: the first of what `max` gives."""
    while method(node) in PASSED_ON and (inner := receiver(node)) is not None:
        node = inner
    found = reaching_elements(program, node, scope) if isinstance(node, ast.Name) else []
    node, index = found[0] if len(found) == 1 else (node, None)
    first = isinstance(node, ast.Subscript) and constant(node.slice) == 0
    if isinstance(node, (ast.Attribute, ast.Subscript)) and (first or entry(node) == "values"):
        node, index = node.value, 0
    if index != 0 or not isinstance(node, ast.Call) or last_name(node.func) != "max":
        return None
    torch = program.is_torch(node.func, "max")
    axis = constant(keyword(node, "dim", 1 if torch else 0))
    scores = next(iter(node.args), None) if torch else receiver(node)
    return scores if type(axis) is int and not is_true(keyword(node, "keepdim")) else None


@rule("BH231")
def sums_never_reset(subject: Subject) -> Iterator[Place]:
    """A loop that evaluates, within one that trains, adds to what nothing sets back."""
    program = subject.program
    for loop, scope in evaluation_loops(program).values():
        outer = _training_loop(program, loop, scope)
        sites = program.call_sites[scope] if scope.owner is not None and outer is None else []
        called = any(_training_loop(program, site, caller) for site, caller in sites)
        stored = {n.id for n in nodes_of(loop, ast.Name) if isinstance(n.ctx, ast.Store)}
        for name, value, place in _added(loop):
            own = called and name.startswith("self.") and name.count(".") == 1
            made = names_read(value) & (stored - {name}) or _runs_network(program, value, scope)
            if not made or HISTORY & words(name) or not (own or outer):
                continue
            set_back, within = _set_back(program, name, outer), outer or scope.node
            if not set_back and _is_averaged(program, name, within, loop):
                told = f"{name} is added to in each epoch, and never reset"
                yield place, f"{told}: the score is over all epochs so far", within


def _training_loop(program: Program, node: ast.AST, scope: Scope) -> ast.AST | None:
    """The loop around a node that trains, itself or by a function."""
    for outer in (a for a in program.ancestors(node) if isinstance(a, LOOPS)):
        asked = [c for c in calls(outer) if c.args or method(c) == "backward"]
        asked += [i for c in asked for f in program.callees(c, scope) for i in calls(f.node)]
        if any({"train", "backward"} & words(last_name(c.func)) for c in asked):
            return outer
    return None


def _set_back(program: Program, name: str, outer: ast.AST | None) -> bool:
    """Whether a name is bound or emptied within a loop; of an object, by more than `__init__`."""
    for node in places_of(program, name):
        around, in_init = program.ancestors(node), program.scope(node).name == "__init__"
        above, within = program.parents[node], not in_init if outer is None else outer in around
        contexts = {type(getattr(n, "ctx", node.ctx)) for n in (node, above)}  # or a part of it
        bound = contexts != {ast.Load} and not isinstance(above, ast.AugAssign)
        if within and (bound or getattr(above, "attr", "") in EMPTIES):
            return True
    return False


@rule("BH216")
def rows_trained_on(subject: Subject) -> Iterator[Place]:
    """What is named after train rows holds test rows; or scikit-learn is fitted to test labels."""
    program = subject.program
    for fit in program.methods_of("fit", "fit_transform", "partial_fit"):
        scope, labels = program.scope(fit), last_name(fit.args[1]) if len(fit.args) > 1 else ""
        made = program.origins(receiver(fit), scope) if side_of(labels) == "test" else ()
        if any(o.name.startswith("sklearn.") for o in made) and not FINAL & words(scope.name):
            yield fit, f"it learns from {labels}, the labels that should test it"
    for call in program.calls_of(*MAKES):
        names = [n for n in targets_of(program, call) if side_of(n) == "train"]
        spoken = words(program.scope(call).name) | {w for n in names for w in words(n)}
        of = {n for a in call.args for n in names_read(a)}
        tested = sorted(n for n in of if side_of(n) == "test" and not NO_ROWS & words(n))
        beside = any(side_of(n) == "train" for n in of) and not (NO_ROWS | FINAL) & spoken
        if names and tested and beside and isinstance(program.parents[call], ast.Assign):
            yield call, f"{names[0]} is made of {tested[0]} as well"


@rule("BH237")
def score_under_another_name(subject: Subject) -> Iterator[Place]:
    """A measure of one split's rows is kept under a name of another split, whose rows are there."""
    program = subject.program
    for call in (c for c in program.all_calls if MEASURES & words(last_name(c.func))):
        kept = isinstance(program.parents[call], (ast.Assign, ast.Dict))
        names = [n for n in targets_of(program, call) if kept and side_of(n)]
        given = {row_side(program, a, program.scope(call)) for a in call.args} - {""}
        vague = any({"evaluation", "split"} & words(last_name(a)) for a in (*call.args, call.func))
        if len({side_of(n) for n in names}) != 1 or len(given) != 1 or vague:
            continue
        called, of, asks = side_of(names[0]), given.pop(), side_of(last_name(call.func))
        others = [n for n in all_names(program) - {*names} if side_of(n) == called]
        fits = of in (called, asks) or (called, of) == ("val", "test")  # which are held out as well
        if not fits and any(map(names_rows, others)):
            rows = "validation" if of == "val" else of
            yield call, f"{names[0]} is measured on {rows} rows: {ast.unparse(call)}"


@rule("BH238")
def trained_on_held_out(subject: Subject) -> Iterator[Place]:
    """Every loop with a backward pass goes over held-out rows, and train rows are there."""
    program, found = subject.program, list[tuple[ast.AST, str]]()
    for trace in subject.traces:
        stepped = {loop.node for e in trace if e.kind == "step" for loop in e.loops}
        for event in (e for e in trace if e.kind == "backward"):
            for loop in (x for x in event.loops if x.node in stepped):
                head = getattr(loop.node, "iter", None)
                for part in (*nodes_of(head, ast.Name), *nodes_of(head, ast.Attribute)):
                    side = row_side(program, part, loop.scope)
                    if side == "train":
                        return
                    found += [(event.node, last_name(part))] if side else []
    train = {n for n in all_names(program) if found and side_of(n) == "train"}
    for node, name in found[:1]:
        kind = DATA & words(name)
        if any(kind & words(n) if kind else len(words(n)) == len(words(name)) == 1 for n in train):
            told = f"the optimizer learns from {name}, which are held-out rows"
            yield node, f"{told}, and nothing learns from the train rows"


@rule("BH253")
def argument_never_read(subject: Subject) -> Iterator[Place]:
    """A parameter that every caller gives a value is not read. BH245 reports masks."""
    program = subject.program
    for scope in program.scopes if subject.trains else ():
        unread = _unread(scope)
        if not unread or not _is_free(program, scope):
            continue
        sites = [call for call, _ in program.call_sites[scope]]
        if scope.owner is not None and scope.name == "forward":
            made = [(c, program.origins(c.func, program.scope(c))) for c in program.all_calls]
            sites = [c for c, of in made if {o.name for o in of} == {scope.owner.name}]
        for name in unread:
            given = [v for c in sites if (v := argument(c, scope, name)) is not None]
            given = [v for v in given if ast.unparse(v) not in ("None", "False")]
            if given and len(given) == len(sites):
                value = f"{ast.unparse(given[0])[:40]} in line {given[0].lineno}"
                yield scope.node, f"{scope.name} is given {name}, {value}, and never reads it"


def _unread(scope: Scope) -> list[str]:
    """The parameters that matter by their names and occur nowhere in a body that does something."""
    node = scope.node
    wanted = [p for p in scope.parameters if MATTERS & words(p) and not MASKS & words(p)]
    if not wanted or not isinstance(node, FUNCTIONS) or node.args.vararg or node.args.kwarg:
        return []
    does = any(calls(s) for s in node.body if not isinstance(s, ast.Raise))
    named = {n.id for s in node.body for n in nodes_of(s, ast.Name)}
    unread = [p for p in wanted if p not in named and not p.startswith("_")]
    return unread if does and not node.decorator_list and "locals" not in named else []


def _is_free(program: Program, scope: Scope) -> bool:
    """Whether only its callers decide which parameters a function has."""
    if {last_name(b) for b in getattr(scope.owner, "bases", ())} - PLAIN_BASES:
        return False
    if scope.owner is not None and scope.name in ("__init__", "forward"):
        heirs = {last_name(b) for c in program.classes.values() for b in c.bases}
        return scope.owner.name not in heirs
    called = {c.func for c in program.all_calls}
    alone = sum(s.name == scope.name for s in program.scopes) == 1
    named = [*names_of(program, scope.name), *attributes_of(program, scope.name)]
    return alone and called.issuperset(named)


@rule("BH254")
def made_and_never_read(subject: Subject) -> Iterator[Place]:
    """A sampler, mask, scaler or weight is made, or comes with each batch, and nothing reads it."""
    program = subject.program
    read = {n.id for n in program.nodes[ast.Name] if not isinstance(n.ctx, ast.Store)}
    read |= {n.value for n in program.nodes[ast.Constant] if isinstance(n.value, str)}
    if not subject.trains or {"locals", "globals"} & read:
        return
    script = any(
        isinstance(n, LOOPS) or "__name__" in identifiers(getattr(n, "test", None))
        for n in program.tree.body
    )
    for scope in (s for s in program.scopes if s.name or script):
        for name, (bound, *others) in scope.bindings.items():
            weighs = name == "weights" or ("weights" in words(name) and WEIGHING & words(name))
            field = isinstance(program.parents[bound.statement], ast.ClassDef)
            made = isinstance(bound.value, ast.Call) and bound.how == "assign" and not field
            plain = made and bound.index is None and not others and not name.startswith("_")
            if plain and name not in read and (weighs or FOR_USE & words(name)):
                yield bound.statement, f"{name} is created here and never used"
    for loop in dict.fromkeys(s.loop.node for s in step_groups(subject) if s.loop is not None):
        for target in nodes_of(loop.target, ast.Name) if isinstance(loop, ast.For) else ():
            if {"mask", "masks", "lengths", "lens"} & words(target.id) and target.id not in read:
                yield loop, f"each batch brings {target.id}, and nothing uses it"
