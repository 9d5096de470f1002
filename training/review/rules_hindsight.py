"""Rules BH248, BH555 and BH556: the best of several folds is the score, gaps are filled with later rows, windows are scaled by what follows them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import constant, dotted, identifiers, keyword, last_name, method, names_read, receiver, walk, words

SPLITTERS = ("KFold", "StratifiedKFold", "GroupKFold", "StratifiedGroupKFold", "RepeatedKFold", "RepeatedStratifiedKFold", "TimeSeriesSplit")
SCORES = {"score", "scores", "acc", "accs", "accuracy", "accuracies", "auc", "aucs", "f1", "f1s", "r2", "result", "results", "metric", "metrics"}
ERRORS = {"loss", "losses", "error", "errors", "mae", "maes", "rmse", "rmses", "mse", "mses"}
MEANS = {"mean", "nanmean", "average", "median", "fmean", "sum", "std", "stdev", "describe"}
IN_TIME = {"shift", "rolling", "diff", "ewm", "pct_change", "date_range", "to_datetime", "asfreq", "resample"}
STATISTICS = {"mean", "std", "min", "max", "amin", "amax", "var", "median", "norm"}


@rule(
    "BH248",
    "best-fold-reported",
    "error",
    title="The best fold is reported",
    why="Folds differ by chance. The best of them says what the luckiest division of the rows gives; the mean is what a new one can be expected to give.",
    remedy="report the mean over the folds, and their deviation beside it",
    bad="""
        from sklearn.model_selection import KFold

        def cross_validate(X, y, fit, score):
            scores = []
            for train, test in KFold(5, shuffle=True, random_state=0).split(X):
                scores.append(score(fit(X[train], y[train]), X[test], y[test]))
            print("accuracy", max(scores))
        """,
    good="""
        import numpy as np
        from sklearn.model_selection import KFold

        def cross_validate(X, y, fit, score):
            scores = []
            for train, test in KFold(5, shuffle=True, random_state=0).split(X):
                scores.append(score(fit(X[train], y[train]), X[test], y[test]))
            print("accuracy", np.mean(scores), "+-", np.std(scores))
        """,
)
def best_fold_reported(subject: Subject) -> Iterator[Place]:
    """A list that gets one score a fold, of which the best is taken, and never a mean."""
    program = subject.program
    for loop in program.nodes[ast.For]:
        if not isinstance(loop, ast.For) or not _over_folds(program, loop.iter, program.scope(loop)):
            continue
        grown = [receiver(c) for c in walk(loop) if isinstance(c, ast.Call) and method(c) == "append" and len(c.args) == 1]
        kept = {of.id for of in grown if isinstance(of, ast.Name)}
        for name in sorted(n for n in kept if (SCORES | ERRORS) & words(n)):
            scope = program.scope(loop)
            read = [c for c in program.all_calls if program.scope(c) is scope and name in names_read(c) | {dotted(receiver(c))}]
            if any(MEANS & {last_name(c.func)} for c in read):
                continue
            for call in read:
                best = "min" if ERRORS & words(name) else "max"
                taken = (last_name(call.func) in (best, f"np{best}", f"nan{best}")) and (
                    name in {last_name(a) for a in call.args} or dotted(receiver(call)) == name
                )
                if taken and loop.lineno < call.lineno and not call.keywords and not _only_compared(program, call):
                    yield call, f"{ast.unparse(call)} is the score of the best fold", scope.node if scope.name else loop


def _over_folds(program: Program, head: ast.expr, scope: Scope) -> bool:
    """Whether a loop goes over the folds of a splitter of scikit-learn."""
    for call in (c for c in walk(head) if isinstance(c, ast.Call) and method(c) == "split"):
        of = receiver(call)
        if any(o.last in SPLITTERS for o in program.origins(of, scope)):
            return True
    return False


def _only_compared(program: Program, call: ast.Call) -> bool:
    """Whether the best one only finds its fold: `scores.index(max(scores))`, or bounds an axis."""
    above = program.parents[call]
    return isinstance(above, ast.Compare) or (isinstance(above, ast.Call) and (method(above) == "index" or last_name(above.func) in ("set_ylim", "ylim")))


@rule(
    "BH555",
    "filled-from-the-future",
    "error",
    title="Gaps in time are filled with later values",
    why="A backward fill puts the next value, which is known hours or days later, where it was missing. In use nothing comes after the last row: the score counts on what will not be there.",
    remedy="fill forward (`ffill`), or with a statistic of the train rows, and keep a column that says what was missing",
    bad="""
        import pandas as pd
        import torch

        def features(frame):
            frame = frame.sort_values("time").bfill()
            frame["lag"] = frame["load"].shift(1)
            return torch.tensor(frame[["lag", "temp"]].to_numpy())
        """,
    good="""
        import pandas as pd
        import torch

        def features(frame):
            frame = frame.sort_values("time").ffill()
            frame["lag"] = frame["load"].shift(1)
            return torch.tensor(frame[["lag", "temp"]].dropna().to_numpy())
        """,
)
def filled_from_the_future(subject: Subject) -> Iterator[Place]:
    """`bfill()`, or `fillna(method="bfill")`, of a table in a file that shifts or rolls rows in time, and no forward fill of it before;
    or, seen in a run, gaps hold the next value, or one on the way to it.
    """
    program = subject.program
    if not IN_TIME & program.called_names:
        return
    for call in program.methods_of("bfill", "backfill", "fillna"):
        named = constant(keyword(call, "method", 1 if method(call) == "fillna" else None))
        if method(call) not in ("bfill", "backfill") and not (method(call) == "fillna" and named in ("bfill", "backfill")):
            continue
        asked = any(
            isinstance(a, ast.If) and (constant(n) in ("bfill", "backfill") or "fill" in last_name(n))
            for a in program.ancestors(call)
            if isinstance(a, ast.If)
            for n in walk(a.test)
        )
        if asked or constant(keyword(call, "axis")) in (1, "columns") or _filled_forward(program, call):
            continue
        yield call, "gaps are filled with the values that come after them"


def _filled_forward(program: Program, call: ast.Call) -> bool:
    """Whether a forward fill comes first, so that only what precedes the first value is left."""
    forward = [c for c in walk(receiver(call) or call) if isinstance(c, ast.Call) and method(c) in ("ffill", "pad")]
    if forward:
        return True
    table = next((n.id for n in walk(receiver(call) or call) if isinstance(n, ast.Name)), "")
    scope = program.scope(call)
    before = [c for c in program.methods_of("ffill") if program.scope(c) is scope and c.lineno <= call.lineno and c is not call]
    return any(table in identifiers(c) for c in before if not any(n is call for n in walk(c)))


@rule(
    "BH556",
    "window-scaled-by-its-future",
    "error",
    title="A window is scaled together with what is to be forecast",
    why="Mean and deviation of the whole window tell the network where the values behind its end lie: the level of the answer is in the question.",
    remedy="take mean and deviation of the past alone, and scale both parts by them",
    bad="""
        import torch
        from torch.utils.data import Dataset

        class Windows(Dataset):
            def __init__(self, series, past, ahead):
                self.series, self.past, self.ahead = series, past, ahead

            def __len__(self):
                return len(self.series) - self.past - self.ahead + 1

            def __getitem__(self, i):
                window = self.series[i : i + self.past + self.ahead]
                window = (window - window.mean()) / window.std()
                return window[: self.past], window[self.past :]
        """,
    good="""
        import torch
        from torch.utils.data import Dataset

        class Windows(Dataset):
            def __init__(self, series, past, ahead):
                self.series, self.past, self.ahead = series, past, ahead

            def __len__(self):
                return len(self.series) - self.past - self.ahead + 1

            def __getitem__(self, i):
                window = self.series[i : i + self.past + self.ahead]
                before = window[: self.past]
                window = (window - before.mean()) / before.std()
                return window[: self.past], window[self.past :]
        """,
)
def window_scaled_by_its_future(subject: Subject) -> Iterator[Place]:
    """A window that was cut from a series is scaled by its own statistics, and then divided in two at one bound."""
    program = subject.program
    for scope in program.scopes:
        for name, bindings in scope.bindings.items():
            cut = [b for b in bindings if b.how == "assign" and b.index is None and isinstance(b.value, ast.Subscript) and _is_span(b.value.slice)]
            if not cut or not scope.name:
                continue
            scaled = _scaled_by_itself(scope, name)
            for made in scaled:
                heads, tails = _halves(scope.node, made)
                if heads & tails:
                    place = next(b.value for b in scope.bindings[made] if _uses_own_statistics(b.value, {name, made}, scope))
                    yield place, f"{name} is scaled by statistics of all of it, and what follows {sorted(heads & tails)[0]} is to be forecast", scope.node
                    break


def _is_span(node: ast.expr) -> bool:
    """Whether an index is a slice from a place that moves to one behind it: `i : i + past + ahead`."""
    if isinstance(node, ast.Tuple) and node.elts:
        return _is_span(node.elts[0])
    return isinstance(node, ast.Slice) and node.lower is not None and node.upper is not None and bool(names_read(node.lower) & names_read(node.upper))


def _scaled_by_itself(scope: Scope, name: str) -> list[str]:
    """The names that hold a window after it was scaled by its own statistics."""
    return [n for n, bound in scope.bindings.items() for b in bound if b.how == "assign" and b.index is None and _uses_own_statistics(b.value, {name}, scope)]


def _uses_own_statistics(value: ast.expr, names: set[str], scope: Scope) -> bool:
    """Whether a value is arithmetic of a window with its own mean, deviation or bounds, taken here or by a name."""
    if not isinstance(value, ast.BinOp) or not names & names_read(value):
        return False
    used: list[ast.AST] = [value, *(b.value for n in names_read(value) - names for b in scope.bindings.get(n, ()))]
    return any(_is_statistic(c, names) for u in used for c in walk(u))


def _is_statistic(node: ast.AST, names: set[str]) -> bool:
    if not isinstance(node, ast.Call) or last_name(node.func) not in STATISTICS:
        return False
    of = node.args[0] if node.args and dotted(receiver(node)) in ("torch", "np", "numpy") else receiver(node)
    return isinstance(of, ast.Name) and of.id in names


def _halves(node: ast.AST, name: str) -> tuple[set[str], set[str]]:
    """The bounds at which a name is cut into a part before and a part behind."""
    heads, tails = set(), set()
    for part in walk(node):
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id == name:
            index = part.slice.elts[0] if isinstance(part.slice, ast.Tuple) and part.slice.elts else part.slice
            if isinstance(index, ast.Slice) and index.step is None:
                if index.lower is None and index.upper is not None:
                    heads.add(ast.unparse(index.upper))
                elif index.upper is None and index.lower is not None:
                    tails.add(ast.unparse(index.lower))
    return heads, tails
