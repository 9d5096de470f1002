"""Losses of documents: equal to plain loops, for the network and for the counts it is held
against.
"""

from __future__ import annotations

import collections
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from schemas.errors import IntegrityError, NonFiniteError
from schemas.records import SplitArrays
from tests.training.corpora import SMALL, Corpus, made_up, make_corpus, random_weights
from training.data.arrays.sequences import NO_TARGET
from training.data.arrays.shards import load_arrays
from training.data.serving_text import encode
from training.data.serving_text.tokenizers import BEGIN, END
from training.distributed.parallel import Parallel
from training.engine.batches import as_tensors
from training.engine.scoring import measure, score_tensors
from training.engine.token_scoring import TokenScorer, document_facts, score_documents
from training.evaluation import baselines, ngrams
from training.evaluation.evaluate import evaluate
from training.objectives import token_metrics
from training.objectives.bootstrap import resample_counts
from training.objectives.losses import TokenCrossEntropy
from training.serving.reference_network import reference_network


@pytest.fixture(scope="module", params=["documents", "windows"])
def corpus(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(
        tmp_path_factory.mktemp(request.param),
        made_up(60),
        {"packing": request.param, "context": 40, "stride": 13},
    )


@pytest.fixture(scope="module")
def network(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return reference_network(
        corpus.run, random_weights(corpus, tmp_path_factory.mktemp("weights") / "w.pt")
    )


def sequence_of(corpus: Corpus, text: str) -> list[int]:
    return [BEGIN, *encode([text], corpus.run.statistics.tokens.model_dump())[0].tolist(), END]


def one_by_one(corpus: Corpus, network: torch.nn.Module, text: str) -> tuple[float, int, int]:
    """Loss sum, right guesses and tokens of one document alone: each token by a forward pass over
    what the windows' rule lets it see.
    """
    tokens, context, stride = (
        sequence_of(corpus, text),
        corpus.run.statistics.tokens.context,
        corpus.run.statistics.tokens.stride,
    )
    loss, right = 0.0, 0
    for place in range(1, len(tokens)):
        window = 0 if place <= context else -(-(place - context) // stride)
        seen = torch.tensor([tokens[window * stride : place]])
        with torch.inference_mode():
            logits = network({"tokens": seen, "segments": torch.ones_like(seen)})[0, -1]
        loss += F.cross_entropy(logits, torch.tensor(tokens[place])).item()
        right += int(logits.argmax() == tokens[place])
    return loss, right, len(tokens) - 1


@pytest.mark.req("T9")
def test_losses_of_packed_documents_equal_a_plain_loop_over_them(
    corpus: Corpus, network: torch.nn.Module
) -> None:
    found = score_documents(network, corpus.run.arrays.val)
    expected = np.array([one_by_one(corpus, network, text) for text in corpus.texts("val")])
    np.testing.assert_allclose(found.predictions, expected[:, :2], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(
        found.targets,
        np.stack([expected[:, 2], [len(text) for text in corpus.texts("val")]], axis=1),
    )
    few = score_documents(network, corpus.run.arrays.val, 5)
    np.testing.assert_allclose(few.predictions, expected[:5, :2], rtol=0, atol=1e-9)
    values = {
        name: metric(found.targets, found.predictions, None)
        for name, metric in token_metrics.METRICS.items()
    }
    total = expected.sum(0)
    assert values["loss"] == pytest.approx(total[0] / total[2]) and values[
        "perplexity"
    ] == pytest.approx(math.exp(total[0] / total[2]))
    assert values["bits_per_character"] == pytest.approx(
        total[0] / math.log(2) / sum(map(len, corpus.texts("val")))
    )
    assert values["accuracy"] == pytest.approx(total[1] / total[2])


@pytest.mark.req("T9")
def test_the_loss_while_training_is_that_of_the_evaluation(
    corpus: Corpus, network: torch.nn.Module
) -> None:
    """In float32 and by sequences, to 1e-6 of what float64 by documents gives."""
    side = corpus.run.arrays.val
    inputs = as_tensors({name: np.array(array) for name, array in load_arrays(side).items()})
    sums = score_tensors(TokenScorer(network.float()), inputs, side.rows, 3, Parallel())
    found = measure(
        corpus.declaration,
        corpus.run.statistics,
        TokenCrossEntropy(),
        sums,
        {"label": load_arrays(side)["label"]},
    )
    whole = score_documents(network.double(), side)
    assert found["loss"] == pytest.approx(
        token_metrics.loss(whole.targets, whole.predictions, None), rel=1e-6
    )
    assert found["accuracy"] == pytest.approx(
        token_metrics.accuracy(whole.targets, whole.predictions, None)
    )


@pytest.mark.req("M3")
def test_the_token_loss_is_torchs_cross_entropy_with_what_is_no_target_left_out() -> None:
    torch.manual_seed(0)
    scores, label = (
        torch.randn(5, 7, 9, dtype=torch.float64),
        torch.randint(0, 9, (5, 7), dtype=torch.int32),
    )
    label[torch.rand(5, 7) < 0.4] = NO_TARGET
    label[3] = NO_TARGET
    loss = TokenCrossEntropy()
    assert loss(scores, label).item() == pytest.approx(
        F.cross_entropy(scores.flatten(0, 1), label.flatten().long()).item(), abs=1e-12
    )
    assert (
        loss.row_weights(label).tolist() == (label != NO_TARGET).sum(1).tolist()
        and loss.per_row(scores, label)[3] == 0
    )
    assert (
        loss.row_weights(label, torch.full((5,), 0.5)).tolist()
        == ((label != NO_TARGET).sum(1) / 2).tolist()
    )


def test_losses_that_are_not_finite_or_not_whole_are_refused(
    corpus: Corpus, network: torch.nn.Module, tmp_path: Path
) -> None:
    broken = reference_network(corpus.run, random_weights(corpus, tmp_path / "w.pt"))
    with torch.no_grad():
        next(broken.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="first ids"):
        score_documents(broken, corpus.run.arrays.val)
    side = corpus.run.arrays.val
    other = side.model_copy(update={"documents": corpus.run.arrays.test.documents})
    with pytest.raises((IntegrityError, ValueError, IndexError)):
        score_documents(network, other)
    with pytest.raises(IntegrityError, match="made of documents"):
        document_facts(SplitArrays(rows=1, arrays={}, ids=side.ids))


# ------------------------------------------------------------------------------------------- counts


def counted(corpus: Corpus, order: int, side: str) -> list[tuple[float, int]]:
    """Witten-Bell losses and guesses by document, from dictionaries, one token at a time; contexts
    end where the windows of train end.
    """
    context, stride = corpus.run.statistics.tokens.context, corpus.run.statistics.tokens.stride
    counts: list[dict[tuple[int, ...], collections.Counter[int]]] = [
        collections.defaultdict(collections.Counter) for _ in range(order)
    ]
    for text in corpus.texts("train"):
        tokens = sequence_of(corpus, text)
        for place in range(1, len(tokens)):
            first = (place - 1) // context * context
            for length in range(min(order, place - first + 1)):
                counts[length][tuple(tokens[place - length : place])][tokens[place]] += 1
    found = []
    for text in corpus.texts(side):
        tokens, loss, right = sequence_of(corpus, text), 0.0, 0
        for place in range(1, len(tokens)):
            first = (0 if place <= context else -(-(place - context) // stride)) * stride
            share, guess = 1 / (corpus.run.statistics.tokens.size - 2), None
            for length in range(min(order, place - first + 1)):
                after = counts[length].get(tuple(tokens[place - length : place]))
                if after is None:
                    break
                share = (after[tokens[place]] + len(after) * share) / (after.total() + len(after))
                guess = min(after, key=lambda token: (-after[token], token))
            loss, right = loss - math.log(share), right + (guess == tokens[place])
        found.append((loss, right))
    return found


@pytest.mark.req("P8")
@pytest.mark.parametrize(("name", "order"), [("unigram", 1), ("bigram", 2), ("5-gram", 5)])
def test_counts_equal_a_plain_loop(
    corpus: Corpus, name: str, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams, "CHUNK_TOKENS", 200)
    found = baselines.baseline_predictions(
        corpus.declaration, corpus.run.statistics, corpus.run.arrays, "test"
    )
    np.testing.assert_allclose(found[name], counted(corpus, order, "test"), rtol=0, atol=1e-9)


def test_shares_of_the_counts_add_up_to_one(corpus: Corpus) -> None:
    """Over every token that can be asked for, after each of many contexts."""
    rows, size = (
        {name: np.array(array[:4]) for name, array in load_arrays(corpus.run.arrays.train).items()},
        corpus.run.statistics.tokens.size,
    )
    model = ngrams.fit(rows, size, 3)
    total = np.zeros(int((rows["label"] != NO_TARGET).sum()))
    for token in range(END, size):
        asked = {**rows, "label": np.where(rows["label"] == NO_TARGET, NO_TARGET, token)}
        total += np.exp(-ngrams.score(model, asked)[-1][0])
    np.testing.assert_allclose(total, 1, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------- evaluation


def test_resampled_metrics_equal_those_of_repeated_documents(
    corpus: Corpus, network: torch.nn.Module
) -> None:
    found = score_documents(network, corpus.run.arrays.test)
    drawn = np.stack(list(resample_counts(len(found.targets), 4, 0)))
    values = token_metrics.resampled(found.predictions, found.targets)(drawn)
    for name, metric in token_metrics.METRICS.items():
        for number, counts in enumerate(drawn):
            rows = np.repeat(np.arange(len(counts)), counts)
            assert values[name][number] == pytest.approx(
                metric(found.targets[rows], found.predictions[rows], None)
            )


@pytest.mark.req("P8")
def test_an_evaluation_holds_the_network_against_the_counts(tmp_path: Path) -> None:
    """Groups are resampled, samples are made, and a network with random weights gets no praise."""
    groups = {"who": [f"g{number % 12}" for number in range(60)]}
    corpus = make_corpus(
        tmp_path,
        tokens={"samples": 2, "sample_tokens": 5},
        columns={"who": "group"},
        more=groups,
        split={"kind": "random"},
    )
    report = evaluate(
        corpus.run, random_weights(corpus, tmp_path / "w.pt"), "test", tmp_path / "out"
    )
    texts = corpus.texts("test")
    assert (
        report.rows == len(texts)
        and report.base_rate["documents"] == len(texts)
        and report.base_rate["characters"] == sum(map(len, texts))
    )
    assert (
        set(report.baselines) == {"unigram", "bigram", "5-gram"}
        and not report.has_skill
        and report.verdict.startswith("Too few rows to say")
    )
    assert (
        report.samples is not None
        and len(report.samples.texts) == 2
        and report.samples.molecules == {}
    )
    written = pq.read_table(report.predictions.path).to_pandas()
    assert written["loss"] @ written["tokens"] / written["tokens"].sum() == pytest.approx(
        report.metrics["loss"].value
    )
    again = evaluate(corpus.run, tmp_path / "w.pt", "test", tmp_path / "again")
    assert again.model_dump(exclude={"predictions"}) == report.model_dump(exclude={"predictions"})


def test_a_weighted_document_counts_for_its_weight(tmp_path: Path) -> None:
    weights = {"w": [1.0 + number % 3 for number in range(60)]}
    corpus = make_corpus(
        tmp_path, tokens={"packing": "windows"}, columns={"w": "weight"}, more=weights, model=SMALL
    )
    network = reference_network(corpus.run, random_weights(corpus, tmp_path / "w.pt"))
    found = score_documents(network, corpus.run.arrays.test)
    rows = np.repeat(np.arange(len(found.targets)), found.weight.astype(int))
    expected = token_metrics.loss(found.targets[rows], found.predictions[rows], None)
    assert token_metrics.loss(found.targets, found.predictions, found.weight) == pytest.approx(
        expected
    )
    assert evaluate(corpus.run, tmp_path / "w.pt", "test", tmp_path / "out").metrics[
        "loss"
    ].value == pytest.approx(expected)
