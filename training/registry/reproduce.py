"""Compare a registered version with its reproduction: the parts without git or a process.

Digests are compared in the order in which a run makes them. The first difference names the cause;
later ones add nothing.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from pydantic import ValidationError

from schemas.config import SPLITS, AutoModel, DataConfig, Declaration
from schemas.errors import IntegrityError, RegistryError, first_few
from schemas.load import declare
from schemas.records import Evidence, SourceRef, digest_of
from schemas.registry_records import Step
from schemas.yaml_text import parse_yaml
from training.data.sources.databases import recorded
from training.data.split.ledger import copy_as_of
from training.data.split.split import group_ledger
from training.registry.registry import fetched, prove_version, version_of
from training.registry.trust import FILES
from training.registry.version_record import run_text
from training.run.provenance import hardware, library_versions
from training.tracking.mlflow import flatten

CONFIG, SOURCE = "declaration", "source"
ANY_MINUTES = 1e9


@dataclass(frozen=True)
class Origin:
    """Origin of a version: its evidence, and what its MLflow run recorded.

    `config`: text of `config.yaml`; only `config_step` compares it with the evidence. `diff`:
    uncommitted changes.
    """

    uri: str
    name: str
    run_id: str
    evidence: Evidence
    config: str
    diff: str
    files: dict[str, str]
    params: dict[str, str]

    @property
    def commit(self) -> str:
        """Commit of the code that made it."""
        return str((self.evidence.provenance.get("git") or {}).get("sha") or "")

    @property
    def declaration(self) -> Declaration:
        """Declaration of the run."""
        return declare(parse_yaml(self.config, "config.yaml"), f"config.yaml of run {self.run_id}")


def read_origin(model_uri: str, tracking_uri: str) -> Origin:
    """Read how a version was made from the registry and its run; run nothing of the model.

    Raises:
        RegistryError: there is no such version, this project did not make it, it started from other
            weights, its code was outside git, or its run is gone.
        IntegrityError: the version's files, or its recorded uncommitted changes, are not what was
            registered.
    """
    version = version_of(model_uri, tracking_uri)
    if version is None:
        raise RegistryError(
            f"expected models:/NAME@ALIAS or models:/NAME/VERSION, got {model_uri!r}"
        )
    run_id, uri = str(version.run_id), f"models:/{version.name}/{version.version}"
    with tempfile.TemporaryDirectory(prefix="bulkhead-reproduce-") as scratch:
        folder = fetched(version, uri, tracking_uri, Path(scratch))
        prove_version(folder, version)
        try:
            evidence = Evidence.model_validate_json(
                (folder / "artifacts" / FILES["evidence"]).read_bytes()
            )
        except (OSError, ValidationError) as error:
            raise IntegrityError(
                f"{uri}: its evidence cannot be read ({str(error).splitlines()[0]}); register the"
                " model again"
            ) from error
    if evidence.init is not None:
        raise RegistryError(
            f"{uri} started from the weights of {evidence.init.get('from')} (model.init), which the"
            " temporary home of this command does not hold, so it cannot be made again; `bulkhead"
            " verify` proves it, and its origin can be made again"
        )
    git = evidence.provenance.get("git") or {}
    if not git.get("sha"):
        raise RegistryError(
            f"{uri} was made by code outside of git: there is no commit to make it from again; run"
            " from a checkout and register again"
        )
    diff = run_text(run_id, "dirty.diff", tracking_uri).decode() if git.get("dirty") else ""
    if git.get("dirty") and digest_of_text(diff) != git.get("diff_sha256"):
        raise IntegrityError(
            f"dirty.diff of run {run_id} was changed after {uri} was registered; it is not run"
        )
    config = run_text(run_id, "config.yaml", tracking_uri).decode()
    params = MlflowClient(tracking_uri, tracking_uri).get_run(run_id).data.params
    return Origin(
        uri, version.name, run_id, evidence, config, diff, _files(run_id, tracking_uri), params
    )


def digest_of_text(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def _files(run_id: str, tracking_uri: str) -> dict[str, str]:
    """Return source files and their digests; none for a run that did not record them."""
    try:
        source = SourceRef.model_validate_json(run_text(run_id, "data/source.json", tracking_uri))
    except (RegistryError, ValidationError):
        return {}
    return {file.path: file.sha256 for file in source.files}


def as_it_ran(origin: Origin) -> tuple[str, ...]:
    """Return overrides that train the candidates of `model.kind: auto` that were trained then.

    Time decided how many they were; now it decides nothing. Empty for every other model.
    """
    model = origin.declaration.model
    if not isinstance(model, AutoModel):
        return ()
    ran = model.candidates[: len(origin.evidence.members)]
    return (
        f"model.candidates={json.dumps([one.model_dump(mode='json') for one in ran])}",
        f"model.minutes={ANY_MINUTES}",
    )


def data_as_recorded(origin: Origin) -> DataConfig:
    """Return how the rows are read: kept copies of databases where they are those of the run."""
    return recorded(origin.declaration.data, origin.evidence.source_sha256)


def source_as_recorded(origin: Origin) -> tuple[str, ...]:
    """Return overrides that read the kept copies of databases; none for any other source."""
    data = data_as_recorded(origin)
    if data == origin.declaration.data:
        return ()
    return (f"data.uri={json.dumps(data.uri)}", "data.table=null", "data.query=null")


# ------------------------------------------------------------------------------------- comparing


def config_step(origin: Origin) -> tuple[Step, str]:
    """Compare the recorded declaration with the version's, and list keys that the run overrode."""
    tree = parse_yaml(origin.config, f"config.yaml of run {origin.run_id}")
    step = Step(name=CONFIG, recorded=origin.evidence.config_sha256, found=digest_of(tree))
    if not step.differs:
        return step, ""
    now = flatten(origin.declaration)
    changed = [
        f"{key} is {now.get(key)!r}, was {origin.params.get(key)!r}"
        for key in sorted(now | origin.params)
        if now.get(key) != origin.params.get(key)
    ]
    return (
        step,
        (
            f"config.yaml of run {origin.run_id} was changed:"
            f" {first_few(changed) or 'in a value that is hidden, or in its form'}"
        ),
    )


