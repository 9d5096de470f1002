"""Find the weights that `model.init.from` names, and what they were trained on.

Each source becomes a state dict in a file of this machine and a record of its digest and origins,
before anything is trained. Ranks read that file alone: they never ask the registry.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from schemas.confinement import require_readable
from schemas.digest import file_ref, replacing, sha256_file, verify
from schemas.errors import BulkheadError, ConfigError, IntegrityError, RegistryError
from schemas.home import home
from schemas.init_config import InitConfig
from schemas.init_records import InitialWeights, InitInputs, Origin
from schemas.load import declare
from schemas.records import FileRef, Prepared, RunSpec, TrainReport, digest_of
from schemas.refit import REFIT_SPLITS
from training.checkpoint.state import model_digest
from training.data.split.seen_molecules import smiles_of
from training.data.split.seen_rows import plain, texts_of
from training.models.code_rows import inputs_of
from training.models.lora import merged_tensors
from training.models.temperature import KEY
from training.models.tensor_files import read_tensor_file
from training.registry.registry import fetched, prove_version, version_of
from training.registry.trust import DIGEST_TAG, FILES
from training.run.record import PREPARED, has_part, read_part
from training.run.result_files import read_run
from training.serving import program_reader

WEIGHTS, KEYS = "weights.pt", "trained_on.npy"


class Source(NamedTuple):
    """A source whose alias is resolved: its exact name, and a digest of what it stands for."""

    resolved: str
    sha256: str


def resolve(init: InitConfig, uri: str) -> Source:
    """Return the version, run or file that `from` stands for now.

    Args:
        init: as declared.
        uri: address of the registry.

    Raises:
        ConfigError: there is no such run or file, or a file has another digest.
        RegistryError: there is no such version.
    """
    if init.is_file:
        require_readable(init.from_, "model.init.from")
        path = Path(init.from_).absolute()
        if not path.is_file():
            raise ConfigError(f"model.init.from {init.from_!r}: there is no such file")
        found = sha256_file(path)
        if found != init.sha256:
            raise ConfigError(
                f"model.init.from {init.from_!r}: its SHA-256 is {found}, declared is"
                f" {init.sha256}; use the file that was meant, or correct model.init.sha256"
            )
        return Source(str(path), found)
    if init.from_.startswith("models:/"):
        version = version_of(init.from_, uri)
        if version is None:
            raise RegistryError(f"{init.from_}: expected models:/NAME/VERSION")
        files = {key: tag for key, tag in version.tags.items() if key.startswith(DIGEST_TAG)}
        return Source(f"models:/{version.name}/{version.version}", digest_of(files))
    run_dir = find_run(init.from_)
    return Source(str(run_dir), read_run(run_dir)[1].model_sha256)


def find_run(name: str, where: str = "model.init.from") -> Path:
    """Return the directory of a run by its path or its id; `where`: the key that names it.

    Raises:
        ConfigError: there is none.
    """
    given = Path(name)
    if given.is_dir():
        require_readable(name, where)
        return given.absolute()
    found = sorted((home() / "runs").glob(f"*/{name}")) if "/" not in name else []
    if len(found) != 1:
        raise ConfigError(
            f"{where} {name!r}: expected models:/NAME/VERSION, a run's id or directory"
            + (", or a file (.safetensors, .pt)" if where == "model.init.from" else "")
            + f"; there is no such run in {home() / 'runs'}"
        )
    return found[0]


def fetch(given: str, source: Source, uri: str, folder: Path) -> InitialWeights:
    """Write the weights of a resolved source as a state dict; return their record.

    Args:
        given: as declared.
        source: from `resolve`.
        uri: address of the registry.
        folder: gets the files.

    Raises:
        ConfigError: it holds no weights of one network.
        IntegrityError: a file is not what was recorded or registered.
        RegistryError: the version cannot be fetched.
    """
    if source.resolved.startswith("models:/"):
        return _of_version(given, source, uri, folder)
    if Path(source.resolved).is_dir():
        return _of_run(given, Path(source.resolved), folder)
    tensors = read_tensor_file(Path(source.resolved))
    return _record(given, source.resolved, tensors, folder)


def _record(
    given: str, resolved: str, tensors: Mapping[str, Tensor], folder: Path, **facts: Any
) -> InitialWeights:
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if name != KEY}
    with replacing(folder / WEIGHTS) as file:
        torch.save(kept, file)
    return InitialWeights(
        given=given,
        resolved=resolved,
        file=file_ref(folder / WEIGHTS),
        sha256=model_digest(kept),
        **facts,
    )


# ---------------------------------------------------------------------------------------------- run


def _of_run(given: str, run_dir: Path, folder: Path) -> InitialWeights:
    spec, trained = read_run(run_dir)
    _require_one_network(spec, trained, str(run_dir))
    stored = torch.load(verify(trained.best_checkpoint), map_location="cpu", weights_only=True)
    tensors = merged_tensors(stored, declare(spec.declaration).model)
    origins, is_whole = origins_of(spec, run_dir)
    inputs = inputs_of(spec.statistics)
    return _record(
        given,
        str(run_dir),
        tensors,
        folder,
        inputs=inputs,
        origins=origins,
        is_whole=is_whole,
    )


def _require_one_network(spec: RunSpec, trained: TrainReport, name: str) -> None:
    kind = declare(spec.declaration).model.kind
    if kind == "boosting" or trained.members:
        what = "trees" if kind == "boosting" else "several models"
        raise ConfigError(
            f"model.init.from: {name} consists of {what}, which are not the weights of one network;"
            " start from a run of one network"
        )
    if trained.status == "interrupted":
        raise ConfigError(
            f"model.init.from: the training of {name} is not finished; `bulkhead resume {name}`"
        )


def origins_of(
    spec: RunSpec, run_dir: Path, refit: str = "none", **facts: Any
) -> tuple[tuple[Origin, ...], bool]:
    """Return what a run, and the weights that it began from, were trained on.

    Args:
        spec: its `resolved.json`.
        run_dir: its directory.
        refit: rows of the refit that the weights come from.
        facts: of the origin's record.

    Returns:
        The origins, and true if they are all that the weights learned from.
    """
    prepared = read_part(run_dir, PREPARED, Prepared) if has_part(run_dir, PREPARED) else None
    if prepared is None:
        raise IntegrityError(
            f"{run_dir}: expected {PREPARED}, which says what the run was trained on; start from a"
            " run that was started with `bulkhead run` or `bulkhead train`"
        )
    refitted = next((splits for rows, splits in REFIT_SPLITS.items() if rows == refit), None)
    split, names = prepared.split, refitted or ("train",)
    fitted = tuple(plain(split.side(name)) for name in names)
    chosen = () if "val" in names else (plain(split.val),)
    here = all(table.file.file.is_file() for table in (*fitted, *chosen))
    own = Origin(
        run_id=spec.run_id,
        name=spec.name,
        source_sha256=prepared.source.sha256,
        train_sha256=split.train.file.sha256,
        val_sha256=split.val.file.sha256,
        fitted=fitted if here else (),
        chosen=chosen if here else (),
        id=spec.spec.id,
        group=spec.spec.group,
        features=spec.spec.features,
        texts=texts_of(spec.spec),
        smiles=smiles_of(spec.spec),
        **facts,
    )
    earlier = spec.init
    if earlier is None:
        return (own,), True
    return (own, *earlier.origins), bool(earlier.origins) and earlier.is_whole


# ------------------------------------------------------------------------------------------ version


def _of_version(given: str, source: Source, uri: str, folder: Path) -> InitialWeights:
    version = version_of(source.resolved, uri)
    if version is None:
        raise RegistryError(f"{source.resolved} is not in the registry")
    with tempfile.TemporaryDirectory(prefix="bulkhead-init-") as scratch:
        files = fetched(version, source.resolved, uri, Path(scratch))
        prove_version(files, version)
        artifacts = files / "artifacts"
        try:
            spec, evidence = (
                json.loads((artifacts / FILES[name]).read_text(encoding="utf-8"))
                for name in ("spec", "evidence")
            )
        except (OSError, ValueError) as error:
            raise RegistryError(
                f"{source.resolved} has no evidence of what it was trained on; start from another"
                " version, or from a file of its weights"
            ) from error
        if evidence.get("members"):
            raise ConfigError(
                f"model.init.from: {source.resolved} consists of several models, which are not the"
                " weights of one network; start from a version of one network"
            )
        tensors = program_tensors(artifacts / FILES["program"])
        keys = _keys(artifacts / FILES["trained_on"], folder)
    facts = {"version": str(version.version), "hashes": keys}
    origins, is_whole, inputs = _origins_of_version(spec, evidence, facts)
    return _record(
        given,
        source.resolved,
        tensors,
        folder,
        inputs=inputs,
        origins=origins,
        is_whole=is_whole,
    )


def _keys(path: Path, folder: Path) -> FileRef | None:
    if not path.exists():
        return None
    with replacing(folder / KEYS) as file:
        np.save(file, np.load(path, allow_pickle=False))
    return file_ref(folder / KEYS)


def _origins_of_version(
    spec: dict[str, Any], evidence: dict[str, Any], facts: dict[str, Any]
) -> tuple[tuple[Origin, ...], bool, InitInputs]:
    """Return origins and inputs from the run's own files, or from what is registered."""
    run_dir = home() / "runs" / str(evidence["name"]) / str(evidence["run_id"])
    refit = str((evidence.get("refit") or {}).get("rows", "none"))
    try:
        run, _ = read_run(run_dir)
        return (*origins_of(run, run_dir, refit, **facts), inputs_of(run.statistics))
    except BulkheadError:  # its files are gone, or are no longer those of the version
        pass
    sides = evidence["split"]["sides"]
    columns = {kind: spec.get(kind, []) for kind in ("numeric", "categorical", "tensor", "bags")}
    text = spec.get("text")
    names = tuple(c["name"] for kind in columns.values() for c in kind)
    own = Origin(
        run_id=str(evidence["run_id"]),
        name=str(evidence["name"]),
        source_sha256=str(evidence["source_sha256"]),
        train_sha256=str(sides["train"]["sha256"]),
        val_sha256=str(sides["val"]["sha256"]),
        features=names or ((text["name"],) if text else ()),
        texts=(text["name"],) if text else (),
        **facts,
    )
    return (own,), not evidence.get("init"), _inputs_of_spec(spec, columns)


