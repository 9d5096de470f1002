"""The values that a search tries: defaults by kind of model, checked against the declaration.

A path that the declaration does not have, or that trials on shared arrays cannot change, is refused
before anything runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from schemas.config import Declaration
from schemas.search_config import Dimension, SearchConfig, Span

SEARCHED = ("model", "optimizer", "schedule", "loss", "train")
PREPARED = ("data", "task", "split", "checks", "normalize", "tokens")
FITTED = ("model.bins", "model.clamp")  # of the model, and fitted on train with the arrays
# values that decide how the score is measured, or how a run is made and not what it learns
FIXED = (
    "train.metric",
    "train.seed",
    "train.ranks",
    "train.nodes",
    "train.rendezvous",
    "train.threads",
    "train.device",
    "train.mode",
    "train.profile",
)
DROPOUT = Span(low=0.0, high=0.5)
WIDTHS = ((128, 64), (256, 128), (512, 256), (256, 256, 256), (512, 512, 512))
# Source of realmlp: Holzmüller et al. 2024, arXiv:2407.04491; of tabm: Gorishniy et al. 2024,
# arXiv:2410.24210, with the space of TabArena. A path that a kind does not have is left out.
BY_KIND: dict[str, dict[str, Dimension]] = {
    "linear": {"optimizer.weight_decay": Span(low=1e-5, high=1.0, log=True)},
    "mlp": {
        "model.hidden": WIDTHS,
        "model.dropout": DROPOUT,
        "model.numeric_embedding": ("none", "periodic"),
    },
    "resmlp": {
        "model.width": Span(low=64, high=512, log=True),
        "model.depth": Span(low=1, high=6),
        "model.expansion": Span(low=1.0, high=4.0),
        "model.dropout": DROPOUT,
        "model.numeric_embedding": ("none", "periodic"),
    },
    "ft_transformer": {
        "optimizer.lr": Span(low=3e-5, high=1e-3, log=True),
        "model.depth": Span(low=1, high=4),
        "model.attention_dropout": DROPOUT,
        "model.dropout": DROPOUT,
        "model.residual_dropout": Span(low=0.0, high=0.2),
    },
    "cnn": {"model.dropout": DROPOUT},
    "causal_transformer": {"model.dropout": DROPOUT},
    "realmlp": {
        "optimizer.weight_decay": Span(low=1e-3, high=0.1, log=True),
        "model.hidden": ((128, 128, 128), (256, 256, 256), (512, 512, 512), (512, 256, 128)),
        "model.dropout": (0.0, 0.15, 0.3),
    },
    "tabm": {
        "optimizer.lr": Span(low=1e-4, high=3e-3, log=True),
        "optimizer.weight_decay": Span(low=1e-4, high=0.1, log=True),
        "model.depth": Span(low=2, high=5),
        "model.width": Span(low=128, high=1024, log=True),
        "model.dropout": DROPOUT,
        "model.embedding_size": Span(low=8, high=32),
    },
    "boosting": {
        "model.learning_rate": Span(low=0.02, high=0.3, log=True),
        "model.max_leaf_nodes": Span(low=8, high=128, log=True),
        "model.min_samples_leaf": Span(low=5, high=200, log=True),
        "model.l2": Span(low=1e-3, high=10.0, log=True),
        "model.max_features": Span(low=0.5, high=1.0),
    },
}
RATES: dict[str, Span] = {
    "adamw": Span(low=1e-4, high=1e-2, log=True),
    "adam": Span(low=1e-4, high=1e-2, log=True),
    "sgd": Span(low=1e-2, high=1.0, log=True),
}


def default_space(declaration: Declaration) -> dict[str, Dimension]:
    """Return the default values to try for the declared kind of model, by dotted path."""
    kind, optimizer = declaration.model.kind, declaration.optimizer.kind
    found: dict[str, Dimension] = {}
    if str(kind) != "boosting":  # it has no optimizer
        found["optimizer.lr"] = RATES[optimizer]
        found["optimizer.weight_decay"] = Span(low=1e-5, high=0.1, log=True)
    if str(kind) == "realmlp":
        is_number = declaration.task.kind == "regression"
        found["optimizer.lr"] = (
            Span(low=0.02, high=0.4, log=True) if is_number else Span(low=0.01, high=0.1, log=True)
        )
    known = values_by_path(declaration)
    wanted = found | BY_KIND.get(kind, {})
    if optimizer == "sgd":  # the rates of a kind are those of Adam
        wanted["optimizer.lr"] = RATES[optimizer]
    return {path: values for path, values in wanted.items() if path in known}


def search_space(declaration: Declaration) -> dict[str, Dimension]:
    """Return the values to try by path, sorted: the defaults with the declared ones over them."""
    given = declaration.search.space if declaration.search else {}
    merged = default_space(declaration) | given
    return {path: values for path, values in sorted(merged.items()) if values is not None}


def values_by_path(section: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Return each value of a declaration by its dotted path, options of a custom model too."""
    found: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), prefix + (field.alias or name)
        if isinstance(value, BaseModel):
            found |= values_by_path(value, f"{path}.")
        elif path == "model.options":
            found |= {f"{path}.{key}": item for key, item in value.items()}
        else:
            found[path] = value
    return found


