"""Rule BH524: features of a series that hold what comes after."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.own_row import own_label_in_window
from training.review.program import Program, Scope
from training.review.sides import divided, moves, of_one_side
from training.review.splitting import (
    before,
    cuts,
    is_part,
    line_of,
    sources_of,
    splits,
    values_read,
)
from training.review.syntax import (
    constant,
    identifiers,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    receiver,
    walk,
    words,
)
from training.review.whole import label_columns, table_of

BOTH_WAYS = {
    "filtfilt",
    "sosfiltfilt",
    "savgol_filter",
    "gaussian_filter1d",
    "uniform_filter1d",
    "medfilt",
    "median_filter",
}
FORECAST = {
    "horizon", "lag", "lags", "lookback", "future", "forecast", "tomorrow", "ahead", "shift",
    "returns", "price", "prices", "series",
}  # fmt: skip


@rule("BH524")
def window_looks_ahead(subject: Subject) -> Iterator[Place]:
    """A series is smoothed both ways where a later value of one is made the label; or gaps are
    filled from behind, alone, in a table that is split below; or a window of the label's own column
    ends at the row whose label is to be foretold; or, seen in a run, a series that windows are cut
    of was made of later values.
    """
    program = subject.program
    yield from _filled_from_behind(program)
    yield from own_label_in_window(program)
    yield from _label_from_behind(program)
    for call in program.calls_of("convolve", "rolling", "bfill", "backfill", "fillna", *BOTH_WAYS):
        how = looks_ahead(program, call)
        scope = program.scope(call)
        if not how or _is_label(program, call):
            continue
        if any(
            makes_future_label(s) for s in (scope, *(c for _, c in program.call_sites[scope]))
        ) or foretells_windows(program):
            yield (
                call,
                f"{how}: the feature holds later values, and a later value is the label",
                scope.node if scope.name else call,
            )


def _label_from_behind(program: Program) -> Iterator[Place]:
    """`frame["next"] = frame["days"].shift(-1)` where `days` is the label, and `next` is in a list
    of columns.
    """
    shifts = program.methods_of("shift")
    if not shifts:
        return
    labels = label_columns(program)
    listed = {
        constant(e)
        for n in (*program.nodes[ast.List], *program.nodes[ast.Tuple])
        for e in getattr(n, "elts", ())
        if len(getattr(n, "elts", ())) > 1
    }
    for call in shifts:
        of = receiver(call)
        if (
            not _negative(keyword(call, "periods", 0))
            or not isinstance(of, ast.Subscript)
            or constant(of.slice) not in labels
        ):
            continue
        stored = {
            constant(t.slice)
            for t in getattr(program.statement(call), "targets", ())
            if isinstance(t, ast.Subscript)
        }
        if stored & listed and not stored & labels:
            yield (
                call,
                f"{constant(of.slice)!r} is the label, and that of a later row becomes a feature",
            )


def _filled_from_behind(program: Program) -> Iterator[Place]:
    """`frame[c] = frame[c].bfill()` of all rows, not within groups and not for what `ffill` left,
    before rows go to different sides.
    """
    if (
        not {"bfill", "backfill", "fillna", "interpolate"} & program.called_names
        or "ffill" in program.called_names
    ):
        return
    for call in program.methods_of("bfill", "backfill", "fillna", "interpolate"):
        of, scope = receiver(call), program.scope(call)
        backward = (
            constant(keyword(call, "limit_direction")) in ("backward", "both")
            and method(call) == "interpolate"
        )
        if (
            of is None
            or not (backward or looks_ahead(program, call) == "gaps are filled from behind")
            or constant(keyword(call, "axis")) in (1, "columns")
        ):
            continue
        table = table_of(of)
        if not isinstance(table, ast.Name) or is_part(table.id) or of_one_side(program, of):
            continue
        made = {last_name(table_of(t)) for t in getattr(program.statement(call), "targets", ())}
        for split, split_scope, parts in (
            *splits(program, by_group=True),
            *cuts(program),
            *divided(program),
        ):
            if before(program, call, split) and made & {
                b
                for p in parts[:1]
                for n in values_read(p)
                for b in sources_of(n, split_scope, line_of(split))
            }:
                told = (
                    f"gaps of {ast.unparse(of)} are filled from the rows behind, which may go to"
                    f" another side in line {line_of(split)}"
                )
                yield call, told, scope.node if scope.name else call
                break


def looks_ahead(program: Program, call: ast.Call) -> str:
    """How a call takes later values of a series into each; empty where it does not."""
    name = last_name(call.func)
    if name == "convolve" and constant(keyword(call, "mode", 2)) == "same":
        return "a convolution of mode 'same' is centred"
    if name == "rolling" and is_true(keyword(call, "center")):
        return "the window is centred"
    if name in BOTH_WAYS and program.resolve(call.func).startswith("scipy."):
        return f"{name} runs both ways"
    if name in ("bfill", "backfill") or (
        name == "fillna" and constant(keyword(call, "method")) in ("bfill", "backfill")
    ):
        return "gaps are filled from behind"
    return ""


def makes_future_label(scope: Scope) -> bool:
    """Whether a later value is made something to be foretold: `shift(-1)`, `np.roll(x, -1)`, `x[t +
    horizon]`.
    """
    for node in walk(scope.node):
        if isinstance(node, ast.Call) and last_name(node.func) in ("shift", "roll") and node.args:
            by = (
                keyword(node, "periods", 0)
                if method(node) == "shift"
                else keyword(node, "shift", 1)
            )
            if _negative(by):
                return True
        if isinstance(node, ast.Subscript):
            parts = [node.slice] if not isinstance(node.slice, ast.Tuple) else node.slice.elts
            for part in parts:
                start = (
                    part.lower
                    if isinstance(part, ast.Slice) and part.upper is None
                    else part
                    if isinstance(part, ast.BinOp)
                    else None
                )
                ahead = (
                    isinstance(start, ast.BinOp)
                    and isinstance(start.op, ast.Add)
                    and {w for n in identifiers(start) for w in words(n)} & FORECAST
                )
                if ahead or (
                    isinstance(start, ast.Name) and words(start.id) & {"horizon", "ahead"}
                ):
                    return True
    return False


def foretells_windows(program: Program) -> bool:
    """Whether stretches of a series are cut one after another, `x[t - past : t]` and `x[t : t +
    horizon]`: the second is foretold from the first.

    Or `x[t : t + past]` and `x[t + past : t + past + horizon]` in a loop, or for one item of a data
    set.
    """
    ends: set[tuple[str, str]] = set()
    starts: set[tuple[str, str]] = set()
    for node in program.nodes[ast.Subscript]:
        for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            if not isinstance(part, ast.Slice) or part.lower is None or part.upper is None:
                continue
            if isinstance(part.lower, ast.BinOp) and isinstance(part.lower.op, ast.Sub):
                ends.add((ast.dump(node.value), ast.dump(part.upper)))
            if isinstance(part.upper, ast.BinOp) and isinstance(part.upper.op, ast.Add):
                starts.add((ast.dump(node.value), ast.dump(part.lower)))
                if program.scope(node).name == "__getitem__" or moves(
                    program, part, program.scope(node)
                ):
                    ends.add((ast.dump(node.value), ast.dump(part.upper)))
    return bool(ends & starts)


def _negative(node: ast.expr | None) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return constant(node.operand) != 0
    value = constant(node)
    return isinstance(value, int) and value < 0


def _is_label(program: Program, call: ast.Call) -> bool:
    """Whether what is smoothed is the label itself, or is shown only."""
    statement = program.statement(call)
    targets = [t for t in getattr(statement, "targets", ()) for t in [*walk(t)]]
    named = {n.id for n in targets if isinstance(n, ast.Name)} | {
        str(constant(n.slice)) for n in targets if isinstance(n, ast.Subscript)
    }
    return any(
        {"y", "label", "labels", "target", "targets", "plot", "trend_plot"} & words(n)
        for n in named
    ) or _shown(program, call)


def _shown(program: Program, call: ast.Call) -> bool:
    around = [a for a in program.ancestors(call) if isinstance(a, ast.Call)]
    return any(
        last_name(c.func) in ("plot", "print", "scatter") or "plt" in names_read(receiver(c))
        for c in around
    )
