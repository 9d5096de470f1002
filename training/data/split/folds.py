"""Cross-validation: train, validation and test of each fold, written like those of a split.

Folds are made of the rows of train and validation. The declared test rows stay apart (`holdout`),
so that the final model is tested on rows that had no part in any choice. Where possible, a hash
assigns rows, so that growth moves no row between folds. Choices that depend on all rows (strata,
cuts in time) are frozen in the ledger. See docs/decisions/0013-cross-validation.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from schemas.config import SPLITS, Declaration, GroupSplit, GroupTimeSplit, RandomSplit, TimeSplit
from schemas.cv_config import BY_GROUP, BY_TIME, STRATIFIED
from schemas.digest import verify
from schemas.errors import SplitError
from schemas.records import SplitTables, TableSpec, ValidatedTable, digest_of
from training.data.engine.engine import count_distinct, engine_for, literal, parquet
from training.data.split.fold_times import END, TimeFold, time_fold_sql, time_folds
from training.data.split.groups import BRIDGES, settled_sql
from training.data.split.hash_sides import cut_point, hash_sql, known_side_sql
from training.data.split.histories import with_histories
from training.data.split.ledger import Ledger, opened
from training.data.split.side_summary import refuse_unusable
from training.data.split.split import (
    ROWS,
    SIDED,
    SIDES,
    sides_in_order,
    way_of,
    write_sides,
)
from training.data.split.strata import Units, allot, bin_edges, stratum_sql
from training.data.split.time_cuts import time_text
from training.data.table.time_units import in_time_units

POOL = "pool_rows"
REMEDIES = {
    "kfold": "lower cv.folds, or change cv.seed or cv.val",
    "group": (
        "lower cv.folds, change cv.seed or cv.val, or use cv.kind: stratified_group, which deals"
        " groups out evenly"
    ),
    "stratified": "lower cv.folds, or raise cv.val",
    "stratified_group": "lower cv.folds, or raise cv.val",
    "walk_forward": "lower cv.folds, or shorten cv.embargo or cv.horizon, or widen cv.window",
    "group_walk_forward": "lower cv.folds, change cv.seed, or shorten cv.embargo or cv.horizon",
    "purged": "lower cv.folds, or shorten cv.embargo or cv.horizon",
}


class Folds(NamedTuple):
    """SQL for the split of a row of `POOL` in one fold, its basis, and what to freeze."""

    side_sql: str
    plan: dict[str, Any]
    frozen: dict[str, Any]
    decided: str | None = None
    joined: str = ""


def make_fold(
    validated: ValidatedTable,
    pool: SplitTables,
    declaration: Declaration,
    number: int,
    out_dir: Path,
    ledger: Path,
) -> SplitTables:
    """Write the three files of one fold.

    Args:
        validated: the table that was split.
        pool: its declared splits: train and validation are divided again, test is left out.
        declaration: uses the sections `cv`, `split`, `task` and `data`.
        number: of the fold, from 0.
        out_dir: where `train.parquet`, `val.parquet` and `test.parquet` are written.
        ledger: the file that freezes strata and cuts over runs.

    Returns:
        The splits. `strategy` is `cv <kind>`; `plan` holds the fold's number, embargo and cuts;
            `excluded` counts every validated row in no split: `holdout`, `purged`, `embargo`,
            `window`, `later`, `group_time`, `bridge`.

    Raises:
        SplitError: too few groups, rows or times for so many folds, or a split is empty or lacks a
            class.
        IntegrityError: a file or the ledger is not what was written.
    """
    kind, spec = declaration.fold_kind, validated.spec
    name = f"fold {number + 1} of {declaration.cv.folds} ({kind})"
    with decided_sides(validated, pool, declaration, number, ledger) as (connection, folds, book):
        refuse_unusable(connection, SIDED, spec, declaration, (name, REMEDIES[kind]))
        if book is not None:
            book.append(
                connection,
                fold_way(declaration, spec),
                validated.table.file.sha256,
                folds.frozen,
                folds.decided,
                declaration.data.memory_bytes,
            )
        in_order = sides_in_order(
            connection, spec, SIDED, declaration.data.memory_bytes, Path(out_dir)
        )
        given = (spec, declaration, Path(out_dir), folds.plan, SIDED, in_order)
        made = with_histories(write_sides(connection, *given), validated, Path(out_dir))
        left_out = Counter(made.excluded) + Counter(pool.excluded)
        copied = book.copy_to(Path(out_dir) / "ledger.jsonl") if book is not None else None
        return made.model_copy(
            update={
                "strategy": f"cv {kind}",
                "excluded": dict(sorted(left_out.items())),
                "ledger": copied,
            }
        )


@contextmanager
def decided_sides(
    validated: ValidatedTable,
    pool: SplitTables,
    declaration: Declaration,
    number: int,
    ledger: Path,
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Folds, Ledger | None]]:
    """Decide the side of each row of the pool in one fold, as the table `SIDES` of `__id`, `side`.

    Args: as of `make_fold`. The ledger is read here; the caller adds to it what was decided.
    """
    for side in SPLITS:
        verify(pool.side(side).file)
    spec = validated.spec
    with ExitStack() as stack:
        connection = stack.enter_context(engine_for(declaration.data))
        _load(connection, pool, spec, declaration)
        _require_enough(connection, spec, declaration)
        frozen = declaration.fold_kind in (*STRATIFIED, *BY_TIME)
        way = digest_of(fold_way(declaration, spec))
        book = stack.enter_context(opened(ledger, way)) if frozen else None
        folds = decide_fold(connection, spec, declaration, number, book)
        connection.execute(f"create temp table {SIDES} as {_sides_sql(folds, pool)}")
        yield connection, folds, book


def fold_declaration(declaration: Declaration) -> Declaration:
    """Return the declaration whose promise a fold keeps, for the checks.

    No key, group or time window is in two splits of the fold. Purged folds train before and after
    the test block, so they promise no order in time; `fold_results` checks their intervals instead.
    """
    kind, gap = declaration.fold_kind, embargo_of(declaration)
    if kind == "walk_forward":
        return declaration.model_copy(update={"split": TimeSplit(embargo=gap)})
    if kind == "group_walk_forward":
        return declaration.model_copy(update={"split": GroupTimeSplit(embargo=gap)})
    return declaration.model_copy(
        update={"split": GroupSplit() if kind in BY_GROUP else RandomSplit()}
    )


def embargo_of(declaration: Declaration) -> float | str:
    """Return the declared gap of the folds: that of `cv`, else that of the split, else none."""
    if declaration.cv.embargo is not None:
        return declaration.cv.embargo
    return declaration.split.embargo if isinstance(declaration.split, TimeSplit) else 0.0


def label_end_sql(spec: TableSpec, declaration: Declaration) -> str:
    """Return SQL for the time at which a row's label is known.

    It is the time of the role label_time, or of the row, plus the declared horizon.
    """
    known = "coalesce(__label_time, __time)" if spec.label_time else "__time"
    return f"({known} + {literal(in_time_units(declaration.cv.horizon, spec, 'cv.horizon'))})"


def fold_lengths(declaration: Declaration, spec: TableSpec) -> dict[str, float | None]:
    """Return embargo, horizon and window of the folds in the units of `__time`."""
    cv = declaration.cv
    return {
        "embargo": in_time_units(embargo_of(declaration), spec, "cv.embargo"),
        "horizon": in_time_units(cv.horizon, spec, "cv.horizon"),
        "window": None if cv.window is None else in_time_units(cv.window, spec, "cv.window"),
    }


def fold_way(declaration: Declaration, spec: TableSpec) -> dict[str, Any]:
    """Return the settings that must stay the same for frozen folds to hold."""
    cv = (
        declaration.cv.model_dump(mode="json", exclude={"concurrency"})
        | {"kind": declaration.fold_kind}
        | fold_lengths(declaration, spec)
    )
    return {"cv": cv, "of": way_of(declaration, spec)}


def decide_fold(
    connection: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    declaration: Declaration,
    number: int,
    book: Ledger | None,
) -> Folds:
    """Return SQL for the split of each row of `POOL` in a fold, with what the ledger holds."""
    kind, cv = declaration.fold_kind, declaration.cv
    plan: dict[str, Any] = {
        "kind": kind,
        "fold": number + 1,
        "folds": cv.folds,
        "seed": cv.seed,
        "val": cv.val,
    }
    if kind in STRATIFIED:
        return _stratified(connection, spec, declaration, number, plan, book)
    if kind in BY_TIME:
        return _by_time(connection, spec, declaration, number, plan, book)
    key = "__group" if kind == "group" else "__key"
    carved = (
        f"case when {hash_sql(key, f'cv-val:{cv.seed}')} < {literal(cut_point(cv.val))} then 'val'"
        " else 'train' end"
    )
    return Folds(
        f"case when {fold_sql(key, cv.seed, cv.folds)} = {number} then 'test' else {carved} end",
        plan | {"key": key.strip("_")},
        {},
    )


def fold_sql(key: str, seed: int, folds: int) -> str:
    """Return SQL for a key's fold number, by another hash than that of the split."""
    digits = hash_sql(key, f"cv:{seed}")
    whens = " ".join(
        f"when {digits} < {literal(cut_point((i + 1) / folds))} then {i}" for i in range(folds - 1)
    )
    return f"case {whens} else {folds - 1} end"


