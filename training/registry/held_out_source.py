"""Rows that another run validates and tests on, which this run must not learn from."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from schemas.errors import ConfigError, RegistryError
from schemas.home import home
from schemas.init_records import HeldOut, Origin
from schemas.records import Prepared
from training.data.split.seen_molecules import scaffold_of, smiles_of
from training.data.split.seen_rows import plain, texts_of
from training.registry.init_weights import find_run
from training.registry.registry import fetched, prove_version, version_of
from training.registry.trust import FILES
from training.run.record import PREPARED, has_part, read_part, started_declaration

WHERE = "data.held_out_by"


def held_out_of(given: str, uri: str) -> HeldOut:
    """Return the validation and test rows of a run, or of the run behind a registered version.

    Args:
        given: models:/NAME/3, models:/NAME@ALIAS, or a run's id or directory.
        uri: address of the registry.

    Raises:
        ConfigError: there is no such run, or its rows are not on this machine.
        RegistryError: there is no such version.
        IntegrityError: a file is not what was recorded or registered.
    """
    is_version = given.startswith("models:/")
    resolved, run_dir = _of_version(given, uri) if is_version else (given, find_run(given, WHERE))
    found = read_part(run_dir, PREPARED, Prepared) if has_part(run_dir, PREPARED) else None
    tables = () if found is None else (plain(found.split.val), plain(found.split.test))
    if found is None or not all(table.file.file.is_file() for table in tables):
        raise ConfigError(
            f"{WHERE} {given!r}: the validation and test rows of its run are not on this machine;"
            f" expected {run_dir} and the tables that it names. Run its declaration here first"
        )
    spec = found.validated.spec
    origin = Origin(
        run_id=run_dir.name,
        name=run_dir.parent.name,
        source_sha256=found.source.sha256,
        train_sha256=found.split.train.file.sha256,
        val_sha256=found.split.val.file.sha256,
        fitted=tables,
        id=spec.id,
        group=spec.group,
        features=spec.features,
        texts=texts_of(spec),
        smiles=smiles_of(spec),
        scaffold=scaffold_of(spec, started_declaration(run_dir)),
    )
    return HeldOut(given=given, resolved=resolved if is_version else str(run_dir), origin=origin)


def _of_version(given: str, uri: str) -> tuple[str, Path]:
    """Return the exact name of a version, and the directory of its run."""
    version = version_of(given, uri)
    if version is None:
        raise RegistryError(f"{given} is not in the registry")
    with tempfile.TemporaryDirectory(prefix="bulkhead-held-out-") as scratch:
        files = fetched(version, given, uri, Path(scratch))
        prove_version(files, version)
        evidence = json.loads((files / "artifacts" / FILES["evidence"]).read_text("utf-8"))
    run_dir = home() / "runs" / str(evidence["name"]) / str(evidence["run_id"])
    return f"models:/{version.name}/{version.version}", run_dir
