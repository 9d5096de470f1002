"""Storage tests that need a process which forks: python -m tests.faults.storage_work
STRIDE FOLDER [SMALL_DISK].
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.faults.full_disk import fill_and_free
from tests.faults.storage import sweep_all, sweep_save
from training.checkpoint.commit import Draft
from training.checkpoint.manifest import MANIFEST, FileEntry, Manifest


def commit_with_the_name_first(
    draft: Draft, files: dict[str, FileEntry], facts: dict[str, Any], allowed: object
) -> None:
    """Commit with a fault: the name exists before the content is complete."""
    place = draft.folder.with_name(draft.name)
    shutil.rmtree(place, ignore_errors=True)
    draft.folder.rename(place)
    (place / MANIFEST).write_bytes(Manifest(name=draft.name, files=files, **facts).sealed().text())


def main() -> None:
    """Run the sweeps and print their results as JSON."""
    stride, folder, disks = int(sys.argv[1]), Path(sys.argv[2]), list(map(Path, sys.argv[3:]))
    told: dict[str, Any] = {"sweeps": sweep_all(folder / "sweeps", stride)}
    told["full_disk"] = fill_and_free(folder / "full", disks[0]) if disks else None
    Draft.commit = commit_with_the_name_first  # type: ignore[assignment,method-assign]
    told["broken"] = sweep_save(folder / "broken", "whole", (10, 20))["failures"]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
