"""Realistic inputs of a report, one for each kind of task: real files, metrics computed from the
predictions in them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn import metrics as sk

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.records import (
    ArraysRef,
    CategoryStats,
    CheckReport,
    CheckResult,
    EvaluationReport,
    GateReport,
    Interval,
    NumericStats,
    PreflightReport,
    Prepared,
    Registered,
    SourceRef,
    SplitArrays,
    SplitTables,
    Statistics,
    TableRef,
    TableSpec,
    TestTable,
    TrainReport,
    TrainTable,
    ValidatedTable,
    ValTable,
)
from training.report.headline import ReportInputs

SHA = "0123456789abcdef" * 4
HOSTILE = "<script>alert('x')</script> $\\frac{&"
CLASSES: dict[str, tuple[Any, ...]] = {
    "binary": (0, 1),
    "multiclass": ("Downstairs", "Jogging", "Sitting", "Standing", HOSTILE, "Walking"),
    "regression": (),
}
START, DAY = 1_420_070_400.0, 86_400.0  # 2015-01-01


def declare(kind: str, *, time: bool, groups: bool) -> Declaration:
    label = {"binary": "deteriorates", "multiclass": "activity", "regression": "rentals"}[kind]
    columns: dict[str, Any] = {
        "visit": "id",
        label: "label",
        "age": {"role": "feature", "kind": "numeric", "min": 0, "max": 120},
        "*": "feature",
    }
    columns |= {"patient": "group"} if groups else {}
    columns |= {"date": "time"} if time else {}
    split = (
        {"kind": "group_time", "embargo": "14d"}
        if time and groups
        else {"kind": "time"}
        if time
        else {"kind": "group" if groups else "random"}
    )
    return Declaration.model_validate(
        {
            "name": f"{kind}-visits",
            "description": "Does a patient's state get worse before the next visit?",
            "data": {"uri": "/data/visits.parquet", "columns": columns},
            "task": {"kind": kind},
            "split": split,
            "model": {"kind": "mlp"},
            "train": {"epochs": 40, "ranks": 2},
        }
    )


def write_side(
    folder: Path, name: str, kind: str, rows: int, *, time: bool, groups: bool
) -> tuple[SplitArrays, np.ndarray, dict[str, Any]]:
    """The arrays and ids of one side; also the latent score that makes its labels."""
    place = ("train", "val", "test").index(name)
    rng = np.random.default_rng(place)
    score = rng.normal(size=rows)
    if kind == "regression":
        label: np.ndarray = (0.8 * score + 0.6 * rng.normal(size=rows)).astype(np.float32)
    elif kind == "binary":
        label = (rng.random(rows) < 1 / (1 + np.exp(2.4 - 1.3 * score))).astype(np.int64)
    else:
        label = rng.choice(
            len(CLASSES[kind]), size=rows, p=(0.09, 0.3, 0.06, 0.05, 0.1, 0.4)
        ).astype(np.int64)
    np.save(folder / f"{name}-label.npy", label)
    season = START + DAY * (place * 400 + 385 * rng.random(rows) ** 0.7)
    ids = {
        "__id": pa.array([f"{name}-{i:06d}" for i in range(rows)]),
        "__group": pa.array(
            (
                [f"P{rng.integers(0, rows // 6 + 1):05d}" for _ in range(rows)]
                if groups and rows < 50_000
                else [f"P{i % 997}" if groups else None for i in range(rows)]
            ),
            pa.string(),
        ),
        "__time": pa.array(season if time else [None] * rows, pa.float64()),
    }
    pq.write_table(pa.table(ids), folder / f"{name}-ids.parquet")
    arrays = SplitArrays(
        rows=rows,
        arrays={"label": file_ref(folder / f"{name}-label.npy")},
        ids=file_ref(folder / f"{name}-ids.parquet"),
    )
    return arrays, score, ids


def statistics(kind: str, rows: int) -> Statistics:
    numeric = [
        NumericStats(
            name="age",
            method="standard",
            center=61.2,
            scale=14.8,
            mean=61.2,
            std=14.8,
            min=18,
            max=97,
            fill=63.0,
        ),
        NumericStats(
            name="creatinine",
            method="standard",
            center=98.1,
            scale=41.7,
            mean=98.1,
            std=41.7,
            min=31,
            max=812.5,
            fill=88.0,
            indicator=True,
            nulls=rows // 12,
        ),
        NumericStats(
            name="delay_days",
            method="quantile",
            knots=(0.0, 3.0, 9.0, 400.0),
            mean=31.0,
            std=52.0,
            min=0,
            max=400,
        ),
        *[
            NumericStats(
                name=f"lab_{i:02d}",
                method="robust",
                center=i / 7,
                scale=1 + i / 5,
                mean=i / 7,
                std=1.1,
                min=-4,
                max=4 + i,
                fill=i / 7,
            )
            for i in range(45)
        ],
    ]
    categorical = [
        CategoryStats(
            name="clinic",
            values=("north", "south", "harbour", HOSTILE, "hill"),
            counts=(900, 750, 420, 61, 12),
            nulls=3,
        ),
        CategoryStats(
            name="diagnosis",
            values=tuple(f"I{i}" for i in range(240)),
            counts=tuple(range(480, 0, -2)),
            rare_rows=88,
        ),
    ]
    classes = CLASSES[kind]
    counts = tuple(
        int(rows * p)
        for p in ((0.86, 0.14) if kind == "binary" else (0.09, 0.3, 0.06, 0.05, 0.1, 0.4))
    )[: len(classes)]
    return Statistics(
        train_sha256=SHA,
        rows=rows,
        numeric=tuple(numeric),
        categorical=tuple(categorical),
        tensor=(),
        dropped={"device_firmware": "constant in train", "comment": "all null in train"},
        clip=10.0,
        classes=classes,
        class_counts=counts,
        class_weights=(
            tuple(round(rows / (len(classes) * max(c, 1)), 4) for c in counts)
            if kind == "multiclass"
            else ()
        ),
        label_mean=189.5 if kind == "regression" else 0.0,
        label_std=181.4 if kind == "regression" else 1.0,
        target_center=189.5 if kind == "regression" else 0.0,
        target_scale=181.4 if kind == "regression" else 1.0,
    )


def check_report() -> CheckReport:
    return CheckReport(
        results=(
            CheckResult(
                name="ids on one side",
                verdict="pass",
                summary="No id is on two sides.",
                figures={"ids": 16_384, "crossing": 0},
            ),
            CheckResult(
                name="groups on one side",
                verdict="pass",
                summary="No group is on two sides.",
                figures={"groups": 2_210, "crossing": 0},
            ),
            CheckResult(
                name="duplicate rows",
                verdict="warn",
                summary="3 test rows equal a train row in every feature.",
                figures={"test_rows": 3, "share": 0.00125, "threshold": 0.01},
                evidence=tuple(
                    {
                        "test id": f"test-{i:06d}",
                        "train id": f"train-{i * 7:06d}",
                        "clinic": HOSTILE,
                        "age": 61.25 + i,
                        "note": None,
                    }
                    for i in range(3)
                ),
                columns=("age", "clinic"),
                remedy="Declare the key that links them as a group, or drop the repeats.",
            ),
            CheckResult(
                name="constant features",
                verdict="allowed",
                summary="device_firmware is constant in train.",
                figures={"columns": 1},
                columns=("device_firmware",),
                reason="The fleet was on one version during the study; kept out of the model.",
            ),
        )
    )


def write_predictions(
    folder: Path, kind: str, arrays: SplitArrays, score: np.ndarray, ids: dict[str, Any]
) -> tuple[Path, dict[str, float], dict[str, dict[str, float | None]]]:
    """The test predictions, the metrics computed from them, and baselines that are plausible next
    to those.
    """
    rng = np.random.default_rng(9)
    label = np.load(arrays.arrays["label"].path)
    columns: dict[str, Any] = {"__id": ids["__id"], "__group": ids["__group"]}
    if kind == "regression":
        true = label * 181.4 + 189.5
        predicted = 0.8 * score * 181.4 + 189.5 + 20 * rng.normal(size=len(score))
        columns |= {"label": pa.array(true.astype(np.float64)), "prediction": pa.array(predicted)}
        found = {
            "rmse": float(np.sqrt(np.mean((predicted - true) ** 2))),
            "mae": float(np.mean(np.abs(predicted - true))),
            "r2": float(sk.r2_score(true, predicted)),
        }
        scale = {"constant": 1.62, "linear": 1.21, "boosting": 1.02}
        return (
            _save(folder, columns),
            found,
            {
                b: {
                    "rmse": found["rmse"] * f,
                    "mae": found["mae"] * f,
                    "r2": 1 - (1 - found["r2"]) * f * f,
                }
                for b, f in scale.items()
            },
        )
    classes = CLASSES[kind]
    logits = np.zeros((len(score), len(classes)))
    if kind == "binary":
        logits[:, 1] = 1.2 * score - 2.3 + 0.4 * rng.normal(size=len(score))
    else:
        logits += rng.normal(size=logits.shape)
        logits[np.arange(len(label)), label] += 2.6
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    names = np.array(classes, dtype=object)
    columns |= {
        "label": pa.array(names[label].tolist()),
        "prediction": pa.array(names[probability.argmax(axis=1)].tolist()),
    }
    columns |= {f"probability_{c}": pa.array(probability[:, i]) for i, c in enumerate(classes)}
    guess = probability.argmax(axis=1)
    found = {
        "accuracy": float(np.mean(guess == label)),
        "balanced_accuracy": float(sk.balanced_accuracy_score(label, guess)),
        "log_loss": float(sk.log_loss(label, probability)),
    }
    if kind == "binary":
        found |= {
            "auroc": float(sk.roc_auc_score(label, probability[:, 1])),
            "pr_auc": float(sk.average_precision_score(label, probability[:, 1])),
        }
        found |= {
            "brier": float(np.mean((probability[:, 1] - label) ** 2)),
            "f1": float(sk.f1_score(label, guess)),
        }
        steps: dict[str, float] = {"constant": 0.0, "linear": 0.8, "boosting": 1.01}
    else:
        found |= {"macro_f1": float(sk.f1_score(label, guess, average="macro"))}
        steps = {"constant": 0.1, "linear": 0.85, "boosting": 0.995}
    baselines: dict[str, dict[str, float | None]] = {
        b: {
            m: (
                v * f
                if m not in ("auroc", "log_loss", "brier")
                else 0.5 + (v - 0.5) * f
                if m == "auroc"
                else v * (2 - f)
            )
            for m, v in found.items()
        }
        for b, f in steps.items()
    }
    return _save(folder, columns), found, baselines


def _save(folder: Path, columns: dict[str, Any]) -> Path:
    path = folder / "predictions.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def write_metrics(path: Path, kind: str, epochs: int = 26, steps_per_epoch: int = 60) -> int:
    """A log of a run that stopped early, ending in the broken line of a killed writer; returns the
    best step.
    """
    metric = {"binary": "auroc", "multiclass": "macro_f1", "regression": "rmse"}[kind]
    rng, lines, best = np.random.default_rng(4), [], 18 * steps_per_epoch
    for step in range(20, epochs * steps_per_epoch + 1, 20):
        rate = 1e-3 * min(
            step / 80, 0.5 + 0.5 * np.cos(np.pi * step / (epochs * steps_per_epoch * 1.4))
        )
        values = {
            "train/loss": 0.5 * np.exp(-step / 500) + 0.3,
            "lr": rate,
            "grad_norm": float(np.exp(rng.normal(-0.6, 0.35))),
            "rows_per_second": 21_000.0,
            "memory_mb": 412.0,
        }
        lines.append(
            {
                "kind": "step",
                "step": step,
                "epoch": step // steps_per_epoch,
                "time": 1.7e9 + step,
                "values": values,
            }
        )
    for epoch in range(1, epochs + 1):
        train = 0.305 + 0.38 * np.exp(-epoch / 5) - 0.0006 * epoch
        val = 0.322 + 0.36 * np.exp(-epoch / 4.6) + 0.003 * rng.random()
        up = 1 if kind != "regression" else -1
        base, size = (0.86, 0.3) if kind != "regression" else (118.0, 90.0)
        values = {
            "val/loss": val,
            "train_eval/loss": train,
            "train/loss": train + 0.02,
            f"val/{metric}": base - up * size * (val - 0.3),
            f"train_eval/{metric}": base - up * size * (train - 0.3),
            "best": float(epoch == 18),
        }
        lines.append(
            {
                "kind": "evaluation",
                "step": epoch * steps_per_epoch,
                "epoch": epoch,
                "time": 1.7e9,
                "values": values,
            }
        )
    lines.append(
        {
            "kind": "event",
            "step": epochs * steps_per_epoch,
            "message": "no improvement of val for 8 evaluations: stopped early",
        }
    )
    path.write_text("\n".join(json.dumps(line) for line in lines) + '\n{"kind": "step", "st')
    return best


def build(
    folder: Path,
    kind: str,
    *,
    rows: int = 9_000,
    time: bool = True,
    groups: bool = True,
    optional: bool = True,
) -> ReportInputs:
    """Inputs with every file they name; `optional=False` leaves out all that a run may lack."""
    folder.mkdir(parents=True, exist_ok=True)
    declaration = declare(kind, time=time, groups=groups)
    sizes = (
        {"train": rows * 7 // 10, "val": rows * 15 // 100, "test": rows * 15 // 100}
        if rows < 50_000
        else {"train": rows, "val": rows // 4, "test": rows}
    )
    sides = {
        name: write_side(folder, name, kind, n, time=time, groups=groups)
        for name, n in sizes.items()
    }
    path, found, baselines = write_predictions(folder, kind, *sides["test"])
    best = write_metrics(folder / "metrics.jsonl", kind)
    metric = declaration.metric
    numeric = tuple(s.name for s in statistics(kind, 10).numeric)
    spec = TableSpec(
        id=("visit",),
        group=("patient",) if groups else (),
        time="date" if time else None,
        time_is_timestamp=time,
        label=declaration.data.named("label")[0],
        label_type="text",
        weight=None,
        split=None,
        numeric=numeric,
        categorical=("clinic", "diagnosis"),
        tensor={},
        ignored=("comment",),
    )
    table, ref = file_ref(path), file_ref(folder / "metrics.jsonl")
    plan = (
        {
            "seed": 0,
            "cuts": {"val": START + DAY * 386, "test": START + DAY * 786},
            "cuts_text": {"val": "2016-01-22", "test": "2017-02-25"},
            "embargo": 14 * DAY,
        }
        if time
        else {"seed": 0, "fractions": {"train": 0.7, "val": 0.15, "test": 0.15}}
    )
    prepared = Prepared(
        key=SHA,
        directory=str(folder),
        source=SourceRef(
            uri=("/data/visits.parquet",), format="parquet", files=(table,), sha256=SHA
        ),
        validated=ValidatedTable(
            table=TableRef(file=table, rows=rows + 400), spec=spec, filtered_rows=12
        ),
        split=SplitTables(
            train=TrainTable(file=table, rows=sizes["train"]),
            val=ValTable(file=table, rows=sizes["val"]),
            test=TestTable(file=table, rows=sizes["test"]),
            strategy=declaration.split.kind,
            excluded={"embargo": 310, "group_time": 78} if time else {},
            plan=plan,
        ),
        checks=check_report(),
        statistics=statistics(kind, sizes["train"]),
        arrays=ArraysRef(
            directory=str(folder),
            train=sides["train"][0],
            val=sides["val"][0],
            test=sides["test"][0],
            statistics=ref,
            sha256=SHA,
        ),
    )
    spread = {m: max(abs(v) * 0.03, 0.004) for m, v in found.items()}
    test = EvaluationReport(
        side="test",
        rows=sizes["test"],
        metrics={
            m: Interval(value=v, low=v - spread[m], high=v + spread[m]) for m, v in found.items()
        },
        baselines=baselines if optional else {},
        base_rate={"positive": 0.14} if kind == "binary" else {},
        resampled_by="group" if groups else "row",
        verdict=(
            f"Test {metric} is better than constant and linear and as good as boosting, within its"
            " interval."
        ),
        predictions=file_ref(path),
        by_group=(
            tuple(
                {
                    "group": HOSTILE if i == 2 else f"clinic {i}",
                    "rows": 300 - i,
                    metric: found[metric] * (1 - i / 400),
                    "positives": i,
                }
                for i in range(40)
            )
            if groups and optional
            else ()
        ),
    )
    finished = {
        "run_id": "20260301-101500-3f2a",
        "promise": (
            "exact: the same machine type, software and number of ranks give bit-identical weights"
        ),
    }
    train = TrainReport(
        status="stopped_early",
        epochs=26,
        steps=1560,
        best_step=best,
        best_metric=found[metric],
        metric=metric,
        seconds=133.4,
        world_size=2,
        num_parameters=184_321,
        best_checkpoint=ref,
        model_sha256=SHA,
        rows_per_second=21_034.6,
        instabilities=("step 240: gradient norm 41.2 is 12 times its median",) if optional else (),
        **finished,
    )
    losses = tuple(float(v) for v in 0.7 * np.exp(-np.arange(60) / 9) + 1e-3)
    preflight = PreflightReport(
        checks=CheckReport(
            results=(
                CheckResult(
                    name="gradient reaches every parameter",
                    verdict="pass",
                    summary="All 24 parameters got a gradient.",
                    figures={"parameters": 24},
                ),
            )
        ),
        num_parameters=184_321,
        num_trainable=184_321,
        initial_loss=0.7024,
        expected_loss=0.6931 if optional else None,
        overfit_losses=losses if optional else (),
        overfit_steps=60 if optional else 0,
        seconds=3.2,
    )
    given = (
        "name",
        "description",
        "data.uri",
        "task.kind",
        "split.kind",
        "split.embargo",
        "train.epochs",
        "train.ranks",
        *(f"data.columns.{c}" for c in declaration.data.columns),
    )
    if not optional:
        return ReportInputs(
            run_id=train.run_id,
            declaration=declaration,
            given=given,
            prepared=prepared,
            preflight=preflight,
            train=train,
            metrics_path=None,
            test=test,
        )
    gate = GateReport(
        passed=True,
        verdict="All 3 conditions hold.",
        champion_version="1",
        difference=Interval(value=0.011, low=0.002, high=0.019),
        compared_rows=sizes["test"],
        conditions=(
            CheckResult(
                name="skill",
                verdict="pass",
                summary="Better than the constant baseline.",
                figures={"constant": 0.5},
            ),
            CheckResult(
                name="no regression", verdict="pass", summary="Not worse than champion version 1."
            ),
        ),
    )
    registered = Registered(
        registered=True,
        name=declaration.name,
        version="2",
        uri=f"models:/{declaration.name}/2",
        alias="champion",
        verdict="registered",
    )
    provenance = {
        "git": {"sha": "4f1c9d07a2b85c6e1d3f", "branch": "main", "dirty": True, "diff_lines": 31},
        "python": "3.11.9",
        "platform": "Linux-6.1-x86_64",
        "versions": {"torch": "2.13.0", "numpy": "2.4.1", "mlflow": "3.17.2"},
        "hardware": {"cpu": HOSTILE, "cores": 8, "memory_bytes": 33_554_432_000, "gpus": []},
    }
    links = {
        "MLflow run": "http://127.0.0.1:5000/#/experiments/1/runs/ab12",
        "Prefect flow run": "javascript:alert(1)",
        "run directory": "/home/ann/.bulkhead/runs/20260301-101500-3f2a",
    }
    return ReportInputs(
        run_id=train.run_id,
        declaration=declaration,
        given=given,
        prepared=prepared,
        preflight=preflight,
        train=train,
        metrics_path=folder / "metrics.jsonl",
        test=test,
        val=test.model_copy(update={"side": "val"}),
        gate=gate,
        registered=registered,
        provenance=provenance,
        links=links,
    )
