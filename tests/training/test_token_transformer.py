"""Texts that a transformer reads in order: vocabulary of train, masks, raw rows when served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from schemas.errors import ConfigError
from schemas.transformer_config import TransformerEncoder
from tests.training.kind_cases import (
    Prepared,
    digests,
    evaluated,
    exported,
    mixed_rows,
    prepared,
    served,
)
from tests.training.kind_runs import require_exact_resume, require_preflight
from training.boosting.tree_inputs import matrix, num_columns
from training.data.arrays.shards import load_arrays
from training.data.serving_expressions.bag_codes import sequence
from training.evaluation.feature_frame import column_names
from training.evaluation.linear_inputs import linear_inputs
from training.models.token_transformer import TokenTransformer

SMALL = {"kind": "transformer", "size": 4, "width": 8, "depth": 1, "heads": 2}
COLUMNS: dict[str, Any] = {
    "row": "id",
    "y": "label",
    "note": {"kind": "text", "encoder": SMALL},
    "reply": {"kind": "text", "encoder": SMALL, "bag": {"unit": "characters", "length": 12}},
    "tags": {"kind": "set", "bag": {"size": 3}},
    "codes": "ignore",
    "seen": "ignore",
    "ward": "categorical",
    "x": "numeric",
}
TRAIN = {"epochs": 3, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 4, "threads": 1}


def rows() -> pd.DataFrame:
    """Rows with words that occur once, and one that repeats in its text."""
    frame = mixed_rows()
    frame["note"] = [t and f"{t} {t.split()[0]} rare{i}" for i, t in enumerate(frame["note"])]
    return frame


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("texts"), rows(), COLUMNS)


def texts(case: Prepared, name: str) -> list[str | None]:
    path = case.split.train.file.path
    found = pd.read_parquet(path)[name]
    return [None if pd.isna(text) else text for text in found]


@pytest.mark.parametrize("name", ["note", "reply"])
def test_a_row_is_its_words_or_characters_in_their_order(case: Prepared, name: str) -> None:
    stats = next(b for b in case.run.statistics.bags if b.name == name)
    stored = load_arrays(case.run.arrays.train)[f"bag_{name}"]
    assert stats.num_codes == 3 + len(stats.values) and stats.length == stored.shape[1]
    for text, codes in zip(texts(case, name), stored, strict=True):
        if text is None:
            assert codes.tolist() == [1] + [0] * (stats.length - 1)
            continue
        named = ["", "null", *stats.values, "unknown"]
        units = sequence(text, stats.rule())[: stats.length]
        wanted = [unit if unit in stats.values else "unknown" for unit in units]
        assert [named[code] for code in codes[codes > 0]] == wanted
    if name == "note":
        assert (stored == stats.num_codes - 1).any() and stats.unknown_rows > 0


def test_held_out_rows_change_nothing_that_is_fitted(case: Prepared, tmp_path: Path) -> None:
    frame = rows()
    train = set(pd.read_parquet(case.split.train.file.path)["__id"])
    frame["note"] = frame["note"].where(frame["row"].isin(train), "words nobody knows")
    other = prepared(tmp_path, frame, COLUMNS)
    assert other.run.statistics == case.run.statistics
    assert digests(other, "train") == digests(case, "train")


@pytest.mark.long
def test_the_exported_model_takes_raw_texts(case: Prepared, tmp_path: Path) -> None:
    model, weights = exported(case, tmp_path)
    assert model.parity < 1e-6
    wanted = evaluated(case, weights, "test")
    raw = rows().set_index("row").loc[list(wanted)]
    np.testing.assert_allclose(served(model, raw), list(wanted.values()), atol=1e-12)


def test_filling_does_not_change_a_vector() -> None:
    torch.manual_seed(0)
    config = TransformerEncoder(width=8, heads=2, size=5)
    longer = TokenTransformer(config, 20, 11).double().eval()
    shorter = TokenTransformer(config, 20, 7).double().eval()
    state = longer.state_dict()
    shorter.load_state_dict(state | {"positions": state["positions"][:7]})
    codes = torch.randint(1, 20, (6, 7))
    codes[torch.arange(7) >= torch.arange(1, 7)[:, None]] = 0
    codes[5] = 0
    padded = torch.nn.functional.pad(codes, (0, 4))
    torch.testing.assert_close(longer(padded), shorter(codes), atol=1e-12, rtol=0)
    turned = codes[4:5, [1, 0, 2, 3, 4, 5, 6]]
    assert not torch.allclose(shorter(turned), shorter(codes[4:5]), atol=1e-6)
    torch.testing.assert_close(shorter(codes)[5], shorter.missing.weight[0])


def test_attention_is_that_of_torch() -> None:
    torch.manual_seed(0)
    config = TransformerEncoder(width=8, heads=2, size=5, depth=1, dropout=0.0)
    ours = TokenTransformer(config, 20, 6).eval()
    block = ours.blocks[0]
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True
    )
    mine = block.state_dict()
    names = {
        "self_attn.in_proj_weight": "attention.project.weight",
        "self_attn.in_proj_bias": "attention.project.bias",
        "self_attn.out_proj.weight": "attention.merge.weight",
        "self_attn.out_proj.bias": "attention.merge.bias",
        **{f"linear{i}.{p}": f"{n}.{p}" for i, n in ((1, "inner"), (2, "outer")) for p in PARTS},
        **{f"norm{i}.{p}": f"{n}.{p}" for i, n in ((1, "first"), (2, "second")) for p in PARTS},
    }
    theirs.load_state_dict({name: mine[own] for name, own in names.items()})
    x, present = torch.randn(3, 6, 8), torch.arange(6) < torch.tensor([[6], [4], [1]])
    wanted = theirs(x, src_key_padding_mask=~present)
    torch.testing.assert_close(
        block(x, present[:, None, None, :])[present], wanted[present], atol=1e-5, rtol=1e-5
    )


PARTS = ("weight", "bias")


def test_trees_and_the_linear_baseline_see_the_words(case: Prepared) -> None:
    statistics, arrays = case.run.statistics, load_arrays(case.run.arrays.train)
    inputs = matrix(statistics, arrays)
    assert inputs.shape[1] == num_columns(statistics) == len(column_names(statistics))
    assert linear_inputs(statistics, arrays).shape[0] == len(inputs)


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ({"kind": "text", "encoder": SMALL, "bag": {"ngrams": [1, 2]}}, "has no ngrams"),
        ({"kind": "text", "encoder": SMALL | {"heads": 3}}, "is no multiple of heads"),
        ({"kind": "set", "separator": ";", "encoder": SMALL}, "encoder is for kinds tensor"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, note: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        exported(prepared(tmp_path, rows(), COLUMNS | {"note": note}), tmp_path)


def text_run(folder: Path, **sections: Any) -> Any:
    run = prepared(folder, rows(), COLUMNS, **sections).run
    (folder / "resolved.json").write_text(run.model_dump_json())
    return run


@pytest.mark.long
@pytest.mark.req("C5")
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    text_run(tmp_path, train=TRAIN)
    require_exact_resume(tmp_path)


@pytest.mark.long
@pytest.mark.req("M4")
@pytest.mark.parametrize("kind", ["realmlp", "mlp", "linear", "ft_transformer", "boosting"])
def test_the_preflight_passes(tmp_path: Path, kind: str) -> None:
    run = text_run(tmp_path, model={"kind": kind}, train=TRAIN | {"clip": "none"})
    require_preflight(run)
