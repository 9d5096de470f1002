"""Try a draft on its own table: what the run would refuse before training is found now."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml

from schemas.errors import BulkheadError
from schemas.load import declare
from training.data.engine.in_memory import holding
from training.data.fit.normalize import fit
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate


class Rehearsal(NamedTuple):
    """What a run of the draft says before training: the refusal, or None if it accepts."""

    refusal: str | None
    is_constant: bool = False


def rehearse(text: str) -> Rehearsal:
    """Load, validate, split and fit a drafted declaration, in a folder that is removed again."""
    with tempfile.TemporaryDirectory(prefix="bulkhead-draft-") as folder, holding():
        try:
            declaration = declare(yaml.safe_load(text), "the draft")
            validated = validate(fingerprint(declaration.data), declaration, Path(folder))
            made = split(validated, declaration, Path(folder) / "split", Path(folder) / "ledger")
            fit(made.train, validated.spec, declaration)
        except BulkheadError as error:
            message = str(error)
            return Rehearsal(message, "checks.constant_features" in message)
    return Rehearsal(None)
