"""Rules BH138 and BH139: terms and rows that training leaves out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.loops import innermost_loop
from training.review.program import Program, Scope
from training.review.rules_divergence import divergences
from training.review.signs import READ
from training.review.syntax import FUNCTIONS, calls, constant, dotted, identifiers, last_name, method, names_read, own_nodes, receiver, walk, words
from training.review.train_scores import Loops

REPORTS = READ | {"append", "update", "format", "add", "step", "update_postfix", "set_postfix", "save", "backward"}
CHANGES_ORDER = {"shuffle", "permutation", "roll", "sample"}


@rule(
    "BH138",
    "term-of-loss-left-out",
    "error",
    title="A term of the loss is computed, and nothing is trained on it",
    why="Backward is called on one term where the sum was meant, or the sum leaves a divergence out: the network learns without it, and logs show a loss that nothing makes small.",
    remedy="call `backward` on the sum that holds every term",
    bad="""
        from torch.nn import functional as F

        def train(model, optimizer, loader, beta):
            for x in loader:
                out, kl = model(x)
                rec = F.mse_loss(out, x)
                loss = rec + beta * kl
                optimizer.zero_grad()
                rec.backward()
                optimizer.step()
                print(loss.item())
        """,
    good="""
        from torch.nn import functional as F

        def train(model, optimizer, loader, beta):
            for x in loader:
                out, kl = model(x)
                rec = F.mse_loss(out, x)
                loss = rec + beta * kl
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item())
        """,
)
def term_of_loss_left_out(subject: Subject) -> Iterator[Place]:
    """`backward` of one term of a sum that is made before it and at most logged, no other term having its own; or a divergence that is in no sum."""
    program = subject.program
    for call in program.methods_of("backward"):
        term, scope = receiver(call), program.scope(call)
        if not isinstance(term, ast.Name) or not isinstance(program.parents[call], ast.Expr):
            continue
        for total, terms in _sums_with(program, term, scope, call):
            backed = {n for c in calls(scope.node) if method(c) == "backward" for n in names_read(receiver(c))}
            if total not in backed and not (terms - {term.id}) & backed and _only_reported(program, scope, total):
                yield call, f"{term.id}.backward() leaves out {', '.join(sorted(terms - {term.id})) or 'the rest'} of {total}, which nothing is trained on"
                break
    for node, _, _ in divergences(program) if subject.trains else ():
        name, scope = _named(program, node), program.scope(node)
        blocks = [i.context_expr for a in program.ancestors(node) if isinstance(a, ast.With) for i in a.items]
        if any({"no_grad", "inference_mode"} & identifiers(b) for b in blocks):
            continue
        if name and not _quiet_all_over(scope) and not _counts(program, scope, name):
            yield node, f"{name} is computed here, and is in no loss that is trained on"


def _sums_with(program: Program, term: ast.Name, scope: Scope, call: ast.Call) -> Iterator[tuple[str, set[str]]]:
    """Names of sums in which a term stands, made in the same block before the backward, or unpacked beside it from a function of the file; and their terms."""
    loop = innermost_loop(program, call)
    for name, bound in scope.bindings.items():
        for b in bound if name != term.id else ():
            if b.how != "assign" or not isinstance(b.value, (ast.BinOp, ast.Call)) or getattr(b.statement, "lineno", 0) > call.lineno:
                continue
            if innermost_loop(program, b.value) is not loop:
                continue
            if b.index is None and isinstance(b.value, ast.BinOp) and isinstance(b.value.op, ast.Add):
                terms = _terms(b.value)
                if term.id in terms and len(terms) > 1 and name not in terms and all(_made_beside(program, t, scope, loop) for t in terms):
                    yield name, terms
            elif b.index is not None and isinstance(b.value, ast.Call):
                yield from ((name, terms) for terms in _returned_sums(program, b.value, b.index, term, scope))


def _made_beside(program: Program, name: str, scope: Scope, loop: ast.AST | None) -> bool:
    """Whether a term is computed in the same passage of the loop, with a gradient."""
    bound = [b for b in scope.bindings.get(name, ()) if b.how == "assign" and innermost_loop(program, b.value) is loop]
    quiet = [b for b in bound for a in program.ancestors(b.value) if isinstance(a, ast.With) and {"no_grad", "inference_mode"} & identifiers(a.items[0])]
    return bool(bound) and not quiet and not any({"detach", "item", "no_grad"} & identifiers(b.value) for b in bound)


def _returned_sums(program: Program, call: ast.Call, index: int, term: ast.Name, scope: Scope) -> Iterator[set[str]]:
    """The terms of a sum that a function returns as that element, where it returns another element, the term, as one of them."""
    at = next((b.index for b in scope.bindings.get(term.id, ()) if b.value is call), None)
    for function in program.callees(call, scope) if at is not None else ():
        for node in own_nodes(function.node):
            given = node.value.elts if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) else []
            if at is None or max(at, index) >= len(given) or not isinstance(given[at], ast.Name):
                continue
            total = _bound_once(given[index], function)
            one, terms = last_name(given[at]), _terms(total)
            if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add) and one in terms and len(terms) > 1:
                unpacked = {n: b.index for n, bound in scope.bindings.items() for b in bound if b.value is call}
                here = {n for n, i in unpacked.items() if i is not None and i < len(given) and last_name(given[i]) in terms}
                yield here | {term.id} | (terms - {last_name(g) for g in given})


def _bound_once(node: ast.expr, scope: Scope) -> ast.expr:
    bound = scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    return bound[0].value if len(bound) == 1 and bound[0].index is None else node


def _terms(node: ast.expr) -> set[str]:
    """The names of the terms of a sum, weights left out: of `a + 0.1 * b` a and b; empty where one has no name."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _terms(node.left), _terms(node.right)
        return left | right if left and right else set()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _terms(node.right) if isinstance(node.right, ast.Name) else _terms(node.left)
    return {node.id} if isinstance(node, ast.Name) else set()