def _load(
    connection: duckdb.DuckDBPyConnection,
    pool: SplitTables,
    spec: TableSpec,
    declaration: Declaration,
) -> None:
    """Make `ROWS` of all rows with their declared split, and `POOL` of train and validation.

    Also find the rows of several groups.
    """
    every = " union all ".join(
        f"select *, {literal(side)} as __declared from {parquet(pool.side(side))}"
        for side in SPLITS
    )
    connection.execute(
        f"create view {ROWS} as select *, {label_end_sql(spec, declaration)} as {END} from"
        f" ({every})"
    )
    connection.execute(f"create view {POOL} as select * from {ROWS} where __declared <> 'test'")
    if pool.bridges is not None:
        known = f"(select __id from {POOL})"
        connection.execute(
            f"create temp table {BRIDGES} as select * from"
            f" read_parquet({literal(str(verify(pool.bridges)))}) where __id in {known}"
        )


def _require_enough(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, declaration: Declaration
) -> None:
    """Refuse more folds than there are keys to distribute."""
    kind, wanted = declaration.fold_kind, declaration.cv.folds
    column, words = (
        ("__group", "groups")
        if kind in BY_GROUP
        else ("__key", "rows" if spec.id else "different rows")
    )
    count = count_distinct(connection, column, POOL)
    if count < wanted:
        raise SplitError(
            f"cv.folds: expected at least {wanted} {words} in train and validation, one for each"
            f" fold, got {count}; lower cv.folds"
        )


