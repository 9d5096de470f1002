"""Rules BH240, BH241 and BH549: one side of a score scaled back, a share cut to a whole number, a scaler that is fitted and never applied."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import calls, identifiers, last_name, method, receiver, walk, words

SCORES = {
    *("mean_absolute_error", "mean_squared_error", "root_mean_squared_error", "median_absolute_error", "r2_score", "mean_absolute_percentage_error"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "allclose", "explained_variance_score"),
}
RIGHT = {"correct", "corrects"}
BACK = {"inverse_transform", "expm1", "exp"}
SCALERS = {
    *("StandardScaler", "MinMaxScaler", "RobustScaler", "MaxAbsScaler", "QuantileTransformer", "PowerTransformer", "SimpleImputer", "OneHotEncoder"),
    *("OrdinalEncoder", "PCA", "KNNImputer", "Normalizer", "KBinsDiscretizer", "TargetEncoder"),
}


@rule(
    "BH240",
    "one-side-scaled-back",
    "error",
    title="One side of a score is scaled back, the other is not",
    why="Labels in days are compared with predictions in deviations: the error is a number of neither, and mostly that of the mean.",
    remedy="scale both sides back, or neither",
    bad="""
        import torch
        from sklearn.metrics import mean_absolute_error

        def report(predict, model, loader, mean, std):
            scores, labels = predict(model, loader)
            return mean_absolute_error(labels * std + mean, scores)
        """,
    good="""
        import torch
        from sklearn.metrics import mean_absolute_error

        def report(predict, model, loader, mean, std):
            scores, labels = predict(model, loader)
            return mean_absolute_error(labels * std + mean, scores * std + mean)
        """,
)
def one_side_scaled_back(subject: Subject) -> Iterator[Place]:
    """An error of two names that one call gave, of which one is scaled back and the other is as it came."""
    program = subject.program
    for call in program.calls_of(*SCORES):
        if len(call.args) < 2:
            continue
        scope = program.scope(call)
        for back, other in (call.args[:2], call.args[1::-1]):
            name = _scaled_back(back)
            if name and isinstance(other, ast.Name) and name != other.id and _of_one_call(program, scope, name, other.id, call.lineno):
                yield call, f"{ast.unparse(back)} is scaled back, and {other.id}, which came with it, is not"


def _scaled_back(node: ast.expr) -> str:
    """The name of which `y * std + mean`, `scaler.inverse_transform(y)` or `np.expm1(y)` is; empty for anything else."""
    match node:
        case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.Mult(), left=ast.Name(id=name)), right=ast.Name() | ast.Attribute() | ast.Subscript()):
            return name
        case ast.Call() if last_name(node.func) in BACK:
            inner = next((a for a in node.args), receiver(node))
            return inner.id if isinstance(inner, ast.Name) else ""
    return ""


def _of_one_call(program: Program, scope: Scope, a: str, b: str, line: int) -> bool:
    """Whether both were last given a value by unpacking one call."""
    last = [
        max(
            (x for x in scope.bindings.get(n, ()) if program.statement(x.statement).lineno < line),
            key=lambda x: program.statement(x.statement).lineno,
            default=None,
        )
        for n in (a, b)
    ]
    first, second = last
    return (
        first is not None
        and second is not None
        and first.index is not None
        and second.index is not None
        and program.statement(first.statement) is program.statement(second.statement)
        and isinstance(first.value, ast.Call)
    )


@rule(
    "BH241",
    "share-cut-to-whole-number",
    "error",
    title="A share is divided without its fraction",
    why="`right // count` is 0 until every row is right: whatever is chosen by it is chosen by nothing.",
    remedy="`right / count`",
    bad="""
        import torch

        def accuracy(model, batches):
            correct, total = 0, 0
            with torch.no_grad():
                for x, y in batches:
                    correct += (model.eval()(x).argmax(1) == y).sum()
                    total += len(y)
            return correct // total
        """,
    good="""
        import torch

        def accuracy(model, batches):
            correct, total = 0, 0
            with torch.no_grad():
                for x, y in batches:
                    correct += (model.eval()(x).argmax(1) == y).sum()
                    total += len(y)
            return correct / total
        """,
)
def share_cut_to_whole_number(subject: Subject) -> Iterator[Place]:
    """What counts right answers is divided by `//`."""
    for ratio in subject.program.nodes[ast.BinOp]:
        if isinstance(ratio, ast.BinOp) and isinstance(ratio.op, ast.FloorDiv):
            counted = [n for n in identifiers(ratio.left) if words(n) & RIGHT]
            if counted and not isinstance(ratio.right, ast.Constant):
                yield ratio, f"{ast.unparse(ratio)} is 0 or 1"


@rule(
    "BH549",
    "fitted-and-never-applied",
    "error",
    title="What is fitted is never applied",
    why="A scaler, an encoder or an imputer is fitted on the train rows, and nothing is transformed by it: the network gets the rows as they were, perhaps with values of hundreds beside values of hundredths.",
    remedy="transform the rows of every side by it, or take it out",
    bad="""
        import torch
        from sklearn.preprocessing import StandardScaler

        def tensors(train, val):
            scaler = StandardScaler().fit(train)
            return torch.tensor(train), torch.tensor(val)
        """,
    good="""
        import torch
        from sklearn.preprocessing import StandardScaler

        def tensors(train, val):
            scaler = StandardScaler().fit(train)
            return torch.tensor(scaler.transform(train)), torch.tensor(scaler.transform(val))
        """,
)
def fitted_and_never_applied(subject: Subject) -> Iterator[Place]:
    """A name is bound to a transformer of scikit-learn that is fitted, and nothing reads it but its fit."""
    program = subject.program
    for scope in program.scopes if "sklearn" in program.modules_imported else ():
        for name, bound in scope.bindings.items():
            if len(bound) != 1 or bound[0].how != "assign" or bound[0].index is not None or not isinstance(bound[0].value, ast.Call):
                continue
            value = bound[0].value
            made = [c for c in calls(value) if last_name(c.func) in SCALERS and program.resolve(c.func).startswith("sklearn.")]
            if not made:
                continue
            inside = {id(a) for c in calls(value) for x in (*c.args, *(k.value for k in c.keywords)) for a in walk(x)}
            if not any(id(c) not in inside for c in made) or method(value) in ("transform", "fit_transform"):
                continue
            read = [n for n in program.nodes[ast.Name] if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
            fits = [n for n in read if _is_fit(program, n)]
            if (fits or method(value) == "fit") and len(fits) == len(read) and not _exported(program, scope, name):
                yield value, f"{name} is fitted, and nothing is transformed by it"


def _is_fit(program: Program, name: ast.Name) -> bool:
    """Whether a reading is that of `scaler.fit(rows)` as a statement."""
    above = program.parents[name]
    call = program.parents.get(above)
    return (
        isinstance(above, ast.Attribute)
        and above.attr in ("fit", "partial_fit")
        and isinstance(call, ast.Call)
        and isinstance(program.parents.get(call), ast.Expr)
    )


def _exported(program: Program, scope: Scope, name: str) -> bool:
    """Whether other code may read it: it is declared global, or stands at the top of a file that trains nothing itself."""
    declared = any(name in n.names for n in walk(scope.node) if isinstance(n, (ast.Global, ast.Nonlocal)))
    return declared or (not scope.name and "backward" not in program.method_names)
