"""Tokens: lossless, counted once, with nothing known that train does not have."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.serving_text import decode, encode, units
from training.data.serving_text.tokenizers import END, SMILES, UNKNOWN
from training.data.serving_text.windows import cut

TOKENIZERS = ("character", "smiles", "bytes")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
ATOMS = r"\[[^\]]*\]|Br|Cl|[BCNOPSFIbcnops*]"
SYNTAX = r"[-=#$:/\\.~()]|\d|%\d\d|%\(\d+\)"


def vocabulary(tokenizer: str, texts: list[str]) -> dict[str, object]:
    """Every token of the texts, in order of their first place; all bytes."""
    values = (
        [chr(b) for b in range(256)]
        if tokenizer == "bytes"
        else list(dict.fromkeys(units(texts, tokenizer).names))
    )
    return {"tokenizer": tokenizer, "values": values}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=6))
def test_tokens_put_together_are_the_text(tokenizer: str, texts: list[str]) -> None:
    known = vocabulary(tokenizer, texts)
    tokens, lengths = encode(texts, known)
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    assert len(tokens) == lengths.sum() and (tokens > UNKNOWN).all()
    assert [decode(part, known) for part in parts] == texts
    assert lengths.tolist() == {
        "character": [len(t) for t in texts],
        "bytes": [len(t.encode()) for t in texts],
    }.get(tokenizer, lengths.tolist())


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), others=st.lists(TEXT, max_size=4))
def test_a_document_has_the_same_tokens_in_any_company(
    tokenizer: str, texts: list[str], others: list[str]
) -> None:
    known = vocabulary(tokenizer, texts + others)
    tokens, lengths = encode(pa.array(texts + others, pa.string()), known)
    alone = [encode([text], known)[0].tolist() for text in texts]
    assert [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])][
        : len(texts)
    ] == alone


def test_many_characters_are_numbered_as_few_are() -> None:
    texts = ["ab€😀", *["añ" * 1000] * 60]
    many, few = units(texts, "character"), units(texts[:2], "character")
    assert [many.names[code] for code in many.codes[:2004]] == [
        few.names[code] for code in few.codes
    ] and many.codes.dtype == few.codes.dtype


def test_what_train_lacks_is_unknown() -> None:
    known = {"tokenizer": "character", "values": ["a", "b"]}
    assert encode(["abc", "", "cc"], known)[0].tolist() == [4, 5, UNKNOWN, UNKNOWN, UNKNOWN]
    assert decode([4, UNKNOWN, END], known) == "a\ufffd"
    assert decode(encode(["ä\n"], vocabulary("bytes", []))[0], vocabulary("bytes", [])) == "ä\n"
    assert decode([4 + 0xC3, 4 + 0x28], vocabulary("bytes", [])) == "\ufffd(", (
        "bytes that are no UTF-8"
    )


def test_a_smiles_of_the_grammar_is_made_of_its_atoms_bonds_and_rings(real_data) -> None:
    smiles = pd.read_csv(real_data / "mol_hiv.csv.gz")["smiles"].tolist()
    found = units(smiles, "smiles")
    assert sum(map(len, (found.names[code] for code in found.codes))) == sum(map(len, smiles))
    strange = [name for name in found.names if not re.fullmatch(f"{ATOMS}|{SYNTAX}", name)]
    assert strange == []
    assert SMILES.findall("C[C@@H](Br)%12Cl%(123)c1") == [
        "C",
        "[C@@H]",
        "(",
        "Br",
        ")",
        "%12",
        "Cl",
        "%(123)",
        "c",
        "1",
    ]


def test_a_smiles_with_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="without NUL characters"):
        units(["C\0C"], "smiles")
    with pytest.raises(ValueError, match="got 'words'"):
        units(["C"], "words")


# -------------------------------------------------------------------------------------------
# windows


@given(st.lists(st.integers(1, 70), min_size=1, max_size=8), st.integers(2, 16), st.data())
def test_windows_ask_for_each_target_once_with_the_context_that_is_promised(
    targets: list[int], context: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context))
    found = cut(np.array(targets), context, stride)
    asked = [
        (d, s + p)
        for d, s, n, k in zip(*(part.tolist() for part in found), strict=True)
        for p in range(k, n)
    ]
    assert sorted(asked) == [(d, p) for d, count in enumerate(targets) for p in range(count)]
    assert (found.length <= context).all() and (found.length > found.skip).all()
    assert (np.diff(found.document) >= 0).all()
    later = found.start > 0
    assert (found.skip[later] == context - stride).all() and not found.skip[~later].any()
