"""What the windows of rows hold, as a part of the content by which rows are compared.

A window is a feature: rows are copies if their other features and all values of their windows are
equal. N rows of a side, M steps, C channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.config import SplitName
from schemas.digest import verify
from schemas.references import HistoryRef, TableRef
from training.data.engine.engine import rows
from training.data.leakage.sides import Sides


def add_window_content(sides: Sides) -> None:
    """Make the windows' values a part of `content` in the temporary table `equal_rows`.

    Only windows of rows that are there, alike in all other features, are read.
    """
    alike = dict[SplitName, set[str]]()
    for side, name in rows(sides.connection, "select side, __id from equal_rows"):
        alike.setdefault(side, set()).add(name)
    found = [
        pa.table({"side": [side] * len(ids), "id": ids, "digest": digests})
        for side, ids, digests in (
            (side, *window_digests(table, alike[side]))
            for side, table in sides.tables.items()
            if side in alike
        )
    ]
    if not found:
        return
    sides.connection.register("window_digests", pa.concat_tables(found))
    sides.connection.execute(
        "create or replace temp table equal_rows as select e.* replace (md5(concat(e.content,"
        " w.digest)) as content) from equal_rows e join window_digests w on w.side = e.side and"
        " w.id = e.__id"
    )
    sides.connection.unregister("window_digests")


def window_digests(table: TableRef, wanted: set[str]) -> tuple[pa.Array, list[str]]:
    """Return the ids of the wanted rows of a table, and for each a digest of all its windows.

    Two digests are equal where the windows have the same values at the same distance from their
    rows, and know and miss the same ones.

    Raises:
        IntegrityError: a file was changed after it was written.
    """
    ids = pq.read_table(verify(table.file), columns=["__id"])["__id"].combine_chunks()
    chosen = np.flatnonzero(
        pc.is_in(ids, value_set=pa.array(list(wanted), ids.type)).to_numpy(False)
    )
    made = [hashlib.sha256() for _ in chosen]
    for history in table.histories.values():
        for own, window in zip(made, _windows(history, chosen), strict=True):
            own.update(window)
    return ids.take(pa.array(chosen)), [own.hexdigest() for own in made]


def _windows(history: HistoryRef, chosen: np.ndarray) -> Iterator[bytes]:
    """Yield the number of steps and the values of each chosen window, in order."""
    steps = pq.read_table(verify(history.steps)).drop_columns(["__id", "__series", "__time"])
    columns = [column.to_numpy().astype(np.float64) for column in steps.columns]
    values = np.stack(columns, axis=1) + 0.0  # [M, C]; 0 has one sign
    values[np.isnan(values)] = np.nan  # and unknown one pattern of bits
    ends = pq.read_table(verify(history.ends)).take(pa.array(chosen))
    for end, count in zip(ends["end"].to_numpy(), ends["count"].to_numpy(), strict=True):
        yield int(count).to_bytes(8, "little") + values[end - count : end].tobytes()
