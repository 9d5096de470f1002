"""Rules BH158, BH252 and BH561: a schedule of another optimizer, scores by a formula that is another one's, a length that counts batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, canonical_names
from training.review.program import Program, Scope
from training.review.syntax import constant, dotted, identifiers, last_name, names_read, receiver, walk, words

SUMS = {"sum", "count_nonzero"}


@rule(
    "BH158",
    "schedule-of-another-optimizer",
    "error",
    title="Two schedules change the rate of one optimizer, and none that of the other",
    why="The rate of the first falls twice as fast as it should, and the second keeps its first rate to the end.",
    remedy="give each schedule its own optimizer: `sched_d = StepLR(opt_d, 10)`",
    bad="""
        import torch

        def make(generator, critic):
            opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
            opt_c = torch.optim.Adam(critic.parameters(), lr=2e-4)
            sched_g = torch.optim.lr_scheduler.StepLR(opt_g, 10)
            sched_c = torch.optim.lr_scheduler.StepLR(opt_g, 10)
            return opt_g, opt_c, sched_g, sched_c
        """,
    good="""
        import torch

        def make(generator, critic):
            opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
            opt_c = torch.optim.Adam(critic.parameters(), lr=2e-4)
            sched_g = torch.optim.lr_scheduler.StepLR(opt_g, 10)
            sched_c = torch.optim.lr_scheduler.StepLR(opt_c, 10)
            return opt_g, opt_c, sched_g, sched_c
        """,
)
def schedule_of_another_optimizer(subject: Subject) -> Iterator[Place]:
    """Of the optimizers of a function one is given to two schedules of one kind, and another, whose name ends as that of a schedule does, to none."""
    program = subject.program
    scheduled = {program.scope(c) for c in calls_to(program, *(n for n in canonical_names(program) if ".lr_scheduler." in n))}
    for scope in (s for s in program.scopes if s in scheduled):
        made = [s for s in walk(scope.node) if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call) and program.scope(s) is scope]
        optimizers = {dotted(s.targets[0]) for s in made if _is_optimizer(program.resolve(s.value.func))}  # type: ignore[attr-defined]
        schedules = [(s, s.value) for s in made if isinstance(s.value, ast.Call) and ".lr_scheduler." in program.resolve(s.value.func) and s.value.args]
        if len(optimizers) < 2 or len(schedules) < 2:
            continue
        given = [dotted(call.args[0]) for _, call in schedules]
        without = {o for o in optimizers if o not in given and not _nested(scope, o)}
        for (statement, call), of in zip(schedules, given, strict=True):
            mine = words(last_name(statement.targets[0])) - {"sched", "scheduler", "lr", "schedule"}
            theirs = {o for o in without if mine & (words(o.rpartition(".")[2]) - {"opt", "optim", "optimizer"})}
            alike = [c for _, c in schedules if dotted(c.args[0]) == of and last_name(c.func) == last_name(call.func)]
            if mine and theirs and of in optimizers and len(alike) > 1 and not mine & words(of.rpartition(".")[2]):
                yield call, f"{last_name(statement.targets[0])} changes the rate of {of}, and none that of {sorted(theirs)[0]}"


def _is_optimizer(name: str) -> bool:
    return name.startswith("torch.optim.") and ".lr_scheduler." not in name


def _nested(scope: Scope, optimizer: str) -> bool:
    """Whether an optimizer is handed to anything else that may be its schedule."""
    given = [a for c in walk(scope.node) if isinstance(c, ast.Call) for a in (*c.args, *(k.value for k in c.keywords))]
    return any(dotted(a) == optimizer for a in given)


@rule(
    "BH252",
    "score-by-another-formula",
    "error",
    title="A score is computed by the formula of another",
    why="The mean of differences is 0 where errors cancel, which is no mean absolute error; the sum of both areas is no union, as it counts the intersection twice; "
    "spread around the mean of the predictions is not that of the labels.",
    remedy="`(pred - y).abs().mean()`; `union = a.sum() + b.sum() - intersection`; `((y - y.mean()) ** 2).sum()`; or the function of torchmetrics or scikit-learn",
    bad="""
        import torch

        def mae(y, pred):
            return (pred - y).mean().abs()
        """,
    good="""
        import torch

        def mae(y, pred):
            return (pred - y).abs().mean()
        """,
)
def score_by_another_formula(subject: Subject) -> Iterator[Place]:
    """Under the name of an absolute error the absolute value of a mean of differences; of an IoU the sum of two sums; of a total spread the mean of something else."""
    program = subject.program
    for call in program.calls_of("abs"):
        inner = call.args[0] if call.args else receiver(call)
        if isinstance(inner, ast.Call) and last_name(inner.func) == "mean" and {"mae", "absolute"} & _said(program, call):
            of = inner.args[0] if dotted(receiver(inner)) in ("torch", "np", "numpy") and inner.args else receiver(inner)
            if isinstance(of, ast.BinOp) and isinstance(of.op, ast.Sub):
                yield call, "this is the size of the mean error, in which errors cancel"
    for node in program.nodes[ast.Assign]:
        if not isinstance(node, ast.Assign):
            continue
        value, name = node.value, words(last_name(node.targets[0]))
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and "union" in name and _is_of_two_sums(value) and _is_iou(program, node):
            yield value, "the union counts the intersection twice"
        if {"tot", "sst", "total"} & name and ({"ss", "sst", "var"} & name):
            for gap in (n for n in walk(value) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub)):
                mean = gap.right if isinstance(gap.right, ast.Call) and last_name(gap.right.func) == "mean" else None
                of = (mean.args[0] if mean.args and dotted(receiver(mean)) in ("torch", "np", "numpy") else receiver(mean)) if mean is not None else None
                if (
                    isinstance(of, ast.Name)
                    and isinstance(gap.left, ast.Name)
                    and of.id != gap.left.id
                    and {"pred", "preds", "prediction", "predictions", "output", "hat"} & words(of.id)
                ):
                    yield gap, f"the total spread is that around the mean of the labels, and this is the mean of {of.id}"


def _said(program: Program, node: ast.expr) -> frozenset[str]:
    """The words of the name a value is bound to, of its key, or of the function around it."""
    statement = program.statement(node)
    inner: ast.AST = node
    for above in program.ancestors(node):
        if isinstance(above, ast.Dict) and inner in above.values:
            key = constant(above.keys[above.values.index(inner)])
            return words(key) if isinstance(key, str) else frozenset()
        if above is statement:
            break
        inner = above
    bound = frozenset(w for t in getattr(statement, "targets", ()) for n in identifiers(t) for w in words(n))
    return bound or (words(program.scope(node).name) if isinstance(statement, ast.Return) else frozenset())


def _is_of_two_sums(value: ast.BinOp) -> bool:
    return all(isinstance(s, ast.Call) and last_name(s.func) in SUMS for s in (value.left, value.right))


def _is_iou(program: Program, node: ast.Assign) -> bool:
    """Whether a function speaks of IoU, doubles no intersection, and takes nothing from the sum of both."""
    scope, name = program.scope(node), last_name(node.targets[0])
    spoken = words(scope.name) | {w for n in identifiers(scope.node) for w in words(n)}
    doubled = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) and 2 in (constant(n.left), constant(n.right)) for n in walk(scope.node))
    taken = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub) and name in names_read(n.left) for n in walk(scope.node))
    return bool({"iou", "ious", "jaccard"} & spoken) and not doubled and not taken and not {"dice"} & words(scope.name)


@rule(
    "BH561",
    "length-counts-batches",
    "error",
    title="The length of a data set counts batches, and its items are rows",
    why="The loader asks for the numbers below the length alone. Divided by the size of a batch, only the first of that many rows are ever seen.",
    remedy="return the number of rows: `len(self.x)`",
    bad="""
        from torch.utils.data import Dataset

        class Rows(Dataset):
            def __init__(self, x, y, batch):
                self.x, self.y, self.batch = x, y, batch

            def __len__(self):
                return len(self.x) // self.batch

            def __getitem__(self, i):
                return self.x[i], self.y[i]
        """,
    good="""
        from torch.utils.data import Dataset

        class Rows(Dataset):
            def __init__(self, x, y):
                self.x, self.y = x, y

            def __len__(self):
                return len(self.x)

            def __getitem__(self, i):
                return self.x[i], self.y[i]
        """,
)
def length_counts_batches(subject: Subject) -> Iterator[Place]:
    """`__len__` divides the length of what `__getitem__` reads at the very number that it is given, and nowhere times or over something."""
    program = subject.program
    for owner in program.classes.values():
        size, item = program.methods[owner].get("__len__"), program.methods[owner].get("__getitem__")
        if size is None or item is None or len(item.parameters) < 2:
            continue
        number = item.parameters[1]
        divided = [
            n.value
            for n in walk(size.node)
            if isinstance(n, ast.Return) and isinstance(n.value, ast.BinOp) and isinstance(n.value.op, ast.FloorDiv) and isinstance(n.value.left, ast.Call)
        ]
        tables = {dotted(v.left.args[0]) for v in divided if last_name(v.left.func) == "len" and v.left.args}  # type: ignore[attr-defined]
        taken = [s for s in walk(item.node) if isinstance(s, ast.Subscript) and dotted(s.value) in tables]
        uses = [n for n in walk(item.node) if isinstance(n, ast.Name) and n.id == number and isinstance(n.ctx, ast.Load)]
        plain = [n for n in uses if isinstance(program.parents[n], ast.Subscript)]
        if divided and taken and len(plain) == len(uses) and all(isinstance(s.slice, ast.Name) and s.slice.id == number for s in taken):
            yield divided[0], f"only the first {ast.unparse(divided[0])} rows are ever asked for", size.node
