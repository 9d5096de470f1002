"""Limits on what a flow run started by a worker may read, write and call.

Anyone who can fill in Prefect's form chooses paths and addresses, and the worker opens them with
its own rights and secrets. The operator therefore names the folders and hosts. A `bulkhead run` in
a terminal has the rights of its user and is not confined.

BULKHEAD_DATA_ROOTS: folders, separated as in PATH; default: the Bulkhead home, the project and
BULKHEAD_DATA. BULKHEAD_HTTP_HOSTS: hosts separated by commas, `host:port` for one port,
`s3://bucket` for one bucket. Default: none.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from schemas.errors import ConfigError, shortened
from schemas.home import home

ROOTS, HOSTS, DATA, FLOW_RUN = (
    "BULKHEAD_DATA_ROOTS",
    "BULKHEAD_HTTP_HOSTS",
    "BULKHEAD_DATA",
    "PREFECT__FLOW_RUN_ID",
)
PROJECT = Path(__file__).resolve().parent.parent
PRIVATE = ("keys", "prefect", "secrets")  # folders of the home that contain no data
GLOB = frozenset("*?[")
_PLAIN_CONF = re.compile(
    r"spark\.(executor\.(memory|memoryOverhead|cores|instances)|driver\.(memory|memoryOverhead|cores)|cores\.max|default\.parallelism"
    r"|sql\.shuffle\.partitions|sql\.adaptive\.[\w.]+|sql\.files\.[\w.]+|dynamicAllocation\.[\w.]+|memory\.[\w.]+|ui\.(enabled|showConsoleProgress))"
)


class Root(NamedTuple):
    """A folder that a flow run may read and write.

    `ours`: its hidden files are excluded. Keys of the home are always excluded.
    """

    folder: Path
    ours: bool


def is_confined() -> bool:
    """Return True if a worker started this process for a flow run."""
    return bool(os.environ.get(FLOW_RUN))


def roots() -> list[Root]:
    """Return the resolved folders that a worker's flow run may use; never the whole file system."""
    named = os.environ.get(ROOTS)
    if named is not None:
        ours, chosen = [home()], [Path(text) for text in named.split(os.pathsep) if text.strip()]
    else:
        project = [PROJECT] if (PROJECT / "pyproject.toml").is_file() else []
        ours, chosen = (
            [home(), Path.cwd(), *project],
            ([Path(os.environ[DATA])] if os.environ.get(DATA) else []),
        )
    found = [Root(path.resolve(), False) for path in chosen] + [
        Root(path.resolve(), True) for path in ours
    ]
    return [root for root in found if root.folder != Path(root.folder.anchor)]


def hosts() -> tuple[str, ...]:
    """Return the hosts and buckets that a worker's flow run may call."""
    return tuple(
        text.strip().lower().rstrip("/")
        for text in os.environ.get(HOSTS, "").split(",")
        if text.strip()
    )


def require_readable(path: str | Path, key: str) -> None:
    """Refuse to read outside the roots in a process that a worker started.

    Links, `..` and globs are resolved first.

    Args:
        path: a file, a folder or a glob. A glob is checked up to its first wildcard; the caller
            that lists its matches checks them.
        key: key of the declaration or form, for the message.

    Raises:
        ConfigError: the path is outside the roots; the message names them.
    """
    _require_inside(path, key, "read")


