"""D4: ten retrains on real tables that grow by 1 and by 50 %, shrink and change order move no row,
least of all from test to train.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from tests.training.data.chain import declared, sides_of, split_of, write_table
from training.data.leakage import check_overlap, require_passed

needs_rdkit = pytest.mark.skipif(
    importlib.util.find_spec("rdkit") is None, reason="RDKit is not installed (extra chem)"
)
CHANGES = (
    "+1 %",
    "order",
    "+50 %",
    "removal",
    "+1 %",
    "order",
    "removal",
    "+50 %",
    "+1 %",
    "removal",
)


def molecules(folder: Path) -> pa.Table:
    """Molecules with their copies, those that no parser reads among them."""
    found = (
        pc.read_csv(folder / "mol_bbbp.csv")
        .select(["num", "p_np", "smiles"])
        .rename_columns(["id", "y", "smiles"])
    )
    return found.append_column("n", pa.array([float(len(s)) for s in found["smiles"].to_pylist()]))


def messages(folder: Path) -> pa.Table:
    """Messages, of which many repeat."""
    pairs = [
        line.split("\t", 1)
        for line in (folder / "sms_spam.tsv").read_text().splitlines()
        if "\t" in line
    ]
    texts = [p[1] for p in pairs]
    return pa.table(
        {
            "id": [str(i) for i in range(len(pairs))],
            "y": [p[0] for p in pairs],
            "text": texts,
            "n": [float(len(t)) for t in texts],
        }
    )


def digits(folder: Path) -> pa.Table:
    """Handwritten digits by their writer, without the pictures."""
    found = pq.read_table(
        folder / "mnist10k_writers.parquet", columns=["image_id", "writer", "digit"]
    ).rename_columns(["id", "who", "y"])
    return found.append_column("n", pa.array([float(i % 97) for i in range(len(found))]))


Case = tuple[Callable[[Path], pa.Table], str, dict[str, Any], dict[str, str]]
CASES: dict[str, Case] = {  # rows, task, group_by, roles
    "group": (digits, "multiclass", {}, {"who": "group"}),
    "scaffold": (molecules, "binary", {"scaffold": "smiles"}, {"smiles": "ignore"}),
    "scaffold and copies": (
        molecules,
        "binary",
        {"scaffold": "smiles", "near_duplicates": "smiles", "smiles": "smiles"},
        {"smiles": "ignore"},
    ),
    "near duplicates": (messages, "binary", {"near_duplicates": "text"}, {"text": "ignore"}),
}


def retrains(number: int, draw: random.Random) -> Iterator[list[int]]:
    """Rows of each retrain: half of the table first, then changed one way after the other; removed
    rows may come back.
    """
    kept = draw.sample(range(number), number // 2)
    yield list(kept)
    for change in CHANGES:
        absent = sorted(set(range(number)) - set(kept))
        if change.startswith("+"):
            kept += draw.sample(
                absent, min(len(absent), max(1, len(kept) // (100 if change == "+1 %" else 2)))
            )
        elif change == "removal":
            kept = draw.sample(kept, len(kept) * 3 // 4)
        yield draw.sample(kept, len(kept))


def moved_by(
    tmp_path: Path, case: Case, kind: str, whole: pa.Table, times: int, forgets: bool = False
) -> tuple[list[str], int]:
    """Names of rows that changed sides over so many retrains, and how many rows were placed in all.

    `forgets`: each retrain decides again, as without a ledger.
    """
    _, task, by, roles = case
    columns = {"id": "id", "y": "label", "n": "numeric", **roles}
    names, placed, moved = whole["id"].to_pylist(), dict[str, str](), list[str]()
    for turn, order in zip(range(times + 1), retrains(len(whole), random.Random(3)), strict=False):
        part = whole.take(order)
        source = write_table(tmp_path / f"{turn}.parquet", {n: part[n] for n in part.column_names})
        declaration = declared(
            source, columns, task, split={"kind": kind}, data={"group_by": by} if by else None
        )
        validated, sides = split_of(
            declaration, tmp_path / str(turn), tmp_path / (f"ledger{turn}" if forgets else "ledger")
        )
        require_passed(check_overlap(sides, validated, declaration))
        found = sides_of(sides)
        assert set(sides.excluded) <= {"bridge"} and len(found) + sides.excluded.get(
            "bridge", 0
        ) == len(order)
        assert sides.excluded.get("bridge", 0) < 0.02 * len(order)
        known = {str(names[i]) for i in order} & placed.keys()
        moved += [name for name in known if found.get(name, "bridge") != placed[name]]
        placed |= found
    return moved, len(placed)


@needs_rdkit
@pytest.mark.long
@pytest.mark.req("D4")
@pytest.mark.parametrize("kind", ["group", "stratified_group"])
@pytest.mark.parametrize("name", CASES)
def test_ten_retrains_on_real_rows_move_none(
    real_data: Path, tmp_path: Path, name: str, kind: str
) -> None:
    whole = CASES[name][0](real_data)
    moved, placed = moved_by(tmp_path, CASES[name], kind, whole, len(CHANGES))
    assert (moved, placed > len(whole) // 2) == ([], True)


@needs_rdkit
@pytest.mark.req("D4")
@pytest.mark.parametrize(
    "name",
    [
        "group",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("scaffold and copies", "near duplicates")
        ),
    ],
)
def test_retrains_on_some_real_rows_move_none(real_data: Path, tmp_path: Path, name: str) -> None:
    moved, placed = moved_by(
        tmp_path, CASES[name], "stratified_group", CASES[name][0](real_data).slice(0, 900), 3
    )
    assert (moved, placed > 450) == ([], True)


@pytest.mark.req("D4")
def test_without_what_was_frozen_rows_do_move(real_data: Path, tmp_path: Path) -> None:
    moved, _ = moved_by(
        tmp_path,
        CASES["near duplicates"],
        "stratified_group",
        messages(real_data).slice(0, 900),
        3,
        forgets=True,
    )
    assert moved