def source_step(origin: Origin, source: SourceRef) -> tuple[Step, str]:
    """Check that the source is the same, and list the files that differ."""
    step = Step(name=SOURCE, recorded=origin.evidence.source_sha256, found=source.sha256)
    if not step.differs:
        return step, ""
    now = {file.path: file.sha256 for file in source.files}
    changed = [
        f"{path} ({_change(origin.files.get(path), now.get(path))})"
        for path in sorted(now | origin.files)
        if now.get(path) != origin.files.get(path)
    ]
    return (
        step,
        (
            "the data are not what they were:"
            f" {first_few(changed if origin.files else sorted(now))}; put them back as they were"
        ),
    )


def _change(then: str | None, now: str | None) -> str:
    if then is None or now is None:
        return "is new" if then is None else "is gone"
    return f"SHA-256 was {then[:12]}…, is {now[:12]}…"


def made(evidence: dict[str, Any]) -> dict[str, str]:
    """Return the results of each step after the source, in order."""
    sides, refit = evidence["split"]["sides"], evidence.get("refit")
    judged = refit["estimate"] if refit else evidence
    served = {"refitted weights": "model_sha256", "refitted program": "program_sha256"}
    return {
        "validated table": evidence["validated_sha256"],
        **{f"{side} side": sides[side]["sha256"] for side in SPLITS},
        "statistics": evidence["statistics_sha256"],
        "arrays": evidence["arrays_sha256"],
        "weights": judged["model_sha256"],
        "exported program": judged["program_sha256"],
        **({name: evidence[key] for name, key in served.items()} if refit else {}),
        **({"thresholds": digest_of(found)} if (found := evidence.get("thresholds")) else {}),
    }


def later_steps(origin: Origin, again: dict[str, Any] | None) -> tuple[Step, ...]:
    """Compare the steps after the source, then and now.

    Args:
        origin: origin of the version.
        again: `evidence.json` of the reproduction; None if it did not get that far.
    """
    found = made(again) if again else {}
    return tuple(
        Step(name=name, recorded=sha256, found=found.get(name))
        for name, sha256 in made(origin.evidence.model_dump(mode="json")).items()
    )


def unlike(origin: Origin) -> tuple[str, ...]:
    """Describe differences in interpreter, libraries and machine, as sentences.

    They are found before anything is made.
    """
    then, now = origin.evidence.provenance, library_versions()
    found = [
        f"{name} is {now.get(name, 'absent')}, was {v}"
        for name, v in sorted((then.get("versions") or {}).items())
        if now.get(name) != v
    ]
    if then.get("python") != sys.version.split()[0]:
        found.append(f"Python is {sys.version.split()[0]}, was {then.get('python')}")
    machine, here = then.get("hardware") or {}, hardware()
    found += [
        f"{what} is {here[key]!r}, was {machine.get(key)!r}"
        for key, what in (("cpu", "the CPU"), ("cores", "the number of cores"))
        if machine.get(key) != here[key]
    ]
    if (then.get("git") or {}).get("untracked_files"):
        found.append(
            f"{then['git']['untracked_files']} files next to the checkout were in no commit"
        )
    return tuple(found)


def reason(origin: Origin, step: Step, notes: tuple[str, ...]) -> str:
    """Return the likely reason why a step after the source made other bytes."""
    if origin.evidence.mode == "fast" and step.name in ("weights", "exported program"):
        return "train.mode was fast, which promises no equal bits"
    if notes:
        return f"most likely because {first_few(notes)}"
    return (
        f"nothing that is recorded explains it: commit {origin.commit[:12]}, declaration, source,"
        " versions and machine are what they were"
    )


# --------------------------------------------------------------------------------------- ledgers


def copy_ledgers(origin: Origin, ledger: Path, target: Path) -> str:
    """Copy both ledgers as the version's split used them; report what could not be copied.

    Args:
        origin: origin of the version.
        ledger: ledger of this model's splits, in this home.
        target: place of the ledger in the other home.
    """
    split, missing = origin.evidence.split, []
    for key, path, copy in (
        ("ledger_sha256", ledger, target),
        ("group_ledger_sha256", group_ledger(ledger), group_ledger(target)),
    ):
        if split.get(key) and not copy_as_of(path, split[key], copy):
            missing.append(str(path))
    return (
        f"the ledger that its split stood on is not here ({', '.join(missing)})" if missing else ""
    )


def read_evidence(run_dir: Path) -> dict[str, Any]:
    """Read `evidence.json` of a run, as its own code wrote it."""
    found: dict[str, Any] = json.loads((run_dir / "evidence.json").read_text(encoding="utf-8"))
    return found
