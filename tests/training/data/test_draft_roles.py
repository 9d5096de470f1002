"""Roles follow from what values do; a name is a hint only, and each reason has its figure."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from training.data.draft.column_hints import hint_of
from training.data.draft.draft import Draft, Table, draft, guess_label, guess_roles, guess_task
from training.data.draft.profile import SAMPLE_ROWS, read_table
from training.data.draft.split_guess import Plan, plans
from training.data.engine.engine import connect

pytestmark = pytest.mark.req("P1")
N = 600
RNG = np.random.default_rng(5)
A, B = RNG.normal(size=N), RNG.normal(size=N)
Y = (A + RNG.normal(size=N) > 0).astype(int)
TIMES = pd.date_range("2021-01-01", periods=N, freq="7h")
PERSON = np.repeat(np.arange(100), 6)


def guessed(
    frame: pd.DataFrame, folder: Path, label: str | None = None, form: str = "csv"
) -> tuple[Draft, Plan, str]:
    """Return roles, first split and task of a table, without a trial run."""
    path = folder / f"t.{form}"
    if form == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    with closing(connect()) as connection:
        data, columns, total, relation = read_table(connection, str(path))
        table = Table(connection, data, tuple(columns), total, relation, total <= SAMPLE_ROWS)
        found = guess_roles(table, *guess_label(table, label))
        task, why = guess_task(table, found.label, found.labels)
        return found, next(iter(plans(table, found, task))), f"{task} {why}"


def people(name: str, who: np.ndarray) -> pd.DataFrame:
    """Return rows of 100 people: sex and outcome never change within one."""
    sex, died = RNG.integers(0, 2, 100)[who], RNG.integers(0, 2, 100)[who]
    return pd.DataFrame({name: who * 7 + 2000, "sex": sex, "a": A, "b": B, "died": died})


@pytest.mark.parametrize(
    "name",
    ["pid", "MRN", "Patient ID", "subject#", "case.id", "CaseID", "participant-no", "who", "id"],
)
def test_people_are_a_group_whatever_they_are_called(tmp_path: Path, name: str) -> None:
    found, plan, _ = guessed(people(name, RNG.permutation(PERSON)), tmp_path)
    assert found.columns[name].role == "group"
    assert "100 values for 600 rows; sex, died never change within one" in found.columns[name].why
    assert plan.split == "{kind: stratified_group}"


def test_people_are_a_group_without_a_telling_name(tmp_path: Path) -> None:
    frame = people("zone", PERSON).assign(zone=[f"z{p:03d}" for p in PERSON])
    assert guessed(frame, tmp_path)[0].columns["zone"].role == "group"
    alone = frame[["zone", "a", "b"]].assign(y=Y)
    found = guessed(alone, tmp_path)[0].columns["zone"]
    assert found.role == "group" and "rows of one follow each other" in found.why
    shuffled = alone.assign(zone=RNG.permutation(alone["zone"]))
    assert guessed(shuffled, tmp_path)[0].columns["zone"].role == "categorical"


def test_columns_that_agree_by_luck_make_no_group(tmp_path: Path) -> None:
    frame = pd.DataFrame({"score": RNG.integers(0, 400, N) * 3, "flag": (A > 2.5) * 1, "y": Y})
    assert guessed(frame.assign(a=A), tmp_path)[0].columns["score"].role == "numeric"


@pytest.mark.parametrize(("count", "role"), [(5, "categorical"), (17, "group")])
@pytest.mark.parametrize("kind", ["text", "number"])
def test_a_key_of_few_values_has_one_story(
    tmp_path: Path, count: int, role: str, kind: str
) -> None:
    who = RNG.integers(0, count, N) + 1
    values = who if kind == "number" else [f"h{w}" for w in who]
    found, plan, _ = guessed(pd.DataFrame({"hospital": values, "a": A, "y": Y}), tmp_path)
    assert found.columns["hospital"].role == role
    assert plan.split == ("{kind: stratified}" if count == 5 else "{kind: stratified_group}")
    assert f"{count} values" in found.columns["hospital"].why


def test_years_of_school_are_a_number_and_school_ids_a_group(tmp_path: Path) -> None:
    years = RNG.integers(6, 19, N)
    frame = pd.DataFrame({"school": years, "a": A, "wage": A + B})
    assert guessed(frame, tmp_path)[0].columns["school"].role == "numeric"
    frame = frame.rename(columns={"school": "school_id"})
    assert guessed(frame, tmp_path)[0].columns["school_id"].role == "group"


@pytest.mark.parametrize("start", [3, 2**53, 2**59])
def test_even_and_huge_whole_numbers_are_ids(tmp_path: Path, start: int) -> None:
    frame = pd.DataFrame({"record": start + 2 * np.arange(N), "a": A, "y": Y})
    found = guessed(frame, tmp_path)[0].columns["record"]
    assert (found.role, found.why) == ("id", "another value in every row, in steps of 2")


def test_a_counter_that_is_the_only_feature_stays_one(tmp_path: Path) -> None:
    found = guessed(pd.DataFrame({"t": np.arange(N), "v": np.sin(A)}), tmp_path)[0]
    assert found.columns["t"].role == "numeric"


def test_measures_are_named_like_keys_but_are_none() -> None:
    for name in ("sensor_17", "NO2", "number of rooms", "patient age", "body mass index", "num"):
        assert hint_of(name) == "", name


@pytest.mark.parametrize(
    ("texts", "expression"),
    [
        (TIMES.strftime("%d.%m.%Y %H:%M"), "strptime(seen, '%d.%m.%Y %H:%M')"),
        (TIMES.strftime("%m/%d/%Y %I:%M %p"), "strptime(seen, '%m/%d/%Y %I:%M %p')"),
        (TIMES.strftime("%Y%m%dT%H%M%S"), "strptime(seen, '%Y%m%dT%H%M%S')"),
        (TIMES.strftime("%b %d, %Y"), "strptime(seen, '%b %d, %Y')"),
        (
            [t + ("Z" if i % 2 else "") for i, t in enumerate(TIMES.strftime("%Y-%m-%dT%H:%M:%S"))],
            "cast(seen as timestamptz)",
        ),
        (TIMES.strftime("%Y%m%d").astype(int), "strptime(cast(seen as varchar), '%Y%m%d')"),
    ],
)
def test_times_in_common_forms_are_times(tmp_path: Path, texts: object, expression: str) -> None:
    found, plan, _ = guessed(pd.DataFrame({"seen": texts, "a": A, "y": Y}), tmp_path)
    assert found.derive["row_time"][0] == expression and found.time == "row_time"
    assert plan.split == "{kind: time, embargo: 1d}"


def test_offsets_nulls_and_seconds_are_no_hindrance(tmp_path: Path) -> None:
    iso = TIMES.strftime("%Y-%m-%d %H:%M:%S")
    mixed = [t + ("+01:00" if i % 2 else "+02:00") for i, t in enumerate(iso)]
    found = guessed(pd.DataFrame({"seen": mixed, "a": A, "y": Y}), tmp_path)[0]
    assert found.time == "seen"
    one_null = pd.DataFrame({"seen": iso.where(np.arange(N) != 7), "a": A, "y": Y})
    found = guessed(one_null, tmp_path)[0]
    assert found.time and found.filter == ("seen is not null", "1 row has no time and is left out")
    seconds = (TIMES - pd.Timestamp("1970-01-01")).total_seconds().astype(int)
    found, plan, _ = guessed(pd.DataFrame({"ts": seconds, "a": A, "y": Y}), tmp_path)
    assert found.columns["ts"].role == "{role: time, unit: s}"
    assert plan.split == "{kind: time, embargo: 1d}"


def test_a_date_of_birth_is_no_time_of_the_row(tmp_path: Path) -> None:
    born = pd.date_range("1950-01-01", periods=N, freq="13D").strftime("%Y-%m-%d")
    frame = pd.DataFrame({"birth_date": born, "seen": TIMES.strftime("%Y-%m-%d"), "y": Y})
    found = guessed(frame, tmp_path)[0]
    assert found.time == "seen" and "days_birth_date_to_seen" in found.derive


def test_dates_become_features(tmp_path: Path) -> None:
    gap = RNG.integers(0, 40, N)
    sent = TIMES + pd.to_timedelta(gap, "D")
    frame = pd.DataFrame({"ordered": TIMES.strftime("%Y-%m-%d"), "sent": sent.strftime("%Y-%m-%d")})
    found = guessed(frame.assign(back=(gap > 20).astype(int)), tmp_path)[0]
    assert found.time == "ordered" and found.columns["sent"].role == "date"
    assert found.columns["days_ordered_to_sent"].role == "numeric"
    (line, why) = found.checks[0]
    assert 'allow: [{check: label_proxy, column: "days_ordered_to_sent"' in line
    assert why.startswith("days_ordered_to_sent alone tells 100% of the label: remove it if")
    assert not guessed(frame.assign(back=Y), tmp_path)[0].checks
    alone = frame[["ordered"]].assign(y=Y)
    assert "ordered_season_sine" in guessed(alone, tmp_path)[0].derive
    other = frame.assign(sent=sent.strftime("%d.%m.%Y"), x=A, y=Y)
    found = guessed(other, tmp_path)[0]
    assert found.columns["sent"].role == "ignore" and found.columns["sent_date"].role == "date"
    assert found.derive["sent_date"][0] == "strptime(sent, '%d.%m.%Y')"


def test_texts_of_several_words_and_lists_are_read(tmp_path: Path) -> None:
    words = RNG.choice(["pain", "in", "the", "left", "knee", "since", "may"], (N, 6))
    frame = pd.DataFrame({"a": A, "note": [" ".join(w) for w in words], "y": Y})
    frame["name"] = [f"person {i}" for i in range(N)]
    frame["tags"] = [list(w[: i % 4]) for i, w in enumerate(words)]
    found = guessed(frame, tmp_path, form="parquet")[0].columns
    assert found["note"].role == "text" and found["note"].why.startswith("6 words a row")
    assert found["tags"].role == "set" and found["name"].role in ("ignore", "id")


def test_siblings_of_two_values_and_nulls_are_several_labels(tmp_path: Path) -> None:
    tests = {
        f"t{i}": np.where(RNG.random(N) < 0.4, np.nan, RNG.integers(0, 2, N)) for i in range(17)
    }
    found, plan, task = guessed(pd.DataFrame({"a": A, "b": B, **tests}), tmp_path)
    assert len(found.labels) == 17 and plan.split == "{kind: random}"
    assert task.startswith("{kind: multilabel} 17 columns of the same two values, 40%")


def test_a_weight_is_a_weight_and_spellings_of_a_class_are_joined(tmp_path: Path) -> None:
    answer = RNG.choice(["Yes", "yes", "YES ", "No"], N)
    weight = RNG.uniform(0.5, 2, N)
    found, _, task = guessed(
        pd.DataFrame({"a": A, "sample_weight": weight, "answer": answer}), tmp_path
    )
    assert found.columns["sample_weight"].role == "weight"
    assert found.columns["answer_spelt_once"].role == "label"
    expression, why = found.derive["answer_spelt_once"]
    assert expression == "lower(trim(answer))" and why.startswith("4 spellings of 2 values: 'YES '")
    assert task.startswith('{kind: binary, positive: "yes"}')


def test_a_nearly_empty_column_stays_if_it_tells_the_label(tmp_path: Path) -> None:
    rows = 5000
    y = (np.arange(rows) % 9 == 0).astype(int)
    given, idle = np.full(rows, np.nan), np.full(rows, np.nan)
    given[np.flatnonzero(y)[:60]] = 1.5
    idle[RNG.choice(rows, 60)] = RNG.normal(size=60)
    frame = pd.DataFrame({"a": RNG.normal(size=rows), "given": given, "idle": idle, "y": y})
    found = guessed(frame, tmp_path)[0].columns
    assert (
        found["given"].role == "numeric" and "the label is 1 on average where" in found["given"].why
    )
    assert (found["idle"].role, found["idle"].why) == ("ignore", "99% null")


def test_the_last_column_is_only_named_so_if_it_is_the_last(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": A, "result": Y, "comment": [f"said {i} {i * 7}" for i in range(N)]})
    why = guessed(frame, tmp_path)[0].columns["result"].why
    assert "(the last, comment, is text of 600 values)" in why
    why = guessed(frame[["a", "result"]], tmp_path)[0].columns["result"].why
    assert why == "the last column, for want of a telling name; others that could be: a"


def test_names_that_sql_reads_otherwise_are_quoted(tmp_path: Path) -> None:
    frame = pd.DataFrame({"null": A, "select": B, "at": TIMES.strftime("%d.%m.%Y"), "y": Y})
    found = guessed(frame, tmp_path)[0]
    assert found.derive["row_time"][0] == "strptime(\"at\", '%d.%m.%Y')"
    (tmp_path / "t.csv").write_text("null,y\n" + "".join(f"{i * 1.5},{i % 2}\n" for i in range(60)))
    assert "null_values" not in draft(str(tmp_path / "t.csv"))


def test_molecules_are_grouped_only_where_that_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smiles = ["C" * (i % 30 + 1) + "O" * (i // 30 + 1) for i in range(N)]
    frame = pd.DataFrame({"smiles": smiles, "a": A, "y": Y})
    found = guessed(frame, tmp_path)[0]
    assert found.molecules is not None and "invalid: null" in found.columns["smiles"].role
    monkeypatch.setitem(sys.modules, "rdkit", None)  # as where the extra is not installed
    found = guessed(frame, tmp_path)[0]
    assert found.molecules is None and "with the extra chem (RDKit)" in found.columns["smiles"].why


@pytest.mark.parametrize(
    ("name", "texts", "role"),
    [
        ("drug", ["C" * (i % 30 + 1) + "O" * (i // 30 + 6) for i in range(N)], "{kind: smiles, sm"),
        ("smiles", [*(["C1CC"] * 6), *("C" * (i + 1) for i in range(N - 6))], "{kind: smiles, sm"),
        ("code", [["CO", "IN", "CN", "OCC"][i % 4] for i in range(N)], "categorical"),
        ("plate", [f"B{i:05d}X" for i in range(N)], "id"),
    ],
)
def test_a_column_is_read_as_molecules_only_where_its_texts_are(
    tmp_path: Path, name: str, texts: list[str], role: str
) -> None:
    found = guessed(pd.DataFrame({name: texts, "a": A, "y": Y}), tmp_path)[0]
    assert found.columns[name].role.startswith(role)


@pytest.mark.long
def test_facts_of_a_large_table_are_checked_in_all_rows(tmp_path: Path) -> None:
    rows = SAMPLE_ROWS + 5000
    ids = np.arange(rows)
    ids[-1] = 0  # twice: no id, which a sample need not show
    frame = pd.DataFrame({"record_id": ids, "a": RNG.normal(size=rows), "y": ids % 2})
    frame.to_parquet(tmp_path / "t.parquet")
    assert "record_id: group" in draft(str(tmp_path / "t.parquet"))
    frame.assign(record_id=np.arange(rows)).to_parquet(tmp_path / "t.parquet")
    assert "record_id: id" in draft(str(tmp_path / "t.parquet"))


def test_a_heart_rate_is_no_hour(tmp_path: Path) -> None:
    frame = pd.DataFrame({"max HR": RNG.integers(70, 160, N), "hr": RNG.integers(0, 24, N)})
    frame["totchr"], frame["y"] = RNG.integers(0, 9, N), Y
    found = guessed(frame, tmp_path, "y")[0].columns
    assert [found[n].role for n in ("max HR", "hr", "totchr")] == [
        "numeric",
        "categorical",
        "numeric",
    ]


def test_texts_of_numbers_are_no_words(tmp_path: Path) -> None:
    corners = RNG.normal(size=(N, 20)).round(5).astype(str)
    words = np.array(["fever", "and", "cough", "since", "two", "days", "or", "more"])
    frame = pd.DataFrame({"a": A, "y": Y})
    frame["shape"] = [f"POLYGON (({' '.join(numbers)}))" for numbers in corners]
    frame["note"] = [" ".join(RNG.choice(words, 9)) + f" {i} mg" for i in range(N)]
    found = guessed(frame, tmp_path, "y")[0].columns
    assert found["shape"].role == "ignore" and "numbers or codes a row" in found["shape"].why
    assert found["note"].role == "text"


def test_spaces_around_the_name_of_the_label_do_not_hide_it(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": A, " price": B})
    assert guessed(frame, tmp_path, "price")[0].label.name == " price"
