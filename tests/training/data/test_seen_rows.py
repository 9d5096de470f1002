"""Rows that the weights of `model.init` were trained on are found, and only they."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.errors import LeakageError, SplitError
from schemas.init_records import InitialWeights, Origin
from schemas.records import FileRef, TableRef
from tests.training.data.chain import declared, split_of, write_table
from training.data.leakage import check_overlap
from training.data.split.seen_rows import apply_seen, find_seen, texts_of
from training.data.split.unseen import trained_keys

SHARES = {"fractions": {"train": 0.5, "val": 0.25, "test": 0.25}}
ROWS = 120
TEXT = {"name": "molecules", "columns": {"mol": "text"}}


class Made:
    """A table that was split, and what a run on it would leave as the origin of its weights."""

    def __init__(
        self, folder: Path, table: dict[str, Any], split: dict[str, Any], **keys: Any
    ) -> None:
        source = write_table(folder / "rows.parquet", table)
        self.declaration: Declaration = declared(source, split=split | SHARES, **keys)
        self.validated, self.split = split_of(self.declaration, folder / "split")
        self.spec = self.validated.spec

    def origin(self, **changes: Any) -> Origin:
        fitted, chosen = (
            TableRef(file=t.file, rows=t.rows) for t in (self.split.train, self.split.val)
        )
        facts: dict[str, Any] = {
            "run_id": "before",
            "name": self.declaration.name,
            "source_sha256": "0" * 64,
            "train_sha256": self.split.train.file.sha256,
            "val_sha256": self.split.val.file.sha256,
            "fitted": (fitted,),
            "chosen": (chosen,),
            "id": self.spec.id,
            "group": self.spec.group,
            "features": self.spec.features,
            "texts": texts_of(self.spec),
        }
        return Origin(**(facts | changes))

    def ids(self, side: str) -> set[str]:
        table = self.split.side(side).file.path  # type: ignore[arg-type]
        return set(pq.read_table(table, columns=["__id"])["__id"].to_pylist())


def weights_of(*origins: Origin, is_whole: bool = True) -> InitialWeights:
    nothing = FileRef(path="weights.pt", sha256="0" * 64, num_bytes=0)
    return InitialWeights(
        given="run",
        resolved="models:/before/1",
        file=nothing,
        sha256="0" * 64,
        origins=origins,
        is_whole=is_whole,
    )


def rows(count: int = ROWS, **columns: Any) -> dict[str, Any]:
    """Rows with pairwise different features."""
    x = np.arange(count) / 7
    return {"id": [f"r{i}" for i in range(count)], "x": x, "y": np.arange(count) % 2} | columns


def made(folder: Path, seed: int = 0, count: int = ROWS, **columns: Any) -> Made:
    return Made(folder, rows(count, **columns), {"kind": "random", "seed": seed})


def test_the_same_table_and_split_is_silent_also_when_rows_were_added(tmp_path: Path) -> None:
    before, now = made(tmp_path / "before"), made(tmp_path / "now", count=2 * ROWS)
    for today in (before, now):
        found = apply_seen(
            today.split,
            today.spec,
            today.declaration,
            weights_of(before.origin()),
            "refuse",
            tmp_path,
        )
        assert found.split == today.split
        assert found.report.found == {"val": 0, "test": 0} and found.report.by == ("id",)


def test_rows_of_old_train_in_val_or_test_and_of_old_val_in_test_are_refused_by_name(
    tmp_path: Path,
) -> None:
    before, now = made(tmp_path / "before"), made(tmp_path / "now", seed=1)
    old = {side: before.ids(side) for side in ("train", "val")}
    expected = {
        "val": now.ids("val") & old["train"],
        "test": now.ids("test") & (old["train"] | old["val"]),
    }
    masks = find_seen(now.split, now.spec, now.declaration, before.origin()).masks
    for side, mask in masks.items():
        table = pq.read_table(now.split.side(side).file.path)  # type: ignore[arg-type]
        assert set(table["__id"].filter(pa.array(mask)).to_pylist()) == expected[side]
    with pytest.raises(LeakageError) as caught:
        apply_seen(
            now.split, now.spec, now.declaration, weights_of(before.origin()), "refuse", tmp_path
        )
    text = str(caught.value)
    assert f"{len(expected['test'])} rows of test (first: r" in text
    assert f"{len(expected['val'])} rows of val" in text and "seen_rows: exclude" in text


def test_excluded_rows_are_on_no_side_and_counted(tmp_path: Path) -> None:
    before, now = made(tmp_path / "before"), made(tmp_path / "now", seed=1)
    (tmp_path / "out").mkdir()
    found = apply_seen(
        now.split,
        now.spec,
        now.declaration,
        weights_of(before.origin()),
        "exclude",
        tmp_path / "out",
    )
    assert found.split.train == now.split.train
    assert found.split.excluded == {"seen_by_init": sum(found.report.found.values())}
    checks = check_overlap(found.split, now.validated, now.declaration)
    assert not checks.failed, checks.failed
    again = find_seen(found.split, now.spec, now.declaration, before.origin())
    assert not any(mask.any() for mask in again.masks.values())
    assert found.split.summary["test"]["rows"] == found.split.test.rows
    tested = TableRef(file=now.split.test.file, rows=now.split.test.rows)
    weights = weights_of(before.origin(fitted=(tested,)))
    with pytest.raises(SplitError, match=r"trained on all of test \(30 rows\)"):
        apply_seen(now.split, now.spec, now.declaration, weights, "exclude", tmp_path / "out")


def test_a_row_whose_group_was_seen_counts_where_groups_stay_whole(tmp_path: Path) -> None:
    columns = {"id": "id", "who": "group", "y": "label", "*": "feature"}
    who = [f"p{i // 4}" for i in range(ROWS)]
    split = {"kind": "group", "seed": 0}
    before = Made(tmp_path / "before", rows(who=who), split, columns=columns)
    others = rows(who=who) | {"id": [f"new{i}" for i in range(ROWS)]}
    alike = Made(tmp_path / "alike", others, split, columns=columns)
    apart = Made(tmp_path / "apart", others, split | {"seed": 1}, columns=columns)
    silent = find_seen(alike.split, alike.spec, alike.declaration, before.origin())
    assert not any(mask.any() for mask in silent.masks.values())
    found = find_seen(apart.split, apart.spec, apart.declaration, before.origin())
    assert found.masks["test"].any() and not found.masks["test"].all()


def test_rows_without_common_ids_go_by_their_features(tmp_path: Path) -> None:
    before = made(tmp_path / "before")
    columns = {"other": "id", "y": "label", "x": "feature"}
    same = rows() | {"other": [f"k{i}" for i in range(ROWS)]}
    del same["id"]
    now = Made(tmp_path / "now", same, {"kind": "random", "seed": 3}, columns=columns)
    found = find_seen(now.split, now.spec, now.declaration, before.origin())
    x = pq.read_table(now.split.test.file.path)["x"].to_pylist()
    known = {
        value
        for table in (before.split.train, before.split.val)
        for value in pq.read_table(table.file.path)["x"].to_pylist()
    }
    assert found.by == "features"
    assert found.masks["test"].tolist() == [value in known for value in x]
    far = same | {"x": np.arange(ROWS) + 0.123}
    clean = Made(tmp_path / "clean", far, {"kind": "random", "seed": 3}, columns=columns)
    none = find_seen(clean.split, clean.spec, clean.declaration, before.origin())
    assert not any(mask.any() for mask in none.masks.values())


def test_texts_of_a_language_model_go_by_content_under_any_name(tmp_path: Path) -> None:
    texts = [f"C{'C' * (i % 40)}O{i}" for i in range(ROWS)]
    before = Made(
        tmp_path / "before",
        {"key": [f"m{i}" for i in range(ROWS)], "mol": texts},
        {"kind": "random", "seed": 0},
        columns={"key": "id", "mol": "text"},
        task="causal_lm",
    )
    others = [f"N{i}" for i in range(ROWS // 2)]
    table = {
        "id": [f"r{i}" for i in range(ROWS)],
        "smiles": texts[: ROWS // 2] + others,
        "y": np.arange(ROWS) % 2,
    }
    columns = {"id": "id", "smiles": {"kind": "text", "bag": {}}, "y": "label"}
    now = Made(tmp_path / "now", table, {"kind": "random", "seed": 1}, columns=columns)
    found = find_seen(now.split, now.spec, now.declaration, before.origin())
    learned = {
        text
        for side in (before.split.train, before.split.val)
        for text in pq.read_table(side.file.path)["mol"].to_pylist()
    }
    tested = pq.read_table(now.split.test.file.path)["smiles"].to_pylist()
    assert found.by == "text"
    assert found.masks["test"].tolist() == [text in learned for text in tested]
    assert 0 < found.masks["test"].sum() < now.split.test.rows


def test_a_version_without_its_run_goes_by_its_hashes(tmp_path: Path) -> None:
    before, now = made(tmp_path / "before"), made(tmp_path / "now", seed=1)
    keys = trained_keys((before.split.train, before.split.val))
    np.save(tmp_path / "keys.npy", keys)
    bare = {"fitted": (), "chosen": (), "id": None, "hashes": file_ref(tmp_path / "keys.npy")}
    origin = before.origin(**bare)
    silent = find_seen(before.split, before.spec, before.declaration, origin)
    assert not any(mask.any() for mask in silent.masks.values())
    found = find_seen(now.split, now.spec, now.declaration, origin)
    assert found.masks["test"].any() and found.masks["val"].any()
    with pytest.raises(LeakageError, match=r"id columns are not known.*seen_rows: unchecked"):
        find_seen(now.split, now.spec, now.declaration, before.origin(name="another", **bare))


def test_what_is_not_known_is_refused_and_unchecked_is_written_down(tmp_path: Path) -> None:
    now = made(tmp_path / "now", seed=1)
    arguments = (now.split, now.spec, now.declaration)
    partly = weights_of(now.origin(), is_whole=False)
    with pytest.raises(LeakageError, match=r"of which the train rows are not known"):
        apply_seen(*arguments, partly, "refuse", tmp_path)
    found = apply_seen(*arguments, partly, "unchecked", tmp_path)
    assert found.split == now.split and found.report.asked == "unchecked"
    of_file = apply_seen(*arguments, weights_of(is_whole=False), "refuse", tmp_path)
    assert of_file.report.found == {} and of_file.split == now.split
