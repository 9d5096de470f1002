"""Section `search`: what may be searched, defaults of each kind, and declarations made of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.load import declare
from schemas.records import digest_of
from schemas.search_config import Span
from schemas.search_space import (
    BY_KIND,
    default_space,
    search_space,
    short_tree,
    values_by_path,
    with_values,
)
from tests.schemas.test_load import tree
from training.tracking.mlflow import flatten

FOUND = (
    "{run_id: r, trials: 2, pruned: 0, failed: 0, hours: 0.1, trial: 2, metric: auroc, score: 0.7,"
    " params: {optimizer.lr: 0.002}}"
)
MISTAKES = [
    ("{space: {model.dropuot: [0, 0.1]}}", "no such value to search; did you mean 'model.dropout'"),
    ("{space: {model.width: [64, 128]}}", "search.space.model.width: the declaration has no such"),
    ("{space: {model.dropout: [0, 1.5]}}", "model.dropout: Input should be less than 1; got 1.5"),
    ("{space: {optimizer.lr: {low: -1, high: 1}}}", "optimizer.lr: .*greater than 0; got -1"),
    ("{space: {model.hidden: [[8], [0]]}}", r"model.hidden: .*greater than or equal to 1; got \[0"),
    ("{space: {normalize.scale: [standard, robust]}}", "trials train on the same prepared arrays"),
    ("{space: {split.seed: [0, 1]}}", "trials train on the same prepared arrays"),
    ("{space: {model.bins: [16, 48]}}", "trials train on the same prepared arrays"),
    ("{space: {model.kind: [mlp, resmlp]}}", "search each kind in a run of its own"),
    ("{space: {train.seed: [0, 1]}}", "the scores of trials would not be comparable"),
    ("{space: {train.metric: [auroc, pr_auc]}}", "scores of trials would not be comparable"),
    ("{space: {evaluate.bootstrap: [20, 30]}}", "the declaration has no such value to search"),
    ("{space: {model.dropout: [0]}}", "needs at least two choices"),
    ("{space: {model.dropout: 0.1}}", r"expected {low: …, high: …}, a list of choices, or null"),
    ("{space: {optimizer.lr: {low: 1, high: 0.1}}}", "low 1 must be below high 0.1"),
    ("{space: {optimizer.lr: {low: 0, high: 1, log: true}}}", "log needs a low above 0, got 0"),
    ("{space: {optimizer.lr: null, optimizer.weight_decay: null}}", "has no default values to try"),
    ("{tirals: 3}", "unknown key; did you mean 'trials'"),
    ("{trials: 0}", "search.trials: Input should be greater than or equal to 1"),
    (f"{{found: {FOUND}}}", "the search chose optimizer.lr=0.002, and the declaration has 0.001"),
]


@pytest.mark.parametrize(("section", "message"), MISTAKES)
def test_a_mistake_is_refused_before_anything_runs(section: str, message: str) -> None:
    kind = "linear" if "weight_decay: null" in section else "mlp"
    with pytest.raises(ConfigError, match=message) as raised:
        declare(tree(search=section, **{"model.kind": kind}))
    assert "search" in str(raised.value)


def test_folds_and_trials_are_not_declared_together() -> None:
    with pytest.raises(ConfigError, match="scored on validation rows, not on folds"):
        declare(tree(search="{}", **{"cv.folds": 3}))


def test_the_file_replaces_adds_and_removes_values() -> None:
    declared = declare(
        tree(
            search="{space: {optimizer.lr: {low: 1e-4, high: 1e-2, log: true}, model.dropout: null,"
            " train.batch_size: [64, 128]}}"
        )
    )
    space, default = search_space(declared), default_space(declared)
    assert space["optimizer.lr"] == Span(low=1e-4, high=1e-2, log=True)
    assert set(space) == (set(default) | {"train.batch_size"}) - {"model.dropout"}
    assert list(space) == sorted(space)
    assert declare(tree(search="{found: null}")).search is not None


@pytest.mark.parametrize("kind", ["linear", "mlp", "resmlp", "ft_transformer"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_every_default_value_is_valid_and_belongs_to_the_kind(kind: str, optimizer: str) -> None:
    declared = declare(
        tree(search="{}", **{"model.kind": kind, "optimizer": f"{{kind: {optimizer}}}"})
    )
    space = search_space(declared)
    assert set(space) <= set(values_by_path(declared))
    assert set(BY_KIND[kind]) <= set(space) and "optimizer.lr" in space
    for path, values in space.items():
        for value in (values.low, values.high) if isinstance(values, Span) else values:
            changed = values_by_path(with_values(declared, {path: value}))
            assert changed[path] == (tuple(value) if isinstance(value, list) else value)


def declarations() -> list[dict[str, Any]]:
    return [
        tree(**{"model.kind": "mlp"}),
        tree(**{"train.ranks": 2, "schedule.kind": "one_cycle", "register.enabled": False}),
        tree(**{"model.kind": "ft_transformer", "normalize.columns": "{seen: {scale: robust}}"}),
        tree(search="{trials: 3, space: {model.dropout: [0, 0.5]}}"),
    ]


@pytest.mark.parametrize("given", declarations())
def test_the_written_declaration_is_short_and_the_same(given: dict[str, Any]) -> None:
    declared = declare(given)
    assert with_values(declared, {}) == declared.model_copy(update={"search": None})
    found = {"found": yaml.safe_load(FOUND)}
    best = with_values(declared, {"optimizer.lr": 0.002}, **found)
    text = yaml.safe_dump(short_tree(best), sort_keys=False)
    again = declare(yaml.safe_load(text))
    assert again == best and again.optimizer.lr == 0.002
    assert again.search is not None and again.search.found is not None
    assert "bootstrap" not in text and "ranks" in text
    # started again from the whole record, as a resumed run is
    resumed = Declaration.model_validate(best.model_dump(mode="json", by_alias=True))
    assert short_tree(resumed) == short_tree(best)


def test_a_declaration_without_a_search_is_what_it_was() -> None:
    declared = declare(tree())
    assert "search" not in declared.model_dump() and "search" not in declared.model_dump_json()
    assert "search" not in flatten(declared)
    whole = declared.model_dump(mode="json", by_alias=True)
    assert digest_of(declared) == digest_of(whole) and declare(whole).search is None
    assert re.search("search.space", str(flatten(declare(tree(search="{}")))))
