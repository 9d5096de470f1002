"""D6: look-ahead windows, pooled statistics, shared moments, row order and copied texts are found;
honest forms of each pass.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from schemas.records import CheckResult
from tests.training.data.leakage.planted import honest_table, named, results_for, shares, sides_for
from training.data.leakage.sampled import sampled
from training.data.leakage.shared_times import shared_time_results
from training.data.leakage.text_copies import find_text_copies, judge_text_copies

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Each test draws the same numbers, whichever run before it."""
    RNG.bit_generator.state = np.random.default_rng(11).bit_generator.state


def series(rows: int = 3000, seed: int = 5) -> pd.DataFrame:
    """Hours of one series: a label that remembers its last value, and features known in time."""
    rng = np.random.default_rng(seed)
    label, shocks = np.zeros(rows), rng.normal(size=rows)
    for i in range(1, rows):
        label[i] = 0.8 * label[i - 1] + shocks[i]
    return honest_table(rows, seed, "regression", hours=True).assign(
        y=label, last=np.concatenate([[0.0], label[:-1]])
    )


# ------------------------------------------------------------------------------------------
# look-ahead


@pytest.mark.req("D6")
def test_windows_over_the_past_pass() -> None:
    frame = series()
    frame["mean_of_last"] = frame["y"].shift(1).rolling(5, min_periods=1).mean().fillna(0.0)
    assert [r.verdict for r in named(results_for(shares(frame), "regression"), "look_ahead")] == [
        "pass"
    ]


@pytest.mark.req("D6")
@pytest.mark.parametrize(("window", "verdict"), [(1, "fail"), (5, "fail")])
def test_windows_over_the_future_stop_the_run(window: int, verdict: str) -> None:
    frame = series()
    frame["ahead"] = (
        frame["y"][::-1].rolling(window, min_periods=1).mean()[::-1].shift(-1).fillna(0.0)
    )
    found = named(results_for(shares(frame), "regression"), "look_ahead")
    assert [(r.verdict, r.columns) for r in found] == [
        (verdict, ("ahead",))
    ] and f"next {window} values of 'y'" in found[0].summary
    assert len(found[0].evidence) == 5 and all(
        e["ahead"] == pytest.approx(e["y after"]) for e in found[0].evidence
    )


@pytest.mark.req("D6")
def test_a_centred_window_with_noise_gives_a_warning() -> None:
    frame = series()
    frame["around"] = frame["y"].shift(-1).fillna(0.0) + 0.8 * RNG.normal(size=len(frame))
    assert [
        (r.verdict, r.columns)
        for r in named(results_for(shares(frame), "regression"), "look_ahead")
    ] == [("warn", ("around",))]


@pytest.mark.req("D6")
def test_windows_of_entities_that_were_not_declared_are_found() -> None:
    days, devices = 200, 15
    level = np.zeros((days, devices))
    for t in range(1, days):
        level[t] = 0.9 * level[t - 1] + RNG.normal(size=devices)
    frame = honest_table(days * devices, task="regression", hours=True).assign(
        y=level.ravel(), device=np.tile([f"d{i}" for i in range(devices)], days)
    )
    frame["__time"] = np.repeat(np.arange(days) * 86400.0, devices)
    assert named(results_for(shares(frame), "regression"), "look_ahead")[0].figures["columns"] > 0
    frame["ahead"] = (
        frame.groupby("device")["y"]
        .transform(lambda y: y[::-1].rolling(3, min_periods=1).mean()[::-1].shift(-1))
        .fillna(0.0)
    )
    found = named(results_for(shares(frame), "regression"), "look_ahead")
    assert [(r.verdict, r.columns) for r in found] == [("fail", ("ahead",))]
    without = named(results_for(shares(frame.drop(columns="device")), "regression"), "look_ahead")
    assert without[0].verdict == "pass" and without[0].summary.startswith("not decided")


# ---------------------------------------------------------------------------------- pooled
# statistics


def pooled(
    columns: dict[str, np.ndarray], task: str = "binary", **options: object
) -> list[CheckResult]:
    return results_for(shares(honest_table(task=task).assign(**columns), **options), task)  # type: ignore[arg-type]


@pytest.mark.req("D6")
def test_a_column_scaled_over_all_rows_stops_the_run_and_one_scaled_over_train_passes() -> None:
    frame = honest_table()
    raw = RNG.gamma(2, 2, len(frame))
    train = frame.index.isin(shares(frame)["train"].index)
    for values, verdict in (
        ((raw - raw.mean()) / raw.std(), "fail"),
        ((raw - raw[train].mean()) / raw[train].std(), "pass"),
    ):
        found = named(results_for(shares(frame.assign(size=values))), "pooled_scaling")
        assert [(r.verdict, r.columns) for r in found] == [
            (verdict, ("size",) if verdict == "fail" else ())
        ]
    assert found[0].summary == "no column is scaled by statistics of all sides"


