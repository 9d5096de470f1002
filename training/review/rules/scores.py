"""Scores: how they are counted, in which order they are given; and what nothing reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set

from training.review.findings import Place, Subject, rule
from training.review.loops import innermost_loop, names_loader
from training.review.program import Binding, Program, Scope, argument
from training.review.roles import MASKS, is_model
from training.review.splitting import sources_of
from training.review.syntax import (
    calls,
    constant,
    dotted,
    has_unpacking,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
    words,
)
from training.review.values import loss_kind, reaching

CUTS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)
CHOOSES = {"argmax", "nanargmax", "argmin", "idxmax"}
ROWS = re.compile(r"len\(.+\)|.+\.(size\(0\)|shape\[0\]|numel\(\))")
RANKS = {
    "roc_auc_score", "average_precision_score", "roc_curve", "precision_recall_curve", "log_loss",
    "brier_score_loss", "ndcg_score", "det_curve",
}  # fmt: skip
IN_ORDER = RANKS | {
    "precision_score", "recall_score", "confusion_matrix", "classification_report", "r2_score",
    "balanced_accuracy_score", "fbeta_score", "precision_recall_fscore_support",
}  # fmt: skip
OTHER_ORDER = ("torchmetrics.", "torcheval.metrics.")  # scores first
KEEPS = {
    "cpu", "numpy", "detach", "float", "to", "squeeze", "view", "reshape", "flatten", "ravel",
    "tolist", "item", "astype", "cat", "concatenate", "stack", "hstack", "asarray", "array", "list",
}  # fmt: skip
SEEN = (ast.Attribute, ast.FormattedValue, ast.Assign, ast.Return, ast.Expr)
REDUCES = {"softmax", "mean", "sum", "cross_entropy", "matmul", "bmm", "einsum", "max", "topk"}
# words
THRESHOLD = {"threshold", "thresholds", "thr", "thresh", "cutoff", "tau", "th"}
NOT_FINAL = {"train", "val", "valid", "validation", "dev", "calib", "calibration", "tune", "cv"}
LABELS = {"label", "labels", "target", "targets", "truth", "truths", "true", "gt", "gts"}
GUESSES = {"guess", "guesses", "pred", "preds", "prediction", "predictions", "predicted", "proba"}
SCORES = GUESSES | {"score", "scores", "prob", "probs", "probabilities", "logit", "logits"}
SETTINGS = {
    "lr", "learning_rate", "epochs", "num_epochs", "max_epochs", "batch_size", "weight_decay",
    "dropout", "momentum", "seed", "hidden_size", "hidden_dim", "num_layers", "patience",
    "warmup_steps", "grad_clip", "max_grad_norm", "max_steps", "label_smoothing", "temperature",
}  # fmt: skip
LOGS = {"print", "pprint", "info", "debug", "str", "repr", "vars", "asdict", "log_params"}
UNUSED = {"deprecated", "unused", "ignored", "obsolete", "legacy", "compatibility", "reserved"}
FLAGS = {"return", "path", "paths", "use", "with", "has", "is", "num", "size", "mode", "idx", "id"}


@rule("BH210")
def threshold_chosen_on_scored_rows(subject: Subject) -> Iterator[Place]:
    """A threshold is the best one for some scores and labels, which nothing says are validation
    rows, and then cuts these scores alone.
    """
    program = subject.program
    for scope, name in [(s, n) for s in program.scopes for n in s.bindings if THRESHOLD & words(n)]:
        for binding in scope.bindings[name]:
            data = _chosen_on(program, binding, scope)
            end = program.statement(binding.statement).end_lineno or 0
            later = [n for n in nodes_of(scope.node, ast.Name) if n.lineno > end]
            changed = any(isinstance(n.ctx, ast.Store) and n.id in {name, *data} for n in later)
            uses = [program.parents[n] for n in later if n.id == name]
            cuts = [u for u in uses if not isinstance(u, ast.FormattedValue)]
            told = {scope.name}.union(*(sources_of(n, scope, end) for n in data))
            if len(data) < 2 or changed or any(NOT_FINAL & words(n) for n in told):
                continue
            if cuts and all(isinstance(u, ast.Compare) and names_read(u) & data for u in cuts):
                on = f"{name} is the best one for {' and '.join(sorted(data))}"
                said = f"{on}, and the reported score is of the same rows"
                yield binding.statement, said, scope.node


def _chosen_on(program: Program, binding: Binding, scope: Scope) -> set[str]:
    """The names of scores and labels for which a value is the best of several, as they are given
    with a cut at each; none where it is not chosen so.
    """
    value, around = binding.value, program.ancestors(binding.statement)
    loop = next((a for a in around if isinstance(a, ast.For)), None)
    code: list[ast.AST] = []
    if any(last_name(c.func) in CHOOSES or keyword(c, "key") for c in calls(value)):
        code = [value, *(b.value for n in names_read(value) for b in scope.bindings.get(n, ()))]
    elif loop is not None and names_read(value) & names_read(loop.target):
        code = [loop] if any(isinstance(a, ast.If) for a in around) else []
    found: set[str] = set()
    for cut in (c for part in code for c in nodes_of(part, ast.Compare)):
        above = [a for a in program.ancestors(cut) if isinstance(a, ast.Call)]
        measure = next((a for a in above if last_name(a.func) not in KEEPS), None)
        if measure is not None and isinstance(cut.ops[0], CUTS):
            called = {dotted(c.func).partition(".")[0] for c in calls(measure)}
            found |= names_read(measure) - called - {last_name(cut.comparators[0])}
    return found - program.aliases.keys()


def _core(program: Program, node: ast.expr) -> ast.expr:
    """What is left of `torch.cat(scores).cpu().numpy()[:, 1]`: `scores`."""
    inner: ast.expr | None = node
    while inner is not None:
        node, inner = inner, None
        if isinstance(node, ast.Subscript):
            inner = node.value
        elif isinstance(node, ast.Call) and last_name(node.func) in KEEPS:
            of_value = method(node) and not program.resolve(node.func)
            inner = receiver(node) if of_value else next(iter(node.args), None)
    return node


def _values(program: Program, name: ast.Name, scope: Scope) -> list[ast.expr]:
    """What a name is given, and what is put into it; nothing where a part of that is not known."""
    bound = program.bindings_of(name, scope)
    filled = [c for c in program.methods_of("append", "extend") if c.args]
    own = [
        c.args[0] for c in filled if dotted(receiver(c)) == name.id and program.scope(c) is scope
    ]
    plain = all(b.how in ("assign", "augment") and b.index is None for b in bound)
    return [*(b.value for b in bound if ast.unparse(b.value) != "[]"), *own] if plain else []


@rule("BH221")
def decisions_are_ranked(subject: Subject) -> Iterator[Place]:
    """The scores of such a metric of scikit-learn are a comparison, rounded, an argmax or what a
    classifier predicts.
    """
    program = subject.program
    for call in program.calls_of(*RANKS):
        names = ("y_score", "y_pred", "y_proba", "y_prob", "probas_pred")
        score = next((s for n in names if (s := keyword(call, n, 1)) is not None), None)
        if score is None or not program.resolve(call.func).startswith("sklearn.metrics."):
            continue
        if _decided(program, score, program.scope(call)):
            said = "which is what is left after a threshold or an argmax: decisions have no order"
            yield call, f"{last_name(call.func)} is given {ast.unparse(score)}, {said}"


def _decided(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether scores were turned into decisions, in every way that they came."""
    node = _core(program, node)
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], CUTS)
    bound = program.bindings_of(node, scope)
    if bound and all(b.index == 1 and _called(b.value) == "max" for b in bound):
        return True  # `_, said = scores.max(1)`
    if isinstance(node, ast.Name) and depth < 5:
        values = _values(program, node, scope)
        return bool(values) and all(_decided(program, v, scope, depth + 1) for v in values)
    name = _called(node)
    if name == "predict":
        made = program.origins(receiver(node), scope)
        kinds = ("Classifier", "SVC", "LogisticRegression")
        return any(o.name.startswith("sklearn.") and o.last.endswith(kinds) for o in made)
    if not isinstance(node, ast.Call) or name not in ("argmax", "round", "rint"):
        return False
    return name == "argmax" or not (node.keywords or any(constant(a) for a in node.args))


