"""Molecules that two runs share are found in every spelling, by scaffold too, and left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rdkit import Chem

from schemas.errors import LeakageError, SplitError
from schemas.init_records import HeldOut, Origin
from schemas.records import TableRef
from tests.training.data.chain import declared
from tests.training.data.test_seen_rows import Made, weights_of
from training.data.split.held_out_rows import REASON, find_held_out, leave_out
from training.data.split.scaffold import molecule_keys
from training.data.split.seen_molecules import scaffold_of, smiles_of
from training.data.split.seen_rows import apply_seen, find_seen

RINGS = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "c1ccsc1", "C1CCNCC1", "c1ccc2ccccc2c1"]
TAILS = ["C", "CC", "CCO", "CCN", "C(=O)O", "CCCl", "CBr", "CF", "CC#N", "CCCC", "CO", "CS"]
COLUMNS: dict[str, Any] = {"id": "id", "y": "label", "drug": {"kind": "smiles"}}


def drugs() -> list[str]:
    """Two rings with each tail: 49 scaffolds."""
    return [f"{a}CC{b}{tail}" for a in RINGS for b in RINGS for tail in TAILS[:5]]


def of_features(folder: Path, whole: bool = True) -> Made:
    texts = drugs()
    table = {"id": [f"r{i}" for i in range(len(texts))], "drug": texts}
    table["y"] = np.arange(len(texts)) % 2
    data = {"group_by": {"scaffold": "drug"}} if whole else None
    kind = {"kind": "group" if whole else "random", "seed": 1}
    return Made(folder, table, kind, columns=COLUMNS, data=data)


def of_language(folder: Path, texts: list[str], **data: Any) -> Made:
    table = {"key": [f"m{i}" for i in range(len(texts))], "mol": texts}
    return Made(
        folder,
        table,
        {"kind": "random", "seed": 0},
        columns={"key": "id", "mol": "text"},
        task="causal_lm",
        tokens={"tokenizer": "smiles"},
        data=data,
    )


def spelt(texts: list[str]) -> list[str]:
    """Each molecule in another writing."""
    found = [Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(t), 4, randomSeed=7) for t in texts]
    return [next(s for s in own if s != t) for own, t in zip(found, texts, strict=True)]


def keys(made: Made, side: str, column: str, kind: str = "molecule") -> list[str]:
    texts = pq.read_table(made.split.side(side).file.path)[column].to_pylist()  # type: ignore[arg-type]
    return [key for key, _ in molecule_keys(texts, kind)]  # type: ignore[arg-type]


def other_of(made: Made) -> HeldOut:
    """What `training.registry.held_out_source` records of a run over a table."""
    tables = tuple(TableRef(file=t.file, rows=t.rows) for t in (made.split.val, made.split.test))
    origin: Origin = made.origin(
        fitted=tables,
        chosen=(),
        smiles=smiles_of(made.spec),
        scaffold=scaffold_of(made.spec, made.declaration),
    )
    return HeldOut(given="run", resolved="models:/mol/1", origin=origin)


@pytest.mark.parametrize("whole", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_molecule_that_a_language_model_saw_is_found_in_every_spelling(
    whole: bool, tmp_path: Path
) -> None:
    now = of_features(tmp_path / "now", whole)
    before = of_language(tmp_path / "before", spelt(drugs()[::9]) + ["CCCCCC"] * 20)
    found = find_seen(now.split, now.spec, now.declaration, before.origin())
    assert found.by == ("molecule and scaffold" if whole else "molecule")
    kind = "scaffold" if whole else "molecule"
    learned = {key for side in ("train", "val") for key in keys(before, side, "mol", kind)}
    wanted = [key in learned for key in keys(now, "test", "drug", kind)]
    assert found.masks["test"].tolist() == wanted and 0 < sum(wanted) < len(wanted)
    with pytest.raises(LeakageError, match=r"rows of test \(first: r\d+ [\w()=#]+.*by molecule"):
        apply_seen(
            now.split, now.spec, now.declaration, weights_of(before.origin()), "refuse", tmp_path
        )


def test_other_molecules_are_silent(tmp_path: Path) -> None:
    now = of_features(tmp_path / "now", False)
    before = of_language(tmp_path / "before", [f"N{'C' * i}Br" for i in range(1, 60)])
    weights = weights_of(before.origin())
    found = apply_seen(now.split, now.spec, now.declaration, weights, "refuse", tmp_path)
    assert found.report.found == {"val": 0, "test": 0} and found.split == now.split


@pytest.mark.long
def test_two_tables_of_molecules_are_compared_by_them(tmp_path: Path) -> None:
    now = of_features(tmp_path / "now", False)
    table = {"key": [f"k{i}" for i in range(60)], "mol": spelt(drugs()[::4])[:60]}
    table["label"] = np.arange(60) % 2
    columns = {"key": "id", "label": "label", "mol": {"kind": "smiles"}}
    before = Made(tmp_path / "before", table, {"kind": "random"}, columns=columns)
    origin = before.origin(smiles=smiles_of(before.spec))
    found = find_seen(now.split, now.spec, now.declaration, origin)
    assert found.by == "molecule" and found.masks["test"].any()
    same = find_seen(now.split, now.spec, now.declaration, now.origin(smiles=("drug",)))
    assert same.by == "id" and not same.masks["test"].any()


def test_what_another_run_holds_out_is_on_no_split_and_all_else_stays(tmp_path: Path) -> None:
    tested = of_features(tmp_path / "tested")
    made = of_language(tmp_path / "made", spelt(drugs()) + [f"N{'C' * i}" for i in range(1, 40)])
    other = other_of(tested)
    assert other.origin.scaffold == "drug"
    found = leave_out(made.split, made.spec, made.declaration, [other], tmp_path)
    held = {k for side in ("val", "test") for k in keys(tested, side, "drug", "scaffold")}
    kept = 0
    for side in ("train", "val", "test"):
        table = found.split.side(side)  # type: ignore[arg-type]
        texts = pq.read_table(table.file.path)["mol"].to_pylist()
        before = keys(made, side, "mol", "scaffold")
        assert [k for k, _ in molecule_keys(texts, "scaffold")] == [
            key for key in before if key not in held
        ]
        assert found.report.found[side] == len(before) - len(texts) and table.rows == len(texts)
        kept += len(texts)
    assert found.split.excluded[REASON] == made.split.train.rows + made.split.val.rows + (
        made.split.test.rows - kept
    )
    assert found.split.plan["held_out_by"] == ["models:/mol/1"]
    trained = (found.split.train, found.split.val)
    origin = made.origin(
        fitted=(TableRef(file=trained[0].file, rows=trained[0].rows),),
        chosen=(TableRef(file=trained[1].file, rows=trained[1].rows),),
    )
    silent = find_seen(tested.split, tested.spec, tested.declaration, origin)
    assert silent.by == "molecule and scaffold"
    assert not any(mask.any() for mask in silent.masks.values())
    seen = find_seen(tested.split, tested.spec, tested.declaration, made.origin())
    assert seen.masks["test"].all() and seen.masks["val"].any()


def test_rows_with_the_same_ids_are_left_out_and_others_cannot_be_compared(tmp_path: Path) -> None:
    x = {"id": [f"r{i}" for i in range(90)], "x": np.arange(90) / 7, "y": np.arange(90) % 2}
    tested = Made(tmp_path / "tested", x, {"kind": "random", "seed": 3})
    made = Made(tmp_path / "made", x, {"kind": "random", "seed": 4})
    masks = find_held_out(made.split, made.spec, other_of(tested))
    held = tested.ids("val") | tested.ids("test")
    assert {side: int(m.sum()) for side, m in masks.items()} == {
        side: len(made.ids(side) & held) for side in ("train", "val", "test")
    }
    columns = {"id": "ignore", "y": "label", "*": "feature"}
    bare = Made(tmp_path / "bare", x | {"z": np.arange(90)}, {"kind": "random"}, columns=columns)
    with pytest.raises(LeakageError, match="rows of this table cannot be compared"):
        find_held_out(bare.split, bare.spec, other_of(tested))


@pytest.mark.long
def test_a_split_without_a_row_is_refused(tmp_path: Path) -> None:
    tested = of_features(tmp_path / "tested")
    held = pq.read_table(tested.split.test.file.path)["drug"].to_pylist()
    made = of_language(tmp_path / "made", [t for t in held for _ in range(3)])
    with pytest.raises(SplitError, match=r"data.held_out_by: no row of train .* is left"):
        leave_out(made.split, made.spec, made.declaration, [other_of(tested)], tmp_path)


def test_a_declaration_without_the_key_keeps_its_digest(tmp_path: Path) -> None:
    assert "held_out_by" not in declared(tmp_path / "rows.parquet").data.model_dump()
