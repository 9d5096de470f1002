"""D6: columns that give the label away are named; honest tables raise no finding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from tests.training.data.leakage.planted import flagged, honest_table, named, results_for, shares

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Each test draws the same numbers, whichever run before it."""
    RNG.bit_generator.state = np.random.default_rng(7).bit_generator.state


Plant = Callable[[pd.DataFrame], pd.Series]


def rank(frame: pd.DataFrame) -> np.ndarray:
    return (
        frame["y"].astype("category").cat.codes.to_numpy()
        if not pd.api.types.is_numeric_dtype(frame["y"])
        else frame["y"].to_numpy(dtype=float)
    )


@pytest.mark.req("D6")
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize(
    "shape", [{}, {"groups": 300}, {"hours": True}], ids=["random", "group", "time"]
)
def test_honest_tables_raise_no_alarm(task: str, shape: dict) -> None:
    assert flagged(results_for(shares(honest_table(task=task, **shape)), task)) == {}


PROXIES: dict[str, Plant] = {
    "copy": lambda f: pd.Series(rank(f), index=f.index),
    "renamed": lambda f: pd.Series(rank(f), index=f.index).map(lambda v: f"code-{hash(v) % 997}"),
    "sign turned": lambda f: pd.Series(-3.0 * rank(f) + 4, index=f.index),
    "noise of a hundredth": lambda f: pd.Series(
        rank(f) + 0.01 * np.std(rank(f)) * RNG.normal(size=len(f)), index=f.index
    ),
}


@pytest.mark.req("D6")
@pytest.mark.parametrize(
    ("task", "plant"),
    # A text for each number of a regression hardly repeats, so it says nothing about other rows.
    [
        (task, plant)
        for task in ("binary", "multiclass", "regression")
        for plant in PROXIES
        if (task, plant) != ("regression", "renamed")
    ],
)
def test_the_label_under_another_name_stops_the_run(task: str, plant: str) -> None:
    frame = honest_table(task=task)
    found = named(
        results_for(shares(frame.assign(alias=PROXIES[plant](frame))), task), "label_proxy"
    )
    assert [(r.verdict, r.columns) for r in found] == [("fail", ("alias",))]
    assert (
        found[0].summary.startswith("column 'alias' predicts 'y' by itself as if it were the label")
        and found[0].evidence
        and found[0].remedy
    )


@pytest.mark.req("D6")
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_column_without_which_little_is_known_gives_a_warning(task: str) -> None:
    frame = honest_table(task=task)
    after = (rank(frame) - rank(frame).mean()) / rank(frame).std() + (
        0.6 if task == "regression" else 1.0
    ) * RNG.normal(size=len(frame))
    found = named(results_for(shares(frame.assign(after=after)), task), "label_proxy")
    assert [(r.verdict, r.columns) for r in found] == [
        ("warn", ("after",))
    ] and "than all other columns together" in found[0].summary


@pytest.mark.req("D6")
@pytest.mark.parametrize("form", ["sum", "product"])
def test_columns_that_add_up_or_multiply_to_the_label_are_named_together(form: str) -> None:
    frame = honest_table(task="regression").assign(y=lambda f: np.exp(f["y"] / 10))
    part = RNG.uniform(0.2, 0.8, len(frame))
    parts = (
        {"paid": frame["y"] * part, "owed": frame["y"] * (1 - part)}
        if form == "sum"
        else {"price": frame["y"] * part, "number": 1 / part}
    )
    found = named(results_for(shares(frame.assign(**parts)), "regression"), "label_combination")
    assert [(r.verdict, set(r.columns)) for r in found] == [
        ("fail", set(parts))
    ] and "give 'y' exactly" in found[0].summary


@pytest.mark.req("D6")
def test_factors_of_the_label_are_named_though_some_rows_lack_one() -> None:
    frame = honest_table(task="regression").assign(y=lambda f: np.exp(f["y"] / 10))
    number = RNG.uniform(2, 5, len(frame))
    parts = {"price": frame["y"] / number, "number": number}
    parts["number"][:20], parts["price"][20:40] = np.nan, 0.0
    found = named(results_for(shares(frame.assign(**parts)), "regression"), "label_combination")
    assert [(r.verdict, set(r.columns)) for r in found] == [("fail", set(parts))]