def require_writable(path: str | Path, key: str, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse to write outside the roots, or with another suffix, in a process that a worker
    started.

    Raises:
        ConfigError: the path is refused; the message names the roots or the suffixes.
    """
    if is_confined() and suffixes and not str(path).lower().endswith(suffixes):
        raise ConfigError(
            f"{key}: {shortened(str(path), plain=True)}: expected a name that ends in"
            f" {', '.join(suffixes)}"
        )
    _require_inside(path, key, "write")


def _require_inside(path: str | Path, key: str, doing: str) -> None:
    if not is_confined():
        return
    shown = shortened(str(path), plain=True)
    parts = Path(path).parts
    plain = parts[: next((i for i, part in enumerate(parts) if GLOB & set(part)), len(parts))]
    try:
        inside = any(_holds(root, Path(*plain).resolve()) for root in roots())
    except (OSError, ValueError, RuntimeError) as error:  # name too long, NUL, or a loop of links
        raise ConfigError(f"{key}: {shown!r} is no path ({error})") from None
    if not inside:
        folders = ", ".join(dict.fromkeys(str(root.folder) for root in roots()))
        raise ConfigError(
            f"{key}: {shown}: a flow run that a worker starts may {doing} only under {folders}"
            " (hidden files and keys excepted); put the file there, or let whoever runs the worker"
            f" add its folder to {ROOTS}"
        )


def _holds(root: Root, path: Path) -> bool:
    place = home().resolve()
    if not path.is_relative_to(root.folder) or any(
        path.is_relative_to(place / name) for name in PRIVATE
    ):
        return False
    return not (
        root.ours and any(part.startswith(".") for part in path.relative_to(root.folder).parts)
    )


def is_listed(address: str) -> bool:
    """Return True if BULKHEAD_HTTP_HOSTS names the host of an address, or the bucket of an s3://
    one.
    """
    parts = urlsplit(address)
    if parts.scheme == "s3":
        endpoint = (
            os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
            or "https://s3.amazonaws.com"
        )
        return f"s3://{parts.netloc.lower()}" in hosts() or is_listed(endpoint)
    host = (parts.hostname or "").lower()
    return bool(host) and bool({host, parts.netloc.rpartition("@")[2].lower()} & set(hosts()))


def require_host(address: str, key: str) -> None:
    """Refuse an address whose host is not listed, in a process that a worker started.

    Raises:
        ConfigError: the host is not listed; the message names it.
    """
    if is_confined() and not is_listed(address):
        parts = urlsplit(address)
        host = f"s3://{parts.netloc}" if parts.scheme == "s3" else parts.hostname or address
        raise ConfigError(
            f"{key}: a flow run that a worker starts may call only hosts that {HOSTS} lists"
            f" ({', '.join(hosts()) or 'none'}), got {shortened(host, plain=True)}; let whoever"
            f" runs the worker add it, or copy the data to a folder of {ROOTS}"
        )


def require_source(uri: str, key: str = "data.uri") -> None:
    """Refuse data outside the roots and hosts, in a process that a worker started.

    Raises:
        ConfigError: the source is refused; the message names what is allowed.
    """
    if "://" in uri:
        require_host(uri, key)
    else:
        require_readable(uri, key)


def require_registered(model_uri: str) -> None:
    """Refuse a model that is not a registered version, in a process that a worker started.

    Raises:
        ConfigError: the model is a folder or an address; the message shows the form of a registered
            model.
    """
    if is_confined() and not re.fullmatch(r"models:/[^/@:]+(/[0-9]+|@[A-Za-z][\w-]*)", model_uri):
        raise ConfigError(
            "model_uri: expected a registered version, e.g. models:/clinic-visits@champion, got"
            f" {shortened(model_uri)}"
        )


def require_store(uri: str, key: str = "tracking.uri") -> None:
    """Refuse another tracking server or artifact store, in a process that a worker started.

    Args:
        uri: absolute: sqlite:///…, file://… or a server.
        key: key of the declaration, for the message.

    Raises:
        ConfigError: the store is refused; the message names what is allowed.
    """
    if uri == os.environ.get("MLFLOW_TRACKING_URI"):
        return
    local = re.match(r"(sqlite:///|file://(localhost)?)(/.*)", uri)
    if local:
        require_writable(local[3].split("?", maxsplit=1)[0], key)
    else:
        require_host(uri, key)


def require_spark(
    master: str, remote: str | None, conf: dict[str, str | int | float | bool]
) -> None:
    """Refuse a remote Spark, and settings that name programs or files, if a worker started this
    process.

    Raises:
        ConfigError: a setting or host is refused; the message names it.
    """
    for address, key in ((remote, "data.spark.remote"), (master, "data.spark.master")):
        if address and "://" in address:
            require_host(
                address.removeprefix("k8s://") if address.startswith("k8s://http") else address, key
            )
    bad = next((name for name in conf if not _PLAIN_CONF.fullmatch(name)), None)
    if is_confined() and bad is not None:
        raise ConfigError(
            f"data.spark.conf: {shortened(bad, plain=True)} may name programs or files of the"
            " worker; set it in its spark-defaults.conf (SPARK_CONF_DIR)"
        )