def _reported(program: Program, node: ast.Name) -> bool:
    """Whether a value is only printed or logged there."""
    inner: ast.AST = node
    for above in program.ancestors(node):
        if isinstance(above, ast.Attribute) and above.attr in READ and above.value is inner:
            return True
        if isinstance(above, ast.JoinedStr) or (isinstance(above, ast.Call) and last_name(above.func) in READ):
            return True
        inner = above
    return False


def _only_reported(program: Program, scope: Scope, name: str) -> bool:
    """Whether a name is read for nothing but logs."""
    reads = [n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    return all(_reported(program, n) for n in reads)


def _named(program: Program, node: ast.expr) -> str:
    """The name that the divergence is given, summed, averaged and halved perhaps; empty where it goes on as a part of anything else."""
    inner: ast.AST = node
    while not isinstance(inner, ast.stmt):
        above = program.parents[inner]
        of_sum = isinstance(above, (ast.Attribute, ast.Call, ast.UnaryOp, ast.keyword))
        of_half = isinstance(above, ast.BinOp) and isinstance(above.op, (ast.Mult, ast.Div))
        if not (of_sum or of_half or isinstance(above, ast.Assign)):
            return ""
        inner = above
    return inner.targets[0].id if isinstance(inner, ast.Assign) and len(inner.targets) == 1 and isinstance(inner.targets[0], ast.Name) else ""


def _quiet_all_over(scope: Scope) -> bool:
    decorators = scope.node.decorator_list if isinstance(scope.node, FUNCTIONS) else []
    return not isinstance(scope.node, FUNCTIONS) or any({"no_grad", "inference_mode"} & identifiers(d) for d in decorators)


def _counts(program: Program, scope: Scope, name: str, depth: int = 0) -> bool:
    """Whether a name is read for more than logs and returns; where it is returned, whether a caller that is seen does so, or may."""
    if depth > 3:
        return True
    for node in walk(scope.node):
        if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)) or _reported(program, node):
            continue
        above = program.parents[node]
        at = above.elts.index(node) if isinstance(above, ast.Tuple) else None
        statement = program.parents[above] if isinstance(above, ast.Tuple) else above
        if not isinstance(statement, ast.Return) or not program.call_sites[scope]:
            return True
        for call, caller in program.call_sites[scope]:
            taken = _unpacked(program, call, at)
            if taken is None or (taken and _counts(program, caller, taken, depth + 1)):
                return True
    return False


