"""Libraries that a registered model needs."""

from __future__ import annotations

from importlib import metadata
from typing import Any

REQUIRED = ("mlflow", "torch", "numpy", "pandas", "pyarrow")


def requirements(spec: dict[str, Any]) -> list[str]:
    """Return the libraries of a model's spec with their versions here.

    RDKit only for molecules, Pillow only for pictures.

    >>> [text.partition("==")[0] for text in requirements({"bags": [{"name": "a", "of": "bits"}]})]
    ['mlflow', 'torch', 'numpy', 'pandas', 'pyarrow', 'rdkit']
    """
    molecules = any("of" in column for column in spec.get("bags", []))
    further = [*(["rdkit"] if molecules else []), *(["pillow"] if "pictures" in spec else [])]
    libraries = (*REQUIRED, *further)
    return [f"{name}=={metadata.version(name).partition('+')[0]}" for name in libraries]
