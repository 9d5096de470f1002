"""A growing source, and one retrain after another in this process, with a real Prefect server,
torchrun and MLflow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow import MlflowClient

from schemas.records import Prepared

DECLARATION = """
name: growing
data: {uri: rows, columns: {id: id, who: group, y: label, "*": feature}}
task: {kind: binary}
split: {kind: group}
model: {kind: mlp, hidden: [16]}
train: {epochs: 2, batch_size: 64, ranks: 1, threads: 1}
evaluate: {bootstrap: 50, baselines: [constant]}
"""


class Growing:
    """A folder of Parquet files with rows of groups, and the declaration over it.

    Args:
        folder: gets source, declaration and home.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.file, self.parts = (
            folder,
            folder / "home",
            folder / "growing.yaml",
            0,
        )
        self.file.write_text(DECLARATION)
        (folder / "rows").mkdir()

    def grow(self, groups: int = 80, flipped: float = 0.0) -> Path:
        """Append a file: rows of new groups, and more rows of old groups.

        Args:
            groups: number of new ones; the file has six rows for each.
            flipped: share of the labels that are inverted.
        """
        draw = np.random.default_rng(self.parts)
        count = 6 * groups
        who = draw.integers(max(0, (self.parts - 1) * groups), (self.parts + 1) * groups, count)
        x, z = draw.normal(size=(2, count))
        y = (x + 0.5 * draw.normal(size=count) > 0) ^ (draw.random(count) < flipped)
        names = [f"p{self.parts}-{i}" for i in range(count)]
        path = self.folder / "rows" / f"{self.parts:03d}.parquet"
        pq.write_table(
            pa.table(
                {
                    "id": names,
                    "who": [f"g{g}" for g in who],
                    "x": x,
                    "z": z,
                    "y": y.astype(np.int64),
                }
            ),
            path,
        )
        self.parts += 1
        return path

    def run(self, *overrides: str) -> Any:
        """Run the whole pipeline; return its summary."""
        from flows.pipeline import pipeline

        return pipeline(config_path=str(self.file), overrides=list(overrides))

    @property
    def uri(self) -> str:
        """Return the address of the registry."""
        return f"sqlite:///{self.home / 'mlflow.db'}"

    @property
    def client(self) -> MlflowClient:
        """Return a client of the registry."""
        return MlflowClient(self.uri, self.uri)

    def aliases(self) -> dict[str, str]:
        """Return the version of each alias."""
        return {
            name: str(version)
            for name, version in self.client.get_registered_model("growing").aliases.items()
        }

    @staticmethod
    def sides(run_dir: str) -> dict[str, dict[str, set[str]]]:
        """Return the ids and groups of each split of a run."""
        split = Prepared.model_validate_json((Path(run_dir) / "prepared.json").read_bytes()).split
        tables = {
            side: pq.read_table(split.side(side).file.path, columns=["__id", "__group"])
            for side in ("train", "val", "test")
        }
        return {
            side: {name: set(table.column(name).to_pylist()) for name in table.column_names}
            for side, table in tables.items()
        }
