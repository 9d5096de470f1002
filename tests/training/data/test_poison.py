"""D6, D7: whatever is fitted on held-out rows changes when they are corrupted, and nothing else
does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileTransformer,
    StandardScaler,
    TargetEncoder,
)

import training.preflight.poisoned_fit as stages
from schemas.records import SplitTables, TrainTable
from tests.training.data.chain import declared, split_of, write_table
from tests.training.data.sides import spec_of
from training.data.fit.normalize import fit
from training.data.leakage.poison import digests, poison, poison_result

ROWS = 120
SPEC = spec_of(numeric=("x0", "x1", "x2"), categorical=("c",))
X = ["x0", "x1", "x2"]


def rows(seed: int, count: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "__id": [f"{seed}-{i}" for i in range(count)],
        **{n: rng.normal(size=count) for n in X},
    }
    columns["x2"] = np.where(rng.random(count) < 0.1, np.nan, columns["x2"])
    columns["c"] = rng.choice(["a", "b", "c"], count)
    columns["y"] = (columns["x0"] + rng.normal(size=count) > 0).astype(np.int64)
    return pa.table(columns)


def frames(train: pa.Table, held_out: pa.Table, leaky: bool) -> pd.DataFrame:
    """What the fit is shown: train, or both as one."""
    return (
        pd.concat([train.to_pandas(), held_out.to_pandas()], ignore_index=True)
        if leaky
        else train.to_pandas()
    )


def filled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[X].fillna(0.0)


FITS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "scaler": lambda f: StandardScaler().fit(f[X]),
    "imputer": lambda f: SimpleImputer(strategy="median").fit(f[X]),
    "nearest neighbours": lambda f: KNNImputer().fit(f[X]),
    "quantiles": lambda f: QuantileTransformer(n_quantiles=20).fit(f[X]),
    "bins": lambda f: KBinsDiscretizer(5, strategy="uniform").fit(filled(f)),
    "selection": lambda f: SelectKBest(f_classif, k=1).fit(filled(f), f["y"]),
    "components": lambda f: PCA(2, svd_solver="full").fit(filled(f)),
    "one-hot": lambda f: OneHotEncoder().fit(f[["c"]]),
    "codes": lambda f: OrdinalEncoder().fit(f[["c"]]),
    "target codes": lambda f: TargetEncoder(random_state=0).fit(f[["c"]], f["y"]),
    "vocabulary": lambda f: sorted(set(f["c"])),
    "class weights": lambda f: dict(len(f) / f["y"].value_counts().sort_index()),
    "target mean": lambda f: float(f["y"].mean()),
    "rank": lambda f: np.asarray(f["x0"].rank())[:ROWS],
    "weights": lambda f: LogisticRegression().fit(filled(f), f["y"]),
    "frame": lambda f: (f[X] - f[X].mean()).iloc[:ROWS],
    "tensor": lambda f: {"mean": torch.tensor(filled(f).to_numpy()).mean(0)},
}


@pytest.mark.req("D6")
@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_saw_held_out_rows_changes_and_one_on_train_does_not(name: str) -> None:
    train, held_out = rows(0), rows(1)
    leak = poison_result(
        lambda t, h: {name: FITS[name](frames(t, h, leaky=True))}, train, held_out, SPEC
    )
    assert (leak.verdict, leak.figures["unstable"]) == ("fail", 0)
    assert leak.evidence[0]["artefact"].startswith(name)
    assert "fit on train rows alone" in leak.remedy
    own = poison_result(
        lambda t, h: {name: FITS[name](frames(t, h, leaky=False))}, train, held_out, SPEC
    )
    assert own.verdict == "pass", own.summary
    assert "byte-identical" in own.summary


@pytest.mark.req("D6")
def test_a_fit_that_is_no_function_of_its_rows_is_said_to_be_undecidable() -> None:
    generator = np.random.default_rng()
    found = poison_result(
        lambda t, h: {
            "noise": generator.normal(size=3),
            "mean": float(np.mean(t["x0"].to_numpy())),
        },
        rows(0),
        rows(1),
        SPEC,
    )
    assert (found.verdict, found.figures["unstable"]) == ("warn", 1)
    assert "two fits of the same rows differ (noise)" in found.summary


@pytest.mark.parametrize("way", ["extreme", "shuffled"])
def test_poison_changes_features_and_labels_and_nothing_else(way: str) -> None:
    images = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 4, dtype=np.uint8)), 4)
    before = (
        rows(1)
        .append_column("image", images)
        .append_column("value", pa.array(np.linspace(0, 1, ROWS)))
    )
    after = poison(before, SPEC.model_copy(update={"tensor": {"image": (2, 2)}, "labels": {}}), way)
    assert after.schema == before.schema
    assert after["__id"].equals(before["__id"])
    assert after["value"].equals(before["value"])  # no feature
    for name in (*X, "c", "y", "image"):
        assert not after[name].equals(before[name]), name
        assert after[name].null_count == before[name].null_count
    assert set(after["y"].to_pylist()) == {0, 1}
    assert way == "shuffled" or all(
        a != b for a, b in zip(after["y"].to_pylist(), before["y"].to_pylist(), strict=True)
    )


class Scaled:
    """Something with a method that depends on what was fitted."""

    def __init__(self, by: float) -> None:
        self.by = by

    def apply(self, x: float) -> float:
        return x * self.by


def functions_of(by: float) -> list[Callable[..., Any]]:
    """Functions that hold a fitted number in each way that they can."""

    def closed(x: float) -> float:
        return x * by

    def preset(x: float, scale: float = by) -> float:
        return x * scale

    def named(x: float, *, scale: float = by) -> float:
        return x * scale

    return [
        closed,
        preset,
        named,
        Scaled(by).apply,
        partial(max, by),
        {by: 1}.get,
        lambda x: closed(x),
    ]


@pytest.mark.req("D6")
def test_a_fit_that_hands_over_nothing_has_not_passed() -> None:
    for nothing in ({}, None):
        found = poison_result(lambda t, h, nothing=nothing: nothing, rows(0), rows(1), SPEC)  # type: ignore[misc]
        assert (
            found.verdict == "fail"
            and "nothing was compared: the fit returned no artefact" in found.summary
            and "return all that was fitted" in found.remedy
        )
    leak = poison_result(
        lambda t, h: functions_of(float(np.mean(h["x0"].to_numpy())))[0], rows(0), rows(1), SPEC
    )
    own = poison_result(
        lambda t, h: functions_of(float(np.mean(t["x0"].to_numpy())))[0], rows(0), rows(1), SPEC
    )
    assert (leak.verdict, own.verdict) == ("fail", "pass")


def test_digests_tell_every_leaf_and_refuse_what_they_cannot_read() -> None:
    a, b = (
        {"w": [np.arange(3), {"k": (1.0, "x")}], "f": pd.DataFrame({"a": [1, value]})}
        for value in (2, 3)
    )
    changed = {name for (name, x), (_, y) in zip(digests(a), digests(b), strict=True) if x != y}
    assert changed == {"f.values[1]"} or changed == {"f.values"}
    scale = {leaky: [dict(digests(f)) for f in functions_of(leaky)] for leaky in (1.0, 2.0)}
    assert all(a != b for a, b in zip(scale[1.0], scale[2.0], strict=True))
    assert scale[1.0] == [dict(digests(f)) for f in functions_of(1.0)]
    with pytest.raises(TypeError, match="whose content cannot be compared"):
        list(digests({"open": object()}))


# -------------------------------------------------------------------------------------- the run
# itself


def sides(folder: Path, task: str = "binary") -> tuple[SplitTables, Any, Any]:
    table = rows(3, 600).drop(["__id"]).append_column("id", pa.array([str(i) for i in range(600)]))
    declaration = declared(
        write_table(folder / "t.parquet", {n: table[n] for n in table.column_names}),
        task=task,
        model={"kind": "mlp", "hidden": [8]},
    )
    validated, split = split_of(declaration, folder / "out")
    return split, validated, declaration


@pytest.mark.req("D7")
def test_a_run_passes_and_says_how_much_was_compared(tmp_path: Path) -> None:
    found = stages.poison_check(*sides(tmp_path))
    assert (found.name, found.verdict) == ("poison", "pass")
    assert int(str(found.figures["artefacts"])) > 20


@pytest.mark.req("D7")
def test_a_run_whose_statistics_see_all_sides_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, validated, declaration = sides(tmp_path)

    def leaky(train: TrainTable, spec: Any, own: Any) -> Any:
        statistics = fit(train, spec, own)
        test = pq.read_table(train.file.file.with_name("test.parquet"))
        first = statistics.numeric[0]
        center = float(
            np.mean(
                np.concatenate(
                    [
                        pq.read_table(train.file.path)[first.name].to_numpy(),
                        test[first.name].to_numpy(),
                    ]
                )
            )
        )
        return statistics.model_copy(
            update={
                "numeric": (first.model_copy(update={"center": center}), *statistics.numeric[1:])
            }
        )

    monkeypatch.setattr(stages, "fit", leaky)
    found = stages.poison_check(split, validated, declaration)
    assert found.verdict == "fail"
    named = {e["artefact"].split(".")[0].split("[")[0] for e in found.evidence}
    assert {"statistics", "arrays"} & named
    assert "changed when the held-out rows were corrupted" in found.summary


@pytest.mark.parametrize(
    ("kind", "label"), [("float", [0.0, 1.0, 1.0, 0.0, None]), ("int", [0, 1, 1, 0, None])]
)
def test_classes_written_as_floats_stay_classes(kind: str, label: list[float]) -> None:
    """Whole decimals and whole numbers with nulls are floats; a class that train lacks would end
    the fit, not test it.
    """
    spec = spec_of(label_type=kind, numeric=("a",))
    after = poison(pa.table({"a": [1.0] * 5, "y": label}), spec, "extreme")["y"].to_pylist()
    assert after == [1, 0, 0, 1, None]
    amounts = poison(
        pa.table({"a": [1.0] * 5, "y": [0.5, 1.0, 1.0, 0.0, None]}),
        spec_of(label_type="float", numeric=("a",)),
        "extreme",
    )
    assert set(amounts["y"].to_pylist()).isdisjoint({0.5, 1.0, 0.0})
