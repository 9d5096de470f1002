"""Wide tables: what many columns are asked together is what each would be asked alone."""

from __future__ import annotations

from contextlib import closing

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from schemas.config import ColumnConfig
from schemas.records import TableSpec
from schemas.tables import arrow_schema, broken_rules, pandera_schema
from training.data.draft.entities import _alike, _runs
from training.data.draft.guesses import Table
from training.data.draft.profile import SAMPLE, describe_sample
from training.data.draft.sample_codes import SampleCodes
from training.data.engine.engine import connect, count_distinct, ident
from training.data.engine.many_columns import count_each_distinct, figures_of, parts_of
from training.data.engine.threads import at_once
from training.data.leakage.label_proxies import RIDGE, _ridge
from training.data.leakage.neighbours import LEAST_DIFFERENT, off_segment
from training.data.sources.written_numbers import category_note, category_notes


def table(rows: int = 300, columns: int = 110, seed: int = 0) -> pa.Table:
    """Return numbers and texts, some of them null, and keys whose rows agree in other columns."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, rows // 6, rows)
    found = {"key": pa.array([f"k{k}" for k in key]), "of_key": pa.array(key % 7)}
    for i in range(columns):
        null = rng.random(rows) < (0.3 if i % 3 == 0 else 0.0)
        values = rng.integers(0, 5 + i, rows)
        if i % 2:
            found[f"x{i}"] = pa.array(values * (0.5 if i % 4 == 1 else 1.0), mask=null)
        else:
            found[f"c{i}"] = pa.array(
                [f"{v},5" if i % 5 == 0 else f"t{v}" for v in values], mask=null
            )
    return pa.table(found)


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    with closing(connect()) as opened:
        opened.register("given", table())
        yield opened


def test_figures_and_counts_are_those_of_each_column(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    names = table().column_names
    found = figures_of(connection, names, "given", lambda c: [f"count({c})", f"min({c})"])
    for name in names:
        alone = connection.execute(f"select count({ident(name)}), min({ident(name)}) from given")
        assert found[name] == alone.fetchall()[0]
    counts = count_each_distinct(connection, names, "given")
    assert counts == {n: count_distinct(connection, ident(n), "given") for n in names}
    assert [len(part) for part in parts_of(names)] == [100, 12]


def test_notes_of_categories_are_those_of_each_column(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [n for n in table().column_names if n.startswith("c")]
    alone = tuple(
        f"{n!r}: {note}"
        for n in names
        if (note := category_note(connection, "given", n, True, n in names[:50]))
    )
    assert alone and category_notes(connection, "given", names, names[:50], True) == alone
    monkeypatch.setattr("training.data.sources.written_numbers.FIRST_ROWS", 60)
    monkeypatch.setattr("training.data.sources.written_numbers.READ_ROWS", 80)
    alone = tuple(
        f"{n!r}: {note}" for n in names if (note := category_note(connection, "given", n, True))
    )
    assert category_notes(connection, "given", names, names, True) == alone


def test_codes_of_a_sample_say_what_queries_say(connection: duckdb.DuckDBPyConnection) -> None:
    profiles, rows = describe_sample(connection, "given")
    connection.execute(f"update {SAMPLE} set x1 = -0.0 where x1 = 0 and rowid % 2 = 0")
    connection.execute(f"update {SAMPLE} set x5 = 'nan' where rowid % 3 = 0")
    given = Table(connection, None, tuple(profiles), rows)  # type: ignore[arg-type]
    codes, others = SampleCodes(connection), [c for c in profiles if c.name != "key"][:60]
    keys = [c for c in profiles if not c.null_share][:8]
    for column in keys:
        looked = [c for c in others if c.name != column.name]
        mine, queried = codes.alike(column, looked), _alike(given, column, looked, 1)
        assert mine is not None and mine[2] == queried[2]
        assert dict(zip(*mine[:2], strict=True)) == dict(zip(*queried[:2], strict=True))
        assert codes.runs(column) == _runs(given, column)
    assert codes.alike(keys[0]._replace(present=50_000), others) is None


def test_the_column_that_breaks_a_rule_is_found_among_many() -> None:
    names = tuple(f"x{i}" for i in range(40))
    spec = TableSpec(
        id=("id",),
        group=(),
        time=None,
        label="y",
        label_type="float",
        weight=None,
        split=None,
        numeric=names,
        categorical=(),
        tensor={},
        tensor_dtype={},
    )
    kinds = {f.name: f.type for f in arrow_schema(spec)}
    limits = pandera_schema(spec, {"x7": ColumnConfig(max=3), "x9": ColumnConfig(max=3)}, kinds)
    given = {
        n: pa.array([1.0, 2.0] if k == pa.float64() else ["a", "b"], k) for n, k in kinds.items()
    }
    assert broken_rules(limits, pa.table(given)) == set()
    faulty = given | {
        "x3": pa.array([1.0, float("inf")]),
        "x7": pa.array([1.0, 4.0]),
        "x8": pa.array([1.0, 4.0]),
        "y": pa.array([None, 1.0]),
    }
    assert broken_rules(limits, pa.table(faulty)) == {
        ("x3", "finite"),
        ("x7", "max"),
        ("y", "nulls"),
    }


def test_many_items_keep_their_order_and_the_first_error() -> None:
    assert at_once(lambda n: n * n, range(5000)) == [n * n for n in range(5000)]

    def fails(number: int) -> int:
        if number in (77, 4000):
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="77"):
        at_once(fails, range(5000))


def test_ridge_is_the_same_with_more_columns_than_rows() -> None:
    rng = np.random.default_rng(3)
    inputs, target, part = rng.normal(size=(60, 90)), rng.normal(size=60), np.arange(60) < 40
    centred = inputs - inputs[part].mean(axis=0)
    fitted = centred[part]
    penalty = RIDGE * len(fitted) * (fitted.var(axis=0) + 1e-9)
    weights = np.linalg.solve(
        fitted.T @ fitted + np.diag(penalty), fitted.T @ (target[part] - target[part].mean())
    )
    expected = np.clip(centred @ weights + target[part].mean(), -1, 2)
    np.testing.assert_allclose(_ridge(inputs, target, part), expected, atol=1e-9)


def test_segments_are_those_of_a_search_pair_by_pair() -> None:
    rng = np.random.default_rng(5)
    points, known = rng.normal(size=(80, 7)), rng.random((80, 7)) > 0.1
    points[0] = 0.4 * points[30] + 0.6 * points[31]
    queries = np.arange(20)
    around = np.stack([rng.permutation(np.arange(20, 80))[:6] for _ in queries])
    around[0, :2], around[3, 2] = (30, 31), -1
    least, ends = off_segment(points, known, queries, around)
    for place, query in enumerate(queries):
        best = np.inf
        for i in range(6):
            for j in range(i + 1, 6):
                one, two = around[place, i], around[place, j]
                use = known[query] & known[one] & known[two]
                a, b = (points[end] - points[query] for end in (one, two))
                a, edge = a * use, (b - a) * use
                share = -(a @ edge) / max(edge @ edge, 1e-300)
                if min(one, two) < 0 or not 0.02 < share < 0.98:
                    continue
                if (abs(edge) > 1e-6).sum() >= LEAST_DIFFERENT:
                    near = min(np.linalg.norm(a), np.linalg.norm(b * use))
                    best = min(best, float(np.linalg.norm(a + share * edge) / near))
        assert least[place] == pytest.approx(best, abs=1e-6)
    assert least[0] < 1e-6 and set(ends[0]) == {30, 31}
