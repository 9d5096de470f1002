"""Draft a declaration from a table, for `bulkhead init`."""

from __future__ import annotations

from training.data.draft.draft import draft


def draft_declaration(uri: str, label: str | None, name: str | None) -> str:
    """Return a declaration as YAML text, with the reason for each guess next to it."""
    return draft(uri, label=label, name=name)
