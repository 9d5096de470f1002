"""An environment of its own with what a registered model names, and what that depends on."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def distributions(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """The named distributions as they are installed here, and all that they depend on.

    Raises:
        ValueError: another version is installed here than the one that is named.
    """
    found: dict[str, metadata.Distribution] = {}
    wanted = [Requirement(line) for line in requirements]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        own = metadata.distribution(name)
        if own.version.partition("+")[0] not in requirement.specifier:
            raise ValueError(f"{requirement}: {own.version} is installed here")
        if name in found:
            continue
        found[name] = own
        further = (Requirement(line) for line in own.requires or [])
        wanted += [r for r in further if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def make_environment(folder: Path, requirements: list[str]) -> Path:
    """Make a fresh environment that has these distributions and no other; return its Python.

    Their packages are links to those installed here, so that nothing is fetched or copied.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    asked = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    inside = Path(asked.stdout.strip())
    for own in distributions(requirements).values():
        tops = {Path(str(file)).parts[0] for file in own.files or []}
        for top in tops - {"..", "__pycache__"}:
            if not (inside / top).exists():
                (inside / top).symlink_to(Path(str(own.locate_file(top))))
    return python
