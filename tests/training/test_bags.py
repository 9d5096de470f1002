"""Texts and sets as features: vocabularies of train, vectors, trees, and raw rows when served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn

from schemas.errors import ConfigError, DataError, SchemaError
from schemas.load import declare
from tests.subset import some
from tests.training.kind_cases import (
    MIXED,
    TAGS,
    Prepared,
    digests,
    evaluated,
    exported,
    mixed_rows,
    mixed_run,
    prepared,
    served,
)
from tests.training.kind_runs import require_exact_resume, require_preflight
from training.boosting.tree_run import fit_trees
from training.data.arrays.shards import load_arrays
from training.data.leakage import check_leakage
from training.data.serving_expressions.bag_codes import pieces
from training.evaluation.linear_inputs import linear_inputs
from training.models.bag_vectors import Pooled, Present
from training.models.build import Network, build_model
from training.models.encoders import body_shape
from training.models.shape import BagShape, ModelShape, model_shape
from training.objectives.losses import make_loss
from training.preflight.inputs import check_inputs
from training.preflight.subject import first_rows, spread_rows
from training.serving.export import export_model


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("bags"), mixed_rows(), MIXED)


def table(case: Prepared, side: str = "train") -> pd.DataFrame:
    return pd.read_parquet(case.split.side(side).file.path)  # type: ignore[arg-type]


def test_the_vocabulary_counts_train_rows(case: Prepared) -> None:
    note, _, tags, codes = case.run.statistics.bags
    train = table(case)
    texts = train["note"].dropna()
    for word, n in zip(note.values, note.counts, strict=True):
        padded = texts.map(lambda text: f" {text} ")
        assert n == padded.str.contains(f" {word} ").sum() >= 2, word
    assert note.nulls == train["note"].isna().sum() and " " in "".join(note.values)
    assert sorted(tags.values) == sorted(codes.values) == sorted(TAGS)
    assert list(tags.counts) == sorted(tags.counts, reverse=True)


def test_rows_are_stored_as_their_codes(case: Prepared) -> None:
    stats = case.run.statistics.bags[2]
    stored = np.load(case.run.arrays.train.arrays["bag_tags"].path)
    assert stored.dtype == np.int32 and stored.shape[1] == stats.length <= 4
    raw = mixed_rows().set_index("row")["tags"]
    for row, given in zip(stored, table(case)["__id"].map(raw), strict=True):
        values = [stats.values[code - 2] for code in row if code > 1]
        assert (row[0] == 1) == (given is None) and sorted(values) == list(given or ())


def test_held_out_rows_change_nothing_that_is_fitted(case: Prepared, tmp_path: Path) -> None:
    frame = mixed_rows()
    held = frame["row"].isin([*table(case, "val")["__id"], *table(case, "test")["__id"]])
    frame["note"] = frame["note"].where(~held, "words that nobody knows, twice and thrice")
    frame["codes"] = frame["codes"].where(~held, "X1;X2")
    other = prepared(tmp_path, frame, MIXED)
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


@pytest.mark.parametrize("kind", some(KINDS, len(KINDS)))
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
    raw = mixed_rows().set_index("row").loc[list(wanted)]
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
        prepared(tmp_path, mixed_rows(), MIXED | column)


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
    first = case.run.statistics.num_numeric + 5  # codes of three wards
    np.testing.assert_allclose(found[:, first : first + wanted.shape[1]], wanted, atol=1e-6)
    ids = table(case)["__id"].map(mixed_rows().set_index("row")["codes"])
    last = case.run.statistics.bags[3]
    for value, column in zip(last.values, found[:, -len(last.values) :].T, strict=True):
        assert column.tolist() == [float(value in text.split(";")) for text in ids]


TRAIN = {"epochs": 3, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 4, "threads": 1}


@pytest.mark.long
@pytest.mark.req("C5")
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    mixed_run(tmp_path, train=TRAIN)
    require_exact_resume(tmp_path)


@pytest.mark.long
@pytest.mark.req("M4")
@pytest.mark.parametrize("kind", [*KINDS, "boosting"])
def test_the_preflight_passes(tmp_path: Path, kind: str) -> None:
    options = {} if kind in ("linear", "boosting") else KINDS[kind]
    options = {n: v for n, v in options.items() if n not in ("hidden", "width", "members")}
    run = mixed_run(tmp_path, model={"kind": kind, **options}, train=TRAIN | {"clip": "none"})
    require_preflight(run)


class NoText(nn.Module):
    """Reads all but the first text."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.keys = [key for key in shape.keys if key not in ("categorical", "bag_note")]
        self.layer = nn.LazyLinear(shape.outputs)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(torch.cat([batch[key].float() for key in self.keys], dim=1))


def test_a_text_that_is_not_read_is_named(case: Prepared) -> None:
    statistics = case.run.statistics
    shape = model_shape(case.declaration, statistics)
    arrays = {n: np.array(a) for n, a in load_arrays(case.run.arrays.train).items()}
    rows = spread_rows(arrays, 32, ())
    network = Network(shape, statistics, NoText(body_shape(shape, is_of_trees=False)))
    network(rows.inputs)
    loss = make_loss(case.declaration, statistics)
    found = check_inputs(network.eval(), statistics, shape, loss, rows, first_rows(arrays, 64))
    assert found.verdict == "warn" and "note" in found.columns and "reply" not in found.columns
    sound = check_inputs(
        build_model(case.declaration, statistics).eval(), statistics, shape, loss, rows, rows
    )
    assert not sound.columns


@pytest.mark.long
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_boosting_takes_frequent_pieces_and_serves_raw_rows(tmp_path: Path, task: str) -> None:
    case = prepared(tmp_path, mixed_rows(), MIXED, task=task, model={"kind": "boosting"})
    weights = Path(fit_trees(case.run, tmp_path / "run").best_checkpoint.path)
    model = export_model(case.run, weights, tmp_path / "model", case.split.val)
    assert model.parity < 1e-6


def test_copies_of_a_text_in_another_form_are_found(tmp_path: Path) -> None:
    frame = mixed_rows()
    texts = [f"a long message of its own, with number {i // 2}" for i in range(len(frame))]
    frame["reply"] = [text.upper() if i % 2 else text for i, text in enumerate(texts)]
    case = prepared(tmp_path, frame, MIXED)
    report = check_leakage(case.split, case.validated, case.declaration)
    found = next(r for r in report.results if r.name == "text_copies")
    assert found.verdict in ("warn", "fail") and found.columns == ("reply",)
