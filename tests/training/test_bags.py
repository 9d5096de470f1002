"""Texts and sets as features: vocabularies of train, vectors, trees, and raw rows when served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from schemas.errors import ConfigError, DataError, SchemaError
from schemas.load import declare
from tests.training.kind_cases import (
    Prepared,
    digests,
    evaluated,
    exported,
    prepared,
    served,
)
from training.data.arrays.shards import load_arrays
from training.data.serving_expressions.bags import pieces
from training.evaluation.linear_inputs import linear_inputs
from training.models.bags import Pooled, Present
from training.models.shape import BagShape

WORDS = ["free", "prize", "call", "now", "meet", "at", "noon", "see", "you", "later", "thanks", "urgent", "cash"]
TAGS = ["I10", "E11.9", "J45", "N18", "Z99"]
COLUMNS: dict[str, Any] = {
    "row": "id",
    "y": "label",
    "note": {"kind": "text", "bag": {"size": 4}},
    "tags": {"kind": "set", "bag": {"size": 3}},
    "codes": {"kind": "set", "separator": ";"},
    "x": "numeric",
}


def rows(count: int = 160, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    notes = [" ".join(rng.choice(WORDS, rng.integers(0, 9))) for _ in range(count)]
    tags = [sorted(rng.choice(TAGS, rng.integers(0, 4), replace=False)) for _ in range(count)]
    missing = rng.random(count) < 0.1
    return pd.DataFrame(
        {
            "row": [f"r{i:03d}" for i in range(count)],
            "y": [int("prize" in note) for note in notes],
            "note": pd.Series(notes, dtype=object).where(~missing, None),
            "tags": pd.Series(tags, dtype=object).where(~np.roll(missing, 3), None),
            "codes": [";".join(t) for t in tags],
            "x": rng.normal(size=count).round(3),
        }
    )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("bags"), rows(), COLUMNS)


def table(case: Prepared, side: str = "train") -> pd.DataFrame:
    return pd.read_parquet(case.split.side(side).file.path)  # type: ignore[arg-type]


def test_the_vocabulary_counts_train_rows(case: Prepared) -> None:
    note, tags, codes = case.run.statistics.bags
    train = table(case)
    texts = train["note"].dropna()
    for word, n in zip(note.values, note.counts, strict=True):
        padded = texts.map(lambda text: f" {text} ")
        assert n == padded.str.contains(f" {word} ").sum() >= 2, word
    assert note.nulls == train["note"].isna().sum() and " " in "".join(note.values)
    assert sorted(tags.values) == sorted(codes.values) == sorted(TAGS)
    assert list(tags.counts) == sorted(tags.counts, reverse=True)


def test_rows_are_stored_as_their_codes(case: Prepared) -> None:
    stats = case.run.statistics.bags[1]
    stored = np.load(case.run.arrays.train.arrays["bag_tags"].path)
    assert stored.dtype == np.int32 and stored.shape[1] == stats.length <= 4
    raw = rows().set_index("row")["tags"]
    for row, given in zip(stored, table(case)["__id"].map(raw), strict=True):
        values = [stats.values[code - 2] for code in row if code > 1]
        assert (row[0] == 1) == (given is None) and sorted(values) == list(given or ())


def test_held_out_rows_change_nothing_that_is_fitted(case: Prepared, tmp_path: Path) -> None:
    frame = rows()
    held = frame["row"].isin([*table(case, "val")["__id"], *table(case, "test")["__id"]])
    frame["note"] = frame["note"].where(~held, "words that nobody knows, twice and thrice")
    frame["codes"] = frame["codes"].where(~held, "X1;X2")
    other = prepared(tmp_path, frame, COLUMNS)
    assert other.run.statistics == case.run.statistics
    assert digests(other, "train") == digests(case, "train")
    assert digests(other, "test") != digests(case, "test")


KINDS: dict[str, Any] = {
    "realmlp": {"hidden": [8]},
    "mlp": {"hidden": [8]},
    "tabm": {"width": 8, "members": 2},
    "resmlp": {"width": 8, "depth": 1},
    "linear": {},
    "ft_transformer": {"width": 8, "depth": 1, "heads": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_model_takes_raw_texts_and_sets(
    case: Prepared, tmp_path: Path, kind: str
) -> None:
    declaration = case.run.declaration | {"model": {"kind": kind} | KINDS[kind]}
    run = case.run.model_copy(
        update={"declaration": declare(declaration).model_dump(mode="json", by_alias=True)}
    )
    own = case._replace(run=run, declaration=declare(run.declaration))
    model, weights = exported(own, tmp_path)
    assert model.parity < 1e-6
    wanted = evaluated(own, weights, "test")
    raw = rows().set_index("row").loc[list(wanted)]
    np.testing.assert_allclose(served(model, raw), list(wanted.values()), atol=1e-12)
    turned = raw.assign(tags=[t and [*reversed(t)] for t in raw["tags"]])
    np.testing.assert_allclose(served(model, turned), list(wanted.values()), atol=1e-6)


@pytest.mark.parametrize("combine", ["root", "mean", "sum"])
def test_vectors_are_joined_as_torch_joins_them(combine: str) -> None:
    bag = Pooled(BagShape(length=5, codes=9, size=3, combine=combine))
    codes = torch.tensor([[2, 5, 8, 0, 0], [1, 0, 0, 0, 0], [3, 4, 5, 6, 7]], dtype=torch.int32)
    for row, found in zip(codes, bag(codes), strict=True):
        own = row[row > 0].long()
        mode = "sum" if combine == "root" else combine
        wanted = torch.nn.functional.embedding_bag(own[None], bag.weight, mode=mode)[0]
        torch.testing.assert_close(found, wanted / (len(own) ** 0.5 if combine == "root" else 1))
    bag(codes[:2]).sum().backward()
    assert bag.weight.grad is not None and not bag.weight.grad[0].any()
    assert not bag(torch.zeros(1, 5, dtype=torch.int32)).any()


def test_trees_see_the_frequent_pieces() -> None:
    found = Present(BagShape(3, 6, 3, "root"))(torch.tensor([[1, 0, 0], [2, 5, 0], [0, 0, 0]]))
    assert found.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ({"note": {"kind": "set"}}, SchemaError, "a set in a text needs separator"),
        ({"x": {"kind": "set"}}, SchemaError, "kind set needs lists of text or whole numbers"),
        ({"x": {"kind": "text"}}, SchemaError, "kind text needs text, got numbers"),
        ({"tags": {"kind": "set", "separator": ","}}, SchemaError, "separator is for text"),
        ({"tags": {"kind": "auto"}}, SchemaError, "kind: set for values of which a row has sev"),
        ({"x": {"separator": ";"}}, ConfigError, "separator is for kind set"),
        ({"x": {"bag": {}}}, ConfigError, "bag is for kinds text and set"),
        ({"note": {"kind": "text", "bag": {"ngrams": [2, 1]}}}, ConfigError, "ngrams: expected"),
        ({"note": {"kind": "text", "bag": {"min_count": 999}}}, DataError, "occurs in 999 train"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, column: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepared(tmp_path, rows(), COLUMNS | column)


def test_the_linear_baseline_is_tf_idf_as_in_scikit_learn(case: Prepared) -> None:
    arrays = load_arrays(case.run.arrays.train)
    found = linear_inputs(case.run.statistics, arrays).toarray()
    note, *_ = case.run.statistics.bags
    texts = table(case)["note"]
    counted = TfidfVectorizer(
        analyzer=lambda text: ["\0"] if text is None else pieces(text, note.rule()),
        vocabulary=["\0", *note.values],
    )
    wanted = counted.fit_transform([None if pd.isna(t) else t for t in texts]).toarray()
    np.testing.assert_allclose(found[:, 1 : 1 + wanted.shape[1]], wanted, atol=1e-6)
    ids = table(case)["__id"].map(rows().set_index("row")["codes"])
    last = case.run.statistics.bags[2]
    for value, column in zip(last.values, found[:, -len(last.values) :].T, strict=True):
        assert column.tolist() == [float(value in text.split(";")) for text in ids]
