"""Pieces of YAML that read back as they were meant."""

from __future__ import annotations

import math
import re

import yaml

PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def key(text: str) -> str:
    """Return a YAML key or value: quoted unless it is plain and no YAML word (`no`, `y`)."""
    return text if PLAIN_KEY.fullmatch(text) and text.lower() not in YAML_WORDS else quoted(text)


def quoted(text: str) -> str:
    """Return text in double quotes, escaped so that YAML reads any character back."""
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf)).strip()


def scalar(text: str) -> str:
    """Return a YAML value, quoted if plain text would be read as something else."""
    return text if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\([^\n#:]*", text) else quoted(text)
