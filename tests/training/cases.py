"""A small data set with every kind of column, prepared, and weights for it: what export, registry
and consumers are tested on.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.load import declare
from schemas.records import RunSpec, SplitTables
from tests.training.data.sides import split_of, validated
from training.data.arrays.shards import materialise
from training.data.engine.engine import connect
from training.data.engine.expressions import derived_sql
from training.data.fit.normalize import fit
from training.data.table.columns import Resolved, resolve
from training.data.table.portable import portable
from training.data.table.typed import raw_names, typed_sql
from training.models.build import build_model
from training.models.shape import ModelShape
from training.serving.reference_network import reference_scores

COLUMNS: dict[str, Any] = {
    "row": "id",
    "patient": "group",
    "y": "label",
    "age": {"kind": "numeric", "nullable": True},
    "visits": "numeric",
    "income": "numeric",
    "smoker": {"kind": "numeric"},
    "ward": "categorical",
    "site": "categorical",
    "insured": "categorical",
    "dose": "categorical",
    "scan": {"kind": "tensor", "shape": [4, 4]},
}
DERIVE = {  # of raw columns that are features, too, or none, and of each other
    "seen_at": "strptime(seen, '%m/%d/%y') + to_hours(hour)",
    "season": "sin(2 * pi() * dayofyear(seen_at) / 365.25)",
    "shift": "concat(smoker, '-', hour // 6)",
    "decade": "case when age > 0 then floor(age / 10) end",
    "known_days": "coalesce(date_diff('day', born, seen_at), -1)",
    "alias": "least(rank, 3)",
}
DERIVED: dict[str, Any] = {
    "season": "numeric",
    "shift": "categorical",
    "decade": "categorical",
    "known_days": "numeric",
    "alias": "categorical",
}
DERIVED |= dict.fromkeys(("seen", "hour", "born", "rank", "seen_at"), "ignore")
LABELS = {"binary": ["no", "yes"], "multiclass": [10, 20, 30], "regression": []}
SIZES = {"train": 120, "val": 40, "test": 50}


class Case(NamedTuple):
    """Prepared data, raw rows by side as their owner has them, and weights."""

    declaration: Declaration
    run: RunSpec
    split: SplitTables
    raw: dict[str, pd.DataFrame]
    weights: Path


def raw_rows(rows: int, seed: int, task: str, side: str = "train") -> pd.DataFrame:
    """Rows of a made-up clinic: nulls in `age` and `ward`, whole numbers, truth values and halves
    as categories.
    """
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 12, rows)
    visits = rng.integers(0, 9, rows)
    signal = 0.08 * (age - 50) + 0.4 * visits + rng.normal(0, 0.5, rows)
    label = {
        "binary": np.where(signal > 1.6, "yes", "no"),
        "multiclass": np.array([10, 20, 30])[np.digitize(signal, [0.8, 2.4])],
        "regression": 500 + 180 * signal,
    }[task]
    return pd.DataFrame(
        {
            "row": [f"{side}-{i:04d}" for i in range(rows)],
            "patient": [f"{side}-p{i // 2}" for i in range(rows)],
            "y": label,
            "age": np.where(rng.random(rows) < 0.2, np.nan, age),
            "visits": visits,
            "income": np.round(rng.lognormal(3, 1, rows), 2),
            "smoker": rng.random(rows) < 0.4,
            "ward": pd.array(
                [None if u < 0.1 else "abc"[int(3 * v)] for u, v in rng.random((rows, 2))],
                dtype="str",
            ),
            "site": rng.integers(1, 6, rows),
            "insured": rng.random(rows) < 0.7,
            "dose": rng.choice([0.5, 1.0, 2.0], rows),
            "scan": list(rng.integers(0, 256, (rows, 4, 4), dtype=np.uint8)),
        }
    )


def with_source_columns(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Columns that `DERIVE` needs: a date as text, an hour, a birthday and a rank, the last two
    with nulls.
    """
    rng, rows = np.random.default_rng(seed), len(frame)
    born = [
        None if u < 0.2 else day
        for u, day in zip(
            rng.random(rows),
            pd.to_datetime(rng.integers(-9000, 9000, rows), unit="D").date,
            strict=True,
        )
    ]
    seen = [
        f"{m}/{d}/{y:02d}"
        for y, m, d in zip(
            rng.integers(0, 25, rows),
            rng.integers(1, 13, rows),
            rng.integers(1, 29, rows),
            strict=True,
        )
    ]
    rank = pd.array([None if u < 0.2 else int(8 * u) for u in rng.random(rows)], dtype="Int64")
    return frame.assign(seen=seen, hour=rng.integers(0, 24, rows), born=born, rank=rank)


