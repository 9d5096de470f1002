"""Held-out texts and molecules that train has in another spelling, or with a few words changed.

Texts equal but for case, accents, punctuation and spaces (over all rows); the same molecule by
canonical SMILES if RDKit is installed; long texts that share most of their word triples (MinHash on
a sample, verified on the triples themselves).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.engine.engine import ident, literal, row, rows
from training.data.leakage.chance import tail_above
from training.data.leakage.molecule_copies import canonical_molecules, labelled
from training.data.leakage.near_duplicates import LEAST_ROWS, collision_verdict, near_figures
from training.data.leakage.sampled import Sampled
from training.data.leakage.sides import Sides

LEAST_DISTINCT = 0.5  # least share of distinct values in a text column; fewer are a category
LEAST_LENGTH = 20  # least letters and digits of equal texts that are no accident
LONG_TEXT = 25  # least words of a typical text whose shared triples are compared
TRAIN_TEXTS, HELD_OUT_TEXTS = 12_000, 4_000

# bands of three hashes: texts that share 0.35 of their triples match with probability 0.5, those
# with 0.6 with 0.98
HASHES, BANDS = 48, 16
EXACT = ("canonical SMILES", "pixels")  # keys by which equal ones are one thing
PRIME = (1 << 31) - 1
EVIDENCE_PAIRS = 5
REMEDY = (
    "keep one row of each, or declare what they share as a group so that copies stay on one side"
)


class TextCopies(NamedTuple):
    """Held-out rows whose text train has in another form, and the same inside train.

    Inside train, only rows of different groups count. `certain_rows` counts those that are
    molecules, or whose text is too long for an accident. `conflicts` counts those whose label
    differs.
    """

    column: str
    how: str
    rows: int
    total: int
    null_rows: int
    null_total: int
    certain_rows: int
    conflicts: int
    pairs: tuple[dict[str, Any], ...]

    @property
    def chance(self) -> float:
        """Return the probability of this many rows, given the rate inside train."""
        return tail_above(self.rows, self.total, self.null_rows, self.null_total)


def text_columns(sample: Sampled) -> list[str]:
    """Return categorical columns whose values hardly repeat."""
    return [
        n
        for n, codes in sample.category.items()
        if len(codes) and len(sample.texts[n]) >= max(LEAST_DISTINCT * (codes >= 0).sum(), 20)
    ]


def find_text_copies(sides: Sides, sample: Sampled) -> list[TextCopies]:
    """Find every kind of copy for every text column, and for the documents of a language model."""
    found = []
    texts = [name for name, kind in sides.spec.bags.items() if kind == "text"]
    texts += [sides.spec.text] if sides.spec.text else []
    declared = [name for name, kind in sides.spec.bags.items() if kind == "smiles"]
    for name in (*text_columns(sample), *texts, *declared):
        known = name in declared
        guessed = name in sample.texts and "smiles" in name.lower()
        molecules = canonical_molecules(sides, name, known) if known or guessed else None
        if molecules is not None:
            found.append(matched(sides, name, "canonical SMILES", molecules))
            continue
        found.append(matched(sides, name, "letters and digits", _folded(sides, name)))
        similar = _similar(sides, name)
        found += [similar] if similar is not None else []
    return found


def fold_sql(text: str) -> str:
    """Return SQL of a text without case, accents, punctuation and spaces."""
    return f"regexp_replace(strip_accents(lower({text})), '[^\\p{{L}}\\p{{N}}]+', '', 'g')"


def _folded(sides: Sides, name: str) -> str:
    """Return all rows with the key by which they are compared, as a relation."""
    return (
        f"(select side, __id, __group, {ident(name)} as text, {fold_sql(ident(name))} as key, label"
        f" from {labelled(sides, (name,))})"
    )


def matched(sides: Sides, name: str, how: str, relation: str) -> TextCopies:
    """Match held-out rows whose key train has, under another text where the key is no proof.

    The null is train rows whose key another group of train has under another text.
    """
    connection = sides.connection
    connection.execute(
        f"create or replace temp table text_keys as select * from {relation} where key is not null"
        " and key <> ''"
    )
    by_key = (
        "select key, min(__id) as train_id, min(text) as low, max(text) as high, min(label) as"
        " least, max(label) as most, min(__group) as first, max(__group) as last, count(*) as n"
        " from text_keys where side = 'train' group by key"
    )
    connection.execute(f"create or replace temp table train_keys as {by_key}")
    copies = "text_keys h join train_keys t using (key) where h.side <> 'train'" + (
        " and (t.low <> h.text or t.high <> h.text)" if how not in EXACT else ""
    )
    conflict = "coalesce(h.label <> t.least or h.label <> t.most, false)"
    # one canonical form is one molecule, however small; equal pixels are one picture
    is_certain = "true" if how in EXACT else f"length(key) >= {LEAST_LENGTH}"
    counted = f"count(*), count(*) filter (where {is_certain}), count(*) filter (where {conflict})"
    count, certain, conflicts = row(connection, f"select {counted} from {copies}")
    apart = "first is distinct from last or first is null" if sides.spec.group else "true"
    null = f"n > 1 and ({apart})" + ("" if how in EXACT else " and low <> high")
    null_rows, null_total = row(
        connection,
        f"select coalesce(sum(n) filter (where {null}), 0), coalesce(sum(n), 0) from train_keys",
    )
    total = row(connection, "select count(*) from text_keys where side <> 'train'")[0]
    shown = rows(
        connection,
        f"select h.side, h.__id, h.text, h.label, t.train_id, t.low, t.least from {copies} order by"
        f" {conflict} desc, length(key) desc, md5(h.__id) limit {EVIDENCE_PAIRS}",
    )
    return TextCopies(
        name,
        how,
        int(count),
        int(total),
        int(null_rows),
        int(null_total),
        int(certain),
        int(conflicts),
        tuple(_pair(*s) for s in shown),
    )


def _pair(
    side: str,
    held: str,
    text: str,
    label: float | None,
    train: str,
    train_text: str,
    train_label: float | None,
) -> dict[str, Any]:
    return {
        f"{side}_id": held,
        "train_id": train,
        "held out": text[:120],
        "train": train_text[:120],
        "label held out": label,
        "label train": train_label,
    }


def _similar(sides: Sides, name: str) -> TextCopies | None:
    """Match long texts of the sample that share word triples with a train text; None if short."""
    limit = sides.declaration.checks.text_similarity
    given = labelled(sides, (name,))
    parts = [
        f"(select side, __id, __group, {ident(name)} as text, label from {given} where side ="
        f" {literal(side)} and {ident(name)} is not null order by md5(__id), __id limit {size})"
        for side, size in (
            (s, TRAIN_TEXTS if s == "train" else HELD_OUT_TEXTS // len(sides.held_out))
            for s in sides.relations
        )
    ]
    words = "list_filter(string_split_regex(lower(text), '[^\\p{L}\\p{N}]+'), lambda w: w <> '')"
    numbered = (
        f"select row_number() over (order by side, md5(__id), __id) - 1 as place, *, {words} as"
        f" words from ({' union all '.join(f'select * from {p}' for p in parts)})"
    )
    sides.connection.execute(f"create or replace temp table long_texts as {numbered}")
    if (
        row(sides.connection, "select coalesce(median(len(words)), 0) from long_texts")[0]
        < LONG_TEXT
    ):
        return None
    triples = (
        "select place, unnest(list_distinct([concat_ws(' ', words[i], words[i + 1], words[i + 2])"
        " for i in range(1, len(words) - 1)])) as triple from long_texts where len(words) >= 3"
    )
    hashed = "cast(concat('0x', substr(md5(triple), 1, 12)) as bigint)"
    sides.connection.execute(
        f"create or replace temp table triples as select place, {hashed} as h from ({triples})"
    )
    found = sides.connection.sql("select place, h from triples order by place, h").to_arrow_table()
    place, h = (np.asarray(found[c].to_numpy(), dtype=np.int64) for c in ("place", "h"))
    candidates = _candidates(place, h % PRIME) if len(place) else np.zeros((0, 2), dtype=np.int64)
    return _verified(sides, name, candidates, limit)


def _candidates(place: NDArray[np.int64], hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs [P, 2] of indices of texts that agree in a band of their smallest hashes."""
    rng = np.random.default_rng(0)
    factors, shifts = rng.integers(1, PRIME, HASHES), rng.integers(0, PRIME, HASHES)
    starts = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1]]))
    least = np.stack(
        [
            np.minimum.reduceat((hashes * a + b) % PRIME, starts)
            for a, b in zip(factors, shifts, strict=True)
        ],
        axis=1,
    )
    texts, pairs = place[starts], []
    for band in np.split(least, BANDS, axis=1):
        _, code = np.unique(band, axis=0, return_inverse=True)
        order = np.argsort(code, kind="stable")
        # neighbours in a band: enough to connect copies without all pairs of a crowd
        for step in (1, 2, 3):
            same = code[order[step:]] == code[order[:-step]]
            pairs.append(np.stack([texts[order[:-step][same]], texts[order[step:][same]]], axis=1))
    return np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)


