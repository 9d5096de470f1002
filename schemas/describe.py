"""Exports of the declaration's schema: JSON schema for editors, dotted paths for completion."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from schemas.config import Declaration


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the YAML file (draft 2020-12); columns may also have their short
    form.
    """
    schema = Declaration.model_json_schema(by_alias=True)
    for section in (schema, *schema["$defs"].values()):  # a docstring is wrapped, a description not
        if "description" in section:
            section["description"] = " ".join(section["description"].split())
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Bulkhead declaration"
    column = schema["$defs"].pop("ColumnConfig")
    short = {
        "enum": [
            *("numeric", "categorical", "date", "text", "set", "smiles", "auto"),
            *column["properties"]["role"]["enum"],
        ],
        "description": "Short form: a role, or the kind of a feature.",
    }
    schema["$defs"]["ColumnConfig"] = {"anyOf": [short, column], "title": "Column"}
    return schema


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType) or hasattr(annotation, "__metadata__"):
        for part in get_args(annotation):
            yield from _sections(part)


def value_paths(model: type[BaseModel] = Declaration, prefix: str = "") -> list[str]:
    """List every dotted path of the declaration that takes a value, in order.

    >>> "train.epochs" in value_paths() and "split.embargo" in value_paths()
    True
    """
    paths: list[str] = []
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        inner = list(_sections(field.annotation))
        if not inner:
            paths.append(path)
        for section in inner:
            paths += [p for p in value_paths(section, path + ".") if p not in paths]
    return paths
