"""Damage checkpoints at random: every damage is found, the previous checkpoint is used, no
unverified byte is unpickled.

    python -m tests.faults.corrupt --flips 1000 --truncations 1000

Each trial damages one file that loading the newest checkpoint reads (its own files, its manifest,
its best weights): one bit is flipped, or the file is cut at a random length. Then the checkpoints
are opened as a resuming run opens them, in whole and in sharded layout in turn. The trial records
the bytes that reach the unpickler and, by an audit hook, every import, execution of code and start
of a process. Exit code 1 if any trial shows anything else.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from schemas.digest import sha256_file
from tests.faults.saved_runs import STEPS, files_of_newest, opened, save
from tests.faults.watch import watched

LAYOUTS = ("whole", "sharded")


@dataclass(frozen=True)
class Damage:
    """Damage of one file; `failure` is empty if it was handled as promised."""

    kind: str
    layout: str
    file: str
    place: int
    failure: str


def damage(path: Path, kind: str, dice: random.Random) -> int:
    """Flip one bit of a file or cut it; return the bit, or the length that is left."""
    data = bytearray(path.read_bytes())
    if kind == "flip":
        place = dice.randrange(8 * len(data))
        data[place // 8] ^= 1 << place % 8
    else:
        place = dice.randrange(len(data))
        del data[place:]
    path.write_bytes(data)
    return place


def trial(root: Path, layout: str, kind: str, dice: random.Random) -> Damage:
    """Damage the newest checkpoint in a folder and open it."""
    vouched = {sha256_file(path) for path in root.rglob("*.pt")}
    victim = dice.choice(files_of_newest(root))
    place = damage(victim, kind, dice)
    return Damage(
        kind,
        layout,
        f"{victim.parent.name[:4]}/{victim.name}",
        place,
        _handled(root, victim, vouched),
    )


def _handled(root: Path, victim: Path, vouched: set[str]) -> str:
    """Return the errors in how a damage was handled; empty if there is none."""
    told: list[str] = []
    before = victim.read_bytes()
    with watched() as seen:
        try:
            newest = opened(root, told).newest()
            loaded = set(opened(root).load_trainer(newest)["state"].items()) if newest else set()
        except Exception as error:  # any exception is a finding
            return f"{type(error).__name__}: {error}"
    aside = root / f"step-{STEPS[-1]:08d}.damaged"
    kept = aside / victim.name if victim.parent.name.startswith("step") else victim
    found = {
        "the previous checkpoint is used": newest == STEPS[-2] and ("step", STEPS[-2]) in loaded,
        "it is told once, naming the file": (
            len(told) == 1 and victim.name in told[0] and "is damaged and was renamed" in told[0]
        ),
        "the damaged one is set aside as it was": aside.is_dir() and kept.read_bytes() == before,
        "only vouched bytes are unpickled": bool(seen.unpickled) and set(seen.unpickled) <= vouched,
        f"nothing runs ({seen.events[:1]})": not seen.events,
    }
    return "; ".join(f"not so: {promise}" for promise, kept in found.items() if not kept)


def run(folder: Path, flips: int, truncations: int, seed: int) -> list[Damage]:
    """Run all trials."""
    for layout in LAYOUTS:
        save(folder / layout, layout)
        opened(folder / layout).newest()  # loads every module that loading needs
    dice = random.Random(seed)
    done = []
    for number, kind in enumerate(["flip"] * flips + ["truncation"] * truncations):
        layout, copy = LAYOUTS[number % 2], folder / "copy"
        shutil.copytree(folder / layout, copy)
        done.append(trial(copy, layout, kind, dice))
        shutil.rmtree(copy)
    return done


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.corrupt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--truncations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bulkhead-corrupt-") as folder:
        done = run(Path(folder), options.flips, options.truncations, options.seed)
    wrong = [vars(one) for one in done if one.failure]
    if options.json:
        print(
            json.dumps(
                {"trials": len(done), "found": len(done) - len(wrong), "failures": wrong}, indent=1
            )
        )
    else:
        kinds, files = (Counter(getattr(one, field) for one in done) for field in ("kind", "file"))
        print(
            f"{len(done) - len(wrong)} of {len(done)} damages found, previous checkpoint used,"
            f" nothing unverified unpickled: {dict(kinds)}"
        )
        print(f"by file: {dict(sorted(files.items()))}; {time.monotonic() - begun:.0f} s")
        for one in wrong[:10]:
            print(f"FAILED {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
