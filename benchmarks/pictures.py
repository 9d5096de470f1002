"""Decoding of pictures, compared with torchvision's loader on the same cores.

    python -m benchmarks.pictures [--count 400] [--rounds 7] [--python PYTHON]

Writes JPEG and PNG files of 375 x 500, then Bulkhead's decoder and torchvision take turns: torch's
DataLoader over files, one worker a core, with torchvision's `pil_loader` or `decode_image`, and its
resizing to 224 x 224. Both give uint8 of the same shape; the start of torchvision's workers is left
out. A torchvision without compiled operators has no `decode_image`. Torchvision is installed once,
into its own environment below the Bulkhead home. Writes its section of docs/benchmarks.md. Exit
code 0 if ours is not slower than the faster one by more than 5 %, the spread of such ratios.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from benchmarks.environments import environment
from benchmarks.page import machine, markdown_table, write_section
from schemas.home import home
from training.data.serving_expressions import pictures

SIDE, LEAST = 224, 0.95
WAYS = ("bulkhead", "pil_loader", "decode_image")
RULE = {"shape": [3, SIDE, SIDE], "mode": "RGB", "resize": "stretch"}
PACKAGES = ("torch==2.13.0", "torchvision==0.28.0", "pillow==13.0.0", "numpy")
PEER = """
import json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets.folder import pil_loader
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

torch.set_num_threads(1)
files, side = json.loads(sys.argv[1]), int(sys.argv[2])
resize, to_tensor = v2.Resize((side, side), antialias=True), v2.PILToTensor()
WAYS = {
    "pil_loader": lambda path: to_tensor(resize(pil_loader(path))),
    "decode_image": lambda path: resize(decode_image(path, ImageReadMode.RGB)),
}


class Files(Dataset):
    def __init__(self, way):
        self.way = way

    def __len__(self):
        return len(files)

    def __getitem__(self, index):
        return WAYS[self.way](files[index])


loaders = {}
for line in sys.stdin:
    way = line.strip()
    try:
        WAYS[way](files[0])
    except RuntimeError:
        print("{}", flush=True)
        continue
    if way not in loaders:
        workers = len(os.sched_getaffinity(0))
        loaders[way] = DataLoader(Files(way), 32, num_workers=workers, persistent_workers=True)
        list(loaders[way])
    start = time.perf_counter()
    shape = [list(batch.shape) for batch in loaders[way]][0]
    print(json.dumps({"seconds": time.perf_counter() - start, "shape": shape}), flush=True)
"""


def write_files(folder: Path, count: int, ending: str) -> list[str]:
    """Write pictures with soft shapes and some noise, as photographs have them."""
    rng, found = np.random.default_rng(0), []
    for i in range(count):
        soft = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((500, 375))
        noisy = np.asarray(soft, dtype=np.int16) + rng.integers(-6, 7, (375, 500, 3))
        path = folder / f"{i}.{ending}"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        found.append(str(path))
    return found


def own_seconds(files: list[str]) -> float:
    """Return the seconds of reading, sealing and decoding, as preparation does them."""

    def one(path: str) -> np.ndarray:
        data = pictures.read_bytes(path)
        hashlib.sha256(data).hexdigest()
        return pictures.decode(data, RULE)

    start = time.perf_counter()
    for first in range(0, len(files), 256):
        np.stack(pictures.at_once(one, files[first : first + 256]))
    return time.perf_counter() - start


def measure(files: list[str], rounds: int, python: str) -> dict[str, float]:
    """Return the median seconds of each way; they take turns."""
    peer = subprocess.Popen(
        [python, "-c", PEER, json.dumps(files), str(SIDE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if peer.stdin is None or peer.stdout is None:
        raise RuntimeError("the peer has no pipes")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with peer:
        for turn in range(rounds + 1):
            for way, found in seconds.items():
                if way == "bulkhead":
                    found.append(own_seconds(files))
                    continue
                peer.stdin.write(way + "\n")
                peer.stdin.flush()
                answer = json.loads(peer.stdout.readline())
                if not answer:
                    continue
                if answer["shape"][1:] != RULE["shape"]:
                    raise RuntimeError(f"{way}: expected {RULE['shape']}, got {answer['shape']}")
                found.append(float(answer["seconds"]))
            if not turn:
                seconds = {way: [] for way in seconds}  # files are in the page cache now
        peer.stdin.close()
    return {way: median(found) for way, found in seconds.items() if found}


def main() -> int:
    """Measure, write the section, and return 0 if ours is not slower."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--python", help="of an environment with torchvision")
    given = parser.parse_args()
    python = given.python or str(environment(home() / "peers-pictures", PACKAGES))
    rows, worst = [], float("inf")
    for ending in ("jpg", "png"):
        with tempfile.TemporaryDirectory() as name:
            files = write_files(Path(name), given.count, ending)
            found = measure(files, given.rounds, python)
        ratio = min(s for way, s in found.items() if way != "bulkhead") / found["bulkhead"]
        worst = min(worst, ratio)
        rates = {w: f"{given.count / found[w]:.0f}" if w in found else "—" for w in WAYS}
        rows.append({"files": ending.upper(), **rates, "of the faster": f"{ratio:.2f}"})
    text = (
        f"## Pictures\n\n`python -m benchmarks.pictures` on {machine()}: files of 375 x 500 a"
        f" second, to uint8 of {SIDE} x {SIDE}; `pil_loader` and `decode_image` are torchvision's"
        " in a DataLoader with one worker a core. The last column is our rate over the faster"
        f" one's.\n\n{markdown_table(rows)}"
    )
    print(text)
    write_section("pictures", text)
    return 0 if worst >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
