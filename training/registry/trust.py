"""Trusted files of a registered model: those of a manifest that a trusted key has signed.

`manifest.json` in the model's folder has the SHA-256 of every file, and the model's name, run,
commit, declaration and metrics; `manifest.sig` is its signature. Nothing of a model is read before
both are verified. Versions of an earlier Bulkhead have neither. A home remembers those that existed
when it began to sign, and accepts no other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from schemas.digest import sha256_file, write_atomic
from schemas.errors import IntegrityError, RegistryError
from schemas.records import Evidence, digest_of
from training.registry import signing
from training.serving.serving import BYTECODE, MANIFEST, SIGNATURE, changed_files

FORMAT = 1
DIGEST_TAG, SIGNER_TAG = "bulkhead.sha256.", "bulkhead.signer"
FILES = {
    "program": "program.pt2",
    "spec": "spec.json",
    "expressions": "expressions.zip",
    "evidence": "evidence.json",
    "split_manifest": "split_manifest.json",
    "trained_on": "trained_on.npy",
    "tested_on": "tested_on.npy",
}
CODE, MLMODEL = "serving.py", "MLmodel"  # the latter names the code that MLflow runs
UNSIGNED = (  # in the home: unsigned versions from before it signed, by digest
    "unsigned.json"
)
ACCEPT = "BULKHEAD_ACCEPT_UNSIGNED"


class Trust(NamedTuple):
    """Reason to trust the files of a model.

    `signer` is the public key, None for a model of an earlier Bulkhead; `summary` is for people.
    """

    signer: str | None
    summary: str


# --------------------------------------------------------------------------------------- signing


def seal(folder: Path, evidence: Evidence) -> str:
    """Write and sign the manifest of a model's folder; no file may change afterwards.

    Returns:
        The public key that signed it.
    """
    # a consumer's Python would store bytecode of serving.py in a folder of this name, and run it
    # next time
    (folder / BYTECODE).write_text("a file, so that no bytecode is kept here\n", encoding="utf-8")
    git, files = (
        evidence.provenance.get("git") or {},
        [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != BYTECODE],
    )
    manifest = {
        "format": FORMAT,
        "name": evidence.name,
        "run_id": evidence.run_id,
        "config_sha256": evidence.config_sha256,
        "git_sha": str(git.get("sha") or "unknown"),
        "metrics": {name: interval.value for name, interval in evidence.metrics.items()},
        "files": {path.relative_to(folder).as_posix(): sha256_file(path) for path in files},
    }
    content = json.dumps(manifest, indent=1, sort_keys=True).encode()
    key, signature = signing.sign(content)
    (folder / MANIFEST).write_bytes(content)
    (folder / SIGNATURE).write_text(
        json.dumps({"key": key, "signature": signature}), encoding="utf-8"
    )
    return key


def remember_unsigned(versions: Iterable[tuple[str, Mapping[str, str]]]) -> None:
    """Record the unsigned versions of the registry, names with tags, before this home makes its
    key.

    Later any other unsigned version is refused: its signature may have been removed.
    """
    unsigned = [(name, _digests(tags)) for name, tags in versions if SIGNER_TAG not in tags]
    found = {_identity(name, digests): name for name, digests in unsigned if digests}
    write_atomic(
        signing.key_folder() / UNSIGNED, json.dumps(found, indent=1, sort_keys=True) + "\n"
    )


# --------------------------------------------------------------------------------------- proving


def prove(
    folder: Path, place: str, name: str | None = None, tags: Mapping[str, str] | None = None
) -> Trust:
    """Verify that a trusted signer registered a model's files; run none of them.

    Args:
        folder: the model's files.
        place: name of the model in errors.
        name: name of the registered model; None for a folder.
        tags: tags of its version; None for a folder.

    Raises:
        RegistryError: this project did not register the version.
        IntegrityError: a file is missing, changed or extra, the signature is missing or wrong, or
            its key is not trusted.
    """
    if (folder / MANIFEST).exists() or (folder / SIGNATURE).exists() or SIGNER_TAG in (tags or {}):
        manifest, key, whose = _signed_manifest(folder, place)
        _compare(place, changed_files(folder, manifest["files"]))
        _compare(place, _unlike_tags(manifest, name, tags))
        return Trust(key, f"signed by {whose}, {signing.fingerprint(key)}")
    present = _present(folder)
    recorded = present if tags is None else _digests(tags)
    if not recorded.keys() >= {FILES["program"], FILES["spec"], CODE, MLMODEL}:
        raise RegistryError(
            f"{place} was not registered by bulkhead: it has no digests of its files; register it"
            " through the pipeline"
        )
    _compare(
        place,
        {
            file: (
                f"SHA-256 is {present.get(file, 'no file')[:12]}, registered was"
                f" {recorded.get(file, 'no file')[:12]}"
            )
            for file in sorted(recorded.keys() | present.keys())
            if present.get(file) != recorded.get(file)
        },
    )
    return _unsigned(
        place,
        _identity(
            name or str(_json(folder / "artifacts" / FILES["spec"], place).get("name")), present
        ),
    )


def _signed_manifest(folder: Path, place: str) -> tuple[dict[str, Any], str, str]:
    """Return the manifest after its signature is verified, the signing key, and the key's owner."""
    for name in (MANIFEST, SIGNATURE):
        if not (folder / name).is_file():
            raise IntegrityError(
                f"{place}: {name} is missing although it was signed; nothing of it was run."
                f" {_REMEDY}"
            )
    content, signature = (folder / MANIFEST).read_bytes(), _json(folder / SIGNATURE, place)
    key, signed = str(signature.get("key")), str(signature.get("signature"))
    whose = signing.trusted_keys().get(key)
    if whose is None:
        raise IntegrityError(
            f"{place}: signed by the key {signing.fingerprint(key)}, which is neither this home's"
            f" nor one of {signing.TRUSTED}; nothing of it was run. If its owner confirms the key:"
            f" {signing.TRUSTED}={key[:80]}"
        )
    if not signing.is_signed(content, key, signed):
        raise IntegrityError(
            f"{place}: {MANIFEST} is not what {whose} has signed: it was changed; nothing of it was"
            f" run. {_REMEDY}"
        )
    manifest = _json(folder / MANIFEST, place)
    if manifest.get("format") != FORMAT:
        raise IntegrityError(
            f"{place}: expected a manifest of format {FORMAT}, got {manifest.get('format')!r}; use"
            " the Bulkhead that made it"
        )
    return manifest, key, whose


