"""Rules BH204: to BH207, and BH209: metrics, and which rows and weights are chosen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.additions import additions
from training.review.bent_means import bent_means
from training.review.findings import Place, Subject, rule
from training.review.held_out import from_test, measures_test
from training.review.keepers import (
    becomes_best,
    keeper_calls,
    live_state,
    live_states_in_dicts,
    tests_of,
)
from training.review.kinds import is_model, looks_held_out, looks_trained_on
from training.review.loops import last_name_of_key
from training.review.program import Binding, Program, Scope, argument
from training.review.rules_average import single_rows
from training.review.rules_evaluation import evaluations
from training.review.runs import best_of_runs
from training.review.sides import side_of
from training.review.syntax import (
    FUNCTIONS,
    calls,
    constant,
    dotted,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    own_nodes_of,
    walk,
    words,
)
from training.review.train_scores import held_out_at_hand, is_train_score

RANK_METRICS = {
    "roc_auc_score", "average_precision_score", "f1_score", "precision_score", "recall_score",
    "r2_score", "matthews_corrcoef", "cohen_kappa_score", "balanced_accuracy_score", "spearmanr",
    "pearsonr", "auroc", "binary_auroc", "multiclass_auroc", "average_precision",
    "binary_average_precision", "binary_auprc",
}  # fmt: skip

COLLECTS = {"append", "update", "add", "push", "record", "accumulate"}


@rule("BH204")
def rank_metric_per_batch(subject: Subject) -> Iterator[Place]:
    """Such a metric of scikit-learn is computed in a loop that also runs the network, and added up
    there; or exp or the root of a batch's mean loss is.
    """
    program = subject.program
    for value, of, around in bent_means(program):
        yield (
            value,
            (
                f"{of} of each batch's mean loss is averaged: that is not {of} of the mean over all"
                " rows"
            ),
            around,
        )
    for call, metric in _ranked(program):
        loop = next((a for a in program.ancestors(call) if isinstance(a, ast.For)), None)
        statement = program.statement(call)
        if (
            loop is None
            or single_rows(program, loop, program.scope(loop))
            or not any(is_model(program, c.func, program.scope(c)) for c in calls(loop))
        ):
            continue
        added = isinstance(statement, ast.AugAssign) or any(
            method(c) in COLLECTS for c in program.ancestors(call) if isinstance(c, ast.Call)
        )
        batch = any(
            isinstance(n, ast.Name) and n.id in names_read(loop.target)
            for a in call.args
            for n in walk(a)
        ) or any("loader" in n.lower() for n in identifiers(loop.iter))
        if (
            added
            and batch
            and any(looks_held_out(n) or "loader" in n.lower() for n in identifiers(loop.iter))
        ):
            yield call, f"{metric} of each batch is averaged: that is not {metric} of the rows"


def _ranked(program: Program) -> Iterator[tuple[ast.Call, str]]:
    """Every call of such a metric, or of a function of this file that returns a value computed by
    one; and the metric.
    """
    libraries = (
        "sklearn.metrics.",
        "scipy.stats.",
        "torchmetrics.functional.",
        "torcheval.metrics.functional.",
    )
    for call in program.calls_of(*RANK_METRICS):
        if program.resolve(call.func).startswith(libraries):
            yield call, last_name(call.func)
            if program.scope(call).name:
                yield from (
                    (site, last_name(call.func))
                    for site, _ in program.call_sites[program.scope(call)]
                )


@rule("BH205")
def mean_of_batch_means(subject: Subject) -> Iterator[Place]:
    """A sum of batch values, not multiplied by anything, divided by the number of batches of a
    held-out loader, or by a count of them.
    """
    for loop, _, trace in evaluations(subject):
        if not isinstance(loop.node, ast.For):
            continue
        over, added = {last_name(n) for n in walk(loop.node.iter)}, list(additions(loop.node))
        helpers = {
            e.key: e.node.value
            for e in trace
            if e.kind == "augment" and loop in e.loops and isinstance(e.node, ast.AugAssign)
        }
        sums = {a.name for a in added if _mean_of_batch(a.value)} | {
            last_name_of_key(k) for k, value in helpers.items() if _mean_of_batch(value)
        }
        rounds = {a.name for a in added if constant(a.value) == 1 and a.statement in loop.node.body}
        for node in own_nodes(loop.scope.node):
            if (
                not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div))
                or node.lineno < loop.node.lineno
            ):
                continue
            length = (
                node.right.args[0]
                if isinstance(node.right, ast.Call)
                and last_name(node.right.func) == "len"
                and node.right.args
                else None
            )
            if dotted(node.left) in sums and (
                (length is not None and last_name(length) in over) or dotted(node.right) in rounds
            ):
                yield (
                    node,
                    (
                        f"{dotted(node.left)} adds up means of batches: the last, shorter one"
                        " counts as much as the others"
                    ),
                    loop.node,
                )


def _mean_of_batch(value: ast.expr) -> bool:
    """Whether a term is a mean, as far as it tells, and multiplied by nothing."""
    read = identifiers(value)
    return bool({"item", "mean"} & read) and "sum" not in read and not nodes_of(value, ast.Mult)


@rule("BH206")
def chosen_on_test_set(subject: Subject) -> Iterator[Place]:
    """In a loop, a value that a call made from something named test is compared with the best so
    far, which leads to a save, a stop, or a new best; or test rows are passed where validation rows
    are asked for.
    """
    program = subject.program
    for node in program.nodes[ast.If]:
        loop = next(
            (a for a in program.ancestors(node) if isinstance(a, (ast.For, ast.While))), None
        )
        if (
            loop is None
            or _looks_for_worst(node.test, loop)
            or {"predict", "nn", "nearest", "neighbor", "neighbour"}
            & words(program.scope(node).name)
        ):
            continue
        compared = {c for part in nodes_of(node.test, ast.Compare) for c in names_read(part)} | {
            c for c in names_read(node.test) if "stop" in c
        }
        best = {
            n
            for n in identifiers(node.test)
            if words(n) & {"best", "min", "max", "top", "patience", "highest", "lowest"}
        }
        pairs = [becomes_best(program, node, test, program.scope(node)) for test in tests_of(node)]
        best |= {n for pair in pairs if pair is not None for n in identifiers(pair[1])}
        body = {
            n.id for s in node.body for n in nodes_of(s, ast.Name) if isinstance(n.ctx, ast.Store)
        }
        if not best or not (
            body & compared
            or {"save", "state_dict", "deepcopy"} & {n for s in node.body for n in identifiers(s)}
        ):
            continue
        for name in sorted(compared - best):
            for binding in program.scope(node).bindings.get(name, ()):
                if loop in program.ancestors(binding.statement) and measures_test(
                    program, binding, loop
                ):
                    yield (
                        node,
                        f"{name} comes from the test rows, and decides here which weights are kept",
                        loop,
                    )
    yield from _test_for_validation(program)
    yield from _kept_by_a_helper(program)
    for call, score in best_of_runs(program):
        yield (
            call,
            f"{score} comes from the test rows, and decides here which of several runs is taken",
        )


def _kept_by_a_helper(program: Program) -> Iterator[Place]:
    """`stopper.update(scores["f1"], net)`, of a class or function of the file that keeps the best,
    in a loop where the scores were computed of test rows.
    """
    for call, given in keeper_calls(program):
        scope, loop = (
            program.scope(call),
            next((a for a in program.ancestors(call) if isinstance(a, (ast.For, ast.While))), None),
        )
        if loop is None or _looks_for_worst(call, loop):
            continue
        made = [
            b
            for name in sorted(names_read(given))
            for b in scope.bindings.get(name, ())
            if loop in program.ancestors(b.statement)
        ]
        direct = any(from_test(program, c, scope) for c in calls(given))
        if direct or any(measures_test(program, b, loop) for b in made):
            yield (
                call,
                (
                    f"{ast.unparse(given)} comes from the test rows, and decides here which weights"
                    " are kept"
                ),
                loop,
            )


def _looks_for_worst(node: ast.expr, loop: ast.For | ast.While) -> bool:
    """Whether the worst is looked for: the hardest rows, the strongest attack."""
    named = identifiers(node) | (identifiers(loop.iter) if isinstance(loop, ast.For) else set())
    return bool(
        {w for n in named for w in words(n)}
        & {"worst", "hardest", "weakest", "attack", "attacks", "peak"}
    )


def _test_for_validation(program: Program) -> Iterator[Place]:
    """`Trainer(model, train, test)`, whose third parameter is called valid, where a name of
    validation rows is given a value and nothing reads it.
    """
    for function, sites in program.call_sites.items():
        for name in (p for p in function.parameters if side_of(p) == "val"):
            for call, scope in sites:
                given = argument(call, function, name)
                if not isinstance(given, ast.Name) or side_of(given.id) != "test":
                    continue
                read = {
                    n.id for n in own_nodes_of(scope.node, ast.Name) if isinstance(n.ctx, ast.Load)
                }
                unread = [n for n in scope.bindings if side_of(n) == "val" and n not in read]
                if unread:
                    yield (
                        call,
                        f"{given.id} is passed as {name}, and {unread[0]} is read by nobody",
                        scope.node if scope.name else call,
                    )


@rule("BH209")
def best_by_train_loss(subject: Subject) -> Iterator[Place]:
    """A score that is named after train rows, or that the loop with the backward adds up, is
    compared with the best one, which it becomes, to keep weights or to stop, here or in a helper;
    the loop has a held-out score too.
    """
    program = subject.program
    for node in program.nodes[ast.If]:
        keeps = any(
            isinstance(c, ast.Break)
            or (
                isinstance(c, ast.Call)
                and (method(c) == "state_dict" or program.resolve(c.func) == "torch.save")
            )
            for c in walk(node)
        )
        if not keeps or _chosen_by_validation(program, node):
            continue
        score = _that_becomes_best(program, node, program.scope(node))
        if score is not None:
            yield from _beside_held_out(program, node, node.test, score)
    for call, given in keeper_calls(program):
        yield from _beside_held_out(program, call, call, given)


def _chosen_by_validation(program: Program, node: ast.If) -> bool:
    """Whether the same function keeps weights by a held-out score too: this comparison is for
    something else.
    """
    for other in own_nodes_of(program.scope(node).node, ast.If):
        if other is not node and {"state_dict", "deepcopy"} & {
            n for s in other.body for n in identifiers(s)
        }:
            score = _that_becomes_best(program, other, program.scope(other))
            if score is not None and looks_held_out(last_name(score)):
                return True
    return False


def _beside_held_out(
    program: Program, node: ast.AST, place: ast.expr, score: ast.expr
) -> Iterator[Place]:
    """The finding, where a score is one of train rows and a held-out one is at hand in the same
    loop.
    """
    scope, loop = (
        program.scope(node),
        next((a for a in program.ancestors(node) if isinstance(a, (ast.For, ast.While))), None),
    )
    if (
        loop is None
        or not isinstance(score, (ast.Name, ast.Subscript))
        or not _of_train(score, scope)
    ):
        if (
            loop is not None
            and is_train_score(program, score, scope, loop)
            and (beside := held_out_at_hand(loop))
        ):
            yield (
                place,
                (
                    f"{ast.unparse(score)} is computed from the rows of each step of training, and"
                    f" {beside} is at hand"
                ),
                loop,
            )
        return
    inside = set(walk(loop))
    made = [n for n in scope.bindings if looks_held_out(n) and not looks_trained_on(n)]
    at_hand = [n for n in made if any(b.statement in inside for b in scope.bindings[n])]
    key = [
        str(constant(n.slice))
        for n in inside
        if isinstance(n, ast.Subscript)
        and isinstance(score, ast.Subscript)
        and dotted(n.value) == dotted(score.value)
    ]
    at_hand += [k for k in key if looks_held_out(k)]
    at_hand += [
        k
        for k, v in _entries(score, scope).items()
        if looks_held_out(k) or any(map(looks_held_out, identifiers(v)))
    ]
    at_hand += [
        f"a score of {a.id}"
        for n in inside
        if isinstance(n, ast.Call)
        for a in n.args
        if isinstance(a, ast.Name) and side_of(a.id) == "val"
    ]
    if at_hand:
        yield (
            place,
            f"{ast.unparse(score)} is a score of train rows, and {at_hand[0]} is at hand",
            loop,
        )


def _that_becomes_best(program: Program, node: ast.If, scope: Scope) -> ast.expr | None:
    """What a condition compares with the best so far."""
    found = (becomes_best(program, node, test, scope) for test in tests_of(node))
    return next((pair[0] for pair in found if pair is not None), None)


def _entries(score: ast.expr, scope: Scope) -> dict[str, ast.expr]:
    """The entries of the dict, written in one piece, of which a score is one."""
    name = (
        score.value.id
        if isinstance(score, ast.Subscript) and isinstance(score.value, ast.Name)
        else ""
    )
    held = [b.value for b in scope.bindings.get(name, ()) if isinstance(b.value, ast.Dict)]
    return {str(constant(k)): v for d in held for k, v in zip(d.keys, d.values, strict=True)}


def _of_train(score: ast.expr, scope: Scope) -> bool:
    """Whether a score is named after train rows, or computed from some, and what it was computed
    from is not held out.
    """
    entry = (
        _entries(score, scope).get(str(constant(score.slice)))
        if isinstance(score, ast.Subscript)
        else None
    )
    if (
        entry is not None
        and any(map(looks_trained_on, identifiers(entry)))
        and not any(map(looks_held_out, identifiers(entry)))
    ):
        return True
    name = str(constant(score.slice)) if isinstance(score, ast.Subscript) else last_name(score)
    made = (
        [b.value for b in scope.bindings.get(name, ()) if b.how == "assign"]
        if isinstance(score, ast.Name)
        else []
    )
    return (
        looks_trained_on(name)
        and not looks_held_out(name)
        and not any(looks_held_out(n) for v in made for n in identifiers(v))
    )


@rule("BH207")
def best_weights_not_copied(subject: Subject) -> Iterator[Place]:
    """In a loop a name for the best is bound to a live state or network, and nothing copies it
    afterwards.
    """
    program = subject.program
    restored = {last_name(c.args[0]) for c in program.methods_of("load_state_dict") if c.args}
    everything = [(n, b, s) for s in program.scopes for n, bs in s.bindings.items() for b in bs]
    everything += [
        (n, b, b.scope)
        for attributes in program.attributes.values()
        for n, bs in attributes.items()
        for b in bs
    ]
    for name, binding, scope in everything:
        if binding.index is not None or binding.how != "assign":
            continue
        if "best" not in words(name) and not (
            name in restored and _restored_later(program, name, binding, scope)
        ):
            continue
        found = live_state(program, binding.value, scope)
        live, kept = (
            found is not None,
            (found[0] if found is not None and found[1] is scope else binding.value),
        )
        alias = (
            isinstance(binding.value, ast.Name)
            and not words(binding.value.id) & {"best", "state"}
            and is_model(program, binding.value, scope)
            and "model" in words(name)
        )
        loop = next(
            (
                a
                for a in program.ancestors(binding.statement)
                if isinstance(a, (ast.For, ast.While))
            ),
            None,
        )
        looped = loop is not None or (
            live
            and scope.owner
            and any(isinstance(a, ast.If) for a in program.ancestors(binding.statement))
        )
        if looped and any(
            loop in (b.statement, *program.ancestors(b.statement))
            for n in names_read(kept)
            for b in scope.bindings.get(n, ())
        ):
            continue  # each passage makes a network of its own
        if (live or alias) and looped and not _copied_later(program, name, binding.statement):
            yield binding.value, f"{name} refers to the live weights: training goes on in them"
    yield from (
        (call, f"{name} refers to the live weights: training goes on in them")
        for call, name in live_states_in_dicts(program)
    )


def _restored_later(program: Program, name: str, binding: Binding, scope: Scope) -> bool:
    """Whether a name is bound under a condition in a loop, and loaded back after that loop."""
    loads = [
        c for c in program.methods_of("load_state_dict") if c.args and last_name(c.args[0]) == name
    ]
    around = program.ancestors(binding.statement)
    loops = [a for a in around if isinstance(a, (ast.For, ast.While))]
    asks = [
        a
        for a in around
        if isinstance(a, ast.If)
        and last_name(getattr(a.test, "func", None)) not in ("hasattr", "isinstance", "callable")
    ]
    if (
        scope.owner and asks and name not in scope.bindings
    ):  # kept on an object, and loaded back wherever that is used
        return any(isinstance(c.args[0], ast.Attribute) for c in loads)
    if not loops or not any(isinstance(a, ast.If) for a in around[: around.index(loops[0])]):
        return False
    return any(program.scope(c) is scope and c.lineno > (loops[-1].end_lineno or 0) for c in loads)


def _copied_later(program: Program, name: str, statement: ast.AST) -> bool:
    """Whether the name is copied, or saved right where it is bound and used nowhere else."""
    uses = [
        n
        for n in (*program.nodes[ast.Name], *program.nodes[ast.Attribute])
        if last_name(n) == name and isinstance(getattr(n, "ctx", None), ast.Load)
    ]
    block = program.parents[program.statement(statement)]
    outside = [n for n in uses if block not in program.ancestors(n)]
    copied = any(
        last_name(c.func) in ("deepcopy", "clone")
        for n in uses
        for c in program.ancestors(n)
        if isinstance(c, ast.Call)
    )
    return copied or (
        bool(uses)
        and not outside
        and not isinstance(block, (FUNCTIONS, ast.Module, ast.For, ast.While))
    )