def _verified(sides: Sides, name: str, candidates: NDArray[np.int64], limit: float) -> TextCopies:
    """Return pairs that share enough of their triples; another check finds equal foldings."""
    connection = sides.connection
    connection.register("candidates", pa.table({"one": candidates[:, 0], "two": candidates[:, 1]}))
    shared = (
        "select one, two, count(*) as n from candidates join triples a on a.place = one join"
        " triples b on b.place = two and b.h = a.h group by 1, 2"
    )
    sizes = "(select place, count(*) as size from triples group by place)"
    similar = (
        f"select one, two from ({shared}) join {sizes} s on s.place = one join {sizes} t on t.place"
        f" = two where n >= {limit!r} * (s.size + t.size - n)"
    )
    different = f"{fold_sql('h.text')} <> {fold_sql('t.text')}"
    both = (
        f"(select one as a, two as b from ({similar}) union all select two, one from ({similar}))"
    )
    connection.execute(
        "create or replace temp table similar_texts as select h.side, h.__id, h.text, h.label,"
        " t.__id as train_id, t.text as train_text, t.label as train_label, h.__group as g,"
        f" t.__group as train_g from {both} join long_texts h on h.place = a join long_texts t on"
        f" t.place = b where t.side = 'train' and {different}"
    )
    connection.unregister("candidates")
    count, conflicts = row(
        connection,
        "select count(distinct __id), count(distinct __id) filter (where label <> train_label) from"
        " similar_texts where side <> 'train'",
    )
    null = row(
        connection,
        "select count(distinct __id) from similar_texts where side = 'train' and (g is null or g <>"
        " train_g)",
    )[0]
    total, train = row(
        connection,
        "select count(*) filter (where side <> 'train'), count(*) filter (where side = 'train')"
        " from long_texts",
    )
    chosen = (
        "select side, __id, text, label, train_id, train_text, train_label from similar_texts where"
        " side <> 'train'"
    )
    shown = rows(
        connection,
        f"{chosen} order by label <> train_label desc, md5(__id), train_id limit {EVIDENCE_PAIRS}",
    )
    return TextCopies(
        name,
        "word triples",
        int(count),
        int(total),
        int(null),
        int(train),
        int(count),
        int(conflicts),
        tuple(_pair(*s) for s in shown),
    )