@pytest.mark.req("D6")
def test_a_measurement_that_one_cut_divides_by_class_stops_the_run_of_few_rows() -> None:
    frame = honest_table(task="binary").iloc[:190].reset_index(drop=True)
    far = np.where(frame["y"] == 1, 1, -1) * RNG.uniform(0.02, 2, len(frame))
    found = named(results_for(shares(frame.assign(weight=far)), "binary"), "label_proxy")
    assert [(r.verdict, r.columns) for r in found] == [("fail", ("weight",))]
    far[0] *= -1  # one row on the other side: a good column, or a rounded one
    found = named(results_for(shares(frame.assign(weight=far)), "binary"), "label_proxy")
    assert [r.verdict for r in found] in ([], ["warn"])


@pytest.mark.req("D6")
def test_a_column_that_equals_another_by_class_is_named() -> None:
    frame = honest_table(task="multiclass")
    costs = pd.DataFrame(RNG.uniform(1, 9, (len(frame), 3)), columns=["bus", "car", "walk"])
    chosen = costs.to_numpy()[np.arange(len(frame)), rank(frame).astype(int) % 3]
    table = pd.concat([frame, costs], axis=1)
    found = named(results_for(shares(table.assign(cost=chosen)), "multiclass"), "label_combination")
    assert [(r.verdict, r.columns) for r in found] == [("fail", ("cost",))]
    assert "in the rows of some values of 'y' alone" in found[0].summary
    some = np.where(RNG.random(len(frame)) < 0.4, costs["bus"], chosen[::-1])  # by chance
    found = named(results_for(shares(table.assign(cost=some)), "multiclass"), "label_combination")
    assert [r.verdict for r in found] in ([], ["pass"])


def in_two_parts(frame: pd.DataFrame, wrong: float = 0.0) -> pd.DataFrame:
    """Two columns that say little each and whose sum is high for one class, but for a share of the
    rows.
    """
    side = np.where((frame["y"] == 1) ^ (RNG.random(len(frame)) < wrong), 1, -1) * RNG.uniform(
        0.3, 1, len(frame)
    )
    noise = 2 * RNG.normal(size=len(frame))
    return frame.assign(noise=noise, rest=side - noise)


@pytest.mark.req("D6")
def test_a_class_in_two_parts_is_found_and_fails_where_it_is_sure() -> None:
    cases = (
        ("fail", honest_table(), 0.0),
        ("warn", honest_table(), 0.003),
        ("warn", honest_table(groups=60), 0.0),
    )  # sixty groups are few
    for verdict, frame, wrong in cases:
        found = named(results_for(shares(in_two_parts(frame, wrong))), "label_combination")
        assert [(r.verdict, set(r.columns)) for r in found] == [(verdict, {"noise", "rest"})]
        assert "columns 'noise', 'rest' give 'y' by the size of" in found[0].summary


@pytest.mark.req("D6")
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_many_good_columns_that_tell_a_class_together_are_no_alarm(task: str) -> None:
    frame = honest_table(task=task, groups=40)
    known = {
        f"sensor{i}": rank(frame) / np.std(rank(frame)) + 1.5 * RNG.normal(size=len(frame))
        for i in range(25)
    }
    # what sensors have in common makes them no parts of one number
    shared = RNG.normal(size=len(frame))
    assert "label_combination" not in flagged(
        results_for(shares(frame.assign(**{n: v + 0.5 * shared for n, v in known.items()})), task)
    )


@pytest.mark.req("D6")
def test_nulls_that_tell_the_label_are_found() -> None:
    frame = honest_table()
    frame["discharge"] = np.where(frame["y"] == 1, RNG.normal(size=len(frame)), np.nan)
    assert [
        (r.verdict, r.columns) for r in named(results_for(shares(frame)), "label_missingness")
    ] == [("fail", ("discharge",))]
    mostly = np.where(
        (frame["y"] == 1) ^ (RNG.random(len(frame)) < 0.08), RNG.normal(size=len(frame)), np.nan
    )
    assert [
        (r.verdict, r.columns)
        for r in named(results_for(shares(frame.assign(discharge=mostly))), "label_missingness")
    ] == [("warn", ("discharge",))]


