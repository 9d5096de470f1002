"""Decide the split of each row; no other module does.

By hash: `substr(md5('<seed>:<key>'), 1, 8)`, eight hexadecimal digits, compared as text with the
cut points. The key is the group if the strategy keeps groups whole, else the row's key. It
depends on the row alone, so added rows do not change the split of others. Choices that cannot
depend on the row alone (shares of labels, cuts at a share of time) are made once and frozen in the
ledger (see ledger.py and docs/decisions/0002-split-hash-and-ledger.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.config import (
    GROUPED,
    SPLITS,
    Declaration,
    GroupSplit,
    GroupTimeSplit,
    PredefinedSplit,
    StratifiedSplit,
    TimeSplit,
)
from schemas.digest import file_ref, replacing, replacing_path, verify
from schemas.errors import SplitError, counted, first_few
from schemas.records import (
    SplitTables,
    TableRef,
    TableSpec,
    TestTable,
    TrainTable,
    ValidatedTable,
    ValTable,
    digest_of,
)
from schemas.tables import arrow_schema
from training.data.engine.engine import (
    ROW_GROUP_ROWS,
    TableWriter,
    chosen_engine,
    ident,
    literal,
    rows,
    write_parquet,
)
from training.data.engine.hash_order import in_hash_order
from training.data.engine.in_memory import CODE, Rows, held, hold, let_go, registered, relation
from training.data.engine.threads import at_once, beside
from training.data.split.balanced_groups import balanced_plan, deal_groups
from training.data.split.first_rows import first_rows, of_known_classes
from training.data.split.groups import (
    BRIDGES,
    GROUPED_ROWS,
    Grouping,
    derive_groups,
    grouping_way,
    needs_group_ledger,
    settled_sql,
)
from training.data.split.hash_sides import (
    cut_point,
    hash_side_sql,
    hash_sql,
    known_side_sql,
    pinned_sql,
)
from training.data.split.histories import first_windows, with_histories
from training.data.split.ledger import Ledger, opened
from training.data.split.pins import find_pins
from training.data.split.rolling import plan_of, roll_cuts
from training.data.split.side_summary import refuse_unusable, summarize
from training.data.split.sided_rows import code_sql, in_file_order, row_groups, with_sides
from training.data.split.strata import Units, allot, bin_edges, stratum_sql
from training.data.split.time_cuts import declared_cuts, share_cuts, time_side_sql, time_text
from training.data.table.time_units import in_time_units
from training.data.table.typed import validated_columns

ROWS, SIDES = GROUPED_ROWS, "decided_sides"
FROZEN_SHARES = "shares of rows at first sight, frozen in the ledger: later rows never train"
SIDED = f"(select t.*, s.side as __side from {ROWS} t join {SIDES} s on s.__id = t.__id)"


class Decision(NamedTuple):
    """SQL for the split of a row of `ROWS` (or the reason why it has none), and its basis.

    `plan` is for people. `frozen` and `decided` (a relation of key_hash, side) go to the ledger
    when they are new. `joined` is a join that the SQL looks splits up in.
    """

    side_sql: str
    plan: dict[str, Any]
    frozen: Mapping[str, Any] = MappingProxyType({})
    decided: str | None = None
    joined: str = ""


def split(
    validated: ValidatedTable, declaration: Declaration, out_dir: Path, ledger: Path
) -> SplitTables:
    """Write train.parquet, val.parquet and test.parquet; a row left out has a stated reason.

    Args:
        validated: the table to split; its file must have the recorded bytes.
        declaration: uses the sections `split`, `task` and `data`.
        out_dir: where the files are written (and `ledger.jsonl`, the ledger entries that the split
            used).
        ledger: the file that freezes decisions over runs; used by stratified splits and by time
            cuts at a share, and with `-groups` at its end by derived groups.

    Returns:
        The splits, ordered by the hash of `__id`, with plan and summary; excluded rows are counted
        by reason.

    Raises:
        SplitError: a split is empty or has one class, a class is missing in train, or split values
            or cuts make no sense.
        IntegrityError: the table or the ledger is not what was written.
    """
    verify(validated.table.file)
    with ExitStack() as stack:
        connection = stack.enter_context(chosen_engine(declaration.data))
        way, grouped_by = (
            way_of(declaration, validated.spec),
            grouping_way(declaration, validated.spec),
        )
        group_book = (
            stack.enter_context(opened(group_ledger(ledger), digest_of(grouped_by)))
            if needs_group_ledger(declaration, validated.spec)
            else None
        )
        grouping = derive_groups(connection, validated, declaration, group_book)
        book = (
            stack.enter_context(opened(ledger, digest_of(way)))
            if needs_ledger(declaration)
            else None
        )
        decision = decide(connection, validated, declaration, book)
        in_place = declaration.data.engine == "duckdb" and _of_the_row(decision, grouping)
        table = (
            with_sides(connection, whole.table, decision.side_sql)
            if in_place and (whole := held(validated.table))
            else None
        )
        sided = (
            _sided(connection, decision, grouping)
            if table is None
            else registered(connection, "sided_rows", table)
        )
        refuse_unusable(connection, sided, validated.spec, declaration)
        if group_book is not None:
            group_book.append(
                connection,
                grouped_by,
                validated.table.file.sha256,
                dict(grouping.frozen),
                grouping.decided,
                declaration.data.memory_bytes,
            )
        if book is not None:
            book.append(
                connection,
                way,
                validated.table.file.sha256,
                dict(decision.frozen),
                decision.decided,
                declaration.data.memory_bytes,
            )
        by_hash = (validated.spec, sided, declaration.data.memory_bytes, Path(out_dir))
        in_order = (
            in_file_order(connection, validated, decision.side_sql)
            if in_place
            else sides_in_order(connection, *by_hash)
        )
        rows_of = in_order if table is None else table
        given = (validated.spec, declaration, Path(out_dir), decision.plan, sided, rows_of)
        made = with_histories(write_sides(connection, *given), validated, Path(out_dir))
        let_go(validated.table)
        return made.model_copy(
            update=_stood_on(connection, grouping, made, Path(out_dir), book, group_book)
        )


def group_ledger(ledger: Path) -> Path:
    """Return the file that freezes derived groups, next to the ledger of splits."""
    return Path(f"{ledger}-groups")


def _sided(connection: duckdb.DuckDBPyConnection, decision: Decision, grouping: Grouping) -> str:
    """Return the relation of all rows with their `__side`.

    What does not depend on the row alone is kept in the table `SIDES` of `__id` and `side`.
    """
    if _of_the_row(decision, grouping):
        return f"(select *, {decision.side_sql} as __side from {ROWS})"
    side, joined = decision.side_sql, decision.joined
    sides = (
        settled_sql(side, ROWS, joined)
        if grouping.has_bridges
        else f"select __id, {side} as side from {ROWS} {joined}"
    )
    connection.execute(f"create temp table {SIDES} as {sides}")
    return SIDED


def _of_the_row(decision: Decision, grouping: Grouping) -> bool:
    """Return True if a row's split is an expression over its columns.

    Then no join can change the order of the rows.
    """
    return decision.decided is None and not grouping.plan


def sides_in_order(
    connection: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    sided: str,
    limit: int | None,
    folder: Path,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of the splits in the order of their hash, with the index in `SPLITS`.

    Args:
        connection: the engine.
        spec: what the columns are.
        sided: relation of all rows with their `__side`.
        limit: bytes of `data.memory_limit`; within it rows are ordered part by part.
        folder: where parts are kept while they are needed.
    """
    columns = validated_columns(spec)
    chosen = (
        f"select {', '.join(map(ident, columns))}, {code_sql('__side')} as {ident(CODE)} from"
        f" {sided} where __side in ('train', 'val', 'test')"
    )
    if limit is None:
        yield from connection.sql(f"{chosen} order by md5(__id)").to_arrow_reader(ROW_GROUP_ROWS)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield from in_hash_order(connection, f"({chosen})", (*columns, CODE), limit, folder)


