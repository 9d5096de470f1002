"""Open a source that nothing is declared of: how it is read is found in its files."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from pydantic import ValidationError

from schemas.config import ColumnConfig, CsvConfig, DataConfig
from schemas.database_config import ONLY_TABLE, Choice
from schemas.errors import ConfigError
from schemas.load import explain
from schemas.records import SourceRef
from training.data.draft.text_layout import layout_of
from training.data.engine.engine import connect, rows
from training.data.sources.other_formats import encoding
from training.data.sources.source import fingerprint, relation_sql


def open_source(
    uri: str | tuple[str, ...], choice: Choice = ONLY_TABLE
) -> tuple[SourceRef, DataConfig]:
    """Return the files that a URI names, and how they are read.

    Encoding, delimiter, quoting and texts for null are detected, and the only table or sheet.

    Raises:
        ConfigError: the address holds a password, or the query is no SELECT.
        SourceError: the source cannot be found or read.
    """
    try:
        data = DataConfig(uri=uri, columns={"*": ColumnConfig()}, **choice._asdict())
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
    source = fingerprint(data)
    if source.format == "csv" and not source.snapshots:
        encodings = {encoding(f.file) for f in source.files}
        if len(encodings) == 1 and (only := encodings.pop()) is not None:
            data = data.model_copy(update={"csv": CsvConfig(encoding=only)})
            source = fingerprint(data)
    found: dict[str, Any] = {"format": source.format}
    if source.format == "csv":
        options = layout_of(source).options
        found["csv"] = options.model_copy(update={"encoding": data.csv.encoding})
    for copy in source.snapshots[:1]:
        found |= {"table": copy.table, "sheet": copy.sheet}
    return source, data.model_copy(update=found)


def source_columns(uri: str | tuple[str, ...]) -> list[str]:
    """Return names of the columns of a source."""
    source, data = open_source(uri)
    with closing(connect()) as connection:
        return [
            str(r[0])
            for r in rows(
                connection, f"describe select * from {relation_sql(source, data, connection)}"
            )
        ]
