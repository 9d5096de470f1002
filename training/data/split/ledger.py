"""Ledger: split decisions that depend on more than the row, written down once and never changed.

A file of JSON lines, each with its own SHA-256 and that of the previous line. Next to it are its
seal (schemas/seal.py, which detects missing last lines and a missing ledger) and a folder
`<ledger>.parts` of Parquet files that hold the split by key hash. Lines are only ever appended. A
part is drafted, the line that names it is written (the file is replaced whole), then the draft gets
its name. So a kill leaves the ledger as it was before or after.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pydantic import Field, ValidationError

from schemas.digest import fsync_folder, sha256_file, write_atomic
from schemas.errors import IntegrityError
from schemas.records import FileRef, Record, TableRef, digest_of
from schemas.seal import read_sealed, seal_path, write_sealed
from training.data.engine.engine import literal, row, write_parquet
from training.data.engine.hash_order import in_hash_order

FIRST = "0" * 64
DRAFT = "draft.parquet"
ADVICE = (
    "restore the ledger, its .sha256 and its .parts folder from a backup; deleting all three"
    " decides every side again, so models must be trained and compared again"
)


class Entry(Record):
    """One line: decisions of a way of splitting when it first saw a table, or new keys in it.

    `way` identifies the way of splitting (see `digest_of`), `split` describes it in words. `frozen`
    holds cut points, bin edges or widths of grids. `part` is the Parquet file (name within the
    folder of parts, SHA-256) with `key_hash` and `side`. `table` is the SHA-256 of the validated
    table in which these keys were first seen. `previous` is the `sha256` of the previous line,
    `sha256` that of the rest of this line.
    """

    way: str
    split: dict[str, Any]
    frozen: dict[str, Any] = Field(default_factory=dict)
    part: str | None = None
    part_sha256: str | None = None
    keys: int = 0
    table: str
    previous: str = FIRST
    sha256: str = ""

    def sealed(self, previous: str) -> Entry:
        """Return the entry with its place in the chain and its own digest."""
        placed = self.model_copy(update={"previous": previous, "sha256": ""})
        return placed.model_copy(update={"sha256": digest_of(placed)})

    @property
    def line(self) -> str:
        """Return the entry as one line of the file."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True) + "\n"


class Ledger:
    """Verified entries of one way of splitting, with a method to append to them.

    Use it inside `opened`, which holds the lock that keeps two runs from deciding at once.
    """

    def __init__(self, path: Path, way: str, entries: list[Entry]) -> None:
        self.path = path
        self.way = way
        self._all = entries

    @property
    def entries(self) -> list[Entry]:
        """Return the lines of this way of splitting."""
        return [e for e in self._all if e.way == self.way]

    @property
    def frozen(self) -> dict[str, Any]:
        """Return the cut points and bin edges decided so far; empty for a new table."""
        return {k: v for e in self.entries for k, v in e.frozen.items()}

    @staticmethod
    def nothing() -> str:
        """Return an SQL relation like `assigned` without any key."""
        return (
            "(select cast(null as varchar) as key_hash, cast(null as varchar) as side where false)"
        )

    @property
    def assigned(self) -> str:
        """Return an SQL relation with `key_hash` and `side` of all keys decided so far.

        `key_hash` has 32 hexadecimal digits and is unique.
        """
        parts = [literal(str(_parts(self.path) / e.part)) for e in self.entries if e.part]
        if not parts:
            return self.nothing()
        return (
            f"(select key_hash, side from read_parquet([{', '.join(parts)}], hive_partitioning ="
            " false))"
        )

    def append(
        self,
        connection: duckdb.DuckDBPyConnection,
        split: dict[str, Any],
        table: str,
        frozen: dict[str, Any],
        decided: str | None,
        limit: int | None = None,
    ) -> None:
        """Write down new decisions; write nothing if there are none.

        Args:
            connection: the engine that holds `decided`.
            split: the way of splitting, in words.
            table: SHA-256 of the validated table.
            frozen: cut points or bin edges decided now.
            decided: SQL relation of new `key_hash`, `side`, or None.
            limit: bytes of `data.memory_limit`.
        """
        count = row(connection, f"select count(*) from {decided}")[0] if decided else 0
        if not count and not frozen:
            return
        entry = Entry(way=self.way, split=split, frozen=frozen, table=table)
        if decided and count:
            draft = self._draft(connection, decided, limit)
            entry = entry.model_copy(
                update={
                    "part": f"{draft.file.sha256[:32]}.parquet",
                    "part_sha256": draft.file.sha256,
                    "keys": count,
                }
            )
        self._write(entry)

    def note(self, split: dict[str, Any], table: str, frozen: dict[str, Any]) -> None:
        """Write down new decisions that concern no single key; write nothing if there are none.

        Args: as of `append`.
        """
        if frozen:
            self._write(Entry(way=self.way, split=split, frozen=frozen, table=table))

    def _write(self, entry: Entry) -> None:
        self._all.append(entry.sealed(self._all[-1].sha256 if self._all else FIRST))
        write_sealed(self.path, "".join(e.line for e in self._all))
        _settle(self.path, self._all[-1])

    def _draft(
        self, connection: duckdb.DuckDBPyConnection, decided: str, limit: int | None
    ) -> TableRef:
        """Write the draft file of new keys in their order."""
        folder, columns = _parts(self.path), ("key_hash", "side")
        if limit is None:
            return write_parquet(
                connection,
                f"select key_hash, side from {decided} order by key_hash",
                folder / DRAFT,
            )
        folder.mkdir(parents=True, exist_ok=True)
        in_order = in_hash_order(connection, decided, columns, limit, folder, by="key_hash")
        return write_parquet(
            connection,
            in_order,
            folder / DRAFT,
            schema=pa.schema([(name, pa.string()) for name in columns]),
        )

    def copy_to(self, path: Path) -> FileRef:
        """Copy the entries that the split used to a separate file, which later runs leave alone."""
        return write_atomic(path, "".join(e.line for e in self.entries))


