"""Seals: the SHA-256 of a record in a file next to it, to detect a changed record before use.

    run.json
    run.json.sha256     in the form that `sha256sum --check` reads

A seal detects damage and edits. It does not prove who wrote a record: anyone who can write to the
folder can also write a seal.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from schemas.digest import sha256_file, write_atomic
from schemas.errors import IntegrityError
from schemas.references import FileRef

SUFFIX = ".sha256"
LINE = re.compile(rb"([0-9a-f]{64})  ([^\n]+)\n")
Sealed = TypeVar("Sealed", bound=BaseModel)


def seal_path(path: Path) -> Path:
    """Return the file that contains the digest of a record."""
    return path.with_name(path.name + SUFFIX)


def write_sealed(path: str | Path, content: bytes | str) -> FileRef:
    """Write a small file and its seal, each completely or not at all.

    The seal is written first and also lists the digest of the old record, until the new record is
    in place. After a kill in between, the seal matches whichever record is there.
    """
    target = Path(path).absolute()
    data = content.encode() if isinstance(content, str) else content
    digests = [hashlib.sha256(data).hexdigest()]
    if target.is_file():
        before, known = sha256_file(target), _digests(target)
        if before not in digests and (before in known or not seal_path(target).exists()):
            digests.append(before)
    _write_seal(target, digests)
    written = write_atomic(target, data)
    if len(digests) > 1:
        _write_seal(target, digests[:1])
    return written


def read_sealed(path: Path, remedy: str, required: bool = True) -> bytes:
    """Return the bytes of a record after its seal matches.

    Args:
        path: path of the record.
        remedy: what to do if it is damaged; the end of the message.
        required: refuse a record without a seal; False accepts records of an earlier version
            without one.

    Raises:
        IntegrityError: the record or its seal is missing, cannot be read, or the two disagree.
    """
    if not path.is_file():
        raise IntegrityError(
            f"{path}: expected a record, found {'something else' if path.exists() else 'no file'};"
            f" {remedy}"
        )
    data, seal = path.read_bytes(), seal_path(path)
    if not seal.exists() and not required:
        return data
    found, known = hashlib.sha256(data).hexdigest(), _digests(path)
    if not known:
        why = "has no digest in it" if seal.exists() else "is missing"
        raise IntegrityError(
            f"{path}: cannot be compared with its digest: {seal.name} {why}; {remedy}"
        )
    if found not in known:
        raise IntegrityError(
            f"{path}: {path.name} does not match its digest: its SHA-256 is {found[:12]}…,"
            f" {seal.name} says {known[0][:12]}…: one of the two was changed after it was written;"
            f" {remedy}"
        )
    return data


def read_record(path: Path, record: type[Sealed], remedy: str, required: bool = True) -> Sealed:
    """Return a record of a given kind after its seal matches; arguments and errors of
    `read_sealed`.

    Raises:
        IntegrityError: also if the file contains something else.
    """
    data = read_sealed(path, remedy, required)
    try:
        return record.model_validate_json(data)
    except ValueError as error:
        why = str(error).splitlines()[0]
        raise IntegrityError(
            f"{path}: expected a {record.__name__}, but it cannot be read as one ({why}); {remedy}"
        ) from error


def remove_sealed(path: Path) -> None:
    """Remove a record and its seal if they exist."""
    path.unlink(missing_ok=True)
    seal_path(path).unlink(missing_ok=True)


def _write_seal(path: Path, digests: list[str]) -> None:
    write_atomic(seal_path(path), "".join(f"{digest}  {path.name}\n" for digest in digests))


def _digests(path: Path) -> list[str]:
    """Return the digests in a record's seal, newest first; empty if the seal cannot be read."""
    try:
        text = seal_path(path).read_bytes()
    except OSError:
        return []
    return [digest.decode() for digest, name in LINE.findall(text) if name == path.name.encode()]
