"""Pictures that are together larger than the memory that a process may allocate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.training.picture_cases import png

SIDE, COUNT = 256, 2_000
WORK = f"""
import resource, sys
from pathlib import Path
import numpy as np
from tests.training.data.chain import declared, split_of
from training.data.arrays.shards import load_arrays, materialise
from training.data.fit.normalize import fit

def prepare(table, out):
    columns = {{"row": "id", "y": "label", "scan": {{"kind": "image", "image": {{"size": [{SIDE}, {SIDE}]}}}}}}
    declaration = declared(Path(table), columns)
    validated, split = split_of(declaration, Path(out) / "split")
    statistics = fit(split.train, validated.spec, declaration)
    return materialise(split, validated, statistics, declaration, Path(out) / "arrays")

def allocated():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmData"].split()[0]) * 1024

prepare(sys.argv[1] + "/few.parquet", sys.argv[1] + "/few")  # libraries and threads are there now
spare = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (allocated() + spare,) * 2)
arrays = prepare(sys.argv[1] + "/all.parquet", sys.argv[1] + "/all")
sizes = [arrays.side(side).arrays["tensor_scan"].num_bytes for side in ("train", "val", "test")]
means = [float(load_arrays(arrays.train)["tensor_scan"][i].mean()) for i in range(3)]
print(sum(sizes), *means)
"""  # noqa: E501


@pytest.mark.long
@pytest.mark.req("D9")
def test_pictures_stream_through_a_limit_below_their_size(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    ramp = np.linspace(0, 120, SIDE * SIDE * 3).reshape(SIDE, SIDE, 3)
    for i in range(COUNT):
        pixels = (ramp + np.array([i % 128, i // 128, 7])).astype(np.uint8)
        (tmp_path / f"scans/{i}.png").write_bytes(png(pixels, compress_level=1))
    frame = pd.DataFrame({"row": range(COUNT), "y": np.arange(COUNT) % 2})
    frame["scan"] = [f"scans/{i}.png" for i in range(COUNT)]
    frame.to_parquet(tmp_path / "all.parquet")
    frame.head(60).to_parquet(tmp_path / "few.parquet")
    total, spare = COUNT * SIDE * SIDE * 3, 200_000_000
    assert total > 1.9 * spare
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(tmp_path), str(spare)],
        env=os.environ | {"BULKHEAD_HOME": str(tmp_path / "home"), "MALLOC_ARENA_MAX": "2"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [float(word) for word in done.stdout.split()]
    assert found[0] >= total and all(50 < mean < 200 for mean in found[1:])
