"""Kinds of features and the SQL types that they take."""

from __future__ import annotations

from schemas.config import ColumnConfig
from schemas.errors import SchemaError
from training.data.advice import role_of
from training.data.table.sql_types import WORDS, Family, family, nesting


def require_kind_fits(where: str, name: str, config: ColumnConfig, kind: str) -> None:
    """Refuse a feature whose SQL type does not fit its kind.

    Raises:
        SchemaError: naming the column and what to declare instead.
    """
    found = family(kind)
    if config.kind == "tensor":
        if found != "list":
            raise SchemaError(
                f"{where}: a tensor feature needs lists of numbers, got {WORDS[found]}; remove"
                " kind: tensor"
            )
    elif config.kind == "image":
        if found != "text" and kind != "BLOB":
            raise SchemaError(
                f"{where}: kind image needs paths of files or their bytes, got {WORDS[found]}"
                f" ({kind}); numbers of pixels are kind: tensor"
            )
    elif config.kind == "set":
        _set_fits(where, config, found, kind)
    elif config.kind in ("text", "smiles"):
        if found != "text":
            raise SchemaError(
                f"{where}: kind {config.kind} needs text, got {WORDS[found]}; name the column that"
                f" holds the {'documents' if config.kind == 'text' else 'molecules'}"
            )
    elif found in ("date", "instant"):
        raise SchemaError(
            f"{where}: got {WORDS[found]}; declare data.columns: {{{role_of(name, 'date')}}}, which"
            f" gives its days and seasons, or {{{role_of(name, 'ignore')}}}"
        )
    elif found == "list":
        raise SchemaError(
            f"{where}: got lists; declare {{kind: tensor, shape: [..]}} for numbers, kind: set for"
            " values of which a row has several, or ignore it"
        )
    elif found == "other":
        raise SchemaError(
            f"{where}: expected numbers, text, true/false or lists, got another type; derive one,"
            " or ignore it"
        )


def _set_fits(where: str, config: ColumnConfig, found: Family, kind: str) -> None:
    if found == "text":
        if config.separator is None:
            raise SchemaError(
                f"{where}: a set in a text needs separator: what stands between two values, e.g."
                " {kind: set, separator: ';'}"
            )
        return
    inner = family(kind.partition("[")[0])
    if found != "list" or nesting(kind) != 1 or inner not in ("text", "int", "bool"):
        raise SchemaError(
            f"{where}: kind set needs lists of text or whole numbers, or text with a separator, got"
            f" {kind}; derive another column, or ignore it"
        )
    if config.separator is not None:
        raise SchemaError(f"{where}: separator is for text, and this column holds lists; remove it")


def require_shape_fits(name: str, shape: tuple[int, ...], kind: str) -> None:
    """Refuse a tensor whose SQL type is not lists of numbers, flat or as deep as its shape.

    Raises:
        SchemaError: naming the column.
    """
    if nesting(kind) not in (1, len(shape)) or family(kind.split("[", maxsplit=1)[0]) not in (
        "int",
        "float",
    ):
        raise SchemaError(
            f"column {name!r}: shape {list(shape)} needs lists of numbers, flat or {len(shape)}"
            f" deep, got {kind}; fix the shape, or derive another column"
        )
