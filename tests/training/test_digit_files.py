"""Real digits as PNG files and as bytes: from an example's own script to a test score."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from schemas.load import load_declaration
from schemas.records import RunSpec
from tests.training.data.chain import split_of
from tests.training.kind_cases import Prepared, digests
from tests.training.runs import keep_torch_settings
from training.data.arrays.shards import load_arrays, materialise
from training.data.fit.normalize import fit
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.serving.reference_network import reference_network, reference_scores

EXAMPLES = Path(__file__).parents[2] / "examples"


def prepared_digits(folder: Path, uri: Path) -> Prepared:
    declaration = load_declaration(EXAMPLES / "mnist_files.yaml", [f"data.uri={uri}"])
    validated, split = split_of(declaration, folder / "split")
    statistics = fit(split.train, validated.spec, declaration)
    arrays = materialise(split, validated, statistics, declaration, folder / "arrays")
    run = RunSpec(
        run_id="digits",
        name=declaration.name,
        declaration=declaration.model_dump(mode="json", by_alias=True),
        spec=validated.spec,
        statistics=statistics,
        arrays=arrays,
    )
    return Prepared(declaration, validated, split, run)


@pytest.mark.long
@pytest.mark.req("D1")
def test_digits_of_new_writers_are_read_from_paths_and_from_bytes(
    tmp_path: Path, real_data: Path
) -> None:
    found = importlib.util.spec_from_file_location("mnist_files", EXAMPLES / "mnist_files.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.write(real_data / "mnist10k_writers.parquet", tmp_path) == 10_000
    by_path = prepared_digits(tmp_path / "paths", tmp_path / "digits.csv")
    rows = pd.read_csv(tmp_path / "digits.csv")
    rows["image"] = [(tmp_path / path).read_bytes() for path in rows["image"]]
    rows.to_parquet(tmp_path / "bytes.parquet", index=False)
    by_bytes = prepared_digits(tmp_path / "bytes", tmp_path / "bytes.parquet")
    for side in ("train", "val", "test"):  # so that either trains the same model
        assert digests(by_path, side) == digests(by_bytes, side)
    with keep_torch_settings():
        trainer = Trainer(by_path.run, tmp_path / "run", Parallel(), StopSignal())
        report = trainer.run()
    weights = Path(report.best_checkpoint.path)
    scores = reference_scores(reference_network(by_path.run, weights), by_path.run.arrays.test)
    truth = load_arrays(by_path.run.arrays.test)["label"]
    assert float(np.mean(scores.argmax(axis=1) == truth)) >= 0.98
