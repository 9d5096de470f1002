"""Section `data.group_by`: related rows that no column groups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from schemas.section import Section


def _one_column(value: Any) -> Any:
    """Turn a bare column name into a list of one."""
    return [value] if isinstance(value, str) and value != "features" else value


Columns = Annotated[Literal["features"] | tuple[str, ...], BeforeValidator(_one_column)]


class GroupByConfig(Section):
    """Keys that rows share; rows that share any of them, or a declared group, form one group,
    directly or through others.
    """

    scaffold: str | None = Field(
        None,
        description=(
            "Column of SMILES: molecules of one Bemis-Murcko scaffold belong together. Needs the"
            " extra `chem`."
        ),
    )
    duplicates: Columns | None = Field(
        None,
        description="Rows that are equal in all features, or in these columns, belong together.",
    )
    near_duplicates: Columns | None = Field(
        None,
        description=(
            "Rows that are nearly equal in all features, or in these columns: noisy copies of"
            " numbers, re-spelt or lightly edited text."
        ),
    )
    smiles: Annotated[tuple[str, ...], BeforeValidator(_one_column)] = Field(
        (),
        description=(
            "Which columns of near_duplicates hold SMILES: they are compared as molecules. Needs"
            " the extra `chem`."
        ),
    )
    tolerance: float = Field(
        1e-3,
        gt=0,
        lt=1,
        description=(
            "Numbers closer than about this share of the column's standard deviation count as"
            " nearly equal."
        ),
    )

    @property
    def source_columns(self) -> tuple[str, ...]:
        """Named source columns of any role, in the declared order."""
        named = [
            names
            for names in (self.duplicates, self.near_duplicates)
            if names not in (None, "features")
        ]
        return tuple(
            dict.fromkeys(
                [
                    *([self.scaffold] if self.scaffold else []),
                    *(n for names in named for n in names or ()),
                    *self.smiles,
                ]
            )
        )

    @property
    def titles(self) -> tuple[str, ...]:
        """A title for each way of grouping, for people."""
        ways = {"duplicates": self.duplicates, "near-duplicates": self.near_duplicates}
        found = [
            f"{way} in {columns if isinstance(columns, str) else ', '.join(columns)}"
            for way, columns in ways.items()
            if columns is not None
        ]
        return (*([f"scaffold of {self.scaffold}"] if self.scaffold else []), *found)

    @model_validator(mode="after")
    def _possible(self) -> GroupByConfig:
        if not self.titles:
            raise ValueError("give scaffold, duplicates or near_duplicates")
        if () in (self.duplicates, self.near_duplicates):
            raise ValueError("name at least one column, or say features")
        if self.smiles and self.near_duplicates is None:
            raise ValueError("smiles names columns of near_duplicates, which is absent")
        if isinstance(self.near_duplicates, tuple) and (
            others := [n for n in self.smiles if n not in self.near_duplicates]
        ):
            raise ValueError(
                f"smiles: {others[0]!r} is not among near_duplicates {list(self.near_duplicates)}"
            )
        return self