@pytest.mark.req("D6")
@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_an_amount_that_is_written_after_one_outcome_is_found(task: str) -> None:
    frame = honest_table(task=task)
    after = (
        rank(frame) > np.quantile(rank(frame), 0.7)
        if task == "regression"
        else frame["y"] == "high"
    )
    frame["paid"] = np.where(after, RNG.gamma(2, 50, len(frame)), 0.0)
    found = [
        r
        for r in named(results_for(shares(frame), task), "label_missingness")
        if r.verdict != "pass"
    ]
    assert [r.columns for r in found] == [("paid",)] and "whether 'paid' is 0" in found[0].summary


@pytest.mark.req("D6")
def test_a_value_that_only_the_rarer_class_has_gives_a_warning() -> None:
    frame = honest_table()
    frame["ward"] = np.where((frame["y"] == 1) & (RNG.random(len(frame)) < 0.1), "z", frame["ward"])
    found = named(results_for(shares(frame)), "pure_values")
    assert [(r.verdict, r.columns) for r in found] == [
        ("warn", ("ward",))
    ] and "'ward' = 'z'" in found[0].summary


@pytest.mark.req("D6")
def test_a_dozen_rows_of_one_class_are_found_and_the_end_of_a_scale_is_none() -> None:
    frame = honest_table()
    ups = np.flatnonzero(frame["y"] == 1)[:12]
    ward = frame["ward"].to_numpy(dtype=object, copy=True)
    ward[ups] = "annex"
    found = named(results_for(shares(frame.assign(ward=ward))), "pure_values")
    assert [(r.verdict, r.columns) for r in found] == [
        ("warn", ("ward",))
    ] and "all 12 sampled rows with 'ward' = 'annex'" in found[0].summary
    ward[ups[:2]] = "b"
    ward[np.flatnonzero(frame["y"] == 0)[0]] = "annex"  # one row of the other class
    assert named(results_for(shares(frame.assign(ward=ward))), "pure_values")[0].verdict == "pass"
    scale = np.clip(np.round(3 * frame["y"] + 1.5 * RNG.normal(size=len(frame)) + 4), 0, 9)
    assert (frame["y"][scale >= 8] == 1).all() or (frame["y"][scale <= 0] == 0).all()
    assert named(results_for(shares(frame.assign(scale=scale))), "pure_values")[0].verdict == "pass"


@pytest.mark.req("D6")
def test_numbers_that_equal_the_label_in_some_rows_give_a_warning_and_in_most_stop_the_run() -> (
    None
):
    frame = honest_table(task="regression")
    for share, verdict in ((0.01, "warn"), (0.6, "fail")):
        copied = np.where(
            RNG.random(len(frame)) < share, frame["y"], RNG.permutation(frame["y"]) + 0.001
        )
        found = named(results_for(shares(frame.assign(seen=copied)), "regression"), "equal_values")
        assert [(r.verdict, r.columns) for r in found] == [(verdict, ("seen",))]


@pytest.mark.req("D6")
def test_a_finding_is_allowed_for_its_column_alone() -> None:
    frame = honest_table().assign(first=lambda f: f["y"], second=lambda f: 1 - f["y"])
    allow = [
        {"check": "label_proxy", "column": "first", "reason": "known when the prediction is made"}
    ]
    verdicts = {
        r.columns[0]: r.verdict
        for r in named(results_for(shares(frame), allow=allow), "label_proxy")
    }
    assert verdicts == {"first": "allowed", "second": "fail"}


@pytest.mark.req("D6")
def test_figures_depend_on_neither_row_order_nor_threads() -> None:
    frame = honest_table(task="regression").assign(after=lambda f: f["y"] + RNG.normal(size=len(f)))
    parts = shares(frame)
    turned = {side: part.sample(frac=1, random_state=3) for side, part in parts.items()}
    assert results_for(parts, "regression") == results_for(turned, "regression")