def _sides_sql(folds: Folds, pool: SplitTables) -> str:
    side, joined = folds.side_sql, folds.joined
    chosen = (
        settled_sql(side, POOL, joined)
        if pool.bridges is not None
        else f"select __id, {side} as side from {POOL} {joined}"
    )
    return f"{chosen} union all select __id, 'holdout' from {ROWS} where __declared = 'test'"


def _stratified(
    connection: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    declaration: Declaration,
    number: int,
    plan: dict[str, Any],
    book: Ledger | None,
) -> Folds:
    """Distribute units twice: into folds, and into those that validate if they are not tested.

    Both are frozen as `<fold>/<part>`.
    """
    if book is None:
        raise RuntimeError("stratified folds need their ledger")
    cv, key = declaration.cv, "__group" if declaration.fold_kind == "stratified_group" else "__key"
    regression = declaration.task.kind == "regression"
    edges = (
        (book.frozen.get("bin_edges") or bin_edges(connection, POOL, spec.label, cv.bins))
        if regression
        else None
    )
    shares: dict[str, dict[str, float]] = {
        "fold": {str(i): 1 / cv.folds for i in range(cv.folds)},
        "part": {"train": 1 - cv.val, "val": cv.val},
    }
    for place, (dealt, targets) in enumerate(shares.items()):
        held = f"(select key_hash, split_part(side, '/', {place + 1}) as side from {book.assigned})"
        digits, limit = hash_sql("unit", f"cv-{dealt}:{cv.seed}"), declaration.data.memory_bytes
        allot(
            connection,
            Units(POOL, key, stratum_sql(spec.label, edges), digits, held, limit),
            targets,
        )
        connection.execute(
            f"create or replace temp table unit_{dealt}s as select * from unit_sides"
        )
    both = (
        "(select f.key_hash, f.side as fold, p.side as part, f.is_new from unit_folds f join"
        " unit_parts p using (key_hash))"
    )
    sides = (
        f"(select key_hash, case when fold = {literal(str(number))} then 'test' else part end as"
        f" side from {both})"
    )
    frozen = {"bin_edges": edges} if edges and not book.frozen else {}
    decided = f"(select key_hash, concat(fold, '/', part) as side from {both} where is_new)"
    return Folds(
        "known.side", plan | {"key": key.strip("_")}, frozen, decided, known_side_sql(sides, key)
    )


def _by_time(
    connection: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    declaration: Declaration,
    number: int,
    plan: dict[str, Any],
    book: Ledger | None,
) -> Folds:
    """Return the split by blocks of time, decided once and then frozen.

    With group_walk_forward, later blocks hold new groups.
    """
    if book is None:
        raise RuntimeError("folds in time need their ledger")
    cv, kind = declaration.cv, declaration.fold_kind
    limits = fold_lengths(declaration, spec)
    known = book.frozen.get("blocks")
    blocks = (
        [TimeFold(*b) for b in known]
        if known
        else time_folds(connection, POOL, kind, cv.folds, cv.val, limits)
    )
    fold, side = blocks[number], time_fold_sql(connection, POOL, kind, blocks[number], limits)
    plan |= {
        **limits,
        "test_begins": time_text(fold.begin, spec),
        "test_ends": time_text(fold.end, spec),
        "val_begins": time_text(fold.val, spec),
    }
    if kind == "group_walk_forward":
        group = fold_sql("__group", cv.seed, cv.folds)
        of_group = (
            f"case {group} when {number} then 'test' when {(number + 1) % cv.folds} then 'val' else"
            " 'train' end"
        )
        side = (
            f"case when {side} in ('train', 'val', 'test') and {side} <> {of_group} then"
            f" 'group_time' else {side} end"
        )
    return Folds(side, plan, {} if known else {"blocks": [list(b) for b in blocks]})