def _called(node: ast.AST) -> str:
    return last_name(getattr(node, "func", None))


@rule("BH222")
def labels_and_scores_swapped(subject: Subject) -> Iterator[Place]:
    """The first argument comes from a network and the second is called labels, or their names say
    so; of torchmetrics in reverse order.
    """
    program = subject.program
    used = {"sklearn", "torchmetrics", "torcheval"} & program.modules_imported
    for call in program.all_calls if used else ():
        wanted, above = _order(program, call), program.parents[call]
        turned = isinstance(above, ast.Attribute) and above.attr in ("T", "transpose")
        if not wanted or turned or has_unpacking(call) or len(call.args) < 2:
            continue
        first, second = (_role(program, a, program.scope(call)) for a in call.args[:2])
        if (second, first) == wanted:
            said = f"takes {wanted[0]} first, and {ast.unparse(call.args[0])} are {wanted[1]}"
            yield call, f"{last_name(call.func)} {said}"


def _order(program: Program, call: ast.Call) -> tuple[str, str] | None:
    """What a metric wants first and second; None of one that does not change when swapped."""
    name, last = program.resolve(call.func), last_name(call.func)
    if name.startswith("sklearn.metrics."):
        return ("labels", "scores") if last in IN_ORDER else None
    target = receiver(call) if last == "update" else call.func
    made = {o.name for o in program.origins(target, program.scope(call))} if not name else {name}
    own = made and all(n.startswith(OTHER_ORDER) for n in made) and last[:1].islower()
    return ("scores", "labels") if own and not {"pairwise", "kl"} & words(last) else None


