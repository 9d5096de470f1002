"""Addresses of database servers and queries in a declaration: what may be written there."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

SERVERS = ("postgresql", "postgres")
# of libpq; others name hosts, files or secrets, or change what the session may do
PARAMETERS = ("sslmode", "connect_timeout", "target_session_attrs")
EXAMPLE = "postgresql://ann@db.example:5432/clinic"
_SKIPPED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMENT = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)


class Choice(NamedTuple):
    """What is read of a database or of an Excel file; None where it holds one table."""

    table: str | None = None
    query: str | None = None
    sheet: str | None = None


ONLY_TABLE = Choice()


def is_server(uri: str) -> bool:
    """Return True for an address of a database server.

    >>> is_server("postgresql://db/clinic"), is_server("s3://bucket/clinic.duckdb")
    (True, False)
    """
    return "://" in uri and uri.split("://", maxsplit=1)[0].lower() in SERVERS


def require_server(uri: str) -> str:
    """Return an address of a database server that may be logged.

    Raises:
        ValueError: it holds a password or a parameter that is not allowed, or names no database or
            several hosts. The message shows no part that may be secret.
    """
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname or "", parts.port
        parameters = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    except ValueError:
        raise ValueError(f"expected an address such as {EXAMPLE}; check host and port") from None
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.password is not None or any("pass" in name.lower() for name in parameters):
        raise ValueError(
            f"{where}: expected an address without a password, which would appear in logs; set"
            " PGPASSWORD in the environment, or write a line of ~/.pgpass (PGPASSFILE)"
        )
    if other := [name for name in parameters if name not in PARAMETERS]:
        raise ValueError(
            f"{where}: parameter {other[0]!r} is not allowed, expected one of"
            f" {', '.join(PARAMETERS)}; set others in the environment of libpq, e.g. PGSSLROOTCERT"
        )
    if "," in parts.netloc or "%2c" in parts.netloc.lower() or host.startswith("/"):
        raise ValueError(f"{where}: expected one host, e.g. {EXAMPLE}")
    if not re.fullmatch(r"/[^/]+", parts.path) or parts.fragment or not uri.isprintable():
        raise ValueError(f"{where}: expected one database after the host, e.g. {EXAMPLE}")
    return uri


def require_select(query: str) -> str:
    """Return a query without its final semicolon, if it is a single SELECT.

    The database refuses again what would change it: its session is read-only.

    Raises:
        ValueError: it is something else, or several statements.

    >>> require_select("select ';' as a from visits; -- all")
    "select ';' as a from visits"
    >>> require_select("delete from visits")
    Traceback (most recent call last):
    ValueError: expected one SELECT (or WITH … SELECT), got 'delete from visits'; rows are only read
    """
    ends = [m.start() for m in re.finditer(";", _blanked(query))]
    first, rest = (query[: ends[0]], query[ends[0] + 1 :]) if ends else (query, "")
    start = _COMMENT.match(first)
    begin = first[start.end() if start else 0 :]
    is_one = not _blanked(rest).strip("; \t\r\n")
    if not is_one or not re.match(r"(select|with)\b", begin, re.IGNORECASE):
        shown = " ".join(query.split())
        shown = shown if len(shown) <= 80 else shown[:80] + "…"
        raise ValueError(
            f"expected one SELECT (or WITH … SELECT), got {shown!r}; rows are only read"
        )
    return first.strip()


def _blanked(query: str) -> str:
    """Return the query with texts, quoted names and comments as blanks of the same length."""
    return _SKIPPED.sub(lambda found: " " * len(found[0]), query)