@contextmanager
def opened(path: Path, way: str) -> Iterator[Ledger]:
    """Open and verify the ledger at a path, and lock it against other runs until the block ends.

    Args:
        path: the file; an absent one is an empty ledger.
        way: digest of the way of splitting.

    Raises:
        IntegrityError: a line or a part is missing, changed or out of order.
    """
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Ledger(path, way, _verified(path))


def copy_as_of(path: Path, sha256: str, target: Path) -> bool:
    """Copy a ledger as it was when a split used it, without the entries of later runs.

    Return False if the ledger never had that state.

    Args:
        path: the ledger.
        sha256: of what `Ledger.copy_to` wrote for the split.
        target: where the copy and its parts are written; nothing is written if it returns False.

    Raises:
        IntegrityError: a line or a part is missing, changed or out of order.
    """
    entries, texts = _verified(Path(path).absolute()), dict[str, str]()
    for count, entry in enumerate(entries, start=1):
        texts[entry.way] = texts.get(entry.way, "") + entry.line
        if hashlib.sha256(texts[entry.way].encode()).hexdigest() == sha256:
            for part in (e.part for e in entries[:count] if e.part):
                write_atomic(_parts(target) / part, (_parts(path) / part).read_bytes())
            write_atomic(target, "".join(e.line for e in entries[:count]))
            return True
    return False


def _verified(path: Path) -> list[Entry]:
    entries = _entries(path)
    if entries:
        _settle(path, entries[-1])
    for entry in entries:
        if entry.part is not None and _part_sha256(path, entry.part) != entry.part_sha256:
            raise _damaged(path, f"part {entry.part} is missing or was changed")
    unnamed = {p.name for p in _parts(path).glob("*.parquet")} - {DRAFT} - {e.part for e in entries}
    if unnamed:
        raise _damaged(path, f"no line names part {min(unnamed)}, so lines are missing")
    _compare_with_seal(path)
    return entries


def _compare_with_seal(path: Path) -> None:
    """Refuse a ledger that is gone or lacks its last lines; older versions have no seal."""
    if not path.exists() and not seal_path(path).exists():
        return
    try:
        read_sealed(path, ADVICE, required=False)
    except IntegrityError as error:
        raise IntegrityError(f"the split ledger is damaged: {error}") from error


def _entries(path: Path) -> list[Entry]:
    """Read all lines; check that each is unchanged and follows the right line."""
    if not path.exists():
        return []
    entries: list[Entry] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError as error:
            raise _damaged(path, f"line {number} is no entry") from error
        if entry.sealed(entries[-1].sha256 if entries else FIRST) != entry:
            raise _damaged(
                path, f"line {number} was changed, or does not follow the line before it"
            )
        entries.append(entry)
    if not entries:
        raise _damaged(path, "the file is empty")
    return entries


def _settle(path: Path, entry: Entry) -> None:
    """Rename the draft of the last line's part, now or after a kill between the two steps."""
    draft = _parts(path) / DRAFT
    if entry.part is not None and draft.is_file() and sha256_file(draft) == entry.part_sha256:
        draft.replace(_parts(path) / entry.part)
        fsync_folder(_parts(path))


def _part_sha256(path: Path, name: str) -> str | None:
    file = _parts(path) / name
    return sha256_file(file) if Path(name).name == name and file.is_file() else None


def _parts(path: Path) -> Path:
    return Path(f"{path}.parts")


def _damaged(path: Path, what: str) -> IntegrityError:
    return IntegrityError(f"{path}: the split ledger is damaged: {what}; {ADVICE}")
