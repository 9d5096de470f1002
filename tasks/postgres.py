"""One PostgreSQL database for both servers, with one schema each: their version tables share a
name.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from schemas.errors import ConfigError, LaunchError
from training.run.provenance import masked

PREFECT_SCHEMA, MLFLOW_SCHEMA = "prefect", "mlflow"
CONNECT_SECONDS = 15


def prepare_postgres(url: str) -> tuple[dict[str, str], str]:
    """Create the schemas if absent; return Prefect's settings and MLflow's address.

    Args:
        url: `postgresql://user:password@host:5432/database`; shown only masked.

    Raises:
        ConfigError: the address is invalid, or a PostgreSQL driver is not installed.
        LaunchError: the server refuses or cannot be reached.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/"):
        raise ConfigError(
            "--postgres: expected postgresql://user:password@host:5432/database, got"
            f" {masked(url)!r}"
        )
    if find_spec("psycopg") is None or find_spec("asyncpg") is None:
        raise ConfigError(
            "PostgreSQL needs the extra of that name: pip install 'bulkhead[postgres]'"
        )
    plain = urlunsplit(parts._replace(scheme="postgresql"))
    try:
        asyncio.run(_create_schemas(plain))
    except Exception as error:  # any message of the driver or server is the answer
        raise LaunchError(
            f"PostgreSQL at {masked(url)} cannot be used:"
            f" {masked(str(error)) or type(error).__name__}"
        ) from None
    search_path = urlencode(
        [*parse_qsl(parts.query), ("options", f"-csearch_path={MLFLOW_SCHEMA}")]
    )
    prefect = {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": urlunsplit(
            parts._replace(scheme="postgresql+asyncpg")
        ),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": PREFECT_SCHEMA,
    }
    return prefect, urlunsplit(parts._replace(scheme="postgresql+psycopg", query=search_path))


async def _create_schemas(url: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS)
    try:
        for schema in (PREFECT_SCHEMA, MLFLOW_SCHEMA):
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    finally:
        await connection.close()