def _stood_on(
    connection: duckdb.DuckDBPyConnection,
    grouping: Grouping,
    made: SplitTables,
    out_dir: Path,
    book: Ledger | None,
    group_book: Ledger | None,
) -> dict[str, Any]:
    """Return what the splits depend on besides the rows.

    It is the entries of both ledgers, figures of derived groups, and rows that belong to several
    groups.
    """
    found: dict[str, Any] = (
        {"ledger": book.copy_to(out_dir / "ledger.jsonl")} if book is not None else {}
    )
    if group_book is not None:
        found["group_ledger"] = group_book.copy_to(out_dir / "group_ledger.jsonl")
    if grouping.plan:
        found["plan"] = made.plan | {"groups": grouping.plan}
    if grouping.has_bridges:
        kept = (
            f"select __id, __group from {BRIDGES} where __id in (select __id from {SIDES} where"
            " side in ('train', 'val', 'test')) order by __id, __group"
        )
        found["bridges"] = write_parquet(connection, kept, out_dir / "bridges.parquet").file
    return found


def decide(
    connection: duckdb.DuckDBPyConnection,
    validated: ValidatedTable,
    declaration: Declaration,
    book: Ledger | None,
) -> Decision:
    """Return the declared strategy as SQL over one row, with what the ledger holds."""
    way, spec = declaration.split, validated.spec
    if isinstance(way, StratifiedSplit):
        return _stratified(connection, spec, declaration, way, book)
    if isinstance(way, TimeSplit):
        return _by_time(connection, validated, declaration, way, book)
    if isinstance(way, PredefinedSplit):
        return _predefined(connection, spec, way)
    pins = find_pins(connection, ROWS, way.pin) if isinstance(way, GroupSplit) else {}
    plan = {
        "key": _key_name(_key(way), spec),
        "seed": way.seed,
        "fractions": way.fractions.model_dump(),
        **({"pin": pins} if pins else {}),
    }
    if isinstance(way, GroupSplit) and way.balance:
        return _balanced(connection, spec, way, book, pins, plan)
    return Decision(pinned_sql(pins, hash_side_sql(_key(way), way.seed, way.fractions)), plan)