def _role(program: Program, node: ast.expr, scope: Scope) -> str:
    """`scores` or `labels`, by what a value is called and whether a network made it; empty where
    these say nothing or disagree.
    """
    node = _core(program, node)
    inner = node.left if isinstance(node, ast.Compare) else receiver(node)
    node = _core(program, inner) if inner is not None and _called(node) in ("", "argmax") else node
    made = _values(program, node, scope) if isinstance(node, ast.Name) else [node]
    runs = [c for v in made for c in calls(v) if not program.resolve(c.func)]
    said = words(last_name(node))
    scores = bool(SCORES & said) or any(is_model(program, c.func, scope) for c in runs)
    labels = bool(LABELS & said) or (bool({"y", "ys"} & said) and not scores)
    return "" if scores == labels else "scores" if scores else "labels"


@rule("BH223")
def sum_divided_by_other_count(subject: Subject) -> Iterator[Place]:
    """A loop over batches adds up means and the sum is divided by the number of rows; or means
    times rows, divided by the number of batches.
    """
    program = subject.program
    for loop in program.nodes[ast.For]:
        scope, steps = program.scope(loop), nodes_of(loop, ast.AugAssign)
        steps = [s for s in steps if innermost_loop(program, s) is loop]
        added = {dotted(s.target): s.value for s in steps if isinstance(s.op, ast.Add)}
        stored = {n.id: n for n in nodes_of(loop, ast.Name) if isinstance(n.ctx, ast.Store)}
        counts = _counts(program, loop, added, stored.keys()) if added else {}
        ratios = [(n, n.op, n.left, n.right) for n in own_nodes_of(scope.node, ast.BinOp)]
        shrunk = [(n, n.op, n.target, n.value) for n in own_nodes_of(scope.node, ast.AugAssign)]
        for ratio, op, total, divisor in (*ratios, *shrunk) if counts else ():
            name = dotted(_core(program, total))
            term, counted = added.get(name), counts.get(ast.unparse(divisor))
            again = [s for s in steps if dotted(s.target) == name][1:] or total.lineno < loop.lineno
            if term is None or not isinstance(op, ast.Div) or again:
                continue
            said = f"{ast.unparse(ratio)} is wrong by the batch size"
            sides = [term.left, term.right] if isinstance(term, ast.BinOp) else []
            rows = any(_rows(program, s, scope, stored.keys()) for s in sides)
            if counted == "batches" and rows and any(_is_mean(program, s, scope) for s in sides):
                yield ratio, f"{name} is weighted by rows, and divided by batches: {said}", loop
            elif counted == "rows" and _is_mean(program, term, scope):
                told = "is a sum of batch means, and is divided by rows"
                yield ratio, f"{name} {told}: {said}", loop


def _counts(
    program: Program, loop: ast.For, added: dict[str, ast.expr], stored: Set[str]
) -> dict[str, str]:
    """What lengths and sums count, by how they are written: `rows` or `batches`."""
    scope = program.scope(loop)
    made = [o.call for o in program.origins(loop.iter, scope) if o.last == "DataLoader"]
    if any(constant(keyword(c, "batch_size", 1) or ast.Constant(1)) == 1 for c in made):
        return {}  # each batch is a row
    found = {n: "rows" for n, value in added.items() if _rows(program, value, scope, stored)}
    if names_loader(loop.iter) or made:
        for name in filter(None, map(dotted, walk(loop.iter))):
            found |= {f"len({name})": "batches", f"len({name}.dataset)": "rows"}
        found |= {n: "batches" for n, value in added.items() if constant(value) == 1}
    return found | {f"max({n}, 1)": kind for n, kind in found.items()}


def _is_mean(program: Program, value: ast.expr, scope: Scope) -> bool:
    """Whether a value is a loss that is left at its own reduction, or a weighed sum of such."""
    value = _core(program, value)
    if isinstance(value, ast.Name):
        held = reaching(program, value, scope)
        return len(held) == 1 and _is_mean(program, held[0], scope)
    if isinstance(value, ast.BinOp):
        parts = [p for p in (value.left, value.right) if constant(p) is None]
        means = isinstance(value.op, ast.Add) or len(parts) == 1
        return means and all(_is_mean(program, p, scope) for p in parts)
    if not isinstance(value, ast.Call) or not loss_kind(program, value, scope):
        return False
    made = [value, *(o.call for o in program.origins(value.func, scope))]
    unusual = any(keyword(c, k) for c in made for k in ("reduction", "size_average", "reduce"))
    return not unusual and "reduction" not in program.identifiers