_REMEDY = "Point the alias to another version, or register the model again"


def _compare(place: str, wrong: Mapping[str, str]) -> None:
    for name, problem in wrong.items():
        file = name.removeprefix("artifacts/")
        raise IntegrityError(
            f"{file} of {place}: {problem}: the file was changed in the artifact store; nothing of"
            f" it was run. {_REMEDY}"
        )


def _unlike_tags(
    manifest: Mapping[str, Any], name: str | None, tags: Mapping[str, str] | None
) -> dict[str, str]:
    """List tags of the version that differ from the signed content."""
    if tags is None:
        return {}
    signed = {file.removeprefix("artifacts/"): digest for file, digest in manifest["files"].items()}
    wrong = {
        f"tag {DIGEST_TAG}{file}": f"is {digest[:12]}, signed was {signed.get(file, 'none')[:12]}"
        for file, digest in _digests(tags).items()
        if signed.get(file) != digest
    }
    if name != manifest["name"]:
        wrong["the name"] = f"is {name!r}, signed was {manifest['name']!r}"
    return wrong


def _unsigned(place: str, identity: str) -> Trust:
    """Trust a model from before signatures, as far as this home can know."""
    known = signing.key_folder() / UNSIGNED
    accepted = os.environ.get(ACCEPT, "").replace(",", " ").split()
    if (
        signing.trusted_keys()
        and identity not in accepted
        and not (known.exists() and identity in _json(known, str(known)))
    ):
        raise IntegrityError(
            f"{place} is not signed, and is none of the versions that were there when this home"
            " began to sign: its signature may have been taken away; nothing of it was run."
            f" {_REMEDY}; if you know that an earlier Bulkhead made it: {ACCEPT}={identity}"
        )
    return Trust(
        None,
        f"not signed: registered before signatures, so that nothing proves who registered {place}",
    )


def _digests(tags: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix(DIGEST_TAG): value
        for key, value in tags.items()
        if key.startswith(DIGEST_TAG)
    }


def _present(folder: Path) -> dict[str, str]:
    """Return digests of the files of a version of an earlier Bulkhead, as its tags name them."""
    paths = {name: folder / name for name in (CODE, MLMODEL)} | {
        name: folder / "artifacts" / name for name in FILES.values()
    }
    return {name: sha256_file(path) for name, path in paths.items() if path.is_file()}


def _identity(name: str, digests: Mapping[str, str]) -> str:
    return digest_of({"name": name, "files": dict(sorted(digests.items()))})


def _json(path: Path, place: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{place}: {path.name} cannot be read ({str(error)[:100]}); {_REMEDY}"
        ) from error
    if not isinstance(found, dict):
        raise IntegrityError(
            f"{place}: expected {path.name} to be an object, got {type(found).__name__}; {_REMEDY}"
        )
    return found
