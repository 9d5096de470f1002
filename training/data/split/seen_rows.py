"""Held-out rows that the weights of `model.init` were trained on.

Rows of two runs are the same

- by their ids, where both declare the same id columns;
- by their texts, where one of the two is a language model: an id says little of a text that two
  tables share;
- by their molecules, where one of the two reads them as such, and the other has them or is a
  language model; where scaffolds stay whole, a row whose scaffold was seen counts too;
- by the values of their features, where both have the same ones.

A row of test may be among no rows that made the weights: neither those that they were fitted on nor
those that chose among them. A row of val may have chosen among them before, as it does now. Where
groups stay whole, a row whose group was fitted on counts too. N rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import SPLITS, Declaration
from schemas.digest import file_ref, replacing, verify
from schemas.errors import LeakageError, SplitError, counted, first_few
from schemas.init_config import SeenRows
from schemas.init_records import InitialWeights, Origin, SeenReport, SeenSplit
from schemas.records import SplitTables, TableRef, TableSpec, TestTable, TrainTable, ValTable
from schemas.split_config import GROUPED
from training.data.engine.engine import connect, ident, parquet, row_md5_sql
from training.data.engine.in_memory import relation
from training.data.split.seen_molecules import same_molecules, scaffold_of, smiles_of
from training.data.split.side_summary import summarize
from training.data.split.unseen import HASH, trained_keys, unseen_rows

REASON = "seen_by_init"  # of excluded rows
HELD_OUT = ("val", "test")
SHOWN = 5
ANYWAY = (
    "keep the files of that run on this machine, or set model.init.seen_rows: unchecked if you know"
    " that no held-out row was among its train rows"
)


def plain(table: TableRef) -> TableRef:
    """Return the reference to a table without what it is for."""
    return TableRef(file=table.file, rows=table.rows)


class Found(NamedTuple):
    """How rows were recognised, and a mask [N] of each held-out split: the weights saw the row."""

    by: str
    masks: dict[str, np.ndarray]


def texts_of(spec: TableSpec) -> tuple[str, ...]:
    """Return the columns of a table that hold texts."""
    texts = tuple(name for name, kind in spec.bags.items() if kind == "text")
    return (spec.text,) if spec.text else texts


def find_seen(
    split: SplitTables, spec: TableSpec, declaration: Declaration, origin: Origin
) -> Found:
    """Find the held-out rows that an origin of the weights learned from.

    Raises:
        LeakageError: the rows of the two cannot be compared.
        IntegrityError: a table was changed.
    """
    theirs = {"val": origin.fitted, "test": (*origin.fitted, *origin.chosen)}
    scaffold = scaffold_of(spec, declaration)
    found = find_alike(split, spec, origin, theirs, scaffold) if origin.fitted else None
    if found is not None:
        return found
    # a version without its run does not name its id columns; a retrain has the same ones
    ids = spec.id if origin.id is None and origin.name == declaration.name else origin.id
    if have_ids(spec, origin, ids):
        whole = declaration.split.kind in (*GROUPED, "predefined") and bool(spec.grouped)
        same_groups = whole and origin.group == spec.group
        return Found("id" if spec.id else "row", _by_id(split, origin, same_groups))
    if origin.fitted and set(origin.features) == set(spec.features):
        columns = tuple(sorted(spec.features))
        return Found("features", _by_content(split, columns, theirs, columns, together=True))
    raise LeakageError(
        f"model.init: the held-out rows cannot be compared with the train rows of {origin.words}:"
        f" its id columns are {'not known' if ids is None else list(ids)}, those of this table"
        f" {list(spec.id)}"
        + ("" if origin.fitted else ", and its rows are not on this machine")
        + f"; {ANYWAY}"
    )


def find_alike(
    split: SplitTables,
    spec: TableSpec,
    origin: Origin,
    theirs: Mapping[str, Sequence[TableRef]],
    scaffold: str | None,
) -> Found | None:
    """Find rows whose texts or molecules are among other rows; None where ids say more of them.

    Args:
        split: of this run.
        spec: of its table.
        origin: the other run.
        theirs: tables of the other run that the rows of a split are compared with.
        scaffold: the column whose scaffolds are compared too, of this run or the other one.
    """
    is_of_texts = bool(spec.text) or (len(origin.texts) == 1 and origin.features == origin.texts)
    ours = smiles_of(spec)
    if (ours or origin.smiles) and (is_of_texts or not have_ids(spec, origin, origin.id)):
        columns, others = ours or texts_of(spec), origin.smiles or origin.texts
        if columns and others:
            sides = {side: _table(split, side) for side in theirs}
            masks = same_molecules(sides, columns, theirs, others, "molecule")
            if scaffold is None:
                return Found("molecule", masks)
            columns, others = (
                (scaffold,) if scaffold in names else names for names in (columns, others)
            )
            alike = same_molecules(sides, columns, theirs, others, "scaffold")
            return Found("molecule and scaffold", {s: masks[s] | alike[s] for s in masks})
    if is_of_texts and texts_of(spec) and origin.texts:
        return Found("text", _by_content(split, texts_of(spec), theirs, origin.texts))
    return None


def have_ids(spec: TableSpec, origin: Origin, ids: tuple[str, ...] | None) -> bool:
    """Return True if the ids of two tables mean the same; without ids, the rows do."""
    return ids == spec.id and (bool(spec.id) or set(origin.features) == set(spec.features))


def _by_id(split: SplitTables, origin: Origin, whole_groups: bool) -> dict[str, np.ndarray]:
    """Compare hashes of ids, and of groups that stay whole."""
    if origin.fitted:
        fitted = trained_keys(origin.fitted)
        everything = trained_keys((*origin.fitted, *origin.chosen))
    else:
        if origin.hashes is None:
            raise LeakageError(
                f"model.init: {origin.words} does not say which rows it was trained on; {ANYWAY}"
            )
        everything = np.load(verify(origin.hashes), allow_pickle=False)
        # train and val are one list there; the same val table is known to have chosen only
        same_val = split.val.file.sha256 == origin.val_sha256
        fitted = np.empty(0, np.uint64) if same_val else everything
    return {
        "val": ~unseen_rows(split.val, fitted, whole_groups),
        "test": ~unseen_rows(split.test, everything, whole_groups),
    }


def _by_content(
    split: SplitTables,
    ours: Sequence[str],
    theirs: Mapping[str, Sequence[TableRef]],
    columns: Sequence[str],
    together: bool = False,
) -> dict[str, np.ndarray]:
    """Compare the values of columns: each of ours with each of theirs, or all of them together."""

    def hashes(tables: Sequence[TableRef]) -> np.ndarray:
        found = [content_keys(table, columns, together) for table in tables]
        every = np.unique(np.concatenate([key for keys in found for key in keys]))
        return np.asarray(every[every > 0])

    known = {side: hashes(tables) for side, tables in theirs.items()}
    return {
        side: np.logical_or.reduce(
            [np.isin(keys, seen) for keys in content_keys(_table(split, side), ours, together)]
        )
        for side, seen in known.items()
    }


def content_keys(
    table: TableRef, columns: Sequence[str], together: bool = False
) -> list[np.ndarray]:
    """Return hashes, uint64 [N], of each column, or of all of them together, in row order.

    A null alone has 0, which is compared with nothing.
    """
    if together:
        parts = [HASH.format(kind="row", column=row_md5_sql(columns))]
    else:
        parts = [f"coalesce({HASH.format(kind='text', column=ident(c))}, 0)" for c in columns]
    with closing(connect()) as connection:
        verify(table.file)
        named = ", ".join(f"{sql} as c{i}" for i, sql in enumerate(parts))
        found = connection.sql(f"select {named} from {parquet(table)}").to_arrow_table()
        return [found.column(i).to_numpy() for i in range(len(parts))]


def apply_seen(
    split: SplitTables,
    spec: TableSpec,
    declaration: Declaration,
    weights: InitialWeights,
    asked: SeenRows,
    folder: Path,
) -> SeenSplit:
    """Refuse held-out rows that the weights were trained on, or leave them out.

    Args:
        split: of this run.
        spec: of its table.
        declaration: of this run.
        weights: resolved; without origins nothing is known of their rows.
        asked: `model.init.seen_rows`.
        folder: where the splits without these rows are written.

    Returns:
        The splits, and what was found.

    Raises:
        LeakageError: a row was seen and is refused, or rows cannot be compared.
        SplitError: all rows of a split were seen.
    """
    if asked == "unchecked":
        return SeenSplit(split=split, report=SeenReport(asked=asked))
    if weights.origins and not weights.is_whole:
        raise LeakageError(
            f"model.init: {weights.resolved} began from weights of which the train rows are not"
            f" known; {ANYWAY}"
        )
    found = [find_seen(split, spec, declaration, origin) for origin in weights.origins]
    masks = {s: np.logical_or.reduce([f.masks[s] for f in found]) for s in HELD_OUT if found}
    report = SeenReport(
        asked=asked,
        by=tuple(f.by for f in found),
        found={side: int(mask.sum()) for side, mask in masks.items()},
        first={
            side: _ids(split, side, mask, smiles_of(spec))
            for side, mask in masks.items()
            if mask.any()
        },
    )
    if not any(report.found.values()):
        return SeenSplit(split=split, report=report)
    if asked == "refuse":
        raise LeakageError(_refusal(report, weights))
    kept = without_rows(split, spec, declaration, masks, folder, REASON)
    return SeenSplit(split=kept, report=report)


def _refusal(report: SeenReport, weights: InitialWeights) -> str:
    told = "; ".join(
        f"{counted(number, 'row')} of {side} (first: {first_few(report.first[side], number)})"
        for side, number in report.found.items()
        if number
    )
    by = " and ".join(dict.fromkeys(report.by))
    return (
        f"model.init: {weights.resolved} was trained on {told}, recognised by {by}: their scores"
        " would be better than those of new rows. Split both runs alike, train the weights without"
        " these rows (data.held_out_by), or leave them out of val and test with"
        " model.init.seen_rows: exclude"
    )


def _ids(
    split: SplitTables, side: str, mask: np.ndarray, molecules: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the first ids of a mask, with their molecules."""
    columns = ["__id", *molecules[:1]]
    table = pq.read_table(verify(_table(split, side).file), columns=columns)
    first = table.filter(pa.array(mask)).slice(0, SHOWN).to_pydict()
    return tuple(" ".join(map(str, row)) for row in zip(*first.values(), strict=True))


