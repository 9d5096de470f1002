"""Nulls of other splits in columns where train has none: no fitted value could fill them."""

from __future__ import annotations

from contextlib import closing

from schemas.config import DataConfig
from schemas.errors import DataError, first_few
from schemas.records import Statistics, TableRef
from training.data.engine.engine import connect, engine_for, ident
from training.data.engine.in_memory import held, relation


def new_nulls(ref: TableRef, statistics: Statistics, data: DataConfig | None) -> dict[str, int]:
    """Return how often numbers and pictures of a side are null where nothing stands for a null."""
    names = [s.name for s in statistics.numeric if s.fill is None]
    names += _pictures(statistics)
    in_memory = held(ref)
    if not names or (in_memory and not any(in_memory.table.column(n).null_count for n in names)):
        return {}
    with engine_for(data) if data else closing(connect()) as connection:
        counts = connection.execute(
            f"select {', '.join(f'count(*) - count({ident(n)})' for n in names)} from"
            f" {relation(connection, ref)}"
        ).fetchall()[0]
    return {n: c for n, c in zip(names, counts, strict=True) if c}


def refuse_new_nulls(
    ref: TableRef, side: str, statistics: Statistics, data: DataConfig | None
) -> None:
    """Refuse nulls in a column where train has none: no fitted value could fill them."""
    bad = new_nulls(ref, statistics, data)
    if not bad:
        return
    with engine_for(data) if data else closing(connect()) as connection:
        table = relation(connection, ref)
        for name, count in bad.items():
            ids = [
                r[0]
                for r in connection.execute(
                    f"select __id from {table} where {ident(name)} is null order by __id limit 5"
                ).fetchall()
            ]
            others = f" (also {first_few(n for n in bad if n != name)})" if len(bad) > 1 else ""
            advice = "declare nullable: true for it, so that nulls are filled, or filter those rows"
            if name in _pictures(statistics):
                advice = "leave those rows out with data.filter"
            raise DataError(
                f"column {name!r} has {count} nulls on the {side} side and none may occur (train"
                f" has none, or nullable: false){others}; first ids: {first_few(ids, total=count)};"
                f" {advice}"
            )


def _pictures(statistics: Statistics) -> list[str]:
    """Return the columns of pictures without a null in train."""
    return [t.name for t in statistics.tensor if t.picture is not None and not t.nulls]
