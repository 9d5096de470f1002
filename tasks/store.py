"""Results stored by content: a step with unchanged inputs is not repeated.

The key of a step is the digest of its inputs (content digests and the declaration's sections that
it reads), of its code and its libraries. A stored result is used only after its digest and that of
every file in it match. Otherwise a message says so, and the step runs again.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from prefect import State, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed
from pydantic import BaseModel

import schemas
import training.data
from schemas.digest import fsync_folder, verify
from schemas.errors import IntegrityError
from schemas.home import home
from schemas.records import FileRef, Record, digest_of
from schemas.scratch import scratch_folder
from schemas.seal import read_record, write_sealed
from tasks.say import say

P = ParamSpec("P")
R = TypeVar("R")
StoredRecord = TypeVar("StoredRecord", bound=Record)
RECORD = "record.json"
LIBRARIES = ("duckdb", "pyarrow", "pandera", "numpy", "pillow", "rdkit", "pyspark")


@functools.cache
def code_fingerprint() -> str:
    """Return the SHA-256 of the sources of `schemas` and `training.data` and their libraries'
    versions.

    Prefect's own TASK_SOURCE policy sees a task's body only, and would miss a change in the pure
    function behind it.
    """
    digest = hashlib.sha256()
    for package in (schemas, training.data):
        _add_sources(digest, str(package.__name__), Path(str(package.__file__)).parent)
    digest.update(library_versions(LIBRARIES).encode())
    return digest.hexdigest()


@functools.cache
def package_fingerprint(name: str) -> str:
    """Return the SHA-256 of all sources of a package of this project, without importing it."""
    digest = hashlib.sha256()
    _add_sources(digest, name, Path(str(schemas.__file__)).parent.parent / name)
    return digest.hexdigest()


def _add_sources(digest: hashlib._Hash, name: str, root: Path) -> None:
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{name}/{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")


def library_versions(names: Sequence[str]) -> str:
    """Return the installed versions of libraries in one line."""
    return " ".join(f"{name}={_version(name)}" for name in names)


def _version(library: str) -> str:
    """Return the version of a library; none for an extra that is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


def step_key(step: str, inputs: dict[str, Any]) -> str:
    """Return the name under which a step's result is stored."""
    plain = {
        k: v.model_dump(mode="json") if isinstance(v, BaseModel) else v for k, v in inputs.items()
    }
    return digest_of({"step": step, "inputs": plain, "code": code_fingerprint()})


def file_refs(value: Any) -> Iterator[FileRef]:
    """Return every file that a record names, at any depth."""
    if isinstance(value, FileRef):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from file_refs(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from file_refs(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from file_refs(item)


def load(step: str, key: str, record: type[StoredRecord]) -> StoredRecord | None:
    """Return the stored result; None if there is none.

    Raises:
        IntegrityError: the record or one of its files is missing or was changed.
    """
    if not folder(step, key).exists():
        return None
    found = read_record(folder(step, key) / RECORD, record, "the step is made again")
    for ref in file_refs(found):
        verify(ref)
    return found


def folder(step: str, key: str) -> Path:
    """Return the folder of a step's files."""
    return home() / "prepared" / f"{step}-{key[:20]}"


def save(step: str, key: str, make: Callable[[Path], StoredRecord]) -> StoredRecord:
    """Make a result in a temporary folder and move it into place when complete.

    Args:
        step: name of the step, the first part of the folder's name.
        key: from `step_key`.
        make: writes its files into the given folder and returns the record that names them.
    """
    target = folder(step, key)
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent, target.name) as scratch:
        temporary = scratch / target.name  # a step may replace this folder, so its parent is locked
        temporary.mkdir()
        made = make(temporary)
        moved = type(made).model_validate_json(
            made.model_dump_json().replace(str(temporary), str(target))
        )
        write_sealed(temporary / RECORD, moved.model_dump_json(indent=1))
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        fsync_folder(target.parent)
    return moved


def stored(
    step: str,
    inputs: dict[str, Any],
    record: type[StoredRecord],
    make: Callable[[Path], StoredRecord],
) -> StoredRecord | State[Any]:
    """Return the stored result as a state that Prefect shows as `Cached`, or a new result."""
    key = step_key(step, inputs)
    try:
        found = load(step, key, record)
    except IntegrityError as damage:
        say(step, f"made again ({key[:12]}): {damage}", "cached")
        found = None
    if found is not None:
        say(step, f"reused ({key[:12]}): same data, same declaration, same code", "cached")
        return Completed(
            name="Cached", message="reused: same data, same declaration, same code", data=found
        )
    return save(step, key, make)


def stored_task(**options: Any) -> Callable[[Callable[P, R]], Callable[P, Any]]:
    """Turn a function into a Prefect task whose reused result shows as `Cached`; callers get the
    value.

    The Prefect task is the attribute `task`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, Any]:
        inner = task(cache_policy=NO_CACHE, persist_result=False, **options)(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            outcome = cast(Any, inner(*args, **kwargs))
            return outcome.result() if isinstance(outcome, State) else outcome

        call.task = inner  # type: ignore[attr-defined]
        return call

    return decorate
