"""Undisturbed run that the tests of this folder compare with, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.trials import WORLDS, Reference, make_reference


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Train the exact setup on two ranks."""
    folder: Path = tmp_path_factory.mktemp("undisturbed")
    return make_reference(folder, "exact", WORLDS["exact"])