def _rows(program: Program, node: ast.expr, scope: Scope, stored: Set[str]) -> bool:
    """Whether it is the number of rows of a batch: `len(y)`, or a name for it."""
    held = reaching(program, node, scope) if isinstance(node, ast.Name) else []
    node = held[0] if len(held) == 1 else node
    return bool(ROWS.fullmatch(ast.unparse(node)) and names_read(node) & stored)


@rule("BH224")
def option_never_read(subject: Subject) -> Iterator[Place]:
    """An option of the command line or a field of a dataclass with the name of a hyperparameter is
    read nowhere in a file that trains, and what holds it stays in sight.
    """
    program = subject.program
    told: list[tuple[ast.AST, str, str]] = []
    parsed = program.methods_of("parse_args", "parse_known_args") if subject.trains else []
    for call in program.methods_of("add_argument") if _in_sight(program, parsed) else ():
        flags = [str(constant(a))[2:] for a in call.args if str(constant(a)).startswith("--")]
        said = words(str(constant(keyword(call, "help"))).replace(",", " "))
        if not UNUSED & said and last_name(keyword(call, "help")) != "SUPPRESS":
            named = constant(keyword(call, "dest")) or "".join(flags[:1]).replace("-", "_")
            told.append((call, str(named), "an option"))
    for owner in program.classes.values() if subject.trains else ():
        marks = {last_name(getattr(d, "func", d)) for d in owner.decorator_list}
        if "dataclass" in marks and _in_sight(program, program.calls_of(owner.name)):
            fields = [n for n in owner.body if isinstance(n, ast.AnnAssign)]
            told += [(n, last_name(n.target), f"a field of {owner.name}") for n in fields]
    read = {n.attr for n in program.nodes[ast.Attribute] if isinstance(n.ctx, ast.Load)}
    read |= {str(n.value) for n in program.nodes[ast.Constant]}  # `getattr(args, "lr")`
    for node, name, what in told:
        if name in SETTINGS - read:
            yield node, f"{name} is {what}, and nothing reads it"


def _in_sight(program: Program, made: list[ast.Call]) -> bool:
    """Whether what holds settings is only read by attribute, printed, or given to functions of this
    file.
    """
    computed = any(not constant(keyword(c, "name", 1)) for c in program.calls_of("getattr"))
    names = (*program.nodes[ast.Name], *program.nodes[ast.Attribute]) if made else ()
    held = [n for n in names if {o.call for o in program.origins(n, program.scope(n))} & {*made}]
    for value in (*made, *held):
        above = program.parents[value]
        above = program.parents[above] if isinstance(above, ast.keyword) else above
        own = isinstance(above, ast.Call) and program.callees(above, program.scope(above))
        logs = _called(above) in LOGS
        if computed or not (own or logs or isinstance(above, SEEN)):
            return False
    return bool(held)


@rule("BH245")
def mask_never_read(subject: Subject) -> Iterator[Place]:
    """A parameter that is called a mask is read nowhere in a function that sums up or weighs; a
    caller gives it, and no other function takes its place.
    """
    program = subject.program
    for scope in program.scopes:
        node, read = scope.node, names_read(scope.node) | {"padding"}
        masks = [p for p in scope.parameters if MASKS & words(p) and not FLAGS & words(p)]
        unread = [p for p in masks if p not in read and p[:1] != "_"]
        if not unread or "locals" in read or getattr(node, "decorator_list", False):
            continue
        called = {last_name(c.func) for c in calls(node)}
        reduces = called & REDUCES or any("loss" in words(c) for c in called)
        returns = any(r.value is not None for r in own_nodes_of(node, ast.Return))
        named = [n for n in program.nodes[ast.Name] if n.id == scope.name]
        handed_on = any(getattr(program.parents[n], "func", None) is not n for n in named)
        others = [(s.name, s.parameters) for s in program.scopes if s is not scope and s.name]
        alike = any(n == scope.name or p == scope.parameters for n, p in others)
        for name in unread if reduces and returns and not handed_on and not alike else ():
            given = [argument(c, scope, name) for c, _ in program.call_sites[scope]]
            sites = [g for g in given if g is not None and not isinstance(g, ast.Constant)]
            if sites:
                said = f"is given in line {sites[0].lineno}, and {scope.name} does not read it"
                yield node, f"{name} {said}"