def _table(split: SplitTables, side: str) -> TableRef:
    return {"train": split.train, "val": split.val, "test": split.test}[side]


def without_rows(
    split: SplitTables,
    spec: TableSpec,
    declaration: Declaration,
    masks: Mapping[str, np.ndarray],
    folder: Path,
    reason: str,
) -> SplitTables:
    """Write the splits without the rows of the masks, and count these; others stay their files."""
    tables: dict[str, TableRef] = {side: _table(split, side) for side in SPLITS}
    tables |= {side: _filtered(split, side, mask, folder, reason) for side, mask in masks.items()}
    left_out = sum(int(mask.sum()) for mask in masks.values())
    kept = split.model_copy(
        update={
            "train": TrainTable(file=tables["train"].file, rows=tables["train"].rows),
            "val": ValTable(file=tables["val"].file, rows=tables["val"].rows),
            "test": TestTable(file=tables["test"].file, rows=tables["test"].rows),
            "excluded": {**split.excluded, reason: left_out},
        }
    )
    with closing(connect()) as connection:
        sides = {
            "train": relation(connection, kept.train),
            "val": relation(connection, kept.val),
            "test": relation(connection, kept.test),
        }
        summary = summarize(connection, sides, spec, declaration)  # type: ignore[arg-type]
    return kept.model_copy(update={"summary": summary})


