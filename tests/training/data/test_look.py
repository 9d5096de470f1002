"""Facts of a first look, held against pandas on generated tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ConfigError, SourceError
from schemas.table_look import TableLook
from training.data.engine.engine import connect
from training.data.look.look import look
from training.data.sources import text_types as text_types_module
from training.data.sources.text_types import text_types

RNG = np.random.default_rng(5)
ORDERLESS = {"order", "seconds", "name", "tied"}
VALUES = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=30, max_size=30),
    st.lists(st.one_of(st.none(), st.sampled_from([0.5, 1.25, -3.0])), min_size=30, max_size=30),
    st.lists(st.one_of(st.none(), st.sampled_from("abc")), min_size=30, max_size=30),
    st.lists(st.booleans(), min_size=30, max_size=30),
)


def write(table: pd.DataFrame, path: Path) -> str:
    table.to_parquet(path, index=False)
    return str(path)


def facts(found: TableLook) -> dict[str, Any]:
    """Return all facts but those on the order of the rows."""
    shown = found.model_dump(mode="json", exclude=ORDERLESS)
    for candidate in shown["candidates"]:
        candidate["figures"].pop("share_together", None)
        candidate["reason"] = "; ".join(
            part
            for part in candidate["reason"].split("; ")
            if not any(word in part for word in ("in the file", "along the rows", "in steps of"))
        )
    return shown


def people(n: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    person = np.repeat(np.arange(n // 6), 6)
    return pd.DataFrame(
        {
            "record": np.arange(n) + 500,
            "pid": person * 7 + 2000,
            "sex": rng.choice(["f", "m"], n // 6)[person],
            "height": rng.normal(size=n // 6)[person],
            "seen": pd.date_range("2024-01-01", periods=n, freq="h"),
            "x": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "sample_weight": rng.uniform(0.5, 2, n),
            "died": (rng.random(n) < 0.1).astype(int),
        }
    ).assign(
        x2=lambda t: 2 * t.x, copy=lambda t: t.height, code=lambda t: t.sex.map({"f": 8, "m": 9})
    )


@settings(max_examples=12, deadline=None)
@given(columns=st.lists(VALUES, min_size=1, max_size=5))
def test_facts_of_columns_are_those_of_pandas(
    columns: list[list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = pd.DataFrame({f"c{i}": pd.array(v) for i, v in enumerate(columns)})
    path = tmp_path_factory.mktemp("look") / "t.parquet"
    pa.parquet.write_table(
        pa.table({n: pa.array(v) for n, v in zip(table, columns, strict=True)}), path
    )
    found = look(str(path))
    assert found.rows == found.sampled == len(table)
    assert found.repeats.rows == int(table.duplicated().sum())
    for column in found.columns:
        values = table[column.name]
        assert (column.nulls, column.distinct) == (values.isna().sum(), values.nunique())
        assert (column.kind == "constant") == (values.nunique() < 2)
        counts = sorted(map(int, values.value_counts()), reverse=True)
        if column.bars:
            shown = sorted((b.rows for b in column.bars), reverse=True)
            assert shown == counts[: len(shown)] and column.others == sum(counts[len(shown) :])
    holes = {b.columns: b.rows for b in found.missing}
    for names, rows in holes.items():
        hole = table[names[0]].isna()
        assert int(hole.sum()) == rows and all(table[n].isna().equals(hole) for n in names)
    for names in found.repeats.equal:
        for name in names[1:]:
            pd.testing.assert_series_equal(
                table[names[0]].astype(object), table[name].astype(object), check_names=False
            )
    for names in found.repeats.one_to_one:
        pairs = table[list(names)].drop_duplicates()
        assert all(len(pairs) == pairs[n].nunique(dropna=False) for n in names)


def test_each_role_gets_its_candidate_with_a_figure(tmp_path: Path) -> None:
    found = look(write(people(), tmp_path / "p.parquet"), label="died")
    first = {c.role: c for c in reversed(found.candidates)}
    assert {r: c.column for r, c in first.items()} == {
        "id": "record",
        "group": "pid",
        "time": "seen",
        "label": "died",
        "weight": "sample_weight",
    }
    assert "600 rows" in first["id"].reason and "100 values" in first["group"].reason
    assert "constant within a value: sex, height" in first["group"].reason
    assert found.repeats.equal == (("height", "copy"),)
    assert found.repeats.one_to_one == (("pid", "height", "copy"), ("sex", "code"))
    assert [b.columns for b in found.missing] == [("x", "x2")]
    assert {"record", "pid", "seen"} <= set(found.order.rising)
    assert not found.order.label_moves


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_another_order_of_rows_changes_only_what_is_said_of_order(
    tmp_path: Path, ending: str
) -> None:
    table, found = people(), []
    for seed in range(2):
        path = tmp_path / f"{seed}.{ending}"
        mixed = table.sample(frac=1, random_state=seed)
        mixed.to_csv(path, index=False) if ending == "csv" else write(mixed, path)
        found.append(look(str(path), label="died", most=400))
    assert found[0].sampled == found[1].sampled < 600 == found[0].rows
    assert facts(found[0]) == facts(found[1])
    assert found[0].order != look(write(table, tmp_path / "t.parquet"), label="died").order


def test_splits_leave_what_a_count_of_pandas_says(tmp_path: Path) -> None:
    table = people(6000)
    found = look(write(table, tmp_path / "p.parquet"), label="died")
    splits = {(s.kind, s.column): s for s in found.splits}
    assert found.positive == table.died.sum() and found.target == "1"
    late = table[table.seen >= table.seen.sort_values().iloc[5100]]
    time = splits["time", "seen"]
    assert (time.test_rows, time.test_positives) == (len(late), late.died.sum())
    group = splits["group", "pid"]
    assert (group.groups, group.test_groups) == (1000, 150)
    assert group.test_rows_low <= 900 <= group.test_rows_high
    assert splits["random", None].test_rows == 900


def test_few_groups_and_few_positives_are_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"hospital": rng.choice(list("ABCDE"), 500), "x": rng.normal(size=500), "y": 0}
    )
    table.loc[:19, "y"] = 1
    found = look(write(table, tmp_path / "t.parquet"))
    notes = {s.column: s.note for s in found.splits}
    assert "5 groups are too few" in notes["hospital"]
    assert "about 3 positives in test carry no claim" in notes[None]
    assert found.order.label_moves  # the positives come first


def test_all_different_numbers_are_neither_copies_nor_repeats(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(200, 4)), columns=["a", "b", "c", "target"])
    found = look(write(table, tmp_path / "t.parquet"))
    assert found.repeats.model_dump() == {
        "rows": 0,
        "apart_from_ids": 0,
        "equal": (),
        "one_to_one": (),
    }
    assert [(c.role, c.column) for c in found.candidates] == [("label", "target")]


def test_a_sample_finds_what_the_whole_table_holds(tmp_path: Path) -> None:
    table = people(6000)
    table = pd.concat([table, table.iloc[:1200]], ignore_index=True)
    found = look(write(table, tmp_path / "t.parquet"), most=2000)
    assert found.rows == 7200 and 1700 < found.sampled < 2300
    assert found.repeats.rows / found.sampled == pytest.approx(1200 / 7200, abs=0.04)
    pid = next(c for c in found.candidates if c.role == "group")
    assert pid.figures["distinct"] == 1000
    assert "id" not in {c.role for c in found.candidates}  # record repeats in all rows


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("a,b\n")
    with pytest.raises(SourceError, match="expected rows, got none"):
        look(str(tmp_path / "empty.csv"))
    with pytest.raises(SourceError, match="no such file"):
        look(str(tmp_path / "absent.csv"))
    (tmp_path / "t.csv").write_text("alpha,b\n1,2\n")
    with pytest.raises(ConfigError, match="did you mean one of alpha"):
        look(str(tmp_path / "t.csv"), label="alpa")


def test_lists_and_nested_values_are_compared_too(tmp_path: Path) -> None:
    table = pa.table(
        {"pixels": [[1, 2], [1, 2], [3]], "s": [{"a": 1}, {"a": 1}, {"a": 2}], "y": [1, 1, 0]}
    )
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    found = look(str(tmp_path / "t.parquet"))
    assert [c.kind for c in found.columns] == ["list", "other", "boolean"]
    assert found.repeats.rows == 1


TEXTS = st.sampled_from(
    [
        *("1", "2", "007", "1.5", "true", "False", "2020-01-02", "2020-01-02 10:00", "x", "-3"),
        *("1e5", "2020-01-02T10:00:00Z", "nan", "9" * 20, "2020-13-01", " 4 ", "2,5"),
    ]
)
COLUMN = st.lists(TEXTS, min_size=1, max_size=2).flatmap(
    lambda chosen: st.lists(st.sampled_from([*chosen, None]), min_size=4, max_size=4)
)


@settings(max_examples=12, deadline=None)
@given(columns=st.lists(COLUMN, min_size=3, max_size=6), decimal=st.sampled_from(".,"))
def test_types_of_many_columns_are_those_of_few(
    columns: list[list[str | None]], decimal: str
) -> None:
    """Thousands of columns are tested below each other, with the same result."""
    names = ["name", "value", 'say "x"', "select", "c4", "c5"][: len(columns)]
    table = pa.table({n: pa.array(v, pa.string()) for n, v in zip(names, columns, strict=True)})
    connection = connect()
    connection.register("texts", table)
    few = text_types(connection, "texts", names, decimal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_types_module, "WIDE", 1)
        assert text_types(connection, "texts", names, decimal) == few
    connection.close()


def measured(people: int = 42) -> pd.DataFrame:
    """Return rows of people whose label is their own, and says nothing of another one's."""
    rng = np.random.default_rng(0)
    who = rng.integers(0, people, 1500)
    frame = pd.DataFrame({"subject": who * 7 + 100, "x": rng.normal(size=1500)})
    frame["height"] = (170 + 10 * rng.normal(size=people)[who]).round(1)
    frame["score"] = 10 * rng.normal(size=people)[who] + rng.normal(size=1500)
    return frame


@pytest.mark.parametrize("of", ["number", "class"])
def test_rows_that_a_score_would_rest_on_are_named_with_both_scores(
    tmp_path: Path, of: str
) -> None:
    frame = measured()
    if of == "class":
        frame["score"] = np.where(frame.score > frame.score.median(), "yes", "no")
    found = look(write(frame, tmp_path / "t.parquet"), "score").tied
    assert found is not None and found.columns in (("subject",), ("height",))
    assert found.is_class == (of == "class") and found.values == 42 and found.rows == 1500
    assert found.as_split > 0.8 and found.honest < 0.4
    honest = frame.assign(score=frame.score.sample(frac=1, random_state=1).to_numpy())
    assert look(write(honest, tmp_path / "t.parquet"), "score").tied is None
    smooth = frame.assign(score=frame.x + 0.1 * RNG.normal(size=1500))
    assert look(write(smooth, tmp_path / "t.parquet"), "score").tied is None