@pytest.mark.req("D6")
def test_a_range_that_only_held_out_rows_reach_stops_the_run() -> None:
    frame = honest_table()
    raw = RNG.normal(size=len(frame))
    raw[frame.index.get_loc(shares(frame)["test"].index[0])] = 9.0
    found = named(
        results_for(shares(frame.assign(size=(raw - raw.min()) / (raw.max() - raw.min())))),
        "pooled_scaling",
    )
    assert [(r.verdict, r.columns) for r in found] == [
        ("fail", ("size",))
    ] and "range 0 to 1" in found[0].summary
    assert (
        found[0].evidence[0]["over all sides"] == 1.0 and found[0].evidence[0]["over train"] < 1.0
    )


@pytest.mark.req("D6")
@pytest.mark.parametrize(("statistic", "verdict"), [(np.nanmean, "fail"), (np.nanmedian, "warn")])
def test_gaps_filled_with_a_statistic_of_all_rows_are_found(
    statistic: object, verdict: str
) -> None:
    # numbers by which train's median is not by chance that of all rows
    frame, rng = (honest_table(), np.random.default_rng(4))
    raw = np.where(rng.random(len(frame)) < 0.2, np.nan, rng.gamma(2, 2, len(frame)))
    train = frame.index.isin(shares(frame)["train"].index)
    for known, expected in ((raw, verdict), (raw[train], "pass")):
        found = named(
            results_for(shares(frame.assign(size=np.where(np.isnan(raw), statistic(known), raw)))),
            "pooled_fill",
        )  # type: ignore[operator]
        assert [r.verdict for r in found] == [expected]


@pytest.mark.req("D6")
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_target_codes_of_all_rows_stop_the_run_and_those_of_train_pass(task: str) -> None:
    frame = honest_table(task=task)
    town = RNG.integers(0, 120, len(frame))
    value = (
        frame["y"].astype("category").cat.codes.to_numpy(dtype=float)
        if task == "multiclass"
        else frame["y"].to_numpy(dtype=float)
    )
    train = frame.index.isin(shares(frame)["train"].index)
    means = {
        "fail": pd.Series(value).groupby(town).mean().reindex(range(120)),
        "pass": (
            pd.Series(value[train])
            .groupby(town[train])
            .mean()
            .reindex(range(120))
            .fillna(value[train].mean())
        ),
    }
    for verdict, codes in means.items():
        found = named(
            results_for(shares(frame.assign(town=codes.to_numpy()[town])), task),
            "pooled_target_codes",
        )
        assert [(r.verdict, r.columns) for r in found] == [
            (verdict, ("town",) if verdict == "fail" else ())
        ]


@pytest.mark.req("D6")
def test_mean_labels_of_test_groups_stop_the_run() -> None:
    frame = honest_table(task="regression", groups=300)
    frame["level"] = frame.groupby("__group")["y"].transform("mean")
    found = named(results_for(shares(frame), "regression"), "pooled_target_codes")
    assert [(r.verdict, r.columns) for r in found] == [
        ("fail", ("level",))
    ] and "values that no train row has" in found[0].summary
    assert all(e["level"] == pytest.approx(e["mean y"], rel=1e-5) for e in found[0].evidence)


# ---------------------------------------------------------------------------------------- row order


@pytest.mark.req("D6")
def test_ids_given_in_the_order_of_the_label_are_found() -> None:
    frame = honest_table(task="regression")
    assert [r.verdict for r in named(results_for(shares(frame), "regression"), "id_order")] == [
        "pass"
    ]
    place = frame["y"].rank(method="first").astype(int)
    found = named(
        results_for(shares(frame.assign(__id=[f"K{p:05d}" for p in place])), "regression"),
        "id_order",
    )
    assert [(r.verdict, r.columns) for r in found] == [
        ("warn", ("id",))
    ] and "rows are in the order of the label" in found[0].summary
    counted = named(
        results_for(shares(frame.assign(number=place.astype(float))), "regression"), "row_order"
    )
    assert [(r.verdict, r.columns) for r in counted] == [("warn", ("number",))]


# ------------------------------------------------------------------------------------ shared
# moments


