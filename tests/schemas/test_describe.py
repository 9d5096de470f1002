"""The JSON schema for editors accepts what the declaration accepts, in both forms of a column."""

from __future__ import annotations

from schemas.describe import json_schema, value_paths


def test_the_schema_names_every_section_and_the_short_column_form() -> None:
    schema = json_schema()
    assert {
        "data",
        "task",
        "split",
        "checks",
        "normalize",
        "model",
        "loss",
        "optimizer",
        "schedule",
        "train",
        "evaluate",
        "register",
        "tracking",
    } <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    short = schema["$defs"]["ColumnConfig"]["anyOf"][0]["enum"]
    assert {"id", "group", "time", "label", "numeric", "categorical"} <= set(short)
    titles = {
        v["title"]
        for v in (
            schema["$defs"][d["$ref"].rsplit("/", 1)[-1]]
            for d in schema["properties"]["split"]["oneOf"]
        )
    }
    assert {"Random", "By group", "By time", "By group and time", "Predefined column"} <= titles


def test_completion_paths_lead_to_values_of_every_variant() -> None:
    paths = value_paths()
    assert {
        "train.epochs",
        "split.embargo",
        "split.fractions.train",
        "model.hidden",
        "optimizer.momentum",
        "register.tolerance",
    } <= set(paths)
    assert len(paths) == len(set(paths))
