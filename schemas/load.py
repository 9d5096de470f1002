"""Read a declaration from YAML, apply `path=value` overrides, report mistakes with their place."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from schemas.config import AutoModel, Declaration, MlpModel
from schemas.confinement import require_host, require_readable, require_source, require_spark
from schemas.errors import ConfigError, shortened
from schemas.search_space import space_mistakes
from schemas.token_config import DEFAULTS, TASK
from schemas.variables import expand
from schemas.yaml_text import parse_yaml

MAX_MISTAKES = 20  # most mistakes in one message
# sections with several kinds and a default kind
VARIANTS = ("model", "optimizer", "schedule")
MAX_KEYS = 16  # most keys in the path of an override
TABLES = (
    *(".parquet", ".csv", ".csv.gz", ".tsv", ".arrow", ".feather", ".jsonl", ".xlsx"),
    *(".duckdb", ".sqlite", ".sqlite3", ".db"),
)


def apply_overrides(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the tree with each `path.to.key=value` set; parse the value as YAML.

    An override that chooses another variant (`model.kind=mlp`) drops the keys that the new one
    lacks.

    >>> apply_overrides({"train": {"epochs": 9}}, ["train.epochs=2", "train.ranks=2"])
    {'train': {'epochs': 2, 'ranks': 2}}

    Raises:
        ConfigError: an override has no `=`, an empty path, or a path through a value that is not a
            mapping.
    """
    result: dict[str, Any] = _copy(tree)
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.split(".")
        shown = f"override {shortened(override)}"
        if not equals or not all(keys) or len(keys) > MAX_KEYS:
            raise ConfigError(f"{shown}: expected path=value, e.g. train.epochs=5")
        node = result
        for key in keys[:-1]:
            if node.setdefault(key, {}) is None:
                node[key] = {}
            if not isinstance(node[key], dict):
                raise ConfigError(f"{shown}: {key} is {shortened(node[key])}, not a section")
            node = node[key]
        value = parse_yaml(text, shown)
        if keys[1:] == ["kind"] and node.get("kind", value) != value:
            result[keys[0]] = node = _for_kind(keys[0], value, node)
        node[keys[-1]] = value
    return result


