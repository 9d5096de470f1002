"""The served language model: the evaluated losses from raw text, completions that a seed decides,
nothing guessed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from schemas.errors import ConfigError, DataError, IntegrityError, RegistryError
from schemas.records import ExportedModel
from tests.training.corpora import Corpus, made_up, make_corpus, random_weights
from tests.training.mlflow_home import blank_database, uri
from tests.training.mlflow_home import champion as take_champion
from training.data.serving_text import Sampling, completion, scoring
from training.data.serving_text.tokenizers import END, SPECIAL
from training.data.split.unseen import trained_keys
from training.engine.token_scoring import score_documents
from training.evaluation import chemistry
from training.evaluation.evaluate import evaluate
from training.evaluation.text_samples import logits_of, make_samples, sampled
from training.models.build import build_model
from training.registry.compare_champion import challenge
from training.registry.gate import judge
from training.registry.ladder import noise_of
from training.registry.registry import LoadedModel
from training.registry.score_file import predict_file
from training.serving import serving
from training.serving.export import export_model
from training.serving.export_text import TextProgram, parity
from training.serving.reference_network import reference_network
from training.serving.signature import input_columns, input_example, signature

__all__ = ["blank_database", "uri"]

CONTEXT, STRIDE = 24, 9
WORDS = ["CCO", "c1ccccc1", "CC(=O)O", "[NH4+]", "ClCCl", "C#N"]


class Served(NamedTuple):
    """A corpus, weights, their export, and the model as MLflow would have loaded it."""

    corpus: Corpus
    weights: Path
    exported: ExportedModel
    model: Any


def export(corpus: Corpus, weights: Path, folder: Path) -> Served:
    exported = export_model(corpus.run, weights, folder, corpus.split.val)
    model = serving.RawRows()
    paths = {
        "program": exported.program.path,
        "spec": exported.spec.path,
        "expressions": exported.expressions.path,
    }
    model.load(paths)
    return Served(corpus, weights, exported, model)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served")
    corpus = make_corpus(folder, made_up(60), {"context": CONTEXT, "stride": STRIDE})
    return export(corpus, random_weights(corpus, folder / "w.pt"), folder / "model")


def frame_of(corpus: Corpus, side: str = "test") -> pd.DataFrame:
    return pd.DataFrame(
        {"other": 1, "text": corpus.texts(side)},
        index=[f"row {i}" for i in range(len(corpus.texts(side)))],
    )


# ------------------------------------------------------------------------------------------- losses


@pytest.mark.req("R1")
def test_the_exported_model_gives_the_evaluated_losses_from_raw_text(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Document by document to 1e-9, in one piece or in many."""
    evaluated = pq.read_table(
        evaluate(served.corpus.run, served.weights, "test", tmp_path).predictions.path
    ).to_pandas()
    predicted = served.model.predict(None, frame_of(served.corpus))
    assert (
        served.exported.parity < 1e-12
        and predicted["tokens"].tolist() == evaluated["tokens"].tolist()
    )
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(predicted[name], evaluated[name], rtol=0, atol=1e-9)
    monkeypatch.setattr(sys.modules[served.model.text.__name__ + ".scoring"], "VALUES", 1)
    pd.testing.assert_frame_equal(
        served.model.predict(None, frame_of(served.corpus)), predicted, rtol=0, atol=1e-12
    )


