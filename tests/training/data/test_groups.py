"""D8, D4: rows that belong together by scaffold, copy or near copy stay together, also when rows
arrive and go.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow.csv as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import ConfigError, SchemaError, SplitError
from schemas.records import SplitTables
from tests.training.data.chain import declared, read, sides_of, split_of, write_table
from training.data.leakage import check_overlap, require_passed

needs_rdkit = pytest.mark.skipif(
    importlib.util.find_spec("rdkit") is None, reason="RDKit is not installed (extra chem)"
)
COLUMNS = {
    "id": "id",
    "who": "ignore",
    "smiles": "ignore",
    "text": "ignore",
    "y": "label",
    "x": "numeric",
    "z": "numeric",
    "c": "categorical",
}
RINGS = [
    "c1ccccc1",
    "C1CCCCC1",
    "c1ccncc1",
    "c1ccoc1",
    "c1ccsc1",
    "C1CCNCC1",
    "c1ccc2ccccc2c1",
    "C1CC1",
    "C1CCC1",
    "c1cc[nH]c1",
]
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "green",
    "bottles",
    "stand",
    "on",
    "some",
    "old",
    "wall",
    "near",
    "our",
    "river",
    "bank",
    "today",
]


def table_of(num_rows: int, seed: int, first: int = 0) -> dict[str, list[Any]]:
    """Rows of which some repeat, some nearly repeat others: numbers with noise, texts with an edit,
    molecules with other tails.
    """
    draw = random.Random(seed)
    base = random.Random(99)  # the same entities in every table
    entities = [
        {
            "who": f"g{base.randrange(40)}",
            "smiles": (
                "C" * base.randint(1, 4) + base.choice(RINGS) + "C" * base.randint(0, 5)
                if base.random() < 0.8
                else "C" * base.randint(1, 30) + "O"
            ),
            "text": " ".join(base.choices(WORDS, k=24)),
            "x": base.gauss(0, 1),
            "z": base.gauss(5, 100),
            "c": base.choice("abc"),
        }
        for _ in range(300)
    ]
    rows = []
    for i in range(num_rows):
        row = dict(draw.choice(entities), id=f"r{first + i}", y=int(draw.random() < 0.4))
        if draw.random() < 0.5:
            row["x"] += draw.uniform(-2e-5, 2e-5)
            row["text"] = (
                row["text"].upper() + "!"
                if draw.random() < 0.5
                else row["text"].replace("the", "that", 1)
            )
        rows.append(row)
    return {name: [row[name] for row in rows] for name in COLUMNS}


def joined(*tables: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [v for t in tables for v in t[name]] for name in tables[0]}


def taken(table: dict[str, list[Any]], order: list[int]) -> dict[str, list[Any]]:
    return {name: [values[i] for i in order] for name, values in table.items()}


WAYS: dict[
    str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]
] = {  # split, group_by, changed roles
    "group": ({"kind": "group"}, {}, {"who": "group"}),
    "stratified_group": ({"kind": "stratified_group"}, {}, {"who": "group"}),
    "scaffold": ({"kind": "group"}, {"scaffold": "smiles"}, {}),
    "stratified scaffold": (
        {"kind": "stratified_group"},
        {"scaffold": "smiles", "duplicates": "features"},
        {},
    ),
    "near": ({"kind": "group"}, {"near_duplicates": "features"}, {}),
    "stratified near": (
        {"kind": "stratified_group"},
        {"near_duplicates": ["text"], "duplicates": "features"},
        {},
    ),
    "declared and copies": ({"kind": "group"}, {"duplicates": ["x", "c"]}, {"who": "group"}),
}
ALWAYS = ("stratified near",)  # the others are long


def made(
    folder: Path, table: dict[str, list[Any]], way: str, ledger: Path | None = None
) -> SplitTables:
    split, by, roles = WAYS[way]
    declaration = declared(
        write_table(folder / "t.parquet", table),
        {**COLUMNS, **roles},
        split=split,
        data={"group_by": by} if by else None,
    )
    validated, sides = split_of(declaration, folder / "out", ledger)
    require_passed(check_overlap(sides, validated, declaration))
    return sides


@needs_rdkit
@pytest.mark.req("D4")
@pytest.mark.parametrize(
    "way", [w if w in ALWAYS else pytest.param(w, marks=pytest.mark.long) for w in WAYS]
)
def test_ten_retrains_on_more_fewer_and_shuffled_rows_move_no_row(tmp_path: Path, way: str) -> None:
    draw = random.Random(7)
    table, ledger = table_of(400, 1), tmp_path / "ledger"
    placed = sides_of(made(tmp_path / "first", table, way, ledger))
    assert len(placed) == 400
    for retrain in range(10):
        size = len(table["id"])
        more = table_of(
            max(1, size // 100) if retrain % 3 else size // 2,
            100 + retrain,
            first=1000 * (retrain + 1),
        )
        kept = draw.sample(range(size), size - (size // 5 if retrain % 4 == 3 else 0))
        table = joined(taken(table, kept), more)
        table = taken(table, draw.sample(range(len(table["id"])), len(table["id"])))
        sides = made(tmp_path / str(retrain), table, way, ledger)
        found = sides_of(sides)
        assert all(found[name] == placed[name] for name in table["id"] if name in placed)
        assert len(found) + sides.excluded.get("bridge", 0) == len(table["id"])
        assert set(sides.excluded) <= {"bridge"}
        placed |= found


@pytest.mark.req("D8")
def test_equal_and_nearly_equal_rows_are_one_group_and_others_are_not(tmp_path: Path) -> None:
    table = {
        "id": ["a", "b", "c", "d", "e", "f"] + [f"r{i}" for i in range(60)],
        "x": [1.0, 1.0, 1.00001, 2.0, 1.0, None] + [10.0 * i for i in range(60)],
        "c": ["Ward Nord", "ward  nord", "Ward Nord", "Ward Nord", "A+", None] + ["A-"] * 60,
        "y": [0, 1] * 33,
    }
    columns = {"id": "id", "y": "label", "x": "numeric", "c": "categorical"}
    declaration = declared(
        write_table(tmp_path / "t.parquet", table),
        columns,
        split={"kind": "group"},
        data={"group_by": {"near_duplicates": "features"}},
    )
    _, sides = split_of(declaration, tmp_path / "out")
    groups = {
        i: g
        for s in ("train", "val", "test")
        for i, g in zip(*(read(sides.side(s))[n] for n in ("__id", "__group")), strict=True)
    }
    assert groups["a"] == groups["b"] == groups["c"]
    assert len(set(groups.values())) == 64
    figures = sides.plan["groups"]
    assert (
        figures["groups"] == 64
        and figures["largest"] == 3
        and figures["near_duplicates"]["rows"] == 3
    )
    assert figures["near_duplicates"]["conflicting_rows"] == 3 and {
        e["id"] for e in figures["near_duplicates"]["examples"]
    } == {"a", "b", "c"}


@pytest.mark.req("D4")
def test_a_new_row_that_ties_groups_of_two_sides_is_left_out_and_counted(tmp_path: Path) -> None:
    columns = {"id": "id", "who": "group", "y": "label", "x": "numeric"}
    first = {
        "id": [f"r{i}" for i in range(60)],
        "who": [f"g{i}" for i in range(60)],
        "x": [float(i) for i in range(60)],
        "y": [0, 1] * 30,
    }

    def run(name: str, table: dict[str, Any]) -> SplitTables:
        declaration = declared(
            write_table(tmp_path / f"{name}.parquet", table),
            columns,
            split={"kind": "group"},
            data={"group_by": {"duplicates": "features"}},
        )
        return split_of(declaration, tmp_path / name, tmp_path / "ledger")[1]

    before = sides_of(run("first", first))
    train = [i for i in range(60) if before[f"r{i}"] == "train"]
    test = next(i for i in range(60) if before[f"r{i}"] == "test")
    new = {
        "id": ["same", "apart"],
        "who": [f"g{train[0]}", f"g{train[0]}"],
        "x": [float(train[1]), float(test)],
        "y": [0, 1],
    }
    grown = run("grown", {n: first[n] + new[n] for n in first})
    found = sides_of(grown)
    assert grown.excluded == {"bridge": 1} and "apart" not in found and found["same"] == "train"
    assert grown.plan["groups"]["bridging_rows"] == 2 and grown.bridges is not None
    assert {n: s for n, s in found.items() if n in before} == before


@pytest.mark.req("D8")
def test_the_scale_of_the_grid_is_frozen(tmp_path: Path) -> None:
    columns = {"id": "id", "y": "label", "x": "numeric"}
    table = {
        "id": [f"r{i}" for i in range(200)],
        "x": [float(i) for i in range(200)],
        "y": [0, 1] * 100,
    }
    wide = {n: v + w for (n, v), w in zip(table.items(), (["far"], [1e9], [0]), strict=True)}
    groups = []
    for name, source in (("1", table), ("2", wide)):
        declaration = declared(
            write_table(tmp_path / f"{name}.parquet", source),
            columns,
            split={"kind": "group"},
            data={"group_by": {"near_duplicates": "x"}},
        )
        groups.append(
            split_of(declaration, tmp_path / name, tmp_path / "ledger")[1].plan["groups"]["groups"]
        )
    # with the spread of the second table all but one row would be one group
    assert groups == [200, 201]


@needs_rdkit
@pytest.mark.req("D8")
def test_molecules_of_one_scaffold_belong_together_acyclic_and_unread_ones_alone(
    tmp_path: Path,
) -> None:
    smiles = [
        "c1ccccc1C",
        "OCCc1ccccc1",
        "CC",
        "CCO",
        "OCC",
        "no molecule",
        "no molecule",
        None,
    ] + [f"{'C' * (i + 4)}N" for i in range(60)]
    table = {
        "id": [f"r{i}" for i in range(68)],
        "smiles": smiles,
        "x": [float(i) for i in range(68)],
        "y": [0, 1] * 34,
    }
    columns = {"id": "id", "y": "label", "x": "numeric", "smiles": "ignore"}
    declaration = declared(
        write_table(tmp_path / "t.parquet", table),
        columns,
        split={"kind": "group"},
        data={"group_by": {"scaffold": "smiles"}},
    )
    _, sides = split_of(declaration, tmp_path / "out")
    groups = {
        i: g
        for s in ("train", "val", "test")
        for i, g in zip(*(read(sides.side(s))[n] for n in ("__id", "__group")), strict=True)
    }
    g = [groups[f"r{i}"] for i in range(8)]
    assert (
        g[0] == g[1] and g[3] == g[4] and g[5] == g[6] and len({g[0], g[2], g[3], g[5], g[7]}) == 5
    )
    assert sides.plan["groups"]["unreadable_smiles"] == {"smiles": 1} and sides.group_ledger is None


@needs_rdkit
@pytest.mark.req("D8")
def test_scaffolds_are_the_same_on_one_process_and_on_several() -> None:
    from training.data.split.scaffold import molecule_keys

    texts = [f"{'C' * (i % 40 + 1)}{ring}{'O' * (i % 3)}" for i, ring in enumerate(RINGS * 500)]
    assert molecule_keys(texts, "scaffold", processes=2) == molecule_keys(
        texts, "scaffold", processes=1
    )


CASES: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"scaffold": "smile"},
        SchemaError,
        r"data\.group_by: the source has no column 'smile'; did you mean 'smiles'\?",
    ),
    ({}, ConfigError, "give scaffold, duplicates or near_duplicates"),
    ({"duplicates": []}, ConfigError, "name at least one column, or say features"),
    (
        {"duplicates": "features", "smiles": "smiles"},
        ConfigError,
        "smiles names columns of near_duplicates, which is absent",
    ),
    (
        {"near_duplicates": "text", "smiles": "smiles"},
        ConfigError,
        r"smiles: 'smiles' is not among near_duplicates \['text'\]",
    ),
    (
        {"near_duplicates": "features", "smiles": "smiles"},
        SchemaError,
        r"data\.group_by\.smiles: 'smiles' is no feature",
    ),
    (
        {"near_duplicates": "x", "tolerance": 0.9},
        SplitError,
        r"expected many groups, but one would hold [\d,]+ of 400 rows",
    ),
]


@pytest.mark.req("P1")
def test_groups_that_the_split_would_tear_apart_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"data\.group_by derives groups, which split\.kind 'stratified' would tear apart; use"
            r" stratified_group"
        ),
    ):
        declared(
            "t.parquet", COLUMNS, split="stratified", data={"group_by": {"duplicates": "features"}}
        )


ROW = st.tuples(st.integers(0, 8), st.integers(0, 8), st.booleans())


@pytest.mark.req("D4")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.lists(ROW, min_size=1, max_size=6), min_size=2, max_size=4),
    st.randoms(use_true_random=False),
)
def test_whatever_arrives_no_key_stands_on_two_sides_and_no_row_moves(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], draw: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("growth")
    # forty entities of their own, so that every side has rows and classes whatever is drawn
    rows = [(f"f{i}", f"a{i}", 1000.0 + i, i // 2 % 2) for i in range(80)]
    columns = {"id": "id", "who": "group", "x": "numeric", "y": "label"}
    placed: dict[str, str] = {}
    for number, step in enumerate(steps):
        rows += [
            (f"n{number}-{i}", f"b{who}", float(x), int(y)) for i, (who, x, y) in enumerate(step)
        ]
        shuffled = draw.sample(rows, len(rows))
        table = {name: [r[i] for r in shuffled] for i, name in enumerate(columns)}
        source = write_table(folder / f"{number}.parquet", table)
        declaration = declared(
            source, columns, split="group", data={"group_by": {"duplicates": "x"}}
        )
        _, sides = split_of(declaration, folder / str(number), folder / "ledger")
        found = sides_of(sides)
        assert len(found) + sides.excluded.get("bridge", 0) == len(rows) and (
            number or not sides.excluded
        )
        for column in (1, 2):
            assert all(
                len({found[r[0]] for r in rows if r[0] in found and r[column] == key}) <= 1
                for key in {r[column] for r in rows}
            )
        assert all(found.get(name) == side for name, side in placed.items())
        placed = found


@pytest.mark.req("S2")
@pytest.mark.parametrize(("by", "error", "message"), CASES, ids=lambda v: str(v)[:40])
def test_what_cannot_group_is_refused(
    tmp_path: Path, by: dict[str, Any], error: type[Exception], message: str
) -> None:
    source = write_table(tmp_path / "t.parquet", table_of(400, 2))
    with pytest.raises(error, match=message):
        split_of(
            declared(source, COLUMNS, split={"kind": "group"}, data={"group_by": by}),
            tmp_path / "out",
        )
    assert not list(tmp_path.glob("*ledger*/**/*.parquet"))


@pytest.mark.req("D8")
def test_without_rdkit_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    declaration = declared(
        write_table(tmp_path / "t.parquet", table_of(400, 2)),
        COLUMNS,
        split={"kind": "group"},
        data={"group_by": {"scaffold": "smiles"}},
    )
    with pytest.raises(
        ConfigError,
        match=(
            r"data\.group_by\.scaffold needs RDKit, which is not installed; install it with: pip"
            r" install 'bulkhead\[chem\]'"
        ),
    ):
        split_of(declaration, tmp_path / "out")


@needs_rdkit
@pytest.mark.req("D8")
def test_real_molecules_their_copies_and_conflicting_labels(
    real_data: Path, tmp_path: Path
) -> None:
    columns = {
        "num": "id",
        "name": "ignore",
        "p_np": "label",
        "smiles": "ignore",
        "size": "numeric",
    }
    data = {
        "derive": {"size": "length(smiles)"},
        "group_by": {"scaffold": "smiles", "near_duplicates": "smiles", "smiles": "smiles"},
    }
    whole = pc.read_csv(real_data / "mol_bbbp.csv")
    fewer = write_table(
        tmp_path / "fewer.parquet",
        {
            n: whole[n].take(list(range(0, 2050, 3)) + list(range(1, 2050, 3)))
            for n in whole.column_names
        },
    )
    placed: dict[str, str] = {}
    for name, uri in (("fewer", fewer), ("all", real_data / "mol_bbbp.csv")):
        declaration = declared(uri, columns, split={"kind": "stratified_group"}, data=data)
        _, sides = split_of(declaration, tmp_path / name, tmp_path / "ledger")
        found = sides_of(sides)
        assert all(found[n] == side for n, side in placed.items())
        placed = found
    figures = sides.plan["groups"]
    assert figures["unreadable_smiles"] == {"smiles": 11}
    assert (
        figures["near_duplicates"]["rows"] >= 100
        and figures["near_duplicates"]["conflicting_rows"] >= 20
    )
    assert sides.excluded.get("bridge", 0) < 20


@pytest.mark.req("D8")
def test_real_messages_that_repeat_stay_together_as_more_arrive(
    real_data: Path, tmp_path: Path
) -> None:
    lines = (real_data / "sms_spam.tsv").read_text().splitlines()
    pairs = [line.split("\t", 1) for line in lines if "\t" in line]
    whole = {
        "id": [str(i) for i in range(len(pairs))],
        "y": [p[0] for p in pairs],
        "text": [p[1] for p in pairs],
        "n": [float(len(p[1])) for p in pairs],
    }
    columns = {"id": "id", "y": "label", "text": "ignore", "n": "numeric"}
    placed: dict[str, str] = {}
    for name, count in (("most", len(pairs) * 2 // 3), ("all", len(pairs))):
        source = write_table(tmp_path / f"{name}.parquet", {n: v[:count] for n, v in whole.items()})
        declaration = declared(
            source,
            columns,
            split={"kind": "stratified_group"},
            data={"group_by": {"near_duplicates": "text"}},
        )
        _, sides = split_of(declaration, tmp_path / name, tmp_path / "ledger")
        found = sides_of(sides)
        assert all(found[n] == side for n, side in placed.items())
        placed = found
    assert (
        sides.plan["groups"]["near_duplicates"]["rows"] > 600
        and sides.plan["groups"]["largest"] < 150
    )
    assert sides.excluded.get("bridge", 0) < 30