def _for_kind(section: str, kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Keep the keys of a section that the variant chosen by an override also has."""
    field = Declaration.model_fields.get(section)
    for variant in getattr(field.annotation, "__args__", ()) if field else ():
        if variant.model_fields["kind"].default == kind:
            return {k: v for k, v in values.items() if k in variant.model_fields}
    return values


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def _known_keys(error_path: tuple[Any, ...]) -> list[str]:
    """Return the field names of the section at a path of the declaration."""
    model: Any = Declaration
    for key in error_path:
        if isinstance(key, int):  # an element of a list
            model = getattr(model, "__args__", (model,))[0]
            model = getattr(model, "__origin__", model)  # without what is annotated
            continue
        fields = getattr(model, "model_fields", {})
        match = next((f for n, f in fields.items() if key in (n, f.alias)), None)
        if match is None:
            variants = [
                m
                for m in getattr(model, "__args__", ())
                if key in str(getattr(m, "model_fields", {}).get("kind", ""))
            ]
            model = variants[0] if variants else model
            continue
        model = match.annotation
        optional = [m for m in getattr(model, "__args__", ()) if hasattr(m, "model_fields")]
        model = optional[0] if len(optional) == 1 else model  # a section or null
    return [f.alias or n for n, f in getattr(model, "model_fields", {}).items()]


def explain(error: ValidationError) -> str:
    """Write one line per mistake: the path of the key, what was expected, what was found."""
    mistakes = error.errors()
    lines = [_mistake(item) for item in mistakes[:MAX_MISTAKES]]
    more = len(mistakes) - len(lines)
    return "\n".join([*lines, *([f"… and {more:,} more like these"] if more else [])])


def _mistake(item: Any) -> str:
    path = ".".join(shortened(str(p), 80, plain=True) for p in item["loc"]) or "the declaration"
    message = shortened(item["msg"].removeprefix("Value error, "), 1000, plain=True)
    if item["type"] == "extra_forbidden":
        known = _known_keys(item["loc"][:-1])
        close = difflib.get_close_matches(str(item["loc"][-1])[:80], known, n=1)
        message = "unknown key" + (
            f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"
        )
    elif item["type"] == "union_tag_not_found":
        return f"{path}.kind: required, but not given; one of {', '.join(_kinds(item['loc']))}"
    elif item["type"] == "missing":
        message = "required, but not given"
    elif item["type"] not in ("value_error", "union_tag_invalid") and not isinstance(
        item["input"], dict
    ):
        message += f"; got {shortened(item['input'])}"
    return f"{path}: {message}"


def _kinds(path: tuple[Any, ...]) -> list[str]:
    """List the kinds of a section with variants."""
    field = Declaration.model_fields.get(str(path[0])) if path else None
    return [
        m.model_fields["kind"].default for m in getattr(field and field.annotation, "__args__", ())
    ]


def declare(tree: Any, where: str = "declaration") -> Declaration:
    """Validate a tree into a declaration.

    Raises:
        ConfigError: with one line per mistake, naming the path of the key.
    """
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: expected a mapping of sections, got {type(tree).__name__}")
    try:
        found = Declaration.model_validate(_with_kinds(tree))
    except ValidationError as error:
        raise ConfigError(
            f"{where} is not valid:\n  " + explain(error).replace("\n", "\n  ")
        ) from error
    if mistakes := list(space_mistakes(found)):
        raise ConfigError(f"{where} is not valid:\n  " + "\n  ".join(mistakes[:MAX_MISTAKES]))
    return found


def _with_kinds(tree: dict[Any, Any]) -> dict[Any, Any]:
    """Add the default kind to each section that sets values but no kind."""
    task = tree.get("task")
    kind = task.get("kind") if isinstance(task, dict) else None
    default: dict[str, Any] = {
        name: Declaration.model_fields[name].default for name in VARIANTS
    } | (DEFAULTS if kind == TASK else {})
    given = {name: tree.get(name) for name in VARIANTS}
    if kind != TASK and set(given["model"] or ()) - set(AutoModel.model_fields):
        default["model"] = MlpModel()  # a section that sets values of a network
    return tree | {
        name: {"kind": default[name].kind, **v}
        for name, v in given.items()
        if isinstance(v, dict) and "kind" not in v
    }


def read_tree(path: str | Path) -> dict[str, Any]:
    """Return the sections of a YAML file, not yet validated.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or contains no sections.
    """
    require_readable(path, "declaration")
    if (file := Path(path)).exists() and not (file.is_file() or file.is_dir()):
        raise ConfigError(
            f"{path}: expected a file, which is read more than once, got a pipe or device; save the"
            " declaration first"
        )
    if file.name.lower().endswith(TABLES):
        raise ConfigError(
            f"{path}: expected a YAML declaration, got a table; draft one with `bulkhead init"
            f" {shlex.quote(str(path))}` and give the file that it writes"
        )
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror or error}); give the path of a YAML"
            " declaration"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8, or give the path of a"
            " YAML declaration"
        ) from error
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of sections, got {type(tree).__name__}")
    return tree


def load_declaration(path: str | Path, overrides: Iterable[str] = ()) -> Declaration:
    """Return the declaration in a YAML file, with overrides applied and its data paths made
    absolute.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or does not validate.
    """
    file = Path(path)
    declaration = declare(apply_overrides(read_tree(file), overrides), str(file))
    uri = declaration.data.uri
    absolute = tuple(
        _absolute(expand(u), file.parent) for u in ((uri,) if isinstance(uri, str) else uri)
    )
    _require_permitted(declaration, absolute)
    data = declaration.data.model_copy(
        update={"uri": absolute[0] if isinstance(uri, str) else absolute}
    )
    return declaration.model_copy(update={"data": data})


def _require_permitted(declaration: Declaration, uris: tuple[str, ...]) -> None:
    """Refuse files and hosts that a worker's flow run may not use; see `schemas.confinement`.

    The code that opens them checks again.
    """
    for uri in uris:
        require_source(uri)
    spark = declaration.data.spark
    require_spark(spark.master, spark.remote, spark.conf)
    if declaration.train.rendezvous:
        require_host(f"tcp://{declaration.train.rendezvous}", "train.rendezvous")


def _absolute(uri: str, base: Path) -> str:
    return (
        uri if "://" in uri or Path(uri).is_absolute() else os.path.normpath(base.absolute() / uri)
    )


def given_paths(declaration: Declaration) -> tuple[str, ...]:
    """Return the dotted paths of values that the file or an override gave; others are defaults."""

    def walk(section: BaseModel, prefix: str) -> Iterator[str]:
        for name in sorted(section.model_fields_set):
            value = getattr(section, name)
            path = f"{prefix}{type(section).model_fields[name].alias or name}"
            if isinstance(value, BaseModel):
                yield from walk(value, path + ".")
            else:
                yield path

    return tuple(walk(declaration, ""))