def judge_text_copies(found: list[TextCopies], checks: ChecksConfig) -> list[CheckResult]:
    """Fail if copies are far more frequent than inside train; warn for any that are no accident.

    Equal molecules and long texts do not agree by chance, so three of them with a rate above
    train's are enough to fail.
    """
    results = []
    for f in found:
        verdict = collision_verdict(f.rows, f.chance, checks)
        if f.certain_rows:
            sure = f.certain_rows >= LEAST_ROWS and f.chance <= checks.collision_warning
            verdict = "fail" if sure or verdict == "fail" else "warn"
        if verdict == "pass":
            continue
        null = f"{f.null_rows} of {f.null_total} train rows are copies of another group's"
        results.append(
            CheckResult(
                name="text_copies",
                verdict=verdict,
                summary=(
                    f"{f.rows} of {f.total} held-out rows have the {f.column!r} of a train row"
                    f"{'' if f.how == 'pixels' else ' in another form'} (equal {f.how}),"
                    f" {f.conflicts} of them with another label; {null}"
                ),
                figures={
                    **near_figures(f.rows, f.total, f.null_rows, f.null_total, f.chance, checks),
                    "label_conflicts": f.conflicts,
                },
                evidence=f.pairs,
                columns=(f.column,),
                remedy=REMEDY,
            )
        )
    text = (
        f"no {found[0].column!r} of a held-out row is in train in another form"
        if found
        else "no column holds texts that hardly repeat"
    )
    return results or [
        CheckResult(
            name="text_copies",
            verdict="pass",
            summary=text,
            figures={"columns": len(found), "threshold": checks.collision_chance},
        )
    ]