def with_values(declaration: Declaration, values: dict[str, Any], **search: Any) -> Declaration:
    """Return the declaration with other values, validated; the rest is given as it is.

    Args:
        declaration: the one to change.
        values: value by dotted path.
        search: fields of section `search` to set; without any, the section is left out.

    Raises:
        ValidationError: the values do not fit together.
    """
    tree = declaration.model_dump(mode="json", by_alias=True)
    before = tree.pop("search", None) or {}
    for path, value in values.items():
        *keys, last = path.split(".")
        node = tree
        for key in keys:
            node = node[key]
        node[last] = plain(value)
    if search:
        tree["search"] = before | search
    return Declaration.model_validate(tree)


def short_tree(declaration: Declaration) -> dict[str, Any]:
    """Return a declaration as a person would write it: without values that are defaults.

    The number of processes stays, because bits depend on it.
    """
    whole: dict[str, Any] = declaration.model_dump(mode="json", by_alias=True)
    short = declaration.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for name, section in whole.items():
        if isinstance(section, dict) and "kind" in section:
            short[name] = {"kind": section["kind"], **short.get(name, {})}
    short["train"] = short.get("train", {}) | {"ranks": declaration.train.ranks}
    ordered = {name: short[name] for name in whole if name in short}
    try:  # the defaults of a language model are others
        same = Declaration.model_validate(ordered) == declaration
    except ValidationError:
        same = False
    return ordered if same else whole


def plain(value: Any) -> Any:
    """Return a value as YAML has it."""
    return list(value) if isinstance(value, tuple) else value


def space_mistakes(declaration: Declaration) -> Iterator[str]:
    """Yield a line for each mistake in section `search`, with the path of the key."""
    search = declaration.search
    if search is None:
        return
    if declaration.cv.folds:
        yield (
            f"search: trials are scored on validation rows, not on folds, and cv.folds is"
            f" {declaration.cv.folds}; set cv.folds: 0"
        )
    if declaration.model.kind == "auto":
        yield (
            "search: model.kind auto trains several kinds by their own recipes; name one of them,"
            " e.g. model.kind: realmlp"
        )
        return
    known = values_by_path(declaration)
    for path, values in search.space.items():
        reason = _refusal(path, known)
        if reason:
            yield f"search.space.{path}: {reason}"
        elif values is not None:
            yield from _bad_values(declaration, path, values)
    if not search_space(declaration):
        yield (
            f"search.space: model.kind {declaration.model.kind!r} has no default values to try;"
            " give some, e.g. optimizer.lr: {low: 1e-4, high: 1e-2, log: true}"
        )
    yield from _changed(search, known)


def _refusal(path: str, known: dict[str, Any]) -> str:
    """Return why a path cannot be searched; empty if it can."""
    section = path.partition(".")[0]
    if section in PREPARED or path in FITTED:
        return (
            "cannot be searched, because all trials train on the same prepared arrays; search"
            f" {', '.join(SEARCHED)}, and compare this by runs of its own"
        )
    if path.endswith(".kind"):
        return "cannot be searched; search each kind in a run of its own"
    if path in FIXED:
        return "cannot be searched, because the scores of trials would not be comparable"
    if path in known and section in SEARCHED:
        return ""
    usable = [
        name
        for name in known
        if name.partition(".")[0] in SEARCHED and name not in (*FIXED, *FITTED)
    ]
    close = difflib.get_close_matches(path, usable, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are e.g. {', '.join(usable[:6])}"
    return f"the declaration has no such value to search; {hint}"


def _bad_values(declaration: Declaration, path: str, values: Dimension) -> Iterator[str]:
    """Yield what is wrong with a bound or choice itself, whatever the other values are."""
    keys = set(path.split("."))
    for value in (values.low, values.high) if isinstance(values, Span) else values:
        try:
            with_values(declaration, {path: value})
        except ValidationError as error:
            own = [item for item in error.errors() if keys <= {str(key) for key in item["loc"]}]
            if own:
                message = own[0]["msg"].removeprefix("Value error, ")
                yield f"search.space.{path}: {message}; got {value!r}"
                return


def _changed(search: SearchConfig, known: dict[str, Any]) -> Iterator[str]:
    """Yield the values that are not those that a search found, although the file says so."""
    for path, value in (search.found.params if search.found else {}).items():
        now = known.get(path)
        if plain(now) != value:
            yield (
                f"search.found: the search chose {path}={value}, and the declaration has {now!r};"
                " remove the section search, as it does not describe these values"
            )
