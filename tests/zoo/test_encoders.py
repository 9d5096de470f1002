"""Preflight names the planted mistake of each encoder of texts, sets, molecules, pictures and
series; that it lets the real ones through is tested next to each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from schemas.errors import BulkheadError
from schemas.records import RunSpec
from tests.subset import some
from tests.training.kind_cases import MIXED, mixed_rows, prepared
from tests.training.picture_cases import picture_run
from tests.training.test_molecules import columns as molecule_columns
from tests.training.test_molecules import rows as molecule_rows
from tests.training.windows.tables import prepared_series, series
from tests.zoo import encoders as faulty
from training.models import bag_vectors, encoders
from training.preflight.run import preflight

Fault = Callable[[Any], nn.Module]
MODEL: dict[str, Any] = {"model": {"kind": "mlp", "hidden": [32]}, "train": {"clip": "none"}}


def of_bags(name: str, **own: Any) -> Callable[[Path], RunSpec]:
    """A run over one text or set next to a number."""
    columns = {key: MIXED[key] for key in ("row", "y", "x")} | {
        name: MIXED[name] | own,
        "*": "ignore",
    }
    return lambda folder: prepared(folder, mixed_rows(), columns, **MODEL).run


def of_molecules(encoder: str) -> Callable[[Path], RunSpec]:
    """A run over molecules."""
    return lambda folder: prepared(folder, molecule_rows(), molecule_columns(encoder), **MODEL).run


def of_windows(kind: str) -> Callable[[Path], RunSpec]:
    """A run over windows of series."""
    window = {"encoder": {"kind": kind, "width": 16}}
    return lambda folder: prepared_series(folder, series(), window, **MODEL).run


def of_pictures(folder: Path) -> RunSpec:
    """A run over pictures."""
    return picture_run(folder, **MODEL)


TEXT_TRANSFORMER = of_bags("note", encoder={"kind": "transformer", "width": 16, "depth": 1})
FAULTS: dict[str, tuple[Callable[[Path], RunSpec], Fault, str, str]] = {
    # the run, the mistake, the check that names it, words of it
    "series, nothing read": (of_windows("tcn"), faulty.ReadsNothing, "inputs", "past"),
    "series, a state that is kept": (of_windows("gru"), faulty.Remembers, "repeatable", "differ"),
    "series, a turned mask": (
        of_windows("transformer"),
        faulty.mask_turned,
        "attention",
        "the wrong way round",
    ),
    "text, nothing read": (of_bags("note"), faulty.ReadsNothing, "inputs", "note"),
    "text, a turned mask": (
        TEXT_TRANSFORMER,
        faulty.mask_turned,
        "attention",
        "the wrong way round",
    ),
    "text, no gradient": (TEXT_TRANSFORMER, faulty.Detaches, "gradients", "bags.parts"),
    "set, a norm over rows": (
        of_bags("tags"),
        faulty.NormOverRows,
        "independence",
        "rows of a batch mix",
    ),
    "molecule, messages between molecules": (
        of_molecules("graph"),
        faulty.messages_across,
        "independence",
        "rows of a batch mix",
    ),
    "molecule, a turned mask": (
        of_molecules("transformer"),
        faulty.mask_turned,
        "attention",
        "the wrong way round",
    ),
    "molecule, nothing read": (of_molecules("fingerprint"), faulty.ReadsNothing, "inputs", "drug"),
    "picture, a norm over rows": (
        of_pictures,
        faulty.NormOverRows,
        "independence",
        "rows of a batch mix",
    ),
    "picture, dropout in eval mode": (of_pictures, faulty.DropsInEval, "repeatable", "differ"),
    "picture, a division by zero": (
        of_pictures,
        faulty.DividesByContrast,
        "extremes",
        "not finite",
    ),
    "picture, no gradient": (of_pictures, faulty.Detaches, "gradients", "encoders.parts"),
}


@pytest.mark.req("M4")
@pytest.mark.parametrize("name", some(FAULTS, 14))
def test_the_mistake_of_an_encoder_is_named_by_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run, fault, check, words = FAULTS[name]
    spec = run(tmp_path)
    for module, function in ((encoders, "build_encoder"), (bag_vectors, "vector_of")):
        sound = getattr(module, function)
        planted = lambda *given, sound=sound: fault(sound(*given))  # noqa: E731
        monkeypatch.setattr(module, function, planted)
    try:
        results = preflight(spec).checks.results
        found = {r.name: r for r in results if r.verdict in ("fail", "warn")}
        assert check in found, found
        text = f"{found[check].summary} {found[check].remedy}"
    except BulkheadError as error:  # nothing else could be checked
        text = str(error)
        assert text.startswith(f"{check}: ")
    assert words in text
