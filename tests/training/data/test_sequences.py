"""Sequences: every target token once, nothing across documents or sides, a vocabulary of train
alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import TokensConfig
from schemas.digest import file_ref
from schemas.errors import DataError, IntegrityError, LeakageError, SchemaError
from schemas.records import SplitArrays, TableRef, TableSpec, TokenStats
from tests.training.corpora import made_up, make_corpus
from tests.training.data.chain import declared, split_of, write_table
from training.data.arrays import sequences
from training.data.arrays.packing import pack
from training.data.arrays.sequences import NO_TARGET, lay_out, write_sequences
from training.data.arrays.shards import _side_ref, load_arrays, materialise
from training.data.fit.normalize import fit
from training.data.fit.vocabulary import fit_vocabulary
from training.data.leakage import check_leakage, require_passed
from training.data.serving_text import decode, encode
from training.data.serving_text.tokenizers import BEGIN, END
from training.engine.token_scoring import places
from training.evaluation.text_samples import documents_of

SIDES = ("train", "val", "test")


def asked_by_document(side: SplitArrays) -> dict[int, list[tuple[int, int, list[int]]]]:
    """For each document its windows: start, first asked place, and the tokens that are asked for.
    Python, one position at a time.
    """
    arrays, where = load_arrays(side), places(side)
    found: dict[int, list[tuple[int, int, list[int]]]] = {}
    window = -1
    for row in range(side.rows):
        tokens, segments, label = (
            arrays[name][row].tolist() for name in ("tokens", "segments", "label")
        )
        for place in range(len(tokens)):
            if segments[place] == 0:
                assert (
                    tokens[place] == 0 and label[place] == NO_TARGET and not any(segments[place:])
                ), "padding stands behind, and asks for nothing"
                continue
            if place == 0 or segments[place] != segments[place - 1]:
                window += 1
                begun = place
                assert segments[place] == 1 + (segments[place - 1] if place else 0)
                document, start = int(where.document[window]), int(where.start[window])
                assert (tokens[place] == BEGIN) == (start == 0)
                found.setdefault(document, []).append((start, -1, []))
            elif label[place - 1] != NO_TARGET:
                assert tokens[place] == label[place - 1], "what was asked for is seen next"
            if label[place] != NO_TARGET:
                first, begin, sequence = found[document][-1]
                found[document][-1] = (
                    first,
                    place - begun if begin < 0 else begin,
                    [*sequence, label[place]],
                )
    assert window + 1 == len(where.document)
    return found


def assert_each_target_once(side: SplitArrays, texts: list[str], tokens: TokenStats) -> None:
    found, facts = asked_by_document(side), pq.read_table(side.documents.path).to_pylist()
    assert set(found) == set(range(len(texts))) and len(facts) == len(texts)
    for number, text in enumerate(texts):
        wanted = [*encode([text], tokens.model_dump())[0].tolist(), END]
        windows = sorted(found[number])
        assert [token for _, _, part in windows for token in part] == wanted
        assert [start + begin for start, begin, _ in windows] == np.cumsum(
            [0, *(len(t) for _, _, t in windows[:-1])]
        ).tolist()
        assert facts[number]["tokens"] == len(wanted) and facts[number]["characters"] == len(text)
        assert facts[number]["unknown"] == wanted.count(3)


def written(
    folder: Path, texts: list[str], name: str, tokens: TokensConfig
) -> tuple[SplitArrays, TokenStats]:
    """One side of documents as arrays; the vocabulary is that of every second of them."""
    folder.mkdir(exist_ok=True)
    columns = {
        "__id": [f"d{i}" for i in range(len(texts))],
        "__group": pa.nulls(len(texts), pa.string()),
        "__time": pa.nulls(len(texts), pa.float64()),
    }
    for file, rows in (("known.parquet", texts[::2]), ("rows.parquet", texts)):
        pq.write_table(
            pa.table(
                {
                    **{n: c[: len(rows)] for n, c in columns.items()},
                    "text": pa.array(rows, pa.string()),
                }
            ),
            folder / file,
        )
    stats = fit_vocabulary(folder / "known.parquet", "text", tokens)
    table = TableRef(file=file_ref(folder / "rows.parquet"), rows=len(texts))
    spec = TableSpec(
        id=(),
        group=(),
        time=None,
        label="text",
        label_type="text",
        weight=None,
        split=None,
        numeric=(),
        categorical=(),
        tensor={},
        text="text",
    )
    (folder / name).mkdir()
    write_sequences(folder / name, table, name, spec, stats)
    return _side_ref(folder / name, len(texts)), stats


LETTERS = st.text(st.sampled_from("abcdeéß \n"), max_size=40)


@pytest.mark.req("D5")
@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(LETTERS, min_size=1, max_size=30),
    context=st.integers(2, 24),
    stride=st.integers(1, 24),
    packing=st.sampled_from(["documents", "windows"]),
    name=st.sampled_from(["train", "val"]),
    tokenizer=st.sampled_from(["character", "bytes", "smiles"]),
)
def test_every_target_stands_once_and_nothing_crosses_a_document(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    context: int,
    stride: int,
    packing: str,
    name: str,
    tokenizer: str,
) -> None:
    """Through the written files, by a reader of its own."""
    tokens = TokensConfig(
        context=context, packing=packing, stride=min(stride, context), tokenizer=tokenizer
    )
    side, stats = written(tmp_path_factory.mktemp("c"), ["a", *texts], name, tokens)
    assert_each_target_once(side, ["a", *texts], stats)


@pytest.mark.req("D5")
def test_no_document_is_on_two_sides_and_each_side_has_its_own_targets(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, tokens={"context": 16})
    texts = [text for name in SIDES for text in corpus.texts(name)]
    assert sorted(texts) == sorted(made_up(60))
    for name in SIDES:
        assert_each_target_once(
            corpus.run.arrays.side(name), corpus.texts(name), corpus.run.statistics.tokens
        )


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=80),
    st.integers(1, 50).map(lambda extra: 40 + extra),
)
def test_sequences_hold_their_windows_and_are_filled_well(lengths: list[int], context: int) -> None:
    sizes = np.array(lengths)
    row = pack(sizes, context)
    filled = np.bincount(row, weights=sizes)
    assert (filled > 0).all() and filled.max() <= context and len(filled) == row.max() + 1
    assert len(filled) <= 1 + 2 * -(-sizes.sum() // context), (
        "two sequences that are half empty would have been one"
    )


def test_a_packed_corpus_wastes_little() -> None:
    rng = np.random.default_rng(0)
    sizes = np.minimum(256, rng.lognormal(4.5, 1.0, 5000).astype(int) + 1)
    row = pack(sizes, 256)
    assert sizes.sum() / ((row.max() + 1) * 256) > 0.99
    held = np.bincount(row)
    assert abs(np.corrcoef(np.arange(len(held)), held)[0, 1]) < 0.05, (
        "the order of rows says nothing of how many documents they hold"
    )


def test_the_arrays_do_not_depend_on_how_many_rows_are_filled_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_corpus(tmp_path / "a")
    monkeypatch.setattr(sequences, "CHUNK_POSITIONS", 70)
    monkeypatch.setattr(sequences, "BATCH_ROWS", 7)
    assert make_corpus(tmp_path / "b").run.arrays.sha256 == whole.run.arrays.sha256


def test_documents_can_be_read_back(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, tokens={"context": 8})
    assert list(
        documents_of(corpus.run.arrays.train, corpus.run.statistics.tokens)
    ) == corpus.texts("train")


def test_a_weight_stands_beside_each_window(tmp_path: Path) -> None:
    weights = np.linspace(0.5, 2, 60).tolist()
    corpus = make_corpus(
        tmp_path, tokens={"packing": "windows"}, columns={"w": "weight"}, more={"w": weights}
    )
    for name in SIDES:
        side = corpus.run.arrays.side(name)
        facts = pq.read_table(side.documents.path).column("weight").to_numpy()
        np.testing.assert_array_equal(
            load_arrays(side)["weight"], facts[places(side).document].astype(np.float32)
        )


# ------------------------------------------------------------------------------------- train only


@pytest.mark.req("D7")
@pytest.mark.parametrize("tokenizer", ["character", "smiles", "bytes"])
def test_the_vocabulary_is_that_of_train_to_the_byte(tmp_path: Path, tokenizer: str) -> None:
    """Other validation and test documents, with letters of their own, change nothing of what was
    fitted, nor of the train arrays.
    """
    texts = made_up(30)
    sides = {"split": ["train"] * 20 + ["val"] * 5 + ["test"] * 5}
    made = [
        make_corpus(
            tmp_path / name,
            [*texts[:20], *held_out],
            {"tokenizer": tokenizer},
            {"split": "split"},
            sides,
            split={"kind": "predefined"},
        )
        for name, held_out in (
            ("a", texts[20:]),
            ("b", [f"¿¡ {text} 日本 {text}" for text in texts[20:]]),
        )
    ]
    first, second = (corpus.run for corpus in made)
    assert first.arrays.statistics.sha256 == second.arrays.statistics.sha256
    assert {n: r.sha256 for n, r in first.arrays.train.arrays.items()} == {
        n: r.sha256 for n, r in second.arrays.train.arrays.items()
    }
    unknown = sum(pq.read_table(second.arrays.val.documents.path).column("unknown").to_pylist())
    assert unknown == {"bytes": 0}.get(tokenizer, 5 * 4)


@pytest.mark.req("D7")
def test_tokens_are_numbered_by_count_and_rare_ones_are_unknown(tmp_path: Path) -> None:
    texts = ["bbba", "bbaa", "bc", "b", *["b"] * 3, *["ab"] * 3]
    sides = {"split": ["train"] * 4 + ["val"] * 3 + ["test"] * 3}
    tokens = make_corpus(
        tmp_path, texts, {"min_count": 2}, {"split": "split"}, sides, split={"kind": "predefined"}
    ).run.statistics.tokens
    assert (tokens.values, tokens.counts, tokens.unknown, tokens.size) == (("b", "a"), (7, 3), 1, 6)
    assert (tokens.documents, tokens.characters, tokens.longest) == (4, 11, 4)
    assert decode([1, 4, 5, 3, 2], tokens.model_dump()) == "ba\ufffd"


@pytest.mark.req("D7")
def test_nothing_but_a_train_table_is_fitted(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path)
    with pytest.raises(LeakageError, match="train only"):
        fit(corpus.split.val, corpus.validated.spec, corpus.declaration)
    with pytest.raises(IntegrityError, match="another train table"):
        other = corpus.run.statistics.model_copy(update={"train_sha256": "0" * 64})
        materialise(corpus.split, corpus.validated, other, corpus.declaration, tmp_path / "again")


# ----------------------------------------------------------------------------------------- refusals


def leaks(
    tmp_path: Path,
    texts: list[str],
    columns: dict[str, Any],
    more: dict[str, list[Any]],
    **sections: Any,
) -> None:
    declaration = declared(
        write_table(tmp_path / "x.parquet", {"text": texts, **more}),
        {"text": "text", **columns},
        "causal_lm",
        **sections,
    )
    validated, split = split_of(declaration, tmp_path / "sides")
    require_passed(check_leakage(split, validated, declaration))


@pytest.mark.req("D6")
def test_a_document_that_stands_twice_stops_the_run_unless_its_copies_stay_together(
    tmp_path: Path,
) -> None:
    texts = made_up(40) * 2
    ids = {"doc": [f"d{i}" for i in range(80)]}
    with pytest.raises(LeakageError, match="equal a train row in every feature"):
        leaks(tmp_path / "id", texts, {"doc": "id"}, ids, split={"kind": "random"})
    leaks(tmp_path / "content", texts, {"doc": "ignore"}, ids, split={"kind": "random"})
    leaks(
        tmp_path / "group",
        texts,
        {"doc": "id", "who": "group"},
        ids | {"who": [f"g{i % 40}" for i in range(80)]},
        split={"kind": "group"},
    )
    reason = {"check": "duplicates", "reason": "the copies are quotations, and quoting is the task"}
    leaks(
        tmp_path / "allowed",
        texts,
        {"doc": "id"},
        ids,
        split={"kind": "random"},
        checks={"allow": [reason]},
    )


@pytest.mark.req("S2")
def test_bad_texts_are_refused_by_name(tmp_path: Path) -> None:
    texts: list[str | None] = [*made_up(40)]
    with pytest.raises(SchemaError, match="column 'text': expected a text in each row, but 1 row"):
        make_corpus(tmp_path / "null", [*texts, None])
    with pytest.raises(DataError, match="column 'text': expected SMILES without NUL"):
        make_corpus(tmp_path / "nul", [f"{text}\0" for text in texts], {"tokenizer": "smiles"})
    with pytest.raises(DataError, match="expected text in train, found no token 99999 times"):
        make_corpus(tmp_path / "rare", texts, {"min_count": 99_999})
    with pytest.raises(SchemaError, match="kind text needs text, got whole numbers"):
        make_corpus(tmp_path / "number", texts=[*range(40)])  # type: ignore[list-item]


@pytest.mark.req("D5")
def test_what_was_written_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults of the writer: a target that is asked for twice, and a token outside of the
    vocabulary.
    """
    real = sequences._fill

    def damaged(*args: Any) -> Any:
        tokens, segments, label = real(*args)
        label[0, 0] = NO_TARGET
        return tokens, segments, label

    monkeypatch.setattr(sequences, "_fill", damaged)
    with pytest.raises(IntegrityError, match="target tokens, found"):
        make_corpus(tmp_path / "a")
    monkeypatch.setattr(sequences, "_fill", lambda *args: (real(*args)[0] + 1000, *real(*args)[1:]))
    with pytest.raises(IntegrityError, match="tokens outside 0 to"):
        make_corpus(tmp_path / "b")


def test_layouts_name_each_window_of_each_document() -> None:
    stats = TokenStats(
        name="t", tokenizer="bytes", values=(), counts=(), context=4, stride=2, packing="windows"
    )
    layout = lay_out(np.array([3, 9, 1]), stats, stats.stride)
    assert (
        layout.row.tolist() == list(range(6)) and not layout.offset.any() and not layout.slot.any()
    )
    assert layout.windows.document.tolist() == [0, 1, 1, 1, 1, 2]
