"""Read YAML of a person or a form: limited size and depth, no aliases, unique keys, plain
values.
"""

from __future__ import annotations

from typing import Any

import yaml

from schemas.errors import ConfigError, shortened

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 32  # a declaration needs six


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys, deep nesting, NUL and lone surrogates."""

    aliases = False
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node unless it is an alias or too deep; both let a small text fill the
        memory.
        """
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1 if event.start_mark else "?"
        if isinstance(event, yaml.AliasEvent) and not self.aliases:
            raise ConfigError(
                f"line {line}: alias {shortened(f'*{event.anchor}')} is not allowed; write the"
                " value out"
            )
        if self.depth == MAX_DEPTH:
            raise ConfigError(
                f"line {line}: nested more than {MAX_DEPTH} levels deep, which no declaration needs"
            )
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _mapping(loader: _PlainLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = f"line {key_node.start_mark.line + 1}"
        if not isinstance(key, str | int | float | bool):
            raise ConfigError(f"{line}: a key must be plain text, got {shortened(key)}")
        if key in seen:
            raise ConfigError(f"{line}: key {shortened(key)} is given twice; keep one")
        seen.add(key)
    return {
        loader.construct_object(k, deep=True): loader.construct_object(v, deep=True)
        for k, v in node.value
    }


def _text(loader: _PlainLoader, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    if bad := next((c for c in text if c == "\x00" or "\ud800" <= c <= "\udfff"), None):
        what = "NUL" if bad == "\x00" else "a lone surrogate"
        raise ConfigError(
            f"line {node.start_mark.line + 1}: {shortened(text)} contains the character {bad!r}"
            f" ({what}), which is no text; remove it"
        )
    return text


_PlainLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_PlainLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG, _text)


class _AliasLoader(_PlainLoader):
    aliases = True


def parse_yaml(text: str, where: str, aliases: bool = False) -> Any:
    """Return the value of a YAML text.

    Args:
        text: at most a million characters, 32 levels deep.
        where: its file or option, for messages.
        aliases: allow `*name`; only for the operator's files: nine lines of aliases can mean
            gigabytes.

    Raises:
        ConfigError: the text is not YAML, too long or too deep, or has a duplicate key, an alias,
            or an invalid value.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"{where}: {len(text):,} characters, expected at most {MAX_CHARACTERS:,}; name many"
            " columns by patterns, e.g. 'x_*': numeric"
        )
    try:
        return yaml.load(text, Loader=_AliasLoader if aliases else _PlainLoader)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except yaml.MarkedYAMLError as error:  # its text would quote the file, which may be private
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(
            f"{where}: not valid YAML:"
            f" {shortened(error.problem or error.context or '', plain=True)}{place}"
        ) from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(
            f"{where}: not valid YAML: character {error.character!r} at position {error.position}"
            " is not allowed"
        ) from None
    except (
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
    ) as error:
        reason = shortened(str(error), plain=True)  # an invalid date, number or base64 text
        raise ConfigError(
            f"{where}: not valid YAML: a value cannot be read ({reason}); put text in quotes"
        ) from None
