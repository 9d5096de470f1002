"""Sections `data` and `task`: where the rows are, what the columns mean, what is predicted."""

from __future__ import annotations

import fnmatch
import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from schemas.column_config import Column, ColumnConfig, Kind, Role
from schemas.csv_config import CsvConfig
from schemas.database_config import is_server, require_select, require_server
from schemas.group_config import GroupByConfig
from schemas.label_config import METRIC_SAFE, Label, LabelConfig, Value
from schemas.section import Section
from schemas.series_config import WindowConfig
from schemas.spark_config import SparkConfig
from schemas.task_metrics import default_metric

__all__ = ["Column", "ColumnConfig", "CsvConfig", "DataConfig", "Kind", "Role", "TaskConfig"]
_PLAIN = ColumnConfig()
LEAST_MEMORY = 200_000_000  # smallest data.memory_limit in bytes


def num_bytes(size: str) -> int:
    """Return the bytes of a size with a unit.

    Raises:
        ValueError: the text is not a size.

    >>> num_bytes("1GB"), num_bytes("1.5 GiB")
    (1000000000, 1610612736)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([MGT])(i?)B", size.strip())
    if found is None:
        raise ValueError(f"expected a size with its unit, such as 512MB, 1GB or 2GiB, got {size!r}")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** (" MGT".index(found[2]) + 1))


class DataConfig(Section):
    """Where the rows are and what the columns mean."""

    uri: str | tuple[str, ...] = Field(
        description=(
            "Parquet, CSV, CSV.gz, Arrow, JSON-lines or Excel file, a folder, a glob, or a list of"
            " them; also s3://bucket/… and https://host/file; a DuckDB or SQLite file, or"
            " postgresql://host/database. ${BULKHEAD_NAME} is taken from the environment"
            " (docs/data-sources.md); a relative path starts at the declaration's folder."
        )
    )
    table: str | None = Field(
        None,
        exclude_if=lambda name: name is None,  # an old declaration keeps its digest
        min_length=1,
        description=(
            "Table or view of a database, e.g. visits or clinic.visits; needed where it has"
            " several."
        ),
    )
    query: str | None = Field(
        None,
        exclude_if=lambda text: text is None,  # an old declaration keeps its digest
        description="One SELECT over a database, in place of table; rows are only read.",
        examples=["select id, age, outcome from visits where ward = 'B'"],
    )
    sheet: str | None = Field(
        None,
        exclude_if=lambda name: name is None,  # an old declaration keeps its digest
        min_length=1,
        description=(
            "Sheet of an Excel file; needed where several hold something. It is read as delimited"
            " text, so data.csv applies (skip, header, null_values …)."
        ),
    )
    format: Literal["auto", "parquet", "csv", "arrow", "jsonl"] = "auto"
    csv: CsvConfig = CsvConfig()
    engine: Literal["duckdb", "spark"] = Field(
        "duckdb",
        description=(
            "What validates, splits, fits and materialises. duckdb: in this process; spark: on the"
            " executors of data.spark, with the same result."
        ),
    )
    spark: SparkConfig = SparkConfig()
    row_number: str | None = Field(
        None,
        exclude_if=lambda name: name is None,  # an old declaration keeps its digest
        description=(
            "Name of a new column that counts the rows of the files from 0, for the role id where"
            " no column is one and equal rows are not one event. Append new rows at the end only."
        ),
    )
    derive: dict[str, str] = Field(
        default_factory=dict,
        description='New columns as SQL expressions over the row, e.g. {late: "delay > 30"}.',
    )
    filter: str | None = Field(
        None, description="SQL condition; rows for which it is not true are left out and counted."
    )
    held_out_by: tuple[str, ...] = Field(
        (),
        exclude_if=lambda found: not found,
        description="Runs or versions of models whose validation and test rows are left out here.",
    )
    group_by: GroupByConfig | None = Field(
        None, description="Groups that no column names: scaffolds, duplicates, near-duplicates."
    )
    memory_limit: str | None = Field(
        None,
        description=(
            "Most memory that preparation takes for the rows, e.g. 1GB, next to a constant for the"
            " program itself (docs/memory.md); past it data are spilled to disk. Default: what the"
            " machine has. The result is the same."
        ),
        examples=["1GB", "512MiB"],
    )
    null_labels: Literal["refuse", "drop"] = Field(
        "refuse",
        description=(
            "Rows without a label (of several labels: with none at all): refuse the table, or drop"
            " and count them."
        ),
    )
    series: tuple[str, ...] | str | None = Field(
        None,
        exclude_if=lambda names: names is None,
        description=(
            "Columns, in any role, that tell one series from another, for data.windows and a label"
            " with ahead. Default: those of role group; without any, all rows are one series."
        ),
        examples=["station"],
    )
    windows: dict[str, WindowConfig] = Field(
        default_factory=dict,
        exclude_if=lambda windows: not windows,
        description=(
            "Features that hold the past of a row's series, by name, e.g. {history: {columns:"
            " [temperature], look_back: 72}}; needs a column of role time."
        ),
    )
    columns: dict[str, Column] = Field(
        description=(
            "Column name or pattern (`X*`) to its role or kind; the first match counts, exact names"
            " before patterns. A column that nothing matches is refused."
        )
    )

    @field_validator("columns")
    @classmethod
    def _some_columns(cls, columns: dict[str, ColumnConfig]) -> dict[str, ColumnConfig]:
        if not columns:
            raise ValueError(
                "declare at least a label and one feature, e.g. {outcome: label, '*': feature}"
            )
        return columns

    @field_validator("uri")
    @classmethod
    def _some_source(cls, uri: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not uri or (not isinstance(uri, str) and not all(uri)):
            raise ValueError(
                "expected a file, a folder, a glob or an address, or a list of them; got none"
            )
        for address in (uri,) if isinstance(uri, str) else uri:
            if is_server(address):
                require_server(address)
        return uri

    @field_validator("query")
    @classmethod
    def _selects(cls, query: str | None) -> str | None:
        return None if query is None else require_select(query)

    @model_validator(mode="after")
    def _one_choice(self) -> DataConfig:
        given = [n for n in ("table", "query", "sheet") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; keep one of them")
        return self

    @field_validator("derive")
    @classmethod
    def _named(cls, derive: dict[str, str]) -> dict[str, str]:
        if any(not name.strip() for name in derive):
            raise ValueError(
                'expected a name for each derived column, got an empty one; e.g. {late: "delay >'
                ' 30"}'
            )
        return derive

    @model_validator(mode="after")
    def _written_in_source(self) -> DataConfig:
        for name in self.derive:
            if name in self.columns and self.columns[name].written is not None:
                raise ValueError(
                    f"column {name!r} is derived, and written is for texts of the source; convert"
                    " them in the expression"
                )
        return self

    @model_validator(mode="after")
    def _pictures_in_source(self) -> DataConfig:
        if name := next((n for n in self.derive if (self.column(n) or _PLAIN).kind == "image"), ""):
            raise ValueError(
                f"column {name!r} is derived, and pictures are columns of the source: their files"
                " are sealed with it; add the paths to the table"
            )
        return self

    @model_validator(mode="after")
    def _spark_can(self) -> DataConfig:
        if self.engine != "spark":
            if self.spark != SparkConfig():
                raise ValueError(
                    "data.spark is for data.engine: spark; set it, or remove the section"
                )
            return self
        encoded = ("tensor", "image", "text", "set", "smiles")
        wide = [n for n, c in self.columns.items() if c.kind in encoded]
        written = [n for n, c in self.columns.items() if c.written is not None]
        problem = (
            f"column {wide[0]!r} of kind {self.columns[wide[0]].kind}"
            if wide
            else f"numbers in another spelling (written) in column {written[0]!r}"
            if written
            else (
                "data.group_by"
                if self.group_by
                else "data.row_number"
                if self.row_number
                else (
                    f"data.format: {self.format}"
                    if self.format not in ("auto", "parquet")
                    else "a table without a column of role id"
                    if not self.named("id")
                    else None
                )
            )
        )
        if problem:
            raise ValueError(
                f"data.engine: spark cannot do {problem}; use data.engine: duckdb (see"
                " docs/data-sources.md)"
            )
        return self

    @model_validator(mode="after")
    def _numbers_are_ids(self) -> DataConfig:
        name = self.row_number
        if name is None:
            return self
        column = self.columns.get(name)
        if column is None or column.role != "id":
            raise ValueError(
                f"data.row_number makes a column {name!r} to tell rows apart, which says nothing"
                f" else; declare it as an id: columns: {{{name}: id}}"
            )
        return self

    @field_validator("memory_limit")
    @classmethod
    def _enough_memory(cls, limit: str | None) -> str | None:
        if limit is not None and num_bytes(limit) < LEAST_MEMORY:
            raise ValueError(
                f"expected at least {LEAST_MEMORY // 10**6}MB, got {limit!r}; one batch of rows at"
                " a time takes as much"
            )
        return limit

    @property
    def series_columns(self) -> tuple[str, ...]:
        """Columns that tell one series from another; empty: all rows are one."""
        if self.series is None:
            return self.named("group")
        return (self.series,) if isinstance(self.series, str) else self.series

    @property
    def ahead(self) -> tuple[str, float | str] | None:
        """The label that lies ahead of its row, with how far; None without any."""
        found = ((n, c.ahead) for n, c in self.columns.items() if c.ahead is not None)
        return next(found, None)

    @property
    def memory_bytes(self) -> int | None:
        """`memory_limit` in bytes; None where none is declared."""
        return None if self.memory_limit is None else num_bytes(self.memory_limit)

    def column(self, name: str) -> ColumnConfig | None:
        """Return the declaration that applies to a source column, or None."""
        if name in self.columns:
            return self.columns[name]
        return next(
            (c for pattern, c in self.columns.items() if fnmatch.fnmatchcase(name, pattern)), None
        )

    def named(self, role: Role) -> tuple[str, ...]:
        """Return the names declared with a role (patterns excluded)."""
        return tuple(n for n, c in self.columns.items() if c.role == role)


class TaskConfig(Section):
    """What is predicted: one label, or several (multilabel, multitask) of which any may be unknown
    in a row.
    """

    kind: Literal["binary", "multiclass", "regression", "multilabel", "multitask", "causal_lm"] = (
        Field(
            description=(
                "binary, multiclass or regression; multilabel: several binary labels; multitask:"
                " several labels of different kinds, with a weight each; causal_lm: each token of a"
                " text from those before it."
            )
        )
    )
    positive: Value | None = Field(
        None, description="The positive class (binary); default: the larger value."
    )
    transform: Literal["none", "log", "log1p"] = Field(
        "none",
        exclude_if=lambda name: name == "none",  # an old declaration keeps its digest
        description=(
            "Scale on which a single regression label is learned; predictions and metrics keep its"
            " units. log: labels above 0 that span several powers of ten; log1p: log(1 + y), where"
            " some are 0."
        ),
    )
    ignore: tuple[Value, ...] = Field(
        (),
        description=(
            "Label values that mean unknown. Of a single label such rows are left out and counted;"
            " of several labels the value is masked, as a null is."
        ),
    )
    labels: dict[str, Label] = Field(
        default_factory=dict,
        description=(
            "Of several labels: column to its kind (or a mapping with kind, weight, positive …);"
            " multilabel: exceptions only."
        ),
    )

    @property
    def has_several(self) -> bool:
        """True if a row has several labels."""
        return self.kind in ("multilabel", "multitask")

    def default_metric(self, loss: str) -> str:
        """Return the metric that picks the best weights if none is declared."""
        return default_metric(self.kind, loss, self.transform)

    def label(self, name: str) -> LabelConfig:
        """Return the declaration of a label column, also when there is only one."""
        if self.kind in ("multilabel", "multitask"):
            return self.labels.get(name, LabelConfig())
        return LabelConfig(kind=self.kind, positive=self.positive)

    @model_validator(mode="after")
    def _labels_fit_kind(self) -> TaskConfig:
        if self.positive is not None and self.kind != "binary":
            raise ValueError(
                "positive is for binary tasks only; of several labels, name it in task.labels"
            )
        if self.transform != "none" and self.kind != "regression":
            raise ValueError(
                f"transform is for one regression label, and task.kind is {self.kind}; remove"
                " task.transform"
            )
        if self.ignore and self.kind == "causal_lm":
            raise ValueError(
                "ignore is for labels, and a language model has none; leave such texts out with"
                " data.filter"
            )
        if self.labels and not self.has_several:
            raise ValueError(
                f"labels is for tasks of several labels, not {self.kind}; use kind: multilabel (all"
                " binary) or multitask"
            )
        if self.kind == "multilabel" and (
            others := [n for n, c in self.labels.items() if c.kind != "binary"]
        ):
            raise ValueError(
                f"the labels of a multilabel task are binary, but {others[0]!r} is"
                f" {self.labels[others[0]].kind}; use kind: multitask"
            )
        if self.kind == "multitask":
            if len(self.labels) < 2:
                raise ValueError(
                    "a multitask task names at least two labels, e.g. labels: {relapse: binary,"
                    " dose: {kind: regression, weight: 0.5}}"
                )
            if wrong := [n for n in self.labels if not re.match(METRIC_SAFE, n)]:
                raise ValueError(
                    f"label {wrong[0]!r} names metrics, so it may hold letters, digits, space, _, ."
                    " and - only; rename it in data.derive"
                )
        return self
