"""Declarations of language models: keys, defaults, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import ConfigError
from schemas.load import declare, given_paths
from schemas.token_config import TokensConfig

TREE: dict[str, Any] = {
    "name": "texts",
    "data": {"uri": "x.parquet", "columns": {"body": "text", "who": "group", "*": "ignore"}},
    "task": {"kind": "causal_lm"},
    "split": {"kind": "random"},
}
BINARY: dict[str, Any] = {
    **TREE,
    "data": {"uri": "x", "columns": {"y": "label", "*": "feature"}},
    "task": {"kind": "binary"},
}


@pytest.mark.req("P1")
def test_defaults_suit_the_task_and_count_as_defaults() -> None:
    found = declare({**TREE, "evaluate": {"bootstrap": 50}, "train": {"epochs": 3}})
    assert (
        found.tokens == TokensConfig()
        and found.model.kind == "causal_transformer"
        and found.train.batch_size == 32
    )
    assert (
        found.evaluate.baselines == ("unigram", "bigram", "5-gram")
        and found.evaluate.bootstrap == 50
        and found.train.epochs == 3
    )
    assert (found.metric, found.greater_is_better, found.loss_kind) == (
        "loss",
        False,
        "cross_entropy",
    )
    assert set(given_paths(found)) == {
        "name",
        "data.uri",
        "data.columns",
        "task.kind",
        "split.kind",
        "evaluate.bootstrap",
        "train.epochs",
    }
    assert declare(found.model_dump(mode="json", by_alias=True)) == found
    assert (
        declare(
            {**TREE, "train": {"batch_size": 5}, "evaluate": {"baselines": ["unigram"]}}
        ).train.batch_size
        == 5
    )
    assert declare({**TREE, "train": {"ranks": 40}}).train.batch_size == 40
    assert declare(BINARY).tokens is None


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (
            {**TREE, "data": {"uri": "x", "columns": {"*": "ignore"}}},
            "exactly one column of kind text",
        ),
        (
            {**TREE, "data": {"uri": "x", "columns": {"a": "text", "b": "text"}}},
            "exactly one column of kind text",
        ),
        ({**TREE, "data": {"uri": "x", "columns": {"*": "text"}}}, "named in full"),
        (
            {**TREE, "data": {"uri": "x", "columns": {"a": "text", "y": "label"}}},
            "data.columns.y: task causal_lm reads the text column alone",
        ),
        (
            {**TREE, "data": {"uri": "x", "columns": {"a": "text", "*": "feature"}}},
            r"data.columns.\*: task causal_lm reads",
        ),
        (
            {**TREE, "data": {"uri": "x", "columns": {"a": "text"}, "derive": {"a": "upper(b)"}}},
            "data.derive.a: the text must be a column of the source",
        ),
        (
            {**TREE, "data": {"uri": "x", "columns": {"a": "text", "w": "weight"}}},
            "tokens.packing: windows",
        ),
        ({**TREE, "split": {"kind": "stratified"}}, "needs a label"),
        ({**TREE, "model": {"kind": "mlp"}}, "cannot read tokens"),
        ({**TREE, "train": {"metric": "bits_per_character"}}, "train.metric: choose loss"),
        ({**TREE, "train": {"metric": "auroc"}}, "unknown metric 'auroc'"),
        ({**TREE, "loss": {"class_weights": "balanced"}}, "class weights"),
        ({**TREE, "loss": {"label_smoothing": 0.1}}, "label_smoothing"),
        ({**TREE, "evaluate": {"baselines": ["linear"]}}, "'linear' does not fit task 'causal_lm'"),
        ({**TREE, "tokens": {"context": 8, "stride": 9}}, "predicted by none"),
        ({**BINARY, "tokens": {"context": 8}}, "only task.kind: causal_lm has tokens"),
        ({**BINARY, "model": {"kind": "causal_transformer"}}, "needs task.kind: causal_lm"),
        (
            {**TREE, "data": {"uri": "x", "columns": {"a": {"kind": "text", "bag": {}}}}},
            "task causal_lm reads tokens in their order",
        ),
        ({**BINARY, "evaluate": {"baselines": ["5-gram"]}}, "'5-gram' does not fit task 'binary'"),
    ],
)
def test_what_contradicts_itself_is_refused(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        declare(tree)


def test_a_weight_goes_with_one_document_a_row() -> None:
    columns = {"a": "text", "w": "weight"}
    assert (
        declare(
            {**TREE, "data": {"uri": "x", "columns": columns}, "tokens": {"packing": "windows"}}
        ).tokens.evaluation_stride
        == 128
    )
