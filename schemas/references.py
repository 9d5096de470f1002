"""References that tasks pass on instead of tables: path, SHA-256, rows and columns of a file.

Only `training.data.split.split` makes a `TrainTable`, `ValTable` or `TestTable`; every `fit_*`
takes a `TrainTable`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.duration import TimeUnit
from schemas.label_config import Value
from schemas.split_config import SplitName

DAYS = ".days"  # ends the name of the part of a date that is no point on a circle


class Record(BaseModel):
    """Frozen, unknown keys refused, JSON round-trip."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def digest_of(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON (sorted keys, no spaces) of a value or record."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


class FileRef(Record):
    """One file: absolute path, SHA-256 of its bytes, size in bytes."""

    path: str
    sha256: str
    num_bytes: int

    @property
    def file(self) -> Path:
        """The path as a `Path`."""
        return Path(self.path)


class RemoteFile(Record):
    """A file of an object store or web server, and its local copy `path`; `version` is its ETag,
    else its Last-Modified, empty where neither is told.
    """

    uri: str
    version: str
    num_bytes: int
    path: str


class Snapshot(Record):
    """Rows of a database at one moment, or of a file that was converted: the sealed copy `path`.

    `table`, `query`, `sheet`, `encoding`: what was read of it, one of them. `moment`: when, in UTC;
    of a server by its own clock, of a converted file its last change. `rows`: null of a converted
    file. `sha256`: of the copy.
    """

    uri: str
    table: str | None = None
    query: str | None = None
    sheet: str | None = None
    encoding: str | None = None
    moment: str
    rows: int | None = None
    path: str
    sha256: str


class SourceRef(Record):
    """The source files in sorted order and the SHA-256 over their digests (names do not count, keys
    of folders do).

    `remote`: those of `files` that are copies. `snapshots`: those of `files` that hold the rows of
    a database or of a converted file; the record is written without them where there are none.
    `partitions`: of each file's path what its folders, named `key=value`, say of its rows.
    """

    uri: tuple[str, ...]
    format: Literal["parquet", "csv", "arrow", "jsonl"]
    files: tuple[FileRef, ...]
    sha256: str
    remote: tuple[RemoteFile, ...] = ()
    snapshots: tuple[Snapshot, ...] = Field((), exclude_if=lambda copies: not copies)
    partitions: dict[str, dict[str, str | None]] = {}


class LabelColumn(Record):
    """A label column: its type in the validated table, and the values that stand for unknown there
    (null).
    """

    type: Literal["bool", "int", "float", "text"]
    ignore: tuple[Value, ...] = ()


class WindowSpec(Record):
    """A feature that holds the past of a row's series: `length` steps of its `channels`.

    `series`: columns that tell one series from another; empty: all rows are one. `step`: distance
    of the steps in the units of `__time`; None: each row is a step. `lag`: newest steps that are
    left out. `types`: SQL types of the columns that are read at serving.
    """

    channels: tuple[str, ...]
    series: tuple[str, ...]
    length: int
    step: float | None
    lag: int
    types: dict[str, str]


class TableSpec(Record):
    """What each column of the validated table is; made from the declaration and the source's types.

    The validated table has these columns under their own names (numeric as float64, categorical as
    text, tensors as fixed-size lists) and three of ours: `__id` (text, unique), `__key` (text: what
    the split hashes when no group is declared) and `__group` (text or null; several group columns
    joined). `__time` is float64: UTC epoch seconds of a date or timestamp column, or the number
    itself, in `time_unit` where the declaration names it. So is `__label_time`, when the row's
    label became known (null: as `__time`), and each column of `available`, by when the features
    that it names became known (null: they were not).

    `labels`: each label column, where there are several, or one with values that mean unknown;
    empty: `label` alone. Of several labels any may be null in a row, and `label` is their names in
    one text, for people.

    `bags`: features that are texts, or sets of values in one text (see `BagStats`); the record is
    written without them where there are none.

    `windows`: features that hold the past of a row's series; they are no columns of the table, but
    have files of their own (`ValidatedTable.histories`).

    `text`: the column of a language model's documents, which is its `label` too. `derived`: trees
    of the derived features (see `training.data.serving_expressions`), by which the registered model
    computes them. `dates`: numeric features that are parts of a date, with the column that they are
    part of; the record is written without them where there are none, so that its digest stays what
    it was. `null_texts`: texts that a delimited source had for null.

    `group_by`: in words, the ways of `data.group_by`. The validated table's `__group` is then the
    declared group alone, that of the sides the whole group (see `training.data.split.groups`).
    """

    id: tuple[str, ...]
    group: tuple[str, ...]
    time: str | None
    time_is_timestamp: bool = False
    time_unit: TimeUnit | None = None
    label_time: str | None = None
    available: dict[str, tuple[str, ...]] = {}
    label: str
    label_type: Literal["bool", "int", "float", "text"]
    weight: str | None
    split: str | None
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    tensor: dict[str, tuple[int, ...]]
    tensor_dtype: dict[str, Literal["uint8", "float32"]] = {}
    integer: tuple[str, ...] = ()
    boolean: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    text: str | None = None
    derived: dict[str, dict[str, Any]] = {}
    bags: dict[str, Literal["text", "set"]] = Field({}, exclude_if=lambda kinds: not kinds)
    dates: dict[str, str] = Field({}, exclude_if=lambda parts: not parts)
    windows: dict[str, WindowSpec] = Field({}, exclude_if=lambda found: not found)
    null_texts: tuple[str, ...] = ()
    labels: dict[str, LabelColumn] = {}
    group_by: tuple[str, ...] = ()

    def is_on_circle(self, name: str) -> bool:
        """Return True for a part of a date that is a sine or a cosine, in contrast to its days."""
        return name in self.dates and not name.endswith(DAYS)

    @property
    def grouped(self) -> bool:
        """True if `__group` of the splits says which rows belong together, declared or derived."""
        return bool(self.group or self.group_by)

    @property
    def has_several_labels(self) -> bool:
        """True if a row has several labels, each of which may be null."""
        return len(self.labels) > 1

    @property
    def label_columns(self) -> dict[str, LabelColumn]:
        """Name of every label column."""
        return self.labels or {self.label: LabelColumn(type=self.label_type)}

    @property
    def features(self) -> tuple[str, ...]:
        """Feature columns in model order: numeric, categorical, tensors, bags, or the text."""
        return (
            *self.numeric,
            *self.categorical,
            *self.tensor,
            *self.bags,
            *((self.text,) if self.text else ()),
        )