def needs_ledger(declaration: Declaration) -> bool:
    """Return True if splits depend on more than the row, so that they are frozen."""
    way = declaration.split
    if isinstance(way, GroupSplit):
        return way.balance
    return isinstance(way, StratifiedSplit) or (isinstance(way, TimeSplit) and way.cuts is None)


def way_of(declaration: Declaration, spec: TableSpec) -> dict[str, Any]:
    """Return the settings that must stay the same for frozen decisions to hold.

    These are strategy, seed, shares and the columns they depend on. Embargo, pins and the lengths
    of rolling windows do not count: they apply on top of what is frozen.
    """
    label = list(spec.labels) if spec.has_several_labels else spec.label
    roles = {"id": list(spec.id), "group": list(spec.group), "time": spec.time, "label": label}
    used = {n for names in roles.values() for n in (names if isinstance(names, list) else [names])}
    derived = {n: text for n, text in sorted(declaration.data.derive.items()) if n in used}
    way = declaration.split.model_dump(mode="json", exclude={"embargo", "pin", "cuts"})
    if way.get("roll"):  # cuts never move back, also where the lengths of windows change
        way = {k: v for k, v in way.items() if k not in ("test", "val", "fractions")} | {
            "roll": True
        }
    if not way.get("balance", True):
        del way["balance"]  # older ledgers and folds do not name it
    by = (
        {"group_by": grouping_way(declaration, spec)}
        if declaration.data.group_by and declaration.split.kind in GROUPED
        else {}
    )
    return {**by, "split": way, "roles": roles, "derive": derived, "task": declaration.task.kind}


def _key(way: Any) -> str:
    return "__group" if way.kind in GROUPED else "__key"


def _key_name(key: str, spec: TableSpec) -> str:
    return "group" if key == "__group" else "id" if spec.id else "features"


def _by_time(
    connection: duckdb.DuckDBPyConnection,
    validated: ValidatedTable,
    declaration: Declaration,
    way: TimeSplit,
    book: Ledger | None,
) -> Decision:
    spec = validated.spec
    embargo = in_time_units(way.embargo, spec, "split.embargo")
    cuts, basis, frozen = _cuts(connection, validated, declaration, way, book)
    shown = {side: time_text(cut, spec) for side, cut in cuts.items()}
    plan = {"cuts": cuts, "cuts_text": shown, **basis, "embargo": embargo}
    by_time = time_side_sql(cuts, embargo, spec.label_time is not None)
    if not isinstance(way, GroupTimeSplit):
        return Decision(by_time, plan, frozen)
    pins = find_pins(connection, ROWS, way.pin)
    by_group = pinned_sql(pins, hash_side_sql("__group", way.seed, way.group_fractions))
    plan |= {
        "key": "group",
        "seed": way.seed,
        "group_fractions": way.group_fractions.model_dump(),
        "pin": pins,
    }
    return Decision(
        f"case when {by_time} in ('embargo', 'label_interval', {by_group}) then {by_time} else"
        " 'group_time' end",
        plan,
        frozen,
    )


def _cuts(
    connection: duckdb.DuckDBPyConnection,
    validated: ValidatedTable,
    declaration: Declaration,
    way: TimeSplit,
    book: Ledger | None,
) -> tuple[dict[str, float], dict[str, Any], dict[str, Any]]:
    """Return the cuts, their basis for people, and what is new for the ledger."""
    if way.cuts is not None or book is None:
        if way.cuts is None:
            raise RuntimeError("cuts that nobody declared need their ledger")
        return declared_cuts(way.cuts, validated.spec), {"cuts_from": "declaration"}, {}
    if way.rolls:
        rolled = roll_cuts(validated, declaration, book.entries)
        return rolled.cuts, plan_of(rolled, way, validated.spec), rolled.frozen
    cuts = book.frozen or share_cuts(connection, ROWS, way.fractions)
    return cuts, {"cuts_from": FROZEN_SHARES}, {} if book.frozen else cuts