def _inputs_of_spec(spec: dict[str, Any], columns: dict[str, Any]) -> InitInputs:
    labels = spec.get("labels") or [spec]
    text = spec.get("text")
    return InitInputs(
        numeric=tuple(c["name"] for c in columns["numeric"]),
        categorical={c["name"]: tuple(c["values"]) for c in columns["categorical"]},
        tensor=tuple(c["name"] for c in columns["tensor"]),
        bags={c["name"]: tuple(c["values"]) for c in columns["bags"] if "of" not in c},
        molecules={
            # a rule has the column's name, its key that of the feature
            c["key"].removeprefix("tensor_"): tuple(c["values"])
            for c in columns["bags"]
            if c.get("of") == "tokens"
        },
        tokens=tuple(text["values"]) if text else None,
        classes=tuple(tuple(map(repr, label.get("classes", ()))) for label in labels),
    )


def program_tensors(path: Path) -> dict[str, Tensor]:
    """Return the network's parameters and running statistics in an exported program, float32.

    Nothing is unpickled. Programs hold float64 numbers that were float32 in training, so that the
    way back is exact.

    Raises:
        ConfigError: it is a program without such a network, as of trees.
        IntegrityError: it cannot be read.
    """
    try:
        entries = program_reader._entries(path)
        program = json.loads(entries[program_reader.MODEL])["graph_module"]
        tensors = program_reader._tensors(entries, program_reader.WEIGHTS)
    except Exception as error:  # any error of a damaged archive
        raise IntegrityError(f"{path.name} of the version cannot be read ({error})") from error
    found = {}
    for entry in program["signature"]["input_specs"]:
        ((kind, named),) = entry.items()
        name = named.get(f"{kind}_name", "")
        if kind == "parameter" or (kind == "buffer" and named.get("persistent")):
            prefix, _, inner = name.partition("network.")
            if not prefix and inner:
                tensor = tensors[name]
                is_double = tensor.dtype == torch.float64
                found[inner] = tensor.float() if is_double else tensor
    if not any(name.startswith(("body.", "bags.")) for name in found):
        raise ConfigError("model.init.from: the version is no network with weights, but trees")
    return found