def _unpacked(program: Program, call: ast.Call, index: int | None) -> str | None:
    """The name that an element of what a call gives is bound to; None where it cannot be told."""
    statement = program.parents[call]
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if index is not None:
        elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        target = elements[index] if index < len(elements) else None
    return target.id if isinstance(target, ast.Name) else None


@rule(
    "BH139",
    "same-rows-each-step",
    "error",
    title="Every step takes the same rows",
    why="A slice from the first row on is the same batch in each step: the network learns these rows by heart, and never sees the others.",
    remedy="draw other rows in each step: `data[torch.randint(len(data), (batch,))]`, or go over a shuffling loader",
    bad="""
        import torch

        def fit(model, optimizer, data, steps, batch_size):
            for step in range(steps):
                rows = data[:batch_size]
                loss = ((model(rows) - rows) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch

        def fit(model, optimizer, data, steps, batch_size):
            for step in range(steps):
                rows = data[torch.randint(len(data), (batch_size,))]
                loss = ((model(rows) - rows) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
)
def same_rows_each_step(subject: Subject) -> Iterator[Place]:
    """In the loop with the backward, `x[:batch]` of something that the loop does not change, bounded by the size of a batch."""
    program = subject.program
    for node in program.nodes[ast.Subscript]:
        if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice) and node.slice.step is None):
            continue
        bound, loop = node.slice.upper, innermost_loop(program, node)
        first = node.slice.lower is None or constant(node.slice.lower) == 0
        if not first or not isinstance(bound, (ast.Name, ast.Attribute)) or not _is_batch(last_name(bound)) or not isinstance(loop, Loops):
            continue
        if not any(method(c) in ("backward", "manual_backward") and innermost_loop(program, c) is loop for c in calls(loop)):
            continue
        table = dotted(node.value)
        if any(isinstance(a, Loops) for b in program.bindings_of(node.value, program.scope(node)) for a in (b.statement, *program.ancestors(b.statement))):
            continue  # an outer loop gives other rows
        if table and _feeds(program, node, loop) and not _changed(program, loop, table, {table, dotted(bound)}) and not _on_purpose(program, node):
            yield node, f"{ast.unparse(node)} is the same in every step: other rows are never learned", loop


def _is_batch(name: str) -> bool:
    return bool(words(name) & {"batch", "bs", "minibatch", "batchsize"}) and not words(name) & {"num", "n", "batches"}


def _feeds(program: Program, node: ast.expr, loop: ast.AST) -> bool:
    """Whether the rows are named, or given to something, in no branch of the loop."""
    around = program.ancestors(node)
    inner = around[: around.index(loop)]
    return not any(isinstance(a, (ast.If, ast.Try, ast.With, ast.IfExp)) for a in inner) and any(isinstance(a, (ast.Assign, ast.Call)) for a in inner)


def _changed(program: Program, loop: ast.AST, table: str, names: set[str]) -> bool:
    """Whether a loop sets one of these, writes into it, shuffles it, or calls a method of the object that holds the table."""
    roots = {n.partition(".")[0] for n in names}
    for node in walk(loop):
        stored = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del))
        if stored and (dotted(node) or dotted(getattr(node, "value", None))) in names | roots:
            return True
        if isinstance(node, ast.Call):
            shuffled = last_name(node.func) in CHANGES_ORDER and bool(names_read(node) & roots)
            own = (
                isinstance(node.func, ast.Attribute)
                and dotted(node.func.value) in names | roots - {"self"}
                and node.func.attr.endswith(("_", "append", "shuffle", "sort", "reverse", "pop", "popleft", "extend", "insert", "push"))
            )
            held = isinstance(node.func, ast.Attribute) and dotted(node.func.value) in roots - {"self"} and bool(program.callees(node, program.scope(node)))
            if shuffled or own or held:
                return True
    return table.startswith("self.") and any(dotted(receiver(c)) == "self" and program.callees(c, program.scope(c)) for c in calls(loop))


def _on_purpose(program: Program, node: ast.AST) -> bool:
    """Whether the function says that it learns a few rows by heart, or measures time."""
    return bool(
        words(program.scope(node).name)
        & {
            "overfit",
            "overfits",
            "test",
            "sanity",
            "benchmark",
            "bench",
            "profile",
            "memorize",
            "memorise",
            "smoke",
            "warmup",
            "attack",
            "adapt",
            "inner",
        }
    )