class HistoryRef(Record):
    """The windows of a table's rows, without copies of what overlaps.

    `steps`: Parquet of the series' steps, ordered by series and time: `__id` (null: a step without
    a row), `__series`, `__time` and the channels, float64. `ends`: Parquet with a row for each row
    of the table, in its order: its window is the `count` steps before position `end`.
    """

    steps: FileRef
    ends: FileRef


class TableRef(Record):
    """A Parquet file between tasks; `histories`: of each window, where there are any."""

    file: FileRef
    rows: int
    histories: dict[str, HistoryRef] = Field({}, exclude_if=lambda found: not found)

    @property
    def digests(self) -> str | dict[str, str]:
        """SHA-256 of the file, and of those of its windows: what later steps depend on."""
        if not self.histories:
            return self.file.sha256
        parts = {f"{n}/steps": h.steps.sha256 for n, h in self.histories.items()}
        parts |= {f"{n}/ends": h.ends.sha256 for n, h in self.histories.items()}
        return {"rows": self.file.sha256, **parts}


class TrainTable(TableRef):
    """Rows that may be fitted on. Only the split makes one."""

    side: Literal["train"] = "train"


class ValTable(TableRef):
    """Rows that choose among models; nothing is fitted on them."""

    side: Literal["val"] = "val"


class TestTable(TableRef):
    """Rows that are scored once."""

    __test__ = False  # not a pytest class
    side: Literal["test"] = "test"


class ValidatedTable(Record):
    """The outcome of validation: the typed table, what its columns are, what was left out.

    `raw_rows`: Parquet with `__id` and, for some of the rows, the source columns that derived
    features are made of; the export is tried on them. Null where no feature is derived.
    `ignored_labels`: how many labels of a column had a value of task.ignore; of a single label
    these rows are left out, of several the label is null. `group_columns`: Parquet with `__id` and
    the columns that `data.group_by` names (numbers float64, the rest text); null where it names
    none. `row_places`: Parquet with `__source_row`, each row's place in the source, in the order of
    the table; null where the engine has no order. `notes`: sentences on categories that are
    probably none. `histories`: of each window, Parquet with a row for each row of the filtered
    source, also without a label: `__id`, `__series`, `__time` and the channels, ordered by series
    and time.
    """

    table: TableRef
    spec: TableSpec
    raw_rows: FileRef | None = None
    filtered_rows: int = 0
    unlabelled_rows: int = 0
    ignored_labels: dict[str, int] = {}
    group_columns: FileRef | None = None
    row_places: FileRef | None = None
    histories: dict[str, FileRef] = Field({}, exclude_if=lambda found: not found)
    notes: tuple[str, ...] = ()

    @property
    def digests(self) -> str | dict[str, str]:
        """SHA-256 of the table, and of the rows of its windows: what a split depends on."""
        parts = {name: file.sha256 for name, file in self.histories.items()}
        return {"table": self.table.file.sha256, **parts} if parts else self.table.file.sha256


class SplitTables(Record):
    """The three sides as separate files, and how they came about.

    `excluded`: rows on no side, by reason (`embargo`, `group_time`; `bridge`: the row belongs to
    derived groups that stand on different sides). `plan`: the strategy with its resolved cut
    points. `summary`: per side rows, groups, first and last time, label figures. `bridges`: Parquet
    of `__id`, `__group`: every group of those rows that belong to several on one side. `ledger`,
    `group_ledger`: the frozen decisions that sides and derived groups stood on.
    """

    train: TrainTable
    val: ValTable
    test: TestTable
    strategy: str
    excluded: dict[str, int] = {}
    plan: dict[str, Any] = {}
    summary: dict[SplitName, dict[str, Any]] = {}
    ledger: FileRef | None = None
    group_ledger: FileRef | None = None
    bridges: FileRef | None = None

    def side(self, name: SplitName) -> TableRef:
        """Return the table of one split."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]