@pytest.mark.req("R1")
@pytest.mark.parametrize("tokenizer", ["bytes", "smiles"])
def test_each_tokenizer_scores_raw_text_as_evaluation_scores_its_sequences(
    tmp_path: Path, tokenizer: str
) -> None:
    """Documents of many windows, empty ones, and tokens that train does not know."""
    rng = np.random.default_rng(0)
    texts = (
        ["".join(rng.choice(WORDS, rng.integers(1, 25))) + f"%{i:02d}" for i in range(58)]
        if tokenizer == "smiles"
        else [*made_up(58), "", "€"]
    )
    corpus = make_corpus(
        tmp_path, texts, {"context": CONTEXT, "stride": STRIDE, "tokenizer": tokenizer}
    )
    network = reference_network(corpus.run, random_weights(corpus, tmp_path / "w.pt"))
    found = scoring.score(
        corpus.texts("test"), corpus.run.statistics.tokens.model_dump(), logits_of(network)
    )
    expected = score_documents(network, corpus.run.arrays.test)
    np.testing.assert_array_equal(found[:, 0], expected.targets[:, 0])
    np.testing.assert_allclose(found[:, 1:], expected.predictions, rtol=0, atol=1e-9)


@pytest.mark.req("R1")
def test_rows_keep_their_index_and_do_not_depend_on_their_company(served: Served) -> None:
    frame = frame_of(served.corpus)
    whole = served.model.predict(None, frame)
    assert whole.index.tolist() == frame.index.tolist() and whole.columns.tolist() == [
        "tokens",
        "loss",
        "accuracy",
    ]
    single = pd.concat([served.model.predict(None, frame.iloc[[i]]) for i in range(len(frame))])
    pd.testing.assert_frame_equal(single, whole, rtol=0, atol=1e-12)
    assert len(served.model.predict(None, frame.iloc[:0])) == 0


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("frame", "params", "words"),
    [
        (pd.DataFrame({"body": ["a"]}), {}, "missing column: 'text'"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), {}, "column given twice: 'text'"),
        (pd.DataFrame({"text": ["a", None, 3.0]}), {}, r"something else in 2 rows \(index 1, 2\)"),
        (pd.DataFrame({"text": ["\ud800"]}, dtype=object), {}, "something else in 1 rows"),
        (pd.DataFrame({"text": ["a"]}), {"warmth": 1}, "unknown parameter 'warmth'"),
        (
            pd.DataFrame({"text": ["a"]}),
            {"temperature": -1.0},
            "temperature: expected a number of at least 0, got -1.0",
        ),
        (pd.DataFrame({"text": ["a"]}), {"top_k": 1.5}, "top_k: expected a whole number"),
        (
            pd.DataFrame({"text": ["a"]}),
            {"max_new_tokens": True},
            "max_new_tokens: expected a whole number",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    served: Served, frame: pd.DataFrame, params: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        served.model.predict(None, frame, params)


def test_the_signature_names_the_column_and_the_parameters(served: Served) -> None:
    found, example = signature(served.model.spec), input_example(served.model.spec)
    assert found.inputs.input_names() == input_columns(served.model.spec) == [
        "text"
    ] and found.outputs.input_names() == ["tokens", "loss", "accuracy"]
    assert {p.name: p.default for p in found.params.params} == {
        "max_new_tokens": 0,
        "temperature": 1.0,
        "top_k": 0,
        "seed": 0,
    }
    assert served.model.predict(None, example).notna().all(axis=None)
    assert not set(example["text"]) & set(
        served.corpus.texts("train") + served.corpus.texts("test")
    )


@pytest.mark.req("S1")
def test_changed_code_is_refused_before_it_runs(served: Served, tmp_path: Path) -> None:
    changed = bytearray(Path(served.exported.expressions.path).read_bytes())
    changed[len(changed) // 2] ^= 1
    (tmp_path / "expressions.zip").write_bytes(changed)
    with pytest.raises(ValueError, match="was changed after its export"):
        serving.load_code(tmp_path / "expressions.zip", served.model.spec)


def test_a_program_that_differs_from_the_network_is_not_exported(
    served: Served, tmp_path: Path
) -> None:
    """It differs where the network reads its neighbours, or keeps a state."""
    corpus, network = served.corpus, reference_network(served.corpus.run, served.weights)
    other = reference_network(corpus.run, random_weights(corpus, tmp_path / "w.pt", seed=1))
    with pytest.raises(
        IntegrityError, match=r"differs from the network by .* nats per token in document"
    ):
        parity(corpus.run, network, TextProgram(other), served.model.spec, corpus.split.val)


# ------------------------------------------------------------------------------------------
# sampling


def plain_loop(
    network: torch.nn.Module, text: dict[str, Any], prompt: str, row: int, how: Sampling
) -> list[int]:
    """One text, one token at a time, by torch and a search along the cumulated shares."""
    tokens = [1, *(SPECIAL + text["values"].index(c) for c in prompt)]
    draws, made = completion._stream(how.seed, row).random(how.max_new_tokens), []
    for draw in draws:
        seen = torch.tensor([tokens[-text["context"] :]])
        with torch.inference_mode():
            logits = network({"tokens": seen, "segments": torch.ones_like(seen)})[0, -1].double()
        logits = logits.clone()
        logits[[0, 1, 3]] = -torch.inf
        if how.temperature == 0:
            chosen = int(logits.argmax())
        else:
            if how.top_k:
                logits[logits < logits.topk(how.top_k).values[-1]] = -torch.inf
            shares = torch.softmax(logits / how.temperature, 0)
            chosen, total = -1, 0.0
            while total <= draw:
                chosen += 1
                total += float(shares[chosen])
        made.append(chosen)
        tokens.append(chosen)
        if chosen == END:
            break
    return made


@pytest.mark.req("R1")
@pytest.mark.parametrize("how", [Sampling(40, seed=3), Sampling(40, 0.7, 4, 8), Sampling(40, 0.0)])
def test_completions_equal_a_plain_loop_and_do_not_depend_on_their_company(
    served: Served, how: Sampling
) -> None:
    """Longer than the context, from prompts of different lengths."""
    network, text = reference_network(served.corpus.run, served.weights), served.model.spec["text"]
    prompts = ["", "the cat", "a mat and ran off again on a mat"]
    found = served.model.predict(None, pd.DataFrame({"text": prompts}), how._asdict())[
        "completion"
    ].tolist()
    for row, prompt in enumerate(prompts):
        assert found[row] == served.model.text.decode(
            plain_loop(network, text, prompt, row, how), text
        )
    again = served.model.predict(None, pd.DataFrame({"text": prompts[:2]}), how._asdict())[
        "completion"
    ].tolist()
    assert again == found[:2]
    assert logits_of(network)(np.array([[1, 5]])).shape == (1, 2, SPECIAL + len(text["values"]))


def test_another_seed_makes_other_texts_and_the_same_one_the_same(served: Served) -> None:
    logits, text = serving.logits_of(served.model.program), served.model.spec["text"]
    made = [
        sampled(text, logits, "the ", 4, Sampling(30, seed=seed), None).texts for seed in (0, 0, 1)
    ]
    assert (
        made[0] == made[1] != made[2]
        and len(set(made[0])) > 1
        and all(t.startswith("the ") for t in made[0])
    )


def test_shares_are_drawn_as_often_as_they_are_likely() -> None:
    logits = np.log(np.array([[9.0, 9, 0.2, 9, 0.5, 0.3]])).repeat(40_000, 0)
    draws = np.random.default_rng(0).random(40_000)
    for temperature, shares in (
        (1.0, np.array([0.2, 0.5, 0.3])),
        (0.5, np.array([0.04, 0.25, 0.09]) / 0.38),
    ):
        found = (
            np.bincount(
                completion.choose(logits, draws, Sampling(temperature=temperature)), minlength=6
            )
            / 40_000
        )
        assert not found[[0, 1, 3]].any()
        np.testing.assert_allclose(found[[2, 4, 5]], shares, atol=0.01)
    assert set(completion.choose(logits, draws, Sampling(top_k=2))) == {4, 5} and set(
        completion.choose(logits, draws, Sampling(top_k=1))
    ) == {4}


def test_no_call_holds_more_logits_than_it_may(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def logits(tokens: np.ndarray) -> np.ndarray:
        sizes.append(tokens.size * 40)
        return np.zeros((*tokens.shape, 40))

    text = {**served.model.spec["text"], "values": served.model.spec["text"]["values"][:36]}
    monkeypatch.setattr(scoring, "VALUES", 20_000)
    scoring.score(made_up(200, longest=40), text, logits)
    assert len(sizes) > 3 and max(sizes) <= 20_000


# ---------------------------------------------------------------------------------------- molecules


def test_molecules_are_counted_where_rdkit_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rdkit")
    made = ["CCO", "OCC", "c1ccccc1Cl", "C(", "", "xyz", "N"]
    figures, note = chemistry.molecule_figures(made, lambda: ["ClC1=CC=CC=C1", "CCCC"])
    assert figures == {"valid": 4 / 7, "unique": 3 / 4, "novel": 2 / 3}
    assert (
        note
        == "Of 7 made-up SMILES RDKit reads 4; of these 3 are different molecules, 2 of them not in"
        " train."
    )
    assert chemistry.molecule_figures(made, None)[0] == {"valid": 4 / 7, "unique": 3 / 4}
    assert chemistry.molecule_figures(["("], lambda: ["C"])[0] == {"valid": 0.0}


def test_without_rdkit_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    texts = ["".join(np.random.default_rng(i).choice(WORDS, 4)) + f"%{i:02d}" for i in range(60)]
    corpus = make_corpus(tmp_path, texts, {"tokenizer": "smiles", "samples": 2, "sample_tokens": 4})
    network = build_model(corpus.declaration, corpus.run.statistics).eval()
    found = make_samples(
        network, corpus.run.statistics.tokens, corpus.declaration.tokens, 0, corpus.run.arrays.train
    )
    assert (
        found.molecules == {}
        and "pip install 'bulkhead[chem]'" in found.note
        and len(found.texts) == 2
    )


# --------------------------------------------------------------------------------------- consumers


def registered(served: Served, uri: str) -> None:
    from tests.training.cases import evidence_of
    from training.registry.registry import register
    from training.tracking.mlflow import start_run

    keys = trained_keys([served.corpus.split.train, served.corpus.split.val])
    evidence = evidence_of(served.corpus, served.exported)
    take_champion(
        register(
            served.exported,
            served.corpus.run,
            evidence,
            start_run(served.corpus.declaration, uri=uri),
            trained_on=keys,
            split_manifest={},
        ),
        uri,
    )


CONSUMER = """
import importlib.abc, sys, warnings
warnings.simplefilter("ignore")
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"training", "schemas", "tasks", "flows", "tests", "bulkhead", "duckdb", "prefect", "pandera"}:
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
import mlflow, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/built@champion")
rows = pd.read_parquet("rows.parquet")
model.predict(rows).to_parquet("losses.parquet")
model.predict(rows, params={"max_new_tokens": 12, "temperature": 0.9, "top_k": 5, "seed": 4}).to_parquet("texts.parquet")
"""  # noqa: E501


@pytest.mark.long
@pytest.mark.req("R1")
@pytest.mark.req("R4")
def test_a_consumer_with_nothing_of_ours_gets_losses_and_completions(
    served: Served, uri: str, tmp_path: Path
) -> None:
    """Through the registry and MLflow's own loader, inference parameters too; and by `predict` and
    `sample` of our own.
    """
    registered(served, uri)
    rows = frame_of(served.corpus)
    rows.to_parquet(tmp_path / "rows.parquet")
    done = subprocess.run(
        [sys.executable, "-I", "-c", CONSUMER, uri],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = served.model.predict(None, rows)
    np.testing.assert_array_equal(
        pd.read_parquet(tmp_path / "losses.parquet")["loss"], expected["loss"]
    )
    how = {"max_new_tokens": 12, "temperature": 0.9, "top_k": 5, "seed": 4}
    assert (
        pd.read_parquet(tmp_path / "texts.parquet")["completion"].tolist()
        == served.model.predict(None, rows, how)["completion"].tolist()
    )
    assert predict_file(
        "models:/built@champion", tmp_path / "rows.parquet", tmp_path / "out.parquet", uri
    ).rows == len(rows)
    out = pd.read_parquet(tmp_path / "out.parquet")
    np.testing.assert_array_equal(out["loss"], expected["loss"])
    with pytest.raises(DataError, match="has columns named 'tokens', 'loss', 'accuracy' already"):
        predict_file(
            "models:/built@champion", tmp_path / "out.parquet", tmp_path / "again.parquet", uri
        )
    _samples(served, uri)


def _samples(served: Served, uri: str) -> None:
    from tasks.sample import sample

    made = sample(
        "models:/built@champion",
        "the ",
        2,
        uri,
        max_new_tokens=10,
        temperature=1.0,
        top_k=0,
        seed=2,
    )
    assert (
        made.texts
        == sampled(
            served.model.spec["text"],
            serving.logits_of(served.model.program),
            "the ",
            2,
            Sampling(10, seed=2),
            None,
        ).texts
    )
    with pytest.raises(ConfigError, match="temperature"):
        sample("models:/built@champion", "", 1, uri, temperature=-1.0)
    with pytest.raises(RegistryError, match="is not in the registry"):
        sample("models:/nobody@champion", "", 1, uri)


@pytest.mark.req("R2")
def test_champion_and_challenger_are_compared_on_the_same_documents(
    served: Served, tmp_path: Path
) -> None:
    corpus, spec = served.corpus, served.model.spec
    logits = logits_of(
        reference_network(corpus.run, random_weights(corpus, tmp_path / "other.pt", seed=7))
    )

    def champion(**text: Any) -> LoadedModel:
        scored = SimpleNamespace(
            predict_counting=lambda frame, params, unfamiliar: served.model.text.predict(
                spec["text"], logits, frame, params
            )
        )
        return LoadedModel(
            "built",
            "1",
            "models:/built/1",
            spec | {"text": spec["text"] | text},
            None,
            np.empty(0, np.uint64),
            scored,
        )

    evaluation = evaluate(corpus.run, served.weights, "test", tmp_path / "out")
    fields = {
        "declaration": corpus.declaration,
        "run": corpus.run,
        "test": corpus.split.test,
        "evaluation": evaluation,
        "program_sha256": "0",
    }
    found = challenge(**fields, champion=champion())
    theirs = served.model.text.predict(spec["text"], logits, frame_of(corpus))
    assert found.rows == len(theirs) and found.challenger == pytest.approx(
        evaluation.metrics["loss"].value, abs=1e-9
    )
    assert found.champion == pytest.approx(
        theirs["loss"] @ theirs["tokens"] / theirs["tokens"].sum(), abs=1e-9
    )
    assert found.difference.value == pytest.approx(found.champion - found.challenger, abs=1e-9), (
        "turned so that more is better"
    )
    verdicts = {
        c.name: c.verdict for c in judge(corpus.declaration, evaluation, (), found).conditions
    }
    noise = noise_of(found.difference, corpus.declaration.evaluate.confidence, found.looks)
    assert noise is not None
    is_worse = found.difference.value < -2 * noise
    assert verdicts["champion"] == ("fail" if is_worse else "pass")
    assert (
        "register.metric: bits_per_character"
        in challenge(**fields, champion=champion(tokenizer="bytes")).problem
    )
    by_character = corpus.declaration.model_copy(
        update={
            "register_": corpus.declaration.register_.model_copy(
                update={"metric": "bits_per_character"}
            )
        }
    )
    assert (
        challenge(
            **fields | {"declaration": by_character}, champion=champion(tokenizer="bytes")
        ).metric
        == "bits_per_character"
    )
