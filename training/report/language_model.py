"""Sections of a language model's report: losses by document, generated texts, vocabulary.

D documents.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from schemas.records import EvaluationReport, SampleReport, Statistics, TokenStats
from training.formatting import capital, count, number, plain, plural, share
from training.report.blocks import (
    Block,
    Callout,
    Code,
    Facts,
    Gallery,
    Heading,
    Table,
    Words,
    table,
)
from training.report.svg import ALARM, MODEL, Picture, canvas_for, count_axis

MAX_SAMPLES = 8
MAX_SAMPLE = 2000  # most characters to show of one
SHOWN_DOCUMENTS = 8
SHOWN_TOKENS = 40
SPACES = {" ": "space", "\n": "line break", "\t": "tab"}

Floats = NDArray[np.float64]


def document_blocks(test: EvaluationReport) -> list[Block]:
    """Show losses of test documents, the hardest and easiest ones, and generated texts."""
    losses = pq.read_table(test.predictions.path)
    blocks: list[Block] = [Gallery((_histogram(losses), _by_length(losses)))]
    blocks += [
        Heading("Hardest and easiest documents"),
        Words("By loss per token, of documents with 20 tokens and more."),
        _extremes(losses),
    ]
    return blocks + (_sample_blocks(test.samples) if test.samples else [])


def _values(losses: pa.Table, name: str) -> Floats:
    return np.asarray(losses.column(name).to_numpy(), dtype=np.float64)


def _histogram(losses: pa.Table) -> Picture:
    """Draw the loss per token of each document; the end bins include the outermost 0.5 % each."""
    values = _values(losses, "loss")
    low, high = (float(v) for v in np.quantile(values, (0.005, 0.995)))
    edges = np.linspace(low, high if high > low else low + 1, 51)
    mean = float(np.average(values, weights=_values(losses, "tokens")))
    with canvas_for("losses") as canvas:
        axis = canvas.axes[0]
        axis.hist(values.clip(edges[0], edges[-1]), bins=edges, color=MODEL, alpha=0.75)
        axis.axvline(mean, color=ALARM, lw=1.2, ls="--", label=f"over all tokens {number(mean)}")
        axis.set(xlabel="loss per token (nats)", ylabel="documents")
        canvas.legend(axis)
        count_axis(axis.yaxis)
        middle = [number(float(v)) for v in np.quantile(values, (0.05, 0.5, 0.95))]
        return canvas.done(
            f"Histogram of loss per token by document: 5 % quantile {middle[0]}, median"
            f" {middle[1]}, 95 % quantile {middle[2]}.",
            "Loss per token of the test documents; the outermost 0.5 % on each side share the end"
            " bins.",
        )


def _by_length(losses: pa.Table, bins: int = 20) -> Picture:
    """Show the loss over all tokens of documents of similar length, shortest to longest."""
    tokens, total = _values(losses, "tokens"), _values(losses, "loss") * _values(losses, "tokens")
    parts = [
        part
        for part in np.array_split(np.argsort(tokens, kind="stable"), min(bins, len(tokens)))
        if len(part)
    ]
    length, mean = (
        np.array([tokens[p].mean() for p in parts]),
        np.array([total[p].sum() / tokens[p].sum() for p in parts]),
    )
    with canvas_for("length") as canvas:
        axis = canvas.axes[0]
        axis.plot(length, mean, color=MODEL, marker="o", ms=4)
        axis.set(xlabel="tokens of the document", ylabel="loss per token (nats)", xscale="log")
        return canvas.done(
            f"Loss per token by length: {number(float(mean[0]))} for the shortest documents,"
            f" {number(float(mean[-1]))} for the longest.",
            f"Loss over all tokens of the test documents in {plural(len(parts), 'class')} of"
            " length with equally many documents each.",
        )


def _extremes(losses: pa.Table) -> Table:
    """List the documents with the largest and the smallest loss per token; ids only, no text."""
    long_enough = np.flatnonzero(
        _values(losses, "tokens") >= min(20.0, float(_values(losses, "tokens").max()))
    )
    order = long_enough[np.argsort(-_values(losses, "loss")[long_enough], kind="stable")]
    chosen = list(
        dict.fromkeys([*order[:SHOWN_DOCUMENTS].tolist(), *order[-SHOWN_DOCUMENTS:].tolist()])
    )
    shown = losses.take(pa.array(chosen)).to_pylist()
    rows = [
        [
            plain(r["__id"]),
            count(r["tokens"]),
            count(r["characters"]),
            number(r["loss"]),
            share(r["accuracy"]),
        ]
        for r in shown
    ]
    return table(
        ["Document", "Tokens", "Characters", "Loss per token", "Tokens guessed"],
        rows,
        limit=2 * SHOWN_DOCUMENTS,
        what="documents",
    )


def _sample_blocks(samples: SampleReport) -> list[Block]:
    """Show generated texts, escaped by the template; for SMILES also the fractions of molecules."""
    blocks: list[Block] = [
        Heading("Texts that the model made up"),
        Words(
            f"Begun from nothing at temperature 1 with seed {samples.seed}; the first"
            f" {min(MAX_SAMPLES, len(samples.texts))} of {count(len(samples.texts))}, not chosen by"
            " anybody."
        ),
    ]
    if samples.molecules:
        blocks += [
            Facts(
                tuple((capital(name), share(value)) for name, value in samples.molecules.items())
            ),
            Words(plain(samples.note, 1000)),
        ]
    elif samples.note:
        blocks.append(Callout("info", "Not looked at", plain(samples.note, 1000)))
    return blocks + [Code(_lines(text)) for text in samples.texts[:MAX_SAMPLES]]


def _lines(text: str) -> str:
    """Return a text with its line breaks, other control characters visible, cut at a length."""
    cut = text[:MAX_SAMPLE] + ("…" if len(text) > MAX_SAMPLE else "")
    return (
        "\n".join(plain(line, MAX_SAMPLE + 1) for line in cut.split("\n"))
        or "(nothing: it ended at once)"
    )


def vocabulary_blocks(fitted: Statistics, tokens: TokenStats) -> list[Block]:
    """Show the vocabulary fitted on train, and how documents become sequences."""
    total = max(1, sum(tokens.counts) + tokens.unknown)
    facts = (
        ("documents", count(tokens.documents)),
        ("characters", count(tokens.characters)),
        ("tokens", count(total)),
        ("vocabulary", f"{count(len(tokens.values))} and 4 special tokens"),
        ("too rare to be in it", f"{count(tokens.unknown)} ({share(tokens.unknown / total)})"),
        ("longest document", plural(tokens.longest, "token")),
        ("context", plural(tokens.context, "token")),
    )
    rows = [
        [token_name(value, tokens.tokenizer), count(n), share(n / total)]
        for value, n in zip(tokens.values, tokens.counts, strict=True)
        if n
    ]
    rows.sort(key=lambda row: -int(row[1].replace(",", "")))
    return [
        Words(
            f"Fitted on the {plural(fitted.rows, 'train document')} alone; no validation or test"
            " document was read for it."
        ),
        Facts(facts),
        Heading("Vocabulary"),
        table(
            ["Token", "In train", "Share"],
            rows,
            limit=SHOWN_TOKENS,
            what="tokens, most frequent first",
        ),
    ]


def token_name(value: str, tokenizer: str) -> str:
    """Return a token in readable form.

    >>> token_name(" ", "character"), token_name("a", "bytes"), token_name("Cl", "smiles")
    ('space', '0x61 a', 'Cl')
    """
    if tokenizer != "bytes":
        return SPACES.get(value, plain(value, 30))
    return f"0x{ord(value):02x}" + (f" {value}" if value.isascii() and value.isprintable() else "")