def _predefined(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, way: PredefinedSplit
) -> Decision:
    column = ident(str(spec.split))
    values: dict[str, tuple[str, ...]] = {"train": way.train, "val": way.val, "test": way.test}
    _refuse_unknown_values(connection, str(spec.split), values)
    key = "__group" if spec.grouped else "__key"
    carved = (
        f"case when {hash_sql(key, way.seed)} < {literal(cut_point(way.carve_val))} then 'val' else"
        " 'train' end"
    )
    sides = {"train": carved if way.carve_val else "'train'", "val": "'val'", "test": "'test'"}
    whens = " ".join(
        f"when {column} in ({', '.join(map(literal, values[side]))}) then {sql}"
        for side, sql in sides.items()
        if values[side]
    )
    plan = {
        "column": spec.split,
        "values": {s: list(v) for s, v in values.items()},
        "carve_val": way.carve_val,
        "seed": way.seed,
        "key": "group" if spec.grouped else "id",
    }
    return Decision(f"case {whens} end", plan)


def _refuse_unknown_values(
    connection: duckdb.DuckDBPyConnection, column: str, values: Mapping[str, tuple[str, ...]]
) -> None:
    known = {v for names in values.values() for v in names}
    doubled = [v for v in known if sum(v in names for names in values.values()) > 1]
    if doubled:
        raise SplitError(
            f"split: expected each value of {column!r} to mean one side, got"
            f" {first_few(sorted(doubled))} under several; name it once"
        )
    found = rows(connection, f"select {ident(column)}, count(*) from {ROWS} group by 1 order by 1")
    unknown = [f"{v!r} ({counted(n, 'row')})" for v, n in found if v not in known]
    if unknown:
        raise SplitError(
            f"column {column!r} (role split): expected"
            f" {first_few(map(repr, sorted(known)), limit=10)}, got also"
            f" {first_few(unknown, len(unknown))}; list them under split.train, split.val or"
            " split.test, or leave such rows out with data.filter"
        )


def _stratified(
    connection: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    declaration: Declaration,
    way: StratifiedSplit,
    book: Ledger | None,
) -> Decision:
    """Return splits of units: as frozen in the ledger, and of new units so that shares stay."""
    if book is None:
        raise RuntimeError("a stratified split needs its ledger")
    regression = declaration.task.kind == "regression"
    edges = (
        (book.frozen.get("bin_edges") or bin_edges(connection, ROWS, spec.label, way.bins))
        if regression
        else None
    )
    key = _key(way)
    units = Units(
        ROWS,
        key,
        stratum_sql(spec.label, edges),
        hash_sql("unit", way.seed),
        book.assigned,
        declaration.data.memory_bytes,
    )
    allot(connection, units, way.fractions.model_dump())
    plan = {
        "key": _key_name(_key(way), spec),
        "seed": way.seed,
        "fractions": way.fractions.model_dump(),
        **({"bin_edges": edges} if edges else {}),
    }
    frozen = {"bin_edges": edges} if edges and not book.frozen else {}
    return _looked_up("known.side", spec, book, key, plan, frozen)


def _balanced(
    connection: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    way: GroupSplit,
    book: Ledger | None,
    pins: Mapping[str, str],
    plan: dict[str, Any],
) -> Decision:
    """Return splits of groups: as frozen in the ledger, and new ones where splits lack most."""
    if book is None:
        raise RuntimeError("a balanced split needs its ledger")
    deal_groups(connection, ROWS, way, book.assigned, pins)
    side = pinned_sql(pins, "known.side")
    return _looked_up(side, spec, book, "__group", balanced_plan(plan))


def _looked_up(
    side_sql: str,
    spec: TableSpec,
    book: Ledger,
    key: str,
    plan: dict[str, Any],
    frozen: Mapping[str, Any] = MappingProxyType({}),
) -> Decision:
    """Return the decision that looks the split of a unit up in `unit_sides`, as `known.side`."""
    # a row may belong to a group that was decided before and has no other rows now
    known = (
        f"(select key_hash, side from unit_sides union select key_hash, side from {book.assigned}"
        " as held where key_hash not in (select key_hash from unit_sides))"
    )
    sides = known if spec.group_by else "unit_sides"
    return Decision(
        side_sql,
        plan,
        frozen,
        "(select key_hash, side from unit_sides where is_new)",
        known_side_sql(sides, key),
    )


