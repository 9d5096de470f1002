"""Partition keys: columns that only paths contain, as `region=north/year=2024/part-0.parquet`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import duckdb

from schemas.errors import SourceError, first_few
from schemas.records import SourceRef
from training.data.engine.engine import ident, literal
from training.data.sources.text_types import typed_sql

FILE = "__bulkhead_file"  # the path of a row's file while keys are added to the rows
FOLDER = re.compile(r"([^=]+)=(.*)", re.DOTALL)
NULLS = ("", "__HIVE_DEFAULT_PARTITION__")
GLOB = frozenset("*?[")
Keys = dict[str, str | None]


def keys_of(path: str, uri: str) -> Keys:
    """Return the keys of a file, outermost first.

    They come from the folders below the declared path, and from those named `key=value` directly
    above them.

    Args:
        path: of the file, as found under the URI, links not followed.
        uri: the declared file, folder or glob.

    >>> keys_of("/data/v=1/raw/sales/region=a%20b/year=2024/x.parquet", "/data/v=1/raw/sales")
    {'region': 'a b', 'year': '2024'}
    >>> keys_of("/data/region=__HIVE_DEFAULT_PARTITION__/x.parquet",
    ...     "/data/region=__HIVE_DEFAULT_PARTITION__/x.parquet")
    {'region': None}
    """
    folders = PurePosixPath(path).parts[:-1]
    below = _num_fixed(uri, folders)
    above = folders[:below]
    first = next(
        (place + 1 for place in range(below - 1, -1, -1) if not FOLDER.fullmatch(above[place])), 0
    )
    found: Keys = {}
    for folder in folders[first:]:
        if matched := FOLDER.fullmatch(folder):
            name, value = unquote(matched[1]), unquote(matched[2])
            if name in found:
                raise SourceError(f"{path}: the folders name the key {name!r} twice; rename one")
            found[name] = None if value in NULLS else value
    return found


def _num_fixed(uri: str, folders: Sequence[str]) -> int:
    """Return the number of folders that the URI itself names: those before the first wildcard."""
    parts = PurePosixPath(uri).parts
    fixed = next((place for place, part in enumerate(parts) if GLOB & set(part)), len(parts))
    return min(fixed, len(folders))


def agreed_keys(found: Mapping[str, Keys]) -> dict[str, Keys]:
    """Return the keys of each file if the files have any.

    Raises:
        SourceError: files have different keys.
    """
    first_path, first = next(iter(found.items()))
    for path, keys in found.items():
        if keys.keys() != first.keys():
            raise SourceError(
                f"{path}: expected folders named {_shown(first)} as of {first_path}, got"
                f" {_shown(keys)}; put all files at one depth of the partitioned folder, or give"
                " one part of it"
            )
    return dict(found) if first else {}


def _shown(keys: Keys) -> str:
    return "/".join(f"{name}=…" for name in keys) or "none with a key"


def with_keys(
    source: SourceRef, relation: str, names: Sequence[str], connection: duckdb.DuckDBPyConnection
) -> str:
    """Return the relation, rows in order, with the keys as its first columns.

    Keys are typed like text of a CSV file. A column of the files takes precedence over a key of its
    name.

    Args:
        source: its `partitions` name every file.
        relation: SQL of the rows with their file's path in the column `FILE`.
        names: columns of the files.
        connection: the engine.
    """
    keys = chosen_keys(source, names)
    if not keys:
        return f"(select * exclude ({FILE}) from {relation})"
    lines = ", ".join(
        f"({', '.join(literal(v) for v in (path, *(of[k] for k in keys)))})"
        for path, of in source.partitions.items()
    )
    values = f"(select * from (values {lines}) as v({', '.join(map(ident, (FILE, *keys)))}))"
    texts = ", ".join(f"cast({ident(n)} as varchar) as {ident(n)}" for n in (FILE, *keys))
    typed = typed_sql(connection, f"(select {texts} from {values})", keys, kept=(FILE,))
    # looked up and not joined: a join changes the order of the rows from run to run
    columns = ", ".join(
        f"(select map(list({FILE} order by {FILE}), list({ident(k)} order by {FILE})) from"
        f" {typed})[r.{FILE}] as {ident(k)}"
        for k in keys
    )
    return f"(select {columns}, r.* exclude ({FILE}) from {relation} as r)"


def chosen_keys(source: SourceRef, names: Sequence[str]) -> list[str]:
    """Return the keys that are separate columns.

    Raises:
        SourceError: two have the same name but for case.
    """
    own = {n.lower() for n in names}
    keys = [k for k in next(iter(source.partitions.values()), {}) if k.lower() not in own]
    repeated = [k for k in keys if sum(k.lower() == other.lower() for other in keys) > 1]
    if repeated:
        raise SourceError(
            f"{source.files[0].path}: folders name the keys {first_few(map(repr, repeated))}, the"
            " same but for case; rename one"
        )
    return keys


def local_keys(path: Path, uri: str) -> Keys:
    """Return the keys of a local file that a URI names; both relative or both absolute."""
    return keys_of(path.as_posix(), Path(uri).as_posix())


def remote_keys(uri: str) -> Keys:
    """Return the keys of an object or a file of a web server.

    For an object they come from any folder of its bucket, for a file from the folders directly
    above it.
    """
    if uri.startswith("s3://"):
        return keys_of("/" + uri.removeprefix("s3://"), "/")
    return keys_of(urlsplit(uri).path, urlsplit(uri).path)
