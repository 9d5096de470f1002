"""MLflow's description of a model's columns: raw inputs, predictions, and two made-up rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

from training.data.serving_expressions.bag_codes import OF_LISTS
from training.serving.serving import output_columns

OUTPUT_TYPES = {"bool": "boolean", "int64": "long", "float64": "double", "str": "string"}


def input_columns(spec: dict[str, Any]) -> list[str]:
    """Return raw columns of the model: features, with the inputs of derived ones in their place."""
    features = [
        c["name"]
        for kind in ("numeric", "categorical", "tensor", "bags", "windows")
        for c in spec.get(kind, [])
        if c["name"] not in spec["derived"]
    ]
    features += [spec["text"]["name"]] if "text" in spec else []
    return list(dict.fromkeys([*features, *(c["name"] for c in spec["raw"])]))


def predicted_columns(spec: dict[str, Any]) -> list[str]:
    """Return the names of the model's output columns."""
    return ["tokens", "loss", "accuracy"] if "text" in spec else output_columns(spec)


def thresholds_of(spec: dict[str, Any]) -> dict[str, float]:
    """Return label → decision threshold, of the labels that have one other than 0.5."""
    labels = [{**spec, "name": spec["label"]}] if "threshold" in spec else spec["labels"]
    return {label["name"]: label["threshold"] for label in labels if "threshold" in label}


def intervals_of(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return label → coverage, scale and margin of its intervals, of the labels that have them."""
    labels = [{**spec, "name": spec["label"]}] if "interval" in spec else spec["labels"]
    return {label["name"]: label["interval"] for label in labels if "interval" in label}


def signature(spec: dict[str, Any]) -> ModelSignature:
    """Return a signature of the outputs; serving.py checks the inputs by name and row.

    MLflow enforces a signature's input types, and none fits what callers send. It refuses int64 for
    a declared double (it accepts int32 and float32), a float column with a null for a declared
    long, and every number for a declared string; with inputs of any type it refuses every CSV. It
    lists the whole schema before it names a missing column, and warns about extra ones at each
    call. `input_types` describes the columns in the model's metadata.
    """
    if "text" in spec:
        return _text_signature(spec)
    labels = spec["labels"] or [
        {**spec, "prediction": "prediction", "probabilities": spec["probability_columns"]}
    ]
    kinds = {
        label["prediction"]: OUTPUT_TYPES[label["class_dtype"]]
        for label in labels
        if label["classes"]
    }
    outputs = [ColSpec(kinds.get(name, "double"), name) for name in output_columns(spec)]
    params = ParamSchema([ParamSpec("intervals", "boolean", False)]) if intervals_of(spec) else None
    return ModelSignature(outputs=Schema(outputs), params=params)


def input_types(spec: dict[str, Any]) -> dict[str, str]:
    """Return raw columns with their types: double, boolean, string, tensor, or the SQL type of
    inputs of derived features.
    """
    raw = {c["name"]: c["type"].lower() for c in spec["raw"]}
    numeric = {c["name"]: "boolean" if c["boolean"] else "double" for c in spec["numeric"]}
    known = (
        numeric
        | {c["name"]: "string" for c in spec["categorical"]}
        | {c["name"]: f"{c['dtype']}{c['shape']}" for c in spec["tensor"]}
    )
    known |= {
        c["name"]: "list" if c["separator"] == OF_LISTS else "string" for c in spec.get("bags", [])
    }
    known |= {
        w["name"]: f"{w['length']} steps of [{', '.join(w['channels'])}], or in the place of it the"
        f" columns {', '.join(w['columns'])} of each row of the history"
        for w in spec.get("windows", [])
    }
    known |= {spec["text"]["name"]: "string"} if "text" in spec else {}
    return {name: raw.get(name) or known[name] for name in input_columns(spec)}


def _text_signature(spec: dict[str, Any]) -> ModelSignature:
    """Return the signature of a language model: a text in, its figures out.

    The completion is one more column when its parameters are given.
    """
    outputs = Schema(
        [ColSpec("long", "tokens"), ColSpec("double", "loss"), ColSpec("double", "accuracy")]
    )
    defaults = (
        ("max_new_tokens", "long", 0),
        ("temperature", "double", 1.0),
        ("top_k", "long", 0),
        ("seed", "long", 0),
    )
    return ModelSignature(
        Schema([ColSpec("string", spec["text"]["name"])]),
        outputs,
        ParamSchema([ParamSpec(*parameter) for parameter in defaults]),
    )


def input_example(spec: dict[str, Any]) -> pd.DataFrame:
    """Return two made-up rows: train means, most frequent category, empty tensors.

    No row of the data is copied into the registry. If no raw values were found that give every
    derived feature, derived features are included instead.
    """
    columns: dict[str, Any] = (
        {spec["text"]["name"]: [spec["example"], ""]} if "text" in spec else {}
    )
    for column in spec["numeric"]:
        typical = column["typical"] or 0.0
        columns[column["name"]] = (
            [typical >= 0.5] * 2 if column["boolean"] else [typical, float(round(typical))]
        )
    for column in spec["categorical"]:
        columns[column["name"]] = [
            column["values"][0] if column["values"] else None,
            column["values"][-1] if column["values"] else None,
        ]
    for column in spec["tensor"]:
        columns[column["name"]] = [np.zeros(column["shape"], dtype=column["dtype"]).tolist()] * 2
    for window in spec.get("windows", []):
        columns[window["name"]] = [[window["fill"]] * window["length"]] * 2
    for column in spec.get("bags", []):
        columns[column["name"]] = [_bag_example(column)] * 2
    if any(column["example"] is None for column in spec["raw"]):
        return pd.DataFrame(columns)
    columns |= {column["name"]: [column["example"]] * 2 for column in spec["raw"]}
    return pd.DataFrame(columns)[input_columns(spec)]


def _bag_example(column: dict[str, Any]) -> Any:
    """Return a made-up text or set of frequent pieces."""
    some = column["values"][:3]
    if column["separator"] == OF_LISTS:
        return some
    return (column["separator"] or " ").join(some)