def write_sides(
    connection: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    declaration: Declaration,
    out_dir: Path,
    plan: dict[str, Any],
    sided: str,
    in_order: Iterator[pa.RecordBatch] | pa.Table,
) -> SplitTables:
    """Write the files of the three splits and return references; only here a `TrainTable` is made.

    Args:
        connection: the engine.
        spec: what the columns are.
        declaration: the task and the strategy.
        out_dir: where `train.parquet`, `val.parquet` and `test.parquet` are written.
        plan: the strategy with its resolved cut points, for people.
        sided: relation of all rows with their `__side`.
        in_order: the rows in the order of the hash of their id, with the column `CODE`; for a whole
            table, the splits are kept in memory too.
    """
    tables = _written(in_order, spec, out_dir)
    excluded = rows(
        connection,
        f"select __side, count(*) from {sided} where __side not in ('train', 'val', 'test') group"
        " by 1 order by 1",
    )
    return SplitTables(
        train=TrainTable(file=tables["train"].file, rows=tables["train"].rows),
        val=ValTable(file=tables["val"].file, rows=tables["val"].rows),
        test=TestTable(file=tables["test"].file, rows=tables["test"].rows),
        strategy=declaration.split.kind,
        excluded=dict(excluded),
        plan=plan,
        summary=summarize(
            connection,
            {side: relation(connection, tables[side]) for side in SPLITS},
            spec,
            declaration,
        ),
    )


def _written(
    in_order: Iterator[pa.RecordBatch] | pa.Table, spec: TableSpec, out_dir: Path
) -> dict[str, TableRef]:
    """Write each row into the file of its split, in one pass over the rows."""
    paths, schema = {side: out_dir / f"{side}.parquet" for side in SPLITS}, arrow_schema(spec)
    with ExitStack() as stack:
        files = {side: stack.enter_context(replacing_path(path)) for side, path in paths.items()}
        # no digest of the whole table in the metadata: train's bytes would change with every test
        # row
        writers = {
            side: stack.enter_context(TableWriter(files[side], schema, {"bulkhead.side": side}))
            for side in SPLITS
        }
        whole = isinstance(in_order, pa.Table)
        write = {
            side: stack.enter_context(beside(writer.write)) if whole else writer.write
            for side, writer in writers.items()
        }
        if whole:
            # a row group at a time: see there
            for side, rows in row_groups(in_order, schema):
                write[side](rows)
        else:
            for batch in in_order:
                table = pa.Table.from_batches([batch])
                rows, code = table.select(schema.names), table[CODE]
                for place, side in enumerate(SPLITS):
                    write[side](rows.filter(pc.equal(code, place)))
    files_of = dict(zip(paths, at_once(file_ref, paths.values()), strict=True))
    found: dict[str, TableRef] = {
        side: TableRef(file=files_of[side], rows=writers[side].rows) for side in SPLITS
    }
    if isinstance(in_order, pa.Table):
        for place, side in enumerate(SPLITS):
            hold(found[side], Rows(in_order.select([*schema.names, CODE]), place))
    return found


def sampled(
    split: SplitTables,
    spec: TableSpec,
    rows: int,
    folder: Path,
    change: Callable[[pa.Table], pa.Table],
) -> SplitTables:
    """Write the first rows of each split as a separate split; `change` edits held-out rows first.

    It also edits the steps that windows of held-out rows hold.

    Splits lie in the order of a hash, so the first rows are a random sample.

    Args:
        split: the result of the split.
        spec: what its columns are.
        rows: most rows of one split.
        folder: where the files are written.
        change: function of held-out rows; must keep columns and types.
    """
    tables: dict[str, TableRef] = {}
    train = first_rows(split.train, rows)
    for side in SPLITS:
        given, path = split.side(side), Path(folder) / f"{side}.parquet"
        is_train = side == "train"
        table = train if is_train else of_known_classes(first_rows(given, rows), train, spec)
        edit: Callable[[pa.Table], pa.Table] = (lambda same: same) if is_train else change
        with replacing(path) as file:
            pq.write_table(edit(table), file)
        own = {"file": file_ref(path), "rows": len(table)}
        own |= {"histories": first_windows(given, len(table), path.with_suffix(""), edit)}
        tables[side] = split.side(side).model_copy(update=own)
    return SplitTables.model_validate({**tables, "strategy": split.strategy})