def arrow(frame: pd.DataFrame) -> pa.Table:
    """The raw frame as its Parquet file would hold it; tensors as flat lists."""
    plain = frame.drop(columns="scan", errors="ignore")
    table = pa.Table.from_pandas(plain, preserve_index=False)
    return (
        table.append_column(
            "scan", pa.array([s.ravel() for s in frame["scan"]], pa.list_(pa.uint8(), 16))
        )
        if "scan" in frame
        else table
    )


def typed(frame: pd.DataFrame, declaration: Declaration) -> tuple[pa.Table, Resolved]:
    """The frame as validation types it."""
    with closing(connect()) as connection:
        connection.register("given", arrow(frame))
        relation = derived_sql(connection, "given", declaration.data.derive)
        types = {
            r: {
                name: kind
                for name, kind, *_ in connection.execute(f"describe select * from {r}").fetchall()
            }
            for r in ("given", relation)
        }
        resolved = resolve(types[relation], declaration)
        trees = portable(declaration.data.derive, types["given"], resolved.spec.features)
        resolved = resolved._replace(spec=resolved.spec.model_copy(update={"derived": trees}))
        return (
            connection.sql(f"select * from {typed_sql(resolved, relation)}").to_arrow_table(),
            resolved,
        )


def source_rows(tables: list[pa.Table], resolved: Resolved) -> pa.Table:
    """What validation keeps of the source for the features that are derived; the tables lose it."""
    names = {"__id": "__id", **{stored: name for name, stored in raw_names(resolved.spec).items()}}
    return pa.concat_tables(
        [table.select(list(names)).rename_columns(list(names.values())) for table in tables]
    )


def declaration_of(
    task: str,
    model: dict[str, Any] | None = None,
    ignored: tuple[str, ...] = (),
    derive: dict[str, str] | None = None,
    **sections: Any,
) -> Declaration:
    """A declaration over the made-up clinic; `ignored` features are left out, `derive` adds those
    of `DERIVED`.
    """
    tree = {
        "name": "clinic",
        "data": {
            "uri": "clinic.parquet",
            "columns": {
                **COLUMNS,
                **(DERIVED if derive else {}),
                **dict.fromkeys(ignored, "ignore"),
            },
            "derive": derive or {},
        },
        "task": {"kind": task},
        "split": {"kind": "group"},
        "model": model or {"kind": "mlp", "hidden": [16]},
        "normalize": {"columns": {"income": {"scale": "quantile"}, "visits": {"scale": "robust"}}},
        **sections,
    }
    return declare(tree)


def make_case(
    folder: Path,
    task: str = "binary",
    seed: int = 0,
    steps: int = 0,
    weight_seed: int = 0,
    **options: Any,
) -> Case:
    """Raw rows, typed, split by hand, fitted and materialised by the real functions, and weights
    in a file.

    Args:
        folder: gets all files.
        task: kind of the label.
        seed: of the rows.
        steps: of full-batch training; 0 gives random weights, far from their careful start.
        weight_seed: of the weights.
        options: of `declaration_of`.
    """
    declaration = declaration_of(task, **options)
    raw = {
        side: raw_rows(n, seed + i, task, f"{side}{seed}")
        for i, (side, n) in enumerate(SIZES.items())
    }
    if declaration.data.derive:
        raw = {
            side: with_source_columns(frame, seed + i)
            for i, (side, frame) in enumerate(raw.items())
        }
    tables = {side: typed(frame, declaration) for side, frame in raw.items()}
    sides = {
        side: {
            n: t.column(n).combine_chunks() for n in t.column_names if not n.startswith("__raw_")
        }
        for side, (t, _) in tables.items()
    }
    split = split_of(folder / "split", **sides)
    spec = tables["train"][1].spec
    pq.write_table(
        source_rows([table for table, _ in tables.values()], tables["train"][1]),
        folder / "raw_rows.parquet",
    )
    statistics = fit(split.train, spec, declaration)  # type: ignore[arg-type]
    arrays = materialise(split, validated(split, spec), statistics, declaration, folder / "arrays")
    run = RunSpec(
        run_id=f"run-{seed}-{weight_seed}",
        name=declaration.name,
        declaration=declaration.model_dump(mode="json", by_alias=True),
        spec=spec,
        statistics=statistics,
        arrays=arrays,
        raw_rows=file_ref(folder / "raw_rows.parquet") if spec.derived else None,
    )
    return Case(
        declaration,
        run,
        split,
        raw,
        write_weights(folder / f"weights-{weight_seed}.pt", run, steps, weight_seed),
    )


