"""Read a declaration from YAML, apply `path=value` overrides, and say what is wrong where."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from schemas.config import Declaration
from schemas.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class _UniqueLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice (YAML keeps the last one silently)."""


def _mapping(loader: _UniqueLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool):
            raise ConfigError(f"line {key_node.start_mark.line + 1}: a key must be plain text, got {key!r}")
        if key in seen:
            raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} is given twice; keep one")
        seen.add(key)
    return {loader.construct_object(k, deep=True): loader.construct_object(v, deep=True) for k, v in node.value}


_UniqueLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text.

    Raises:
        ConfigError: the text is not YAML, or a key is given twice.
    """
    try:
        return yaml.load(text, Loader=_UniqueLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {error}") from error


def expand(text: str) -> str:
    """Replace ${NAME} and ${NAME:-default} from the environment.

    Raises:
        ConfigError: a name is not set and has no default.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise ConfigError(f"{text}: environment variable {match[1]} is not set; set it, or write ${{{match[1]}:-default}}")
        return found

    return _VARIABLE.sub(value, text)


def apply_overrides(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of the tree with each `path.to.key=value` set; the value is read as YAML.

    An override that chooses another variant (`model.kind=mlp`) drops the keys that only the old one knows.

    >>> apply_overrides({"train": {"epochs": 9}}, ["train.epochs=2", "train.ranks=2"])
    {'train': {'epochs': 2, 'ranks': 2}}

    Raises:
        ConfigError: an override has no `=`, an empty path, or goes through a value that is no mapping.
    """
    result: dict[str, Any] = _copy(tree)
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            raise ConfigError(f"override {override!r}: expected path=value, e.g. train.epochs=5")
        node = result
        for key in keys[:-1]:
            if node.setdefault(key, {}) is None:
                node[key] = {}
            if not isinstance(node[key], dict):
                raise ConfigError(f"override {override!r}: {key} is {node[key]!r}, not a section")
            node = node[key]
        value = parse_yaml(text, f"override {override!r}")
        if keys[1:] == ["kind"] and node.get("kind", value) != value:
            result[keys[0]] = node = _for_kind(keys[0], value, node)
        node[keys[-1]] = value
    return result


def _for_kind(section: str, kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """What stays of a section when an override chooses another variant: the keys that the new one knows too."""
    field = Declaration.model_fields.get(section)
    for variant in getattr(field.annotation, "__args__", ()) if field else ():
        if variant.model_fields["kind"].default == kind:
            return {k: v for k, v in values.items() if k in variant.model_fields}
    return values


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def _known_keys(error_path: tuple[Any, ...]) -> list[str]:
    """Field names of the section that a path of the declaration leads to."""
    model: Any = Declaration
    for key in error_path:
        fields = getattr(model, "model_fields", {})
        match = next((f for n, f in fields.items() if key in (n, f.alias)), None)
        if match is None:
            variants = [m for m in getattr(model, "__args__", ()) if key in str(getattr(m, "model_fields", {}).get("kind", ""))]
            model = variants[0] if variants else model
            continue
        model = match.annotation
    return [f.alias or n for n, f in getattr(model, "model_fields", {}).items()]


def explain(error: ValidationError) -> str:
    """One line per mistake: the path of the key, what was expected, what was found."""
    lines = []
    for item in error.errors():
        path = ".".join(str(p) for p in item["loc"]) or "the declaration"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            close = difflib.get_close_matches(str(item["loc"][-1]), _known_keys(item["loc"][:-1]), n=1)
            message = "unknown key" + (f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(_known_keys(item['loc'][:-1]))}")
        elif item["type"] == "missing":
            message = "required, but not given"
        elif item["type"] != "value_error" and not isinstance(item["input"], dict):
            message += f"; got {item['input']!r}"
        lines.append(f"{path}: {message}")
    return "\n".join(lines)


def declare(tree: Any, where: str = "declaration") -> Declaration:
    """Validate a tree into a declaration.

    Raises:
        ConfigError: with one line per mistake, naming the path of the key.
    """
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: expected a mapping of sections, got {type(tree).__name__}")
    try:
        return Declaration.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{where} is not valid:\n  " + explain(error).replace("\n", "\n  ")) from error


def read_tree(path: str | Path) -> dict[str, Any]:
    """The sections in a YAML file, before they are validated.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds no sections.
    """
    if (file := Path(path)).exists() and not (file.is_file() or file.is_dir()):
        raise ConfigError(f"{path}: expected a file, which is read more than once, got a pipe or device; save the declaration first")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); give the path of a YAML declaration") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8, or give the path of a YAML declaration") from error
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of sections, got {type(tree).__name__}")
    return tree


def load_declaration(path: str | Path, overrides: Iterable[str] = ()) -> Declaration:
    """The declaration in a YAML file, with overrides applied and its data paths made absolute.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or does not validate.
    """
    file = Path(path)
    declaration = declare(apply_overrides(read_tree(file), overrides), str(file))
    uri = declaration.data.uri
    absolute = tuple(_absolute(expand(u), file.parent) for u in ((uri,) if isinstance(uri, str) else uri))
    data = declaration.data.model_copy(update={"uri": absolute[0] if isinstance(uri, str) else absolute})
    return declaration.model_copy(update={"data": data})


def _absolute(uri: str, base: Path) -> str:
    return uri if "://" in uri or Path(uri).is_absolute() else os.path.normpath(base.absolute() / uri)


def given_paths(declaration: Declaration) -> tuple[str, ...]:
    """Dotted paths of the values that the file or an override gave; every other value is a default."""

    def walk(section: BaseModel, prefix: str) -> Iterator[str]:
        for name in sorted(section.model_fields_set):
            value = getattr(section, name)
            path = f"{prefix}{type(section).model_fields[name].alias or name}"
            if isinstance(value, BaseModel):
                yield from walk(value, path + ".")
            else:
                yield path

    return tuple(walk(declaration, ""))
