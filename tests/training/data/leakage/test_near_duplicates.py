"""D6: near-copies and interpolated rows are found against the rate inside train; tables of few
values raise no finding.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.training.data.leakage.planted import honest_table, named, results_for, shares

NUMERIC = ["x0", "x1", "x2", "x3"]


def with_copies(
    parts: dict[str, pd.DataFrame], number: int, noise: float
) -> dict[str, pd.DataFrame]:
    """The first test rows made of the first train rows, with noise."""
    test, rng = parts["test"].copy(), np.random.default_rng(1)
    copied = parts["train"].iloc[:number]
    for column in [*NUMERIC, "coarse", "dose", "ward", "y"]:
        moved = (
            copied[column].to_numpy()
            if column not in NUMERIC
            else copied[column] + noise * rng.normal(size=number)
        )
        test.iloc[:number, test.columns.get_loc(column)] = np.asarray(moved)
    return {**parts, "test": test}


@pytest.mark.req("D6")
@pytest.mark.parametrize(("number", "noise"), [(3, 1e-4), (5, 5e-3), (45, 0.02)])
def test_copies_with_noise_stop_the_run(number: int, noise: float) -> None:
    [found] = named(
        results_for(with_copies(shares(honest_table()), number, noise)), "near_duplicates"
    )
    assert (
        found.verdict == "fail"
        and found.figures["rows"] >= number
        and found.figures["null_rows"] == 0
    )
    assert (
        f"{found.figures['rows']} of 900 sampled held-out rows are near one train row"
        in found.summary
    )
    assert (
        found.evidence[0]["test_id"] != found.evidence[0]["train_id"]
        and "x0 train" in found.evidence[0]
    )


@pytest.mark.req("D6")
def test_a_single_copy_gives_a_warning() -> None:
    [found] = named(results_for(with_copies(shares(honest_table()), 1, 1e-3)), "near_duplicates")
    assert found.verdict == "warn" and found.figures["rows"] == 1 and len(found.evidence) == 1


def calls(rows: int = 3000) -> pd.DataFrame:
    """A table of settings and skewed amounts, of which only two are finely measured."""
    rng = np.random.default_rng(8)
    frame = honest_table(rows)[["__id", "__group", "__time", "ward", "y"]]
    amounts = {
        "balance": np.exp(6 + 1.5 * rng.normal(size=rows)).round(2),
        "since": np.where(rng.random(rows) < 0.8, -1.0, rng.uniform(0, 400, rows).round(1)),
    }
    settings = {
        "age": rng.integers(20, 80, rows) * 1.0,
        "day": rng.integers(1, 31, rows) * 1.0,
        "job": rng.choice(list("abcdefghijkl"), rows),
    }
    return frame.assign(**amounts, **settings)


@pytest.mark.req("D6")
def test_copies_in_a_table_of_settings_and_skewed_amounts_stop_the_run() -> None:
    parts = shares(calls())
    assert named(results_for(parts), "near_duplicates")[0].verdict == "pass"
    test, source, rng = parts["test"].copy(), parts["train"].iloc[:20], np.random.default_rng(1)
    for column in ("balance", "since", "age", "day", "job", "ward", "y"):
        shaken = column in ("balance", "since", "age")
        moved = (
            source[column] + 0.03 * parts["train"][column].std() * rng.normal(size=20)
            if shaken
            else source[column]
        )
        test.iloc[:20, test.columns.get_loc(column)] = np.asarray(moved)
    [found] = named(results_for({**parts, "test": test}), "near_duplicates")
    assert found.verdict == "fail" and int(str(found.figures["rows"])) >= 10


@pytest.mark.req("D6")
def test_one_column_of_whole_numbers_says_nothing_of_what_lies_between_them() -> None:
    rng = np.random.default_rng(5)
    frame = honest_table(1500)[["__id", "__group", "__time", "y"]].assign(
        length=rng.normal(800, 200, 1500).round()
    )
    for seed in range(5):
        assert named(results_for(shares(frame, seed)), "near_duplicates")[0].verdict == "pass"


@pytest.mark.req("D6")
@pytest.mark.parametrize("gaps", [False, True])
def test_rows_between_two_train_rows_stop_the_run(gaps: bool) -> None:
    parts = shares(
        honest_table()
        if gaps
        else honest_table().assign(dose=lambda f: f["dose"].fillna(f["x0"].abs()))
    )
    train, test = parts["train"], parts["test"].copy()
    mixed = [*NUMERIC, "dose"]
    points = train[mixed].to_numpy()
    for i in range(5):
        near = np.argsort(
            np.nan_to_num(((points - points[i]) / np.nanstd(points, axis=0)) ** 2).sum(axis=1)
        )[1 + i]
        test.iloc[i, [test.columns.get_loc(c) for c in mixed]] = points[i] + 0.4 * (
            points[near] - points[i]
        )
    [found] = named(results_for({**parts, "test": test}), "interpolated_rows")
    assert (
        found.verdict == "fail"
        and found.figures["rows"] >= 4
        and "second_train_id" in found.evidence[0]
    )


@pytest.mark.req("D6")
def test_a_table_of_few_values_raises_no_alarm() -> None:
    rng = np.random.default_rng(2)
    frame = honest_table().assign(
        **{c: rng.integers(0, 3, 3000).astype(float) for c in NUMERIC}, dose=1.0
    )
    assert {
        r.verdict
        for r in results_for(shares(frame))
        if r.name in ("near_duplicates", "interpolated_rows")
    } == {"pass"}


@pytest.mark.req("D6")
def test_rows_of_one_group_may_be_alike_as_long_as_the_group_stays_whole() -> None:
    frame = honest_table(groups=300)
    frame[NUMERIC] = frame.groupby("__group")[NUMERIC].transform(
        "first"
    ) + 1e-3 * np.random.default_rng(3).normal(size=(3000, 4))
    assert named(results_for(shares(frame)), "near_duplicates")[0].verdict == "pass"
