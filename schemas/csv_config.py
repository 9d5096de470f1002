"""Section `data.csv`: how delimited text is read."""

from __future__ import annotations

import codecs
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.section import Section

UTF_8 = "utf-8"
LATER = (
    "skip",
    "skip_below",
    "empty_columns",
    "unnamed",
    "encoding",
)  # in records only where they are used


class CsvConfig(Section):
    """How delimited text is read."""

    delimiter: str = Field(
        ",",
        min_length=1,
        max_length=1,
        description="Between two values; a .tsv file is split at tabs.",
    )
    quote: str = Field(
        '"', max_length=1, description="Quote character; empty for files that do not quote."
    )
    null_values: tuple[str, ...] = Field(
        ("",), description="Texts that stand for a null, e.g. ['', '?', 'NA']."
    )
    decimal: Literal[".", ","] = Field(
        ".",
        description=(
            "Before the decimals of a number: '.', or ',' as in 1,5 (a number with a '.' is text"
            " then)."
        ),
    )
    header: bool = Field(
        True,
        description=(
            "Whether the first line names the columns; without it they are column0, column1 …"
        ),
    )
    skip: int = Field(
        0, ge=0, description="Lines above the header that are left out, such as comments."
    )
    skip_below: int = Field(
        0,
        ge=0,
        description=(
            "Lines between the header and the rows that are left out, such as one of units."
        ),
    )
    empty_columns: int = Field(
        0,
        ge=0,
        description=(
            "Columns at the end of each line that hold nothing, as where each line ends with a"
            " delimiter. They are left out; a value in one is refused."
        ),
    )
    unnamed: Literal["refuse", "number"] = Field(
        "refuse",
        description=(
            "Columns without a name in the header: refuse the file, or call them column0 … by"
            " their place, as the index that pandas writes."
        ),
    )

    encoding: str = Field(
        UTF_8,
        exclude_if=lambda name: name == UTF_8,  # an old declaration keeps its digest
        description=(
            "Encoding of the text: utf-8, or e.g. cp1252 (Western Windows), latin-1, utf-16. A file"
            " in another than UTF-8 is converted once, strictly."
        ),
    )

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str) -> str:
        try:
            found = codecs.lookup(name)
            "".encode(found.name)  # some codecs are for bytes
        except (LookupError, ValueError):
            raise ValueError(
                f"expected the name of an encoding of text, e.g. cp1252, got {name[:40]!r}"
            ) from None
        return found.name

    @model_validator(mode="after")
    def _has_header(self) -> CsvConfig:
        if not self.header and (self.skip_below or self.unnamed == "number"):
            raise ValueError(
                "skip_below and unnamed are about the header, and header is false; use skip for"
                " lines above the rows"
            )
        return self

    def recorded(self) -> dict[str, Any]:
        """Return all options as JSON, those added later only where they are set."""
        plain = {name: type(self).model_fields[name].default for name in LATER}
        values: dict[str, Any] = self.model_dump(mode="json")
        return {n: v for n, v in values.items() if n not in plain or v != plain[n]}