def _filtered(
    split: SplitTables, side: str, mask: np.ndarray, folder: Path, reason: str
) -> TableRef:
    before = _table(split, side)
    if not mask.any():
        return before
    if mask.all():
        rows = counted(before.rows, "row")
        raise SplitError(
            f"model.init: the weights were trained on all of {side} ({rows}); split both runs"
            " alike, or train the weights without these rows"
            if reason == REASON
            else f"data.held_out_by: no row of {side} ({rows}) is left; the other run holds out"
            " all of them"
        )
    path = folder / f"{side}.parquet"
    with pq.ParquetFile(verify(before.file)) as source, replacing(path) as file:
        start = 0
        with pq.ParquetWriter(file, source.schema_arrow) as writer:
            for batch in source.iter_batches():
                keep = ~mask[start : start + batch.num_rows]
                writer.write_batch(batch.filter(pa.array(keep)))
                start += batch.num_rows
    return TableRef(file=file_ref(path), rows=int((~mask).sum()))


def keys_of_origins(weights: InitialWeights | None) -> list[np.ndarray]:
    """Return hashes of the ids and groups that the origins of the weights learned from."""
    found = []
    for origin in weights.origins if weights else ():
        if origin.fitted:
            found.append(trained_keys((*origin.fitted, *origin.chosen)))
        elif origin.hashes:
            found.append(np.load(verify(origin.hashes), allow_pickle=False))
    return found