@pytest.mark.req("D6")
@pytest.mark.parametrize(("together", "verdict"), [(3.0, "fail"), (0.9, "warn"), (0.0, "pass")])
def test_stations_of_one_hour_on_two_sides_are_found_where_their_labels_move_together(
    together: float, verdict: str
) -> None:
    hours, stations = 400, 8
    frame = honest_table(hours * stations, task="regression", groups=stations)
    frame["__group"], frame["__time"] = (
        np.repeat([f"s{i}" for i in range(stations)], hours),
        np.tile(np.arange(hours) * 3600.0, stations),
    )
    frame["y"] += together * np.tile(3 * RNG.normal(size=hours), stations)
    with sides_for(shares(frame), "regression") as sides:
        timed = sides._replace(spec=sides.spec.model_copy(update={"time_is_timestamp": True}))
        [found] = shared_time_results(timed)
        assert shared_time_results(sides) == []  # a number counts from each station's own beginning
    assert found.verdict == verdict
    if verdict == "fail":
        assert (
            found.columns == ("at", "unit")
            and "under other groups" in found.summary
            and "group_time" in found.remedy
            and found.evidence
        )


# ------------------------------------------------------------------------------------------- texts


WORDS = np.array([f"word{i}" for i in range(3000)])


def with_text(name: str, texts: list[str]) -> pd.DataFrame:
    return honest_table(len(texts)).assign(**{name: texts})


def text_results(frame: pd.DataFrame, change: dict[int, str], column: str) -> list[CheckResult]:
    """The first test rows get changed texts of the first train rows."""
    parts = shares(frame)
    test = parts["test"].copy()
    for i, text in change.items():
        test.iloc[i, test.columns.get_loc(column)] = text
    with sides_for({**parts, "test": test}, "binary") as sides:
        return judge_text_copies(find_text_copies(sides, sampled(sides)), sides.declaration.checks)


@pytest.mark.req("D6")
def test_texts_in_another_case_and_with_words_changed_stop_the_run() -> None:
    texts = [" ".join(RNG.choice(WORDS, 40)) for _ in range(1000)]
    frame = with_text("note", texts)
    train = shares(frame)["train"]["note"].tolist()
    assert [r.verdict for r in text_results(frame, {}, "note")] == ["pass"]
    [found] = text_results(frame, {i: f"  {train[i].upper()} !" for i in range(6)}, "note")
    assert (
        found.verdict == "fail"
        and found.columns == ("note",)
        and "6 of 300 held-out rows have the 'note' of a train row in another form" in found.summary
    )
    reworded = {i: " ".join(w for j, w in enumerate(train[i].split()) if j % 17) for i in range(6)}
    [found] = text_results(frame, reworded, "note")
    assert (
        found.verdict == "fail"
        and "equal word triples" in found.summary
        and found.evidence[0]["train"]
    )


@pytest.mark.req("D6")
def test_molecules_in_another_spelling_give_a_warning_with_their_conflicting_labels() -> None:
    pytest.importorskip(
        "rdkit", reason="canonical SMILES need RDKit (pip install 'bulkhead[chem]')"
    )
    chains = [
        "C" * a + end + "C" * b
        for a in range(1, 20)
        for b in range(1, 20)
        for end in ("O", "N", "S", "C(=O)")
    ]
    frame = with_text("smiles", chains[:1200])
    train = shares(frame)["train"]["smiles"].tolist()
    found = text_results(
        frame, {i: train[i][::-1].replace(")O=(C", "C(=O)") for i in range(4)}, "smiles"
    )
    assert (
        found[0].columns == ("smiles",)
        and found[0].verdict in ("warn", "fail")
        and "equal canonical SMILES" in found[0].summary
    )
    assert found[0].figures["label_conflicts"] is not None


@pytest.mark.req("D6")
def test_one_small_molecule_in_another_spelling_gives_a_warning_and_none_passes() -> None:
    pytest.importorskip(
        "rdkit", reason="canonical SMILES need RDKit (pip install 'bulkhead[chem]')"
    )
    frame = with_text(
        "smiles",
        [
            "C" * a + end + "C" * b
            for a in range(1, 24)
            for b in range(a + 1, 24)
            for end in ("O", "N", "S", "C(=O)")
        ],
    )
    small = next(
        text for text in shares(frame)["train"]["smiles"] if len(text) < 10 and "(" not in text
    )
    assert [r.verdict for r in text_results(frame, {}, "smiles")] == ["pass"]
    [found] = text_results(frame, {0: small[::-1]}, "smiles")
    assert (found.verdict, found.figures["rows"]) == (
        "warn",
        1,
    ) and "equal canonical SMILES" in found.summary
