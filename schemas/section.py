"""The base of every section of the declaration."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the declaration: frozen, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,  # an address may hold a password
    )


SectionType = TypeVar("SectionType", bound=Section)


def with_defaults(section: SectionType, **defaults: Any) -> SectionType:
    """Return the section with other defaults; given values stay, defaults still count as
    defaults.
    """
    given = section.model_fields_set
    values = section.__dict__ | {
        name: value for name, value in defaults.items() if name not in given
    }
    return cast(SectionType, type(section).model_construct(_fields_set=set(given), **values))