def write_weights(path: Path, run: RunSpec, steps: int, seed: int) -> Path:
    """A state dict: random, or trained a little on the train arrays."""
    declaration = declare(run.declaration)
    network = build_model(declaration, run.statistics)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    if steps:
        _train(network, run, declaration.task.kind, steps)
    torch.save(network.state_dict(), path)
    return path


def _train(network: nn.Module, run: RunSpec, task: str, steps: int) -> None:
    batch = {
        name: torch.from_numpy(np.load(ref.path)) for name, ref in run.arrays.train.arrays.items()
    }
    label = batch.pop("label")
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(steps):
        scores = network(batch)
        loss = {
            "binary": lambda s: nn.functional.binary_cross_entropy_with_logits(
                s[:, 0], label.float()
            ),
            "multiclass": lambda s: nn.functional.cross_entropy(s, label),
            "regression": lambda s: nn.functional.mse_loss(s[:, 0], label),
        }[task](scores)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def expected(case: Case, network: nn.Module, side: str = "test") -> np.ndarray:
    """What evaluation says of a side: the network on the stored arrays, in the units of the label
    or as probabilities.
    """
    from training.objectives.metrics import predict

    return predict(
        case.declaration, case.run.statistics, reference_scores(network, case.run.arrays.side(side))
    )  # type: ignore[arg-type]


class Mixing(nn.Module):
    """Looks at the other rows of its batch, as no model may."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layer = nn.Linear(shape.numeric, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.layer(batch["numeric"] - batch["numeric"].mean(0))


class Counting(nn.Module):
    """Asks for the number of rows by `len`, which Python makes a plain number."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 1, 8))
        self.lift = nn.Linear(1, 8)
        self.head = nn.Linear(8, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """As any network's."""
        columns = self.lift(batch["numeric"].unsqueeze(-1))
        tokens = torch.cat([self.start.expand(len(columns), -1, -1), torch.relu(columns)], dim=1)
        return self.head(tokens.mean(1))


class SingleOnly(nn.Module):
    """Insists on single precision."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layer = nn.Linear(shape.numeric, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.linear(
            batch["numeric"].to(torch.float32), self.layer.weight, self.layer.bias
        )


def evidence_of(case: Case, exported: Any, gate: Any = None, auroc: float = 0.8) -> Any:
    """Evidence as the pipeline gathers it, with made-up digests where nothing here depends
    on them.
    """
    from schemas.records import Evidence, Interval, digest_of

    made_up = {
        f"{name}_sha256": digest_of(name)
        for name in ("config", "source", "validated", "checkpoint", "model")
    }
    return Evidence(
        run_id=case.run.run_id,
        name=case.run.name,
        created="2025-01-01T00:00:00+00:00",
        split={"strategy": "group"},
        statistics_sha256=digest_of(case.run.statistics),
        arrays_sha256=case.run.arrays.sha256,
        program_sha256=exported.program.sha256,
        checks=(),
        metrics={"auroc": Interval(value=auroc), "f1": Interval(value=None)},
        gate=gate,
        seeds={"train": 0},
        mode="exact",
        promise="",
        provenance={"git": {"sha": "abc123", "dirty": False}},
        **made_up,
    )


def evaluation_of(case: Case, folder: Path, network: nn.Module) -> Any:
    """The evaluation of the test rows, with its file of predictions."""
    import pyarrow.parquet as pq

    from schemas.digest import file_ref
    from schemas.records import EvaluationReport, Interval
    from training.serving.export import probability_columns

    ids = pq.read_table(case.run.arrays.test.ids.path)
    found, classes = expected(case, network), case.run.statistics.classes
    values = (
        dict(zip(probability_columns(classes), found.T, strict=True))
        if classes
        else {"prediction": found}
    )
    if classes:
        values["prediction"] = np.array(classes)[found.argmax(axis=1)]
    pq.write_table(
        pa.table(
            {
                "__id": ids["__id"],
                "__group": case.raw["test"]["patient"],
                "label": ids["label"],
                **values,
            }
        ),
        folder / "predictions.parquet",
    )
    metric = case.declaration.metric
    return EvaluationReport(
        side="test",
        rows=len(found),
        metrics={metric: Interval(value=0.8)},
        predictions=file_ref(folder / "predictions.parquet"),
    )


def champion_of(
    case: Case, exported: Any, trained_on: np.ndarray | None, version: str = "1"
) -> Any:
    """A model as the registry hands it out, without a registry."""
    from training.registry.registry import LoadedModel
    from training.serving import serving

    model = serving.RawRows()
    model.load({"program": exported.program.path, "spec": exported.spec.path})
    return LoadedModel(
        name="clinic",
        version=version,
        uri=f"models:/clinic/{version}",
        spec=model.spec,
        evidence=None,
        trained_on=trained_on,
        model=model,
    )
