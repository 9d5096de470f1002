"""Derived columns from raw rows without the engine of training: a separate package.

It is shipped with the model. It imports numpy, pandas and the standard library, and nothing of the
project that made it. `training.data.table.portable` turns the declaration's SQL into trees of the
few operations listed here; `derive` computes them with the same results: null propagation and
three-valued logic, whole and exact decimal numbers, text by code points, UTC. A tree is data: it is
looked up in tables of functions, and never run as code.

A tree: `{"sql", "columns": {name: SQL type}, "root": node}`; a node: `{"op", "type", "args":
[node]}`, or with op `column` a `name`, with op `constant` a `value`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from . import bag_codes, casts, dates, number_texts, numbers, series_windows, text
from .vectors import BadRows, Vector, column, constant, dtype, nulls, series

Tree = Mapping[str, Any]
Node = Mapping[str, Any]
Strict = Callable[[str, str, list[str], list[np.ndarray]], Any]


def derive(
    frame: pd.DataFrame,
    trees: Mapping[str, Tree],
    wanted: Collection[str] | None = None,
    null_texts: tuple[str, ...] = (),
    spellings: Mapping[str, Mapping[str, Any]] | None = None,
    bags: Sequence[bag_codes.Rule] = (),
    windows: Sequence[series_windows.Rule] = (),
) -> pd.DataFrame:
    """Return the frame with its derived columns; existing ones are used as given.

    Args:
        frame: N raw rows under any index; see `vectors.column` for the forms of each type.
        trees: from `training.data.table.portable`, in the declared order.
        wanted: the derived columns to add; default: all.
        null_texts: texts that meant null in the training source.
        spellings: raw columns of numbers in another spelling; read first, see `number_texts`.
        bags: texts and sets whose codes are added last, see `bag_codes.with_codes`.
        windows: windows of series that are added last, see `series_windows.with_windows`.

    Returns:
        A new frame; numbers with nulls as NaN or None, decimals as doubles.

    Raises:
        ValueError: a raw column is missing or given twice, a value does not fit its type, or an
            operation has no value on a row (such as a cast of text that is not a number); with
            column, rows and the derived column.
    """
    frame = _converted(frame, spellings or {}, null_texts)
    missing = [name for name in (trees if wanted is None else wanted) if name not in frame.columns]
    _refuse_absent(frame, trees, missing)
    known: dict[str, Vector] = {}
    added: dict[str, pd.Series] = {}
    for name in missing:
        found = _derived(name, frame, trees, known, null_texts)
        added[name] = series(found, trees[name]["root"]["type"], frame.index)
    frame = pd.concat([frame, pd.DataFrame(added, index=frame.index)], axis=1)
    frame = bag_codes.with_codes(frame, bags, null_texts)
    return series_windows.with_windows(frame, windows, null_texts)


def _converted(
    frame: pd.DataFrame, spellings: Mapping[str, Mapping[str, Any]], null_texts: tuple[str, ...]
) -> pd.DataFrame:
    """Return the frame with numbers in place of texts of the given spellings."""
    found = {}
    for name, spelling in spellings.items():
        if name in frame.columns and frame[name].ndim == 1:  # one given twice is refused later
            try:
                found[name] = number_texts.numbers(frame[name], spelling, null_texts)
            except BadRows as bad:
                at = _where(np.flatnonzero(bad.rows), frame.index)
                raise ValueError(f"column {name!r}: {bad.problem}{at}") from None
    return frame.assign(**found) if found else frame


def raw_columns(
    trees: Mapping[str, Tree], wanted: Collection[str], present: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return raw columns that derived ones use, each with the columns that need it.

    The search ends at columns that are present.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in wanted:
        for source in () if name in present else trees[name]["columns"]:
            inner = raw_columns(trees, [source], present) if source in trees else {source: ()}
            found |= {raw: tuple(dict.fromkeys((*found.get(raw, ()), name))) for raw in inner}
    return found


def _refuse_absent(frame: pd.DataFrame, trees: Mapping[str, Tree], wanted: list[str]) -> None:
    needed = raw_columns(trees, wanted, set(frame.columns))
    absent = {raw: names for raw, names in needed.items() if raw not in frame.columns}
    if absent:
        listed = ", ".join(
            f"{raw!r} (for {', '.join(map(repr, names))})" for raw, names in absent.items()
        )
        raise ValueError(f"missing columns: {listed}; pass them, or the derived columns themselves")
    repeated = [
        name
        for name in {*needed, *trees}
        if name in frame.columns and isinstance(frame[name], pd.DataFrame)
    ]
    if repeated:
        raise ValueError(
            f"columns given twice: {', '.join(map(repr, sorted(repeated)))}; keep one of each"
        )


def _derived(
    name: str,
    frame: pd.DataFrame,
    trees: Mapping[str, Tree],
    known: dict[str, Vector],
    null_texts: tuple[str, ...],
) -> Vector:
    """Return a derived column; keep all its inputs in `known` under name and type."""
    tree = trees[name]
    read: dict[str, Vector] = {}
    for source, kind in tree["columns"].items():
        key = f"{source} {kind}"
        if key not in known:
            given = source in frame.columns
            known[key] = (
                _raw(frame[source], kind, name, null_texts)
                if given
                else _derived(source, frame, trees, known, null_texts)
            )
        read[source] = known[key]
    try:
        return evaluate(tree["root"], read, np.arange(len(frame)))
    except NoValue as error:
        raise ValueError(
            f"derived column {name!r} ({tree['sql']}): {error}{_where(error.rows, frame.index)}"
        ) from None


def _raw(values: pd.Series, kind: str, derived: str, null_texts: tuple[str, ...]) -> Vector:
    try:
        return column(values, kind, null_texts)
    except BadRows as bad:
        raise ValueError(
            f"column {values.name!r} (for {derived!r}):"
            f" {bad.problem}{_where(np.flatnonzero(bad.rows), values.index)}"
        ) from None


def _where(rows: np.ndarray, index: pd.Index) -> str:
    shown = ", ".join(map(str, index[rows[:5]])) + (", …" if len(rows) > 5 else "")
    return f" in {len(rows)} rows (index {shown}); fix or leave out those rows"


class NoValue(ValueError):
    """Error: an operation has no value on some rows of the frame, given by their positions."""

    def __init__(self, rows: np.ndarray, problem: str) -> None:
        super().__init__(problem)
        self.rows = rows


def evaluate(node: Node, columns: Mapping[str, Vector], rows: np.ndarray) -> Vector:
    """Return a node's values on some rows.

    Args:
        node: of a tree.
        columns: all rows of the input columns.
        rows: positions [M] of the rows to compute.

    Raises:
        NoValue: an operation has no value on a row.
        ValueError: the tree has an operation that is not known here.
    """
    op = node["op"]
    if op == "column":
        found = columns[node["name"]]
        return Vector(found.values[rows], found.null[rows])
    if op == "constant":
        return constant(node["value"], node["type"], len(rows))
    if op in BRANCHES:
        return BRANCHES[op](node, columns, rows)
    args = [evaluate(arg, columns, rows) for arg in node["args"]]
    if op in LENIENT:
        return LENIENT[op](args)
    if op not in STRICT:
        raise ValueError(f"unknown operation {op!r}; the model was made by another version")
    return _strict(node, args, rows)


def _strict(node: Node, args: list[Vector], rows: np.ndarray) -> Vector:
    """Return null where any argument is null; the operation gets only the other rows."""
    result, null = nulls(node["type"], len(rows)), np.any([arg.null for arg in args], axis=0)
    present = np.flatnonzero(~null)
    if not len(present):
        return result
    kinds = [arg["type"] for arg in node["args"]]
    try:
        found = STRICT[node["op"]](
            node["op"], node["type"], kinds, [arg.values[present] for arg in args]
        )
    except BadRows as bad:
        raise NoValue(rows[present[bad.rows]], bad.problem) from None
    values, failed = (
        found if isinstance(found, tuple) else (found, np.zeros(len(present), dtype=bool))
    )
    result.values[present] = values
    null[present[failed]] = True
    return Vector(result.values, null)


def _case(node: Node, columns: Mapping[str, Vector], rows: np.ndarray) -> Vector:
    """Evaluate condition, value, condition, value …, otherwise.

    Each value is computed only for the rows that use it.
    """
    result, left = nulls(node["type"], len(rows)), np.arange(len(rows))
    *arms, otherwise = node["args"]
    for condition, value in zip(arms[::2], arms[1::2], strict=True):
        found = evaluate(condition, columns, rows[left])
        holds = found.values & ~found.null
        _put(result, left[holds], evaluate(value, columns, rows[left[holds]]))
        left = left[~holds]
    _put(result, left, evaluate(otherwise, columns, rows[left]))
    return result


def _coalesce(node: Node, columns: Mapping[str, Vector], rows: np.ndarray) -> Vector:
    """Return the first argument that is not null.

    The next is computed only where earlier ones are null.
    """
    result, left = nulls(node["type"], len(rows)), np.arange(len(rows))
    for value in node["args"]:
        _put(result, left, evaluate(value, columns, rows[left]))
        left = left[result.null[left]]
    return result


def _put(result: Vector, at: np.ndarray, found: Vector) -> None:
    result.values[at], result.null[at] = found.values, found.null


def _and(args: list[Vector]) -> Vector:
    """Return False where any is false, else null where any is null."""
    false = np.any([~a.values & ~a.null for a in args], axis=0)
    return Vector(~false, np.any([a.null for a in args], axis=0) & ~false)


def _or(args: list[Vector]) -> Vector:
    """Return True where any is true, else null where any is null."""
    true = np.any([a.values & ~a.null for a in args], axis=0)
    return Vector(true, np.any([a.null for a in args], axis=0) & ~true)


def _in(args: list[Vector]) -> Vector:
    return _or(
        [Vector(numbers.equal(args[0].values, a.values), args[0].null | a.null) for a in args[1:]]
    )


def _distinct(args: list[Vector]) -> Vector:
    a, b = args
    return _known(np.where(a.null | b.null, a.null != b.null, ~numbers.equal(a.values, b.values)))


def _known(values: np.ndarray) -> Vector:
    return Vector(values, np.zeros(len(values), dtype=bool))


def _extreme(args: list[Vector], better: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Vector:
    """Return the least or greatest of those that are not null."""
    best = Vector(args[0].values.copy(), args[0].null.copy())
    for arg in args[1:]:
        take = ~arg.null & (best.null | better(arg.values, best.values))
        _put(best, take, Vector(arg.values[take], arg.null[take]))
    return best


def _concat(args: list[Vector]) -> Vector:
    """Join texts without nulls."""
    return _known(
        casts.texts(
            "".join(row)
            for row in zip(*([*np.where(a.null, "", a.values)] for a in args), strict=True)
        )
    )


def _concat_ws(args: list[Vector]) -> Vector:
    """Join texts with a separator, without nulls; null where the separator is null."""
    separator, *parts = args
    rows = zip(separator.values, *(zip(p.values, p.null, strict=True) for p in parts), strict=True)
    return Vector(
        casts.texts(
            between.join(value for value, null in row if not null) for between, *row in rows
        ),
        separator.null,
    )


BRANCHES: dict[str, Callable[[Node, Mapping[str, Vector], np.ndarray], Vector]] = {
    "case": _case,
    "coalesce": _coalesce,
}
LENIENT: dict[str, Callable[[list[Vector]], Vector]] = {
    "and": _and,
    "or": _or,
    "in": _in,
    "is null": lambda args: _known(args[0].null),
    "is not null": lambda args: _known(~args[0].null),
    "is distinct from": _distinct,
    "is not distinct from": lambda args: _known(~_distinct(args).values),
    "least": lambda args: _extreme(args, numbers.less),
    "greatest": lambda args: _extreme(args, lambda a, b: numbers.less(b, a)),
    "concat": _concat,
    "concat_ws": _concat_ws,
}


def _sum(op: str, kind: str, kinds: list[str], args: list[np.ndarray]) -> np.ndarray:
    """Compute `+` and `-` of numbers, and of dates, timestamps and intervals."""
    factor = 1 if op == "+" else -1
    if kinds[0] == "INTERVAL" and len(args) == 2 and kinds[1] != "INTERVAL":
        args, kinds = args[::-1], kinds[::-1]
    if kinds[-1] == "INTERVAL" and kinds[0] != "INTERVAL":
        return dates.shift(args[0], factor * args[1], kinds[0])
    if kind == "INTERVAL":
        return (
            dates.between(*args)
            if kinds[0] != "INTERVAL"
            else args[0] + factor * args[1]
            if len(args) == 2
            else factor * args[0]
        )
    if "DATE" in kinds:
        return np.asarray(args[0] + factor * args[1])
    return numbers.arithmetic(op, args, kind)


STRICT: dict[str, Strict] = {
    "cast": lambda op, kind, kinds, args: casts.cast(args[0], kinds[0], kind),
    "try_cast": lambda op, kind, kinds, args: casts.try_cast(args[0], kinds[0], kind),
    "not": lambda op, kind, kinds, args: ~args[0],
    "+": _sum,
    "-": _sum,
    "*": lambda op, kind, kinds, args: numbers.arithmetic(op, args, kind),
    "//": lambda op, kind, kinds, args: numbers.quotient(args, kind),
    **dict.fromkeys(("%", "mod"), lambda op, kind, kinds, args: numbers.remainder(args, kind)),
    **dict.fromkeys(numbers.FLOAT_OPS, lambda op, kind, kinds, args: numbers.of_floats(op, args)),
    "log": lambda op, kind, kinds, args: numbers.log(args),
    "abs": lambda op, kind, kinds, args: numbers.absolute(args[0], kind),
    "sign": lambda op, kind, kinds, args: numbers.sign(args[0]),
    **dict.fromkeys(
        ("round", "floor", "ceil", "trunc"),
        lambda op, kind, kinds, args: numbers.rounded(op, args, kinds[0], kind),
    ),
    "ceiling": lambda op, kind, kinds, args: numbers.rounded("ceil", args, kinds[0], kind),
    **dict.fromkeys(
        numbers.COMPARISONS,
        lambda op, kind, kinds, args: numbers.COMPARISONS[op](
            *(a[:, 2] if a.ndim == 2 else a for a in args)
        ),
    ),
    "normalized_interval": lambda op, kind, kinds, args: dates.normalized(args[0]),
    **dict.fromkeys(text.TEXT, lambda op, kind, kinds, args: text.apply(op, args, dtype(kind))),
    "split": lambda op, kind, kinds, args: text.split_parts(args),
    **dict.fromkeys(
        dates.PART_OPS, lambda op, kind, kinds, args: dates.part(op, args[0], kinds[0])
    ),
    "epoch": lambda op, kind, kinds, args: dates.epoch(args[0], kinds[0]),
    "last_day": lambda op, kind, kinds, args: dates.last_day(args[0], kinds[0]),
    "make_date": lambda op, kind, kinds, args: dates.make_date(*args),
    "make_timestamp": lambda op, kind, kinds, args: dates.make_timestamp(*args),
    **dict.fromkeys(dates.INTERVAL_OPS, lambda op, kind, kinds, args: dates.interval(op, args[0])),
    **dict.fromkeys(
        ("date_trunc", "datetrunc"),
        lambda op, kind, kinds, args: dates.truncate(_first(args[0]), args[1], kinds[1]),
    ),
    **dict.fromkeys(
        ("date_diff", "datediff"),
        lambda op, kind, kinds, args: dates.difference(_first(args[0]), args[1], args[2], kinds[1]),
    ),
    "strptime": lambda op, kind, kinds, args: dates.parse_all(args[0], _first(args[1])),
    "try_strptime": lambda op, kind, kinds, args: dates.parse(args[0], _first(args[1])),
}


def _first(values: np.ndarray) -> str:
    return str(values[0]) if len(values) else ""
