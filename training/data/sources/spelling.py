"""Guess how the texts of a column are written, if they are numbers, from different values of it."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from training.data.serving_expressions.number_texts import normal

LEAST_VALUES = 10  # different numbers; fewer are codes
LEAST_PLAIN = 20  # … of a column that is plain numbers but for some texts
FEW_TEXTS, MORE_TEXTS = 3, 20  # other texts, of which so many may be marks of missing values …
HALF, NEARLY_ALL = 0.5, 0.95  # … where this share of the rows are numbers
MOST_MARKS = 20
LONGEST = 15  # digits of a whole number; longer ones are keys
CURRENCY = (
    r"(?:US|A|C|R|NZ|HK|S)?\$|[€£¥₹₽₩₺₪฿₫₦₴]|Rs\.?|kr\.?|zł|Fr\.|USD|EUR|GBP|CHF|JPY|INR|CNY|RUB|BRL|"
    r"AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|ZAR|KRW|MXN|TRY|ILS|SGD|HKD|THB"
)
WORD = r"[A-Za-zµμΩ°åäöüéÅ][A-Za-zµμΩ°åäöüéÅ/^·*²³⁻¹.-]{0,11}[0-9]?"
UNIT = rf"{CURRENCY}|%|‰|{WORD}(?: {WORD})?"
MARK = r"[*†‡§¶#¹²³⁴⁵⁶⁷⁸⁹]|\[[^\[\]]{1,8}\]|\([a-z0-9]{1,2}\)"
TEXT = re.compile(
    r"(?P<bound><=|>=|<|>|≤|≥)? *(?P<open>\()? *[+-]? *"
    rf"(?P<before>{CURRENCY})? *[+-]? *(?P<inner>\()? *"
    r"(?P<digits>[0-9](?:[0-9.,'_ ]*[0-9])?[.,]?|[.,][0-9]+)(?P<power>[eE][+-]?[0-9]{1,3})?"
    rf" *(?P<unit>{UNIT})? *(?P<close>\))? *(?P<marks>(?: *(?:{MARK}))*)"
)
# decimal and thousands sign; the first that fits is chosen, that of the file's decimal sign first
FORMATS = (
    (".", ""),
    (",", ""),
    (".", ","),
    (",", "."),
    (".", " "),
    (",", " "),
    (".", "'"),
    (",", "'"),
    (".", "_"),
)


class Guessed(NamedTuple):
    """A spelling, and whether its decimal sign is certain, or could be the thousands sign."""

    written: dict[str, Any]
    certain: bool
    ambiguous: bool
    example: str


def guess_spelling(values: Mapping[str, int], decimal: str = ".") -> Guessed | None:
    """Return the spelling in which nearly all texts are numbers; None if there is none.

    Args:
        values: different texts of a column with their rows.
        decimal: the sign before decimals in the other columns of the file.
    """
    found = {text: TEXT.fullmatch(normal(text)) for text in values}
    parsed = {text: match for text, match in found.items() if match is not None and _sound(match)}
    if not _enough(values, parsed) or any(_is_code(m["digits"]) for m in parsed.values()):
        return None
    marks = _letter_marks(values, parsed)
    units = _units(values, parsed, marks)
    if units is None:
        return None
    formats, fitting = _formats(values, parsed)
    if not formats:
        return None
    signs = sorted(formats, key=lambda f: f[0] != decimal)[0]
    chosen: dict[str, Any] = {}
    others = [t for t in values if t not in parsed or t not in fitting]
    numbers = [t for t in parsed if t in fitting]
    if signs[1] in tuple(" '_.") and _are_keys([parsed[t]["digits"] for t in numbers], signs[1]):
        return None
    chosen |= {"decimal": signs[0]} if signs[0] != "." else {}
    chosen |= {"thousands": signs[1]} if signs[1] else {}
    chosen |= {"units": units} if units else {}
    matches = [parsed[t] for t in numbers]
    chosen |= {"parentheses": True} if any(m["close"] for m in matches) else {}
    chosen |= {"limits": "bound"} if any(m["bound"] for m in matches) else {}
    noted = sorted({*marks, *(mark for m in matches for mark in re.findall(MARK, m["marks"]))})
    chosen |= {"marks": noted} if noted else {}
    if len(noted) > MOST_MARKS or not _numeric(values, numbers, others, chosen, decimal):
        return None
    chosen |= {"nulls": sorted({normal(text) for text in others})} if others else {}
    ambiguous = {(".", ","), (",", "")} <= set(formats) and any("," in m["digits"] for m in matches)
    certain = len({f[0] for f in formats}) == 1
    return Guessed(chosen, certain, ambiguous, max(numbers, key=lambda t: (len(t), t)))


def plain_numbers(values: Mapping[str, int]) -> Guessed | None:
    """Return the spelling of numbers as programs write them if each text is one, else None.

    A column of texts may begin so, and hold its first other text only after many rows.
    """
    found = [TEXT.fullmatch(normal(text)) for text in values]
    digits = [m["digits"] for m in found if m is not None and m[0].strip("+-") == m["digits"]]
    if len(digits) < len(values) or len(digits) <= LEAST_PLAIN:
        return None
    if any(_is_code(text) or not _fits(text, ".", "") for text in digits):
        return None
    return Guessed({}, True, False, max(values, key=lambda t: (len(t), t)))


def _sound(match: re.Match[str]) -> bool:
    """Return True unless there are two units or a parenthesis without its other one."""
    opened = bool(match["open"]) + bool(match["inner"])
    return opened == bool(match["close"]) and not (match["before"] and match["unit"])


def _enough(values: Mapping[str, int], parsed: Mapping[str, Any]) -> bool:
    rows = sum(values.values())
    return len(parsed) >= LEAST_VALUES and sum(values[t] for t in parsed) > HALF * rows


def _is_code(digits: str) -> bool:
    """Return True for leading zeros, and for more digits than a number keeps."""
    return bool(re.match(rf"0[0-9]|[0-9]{{{LONGEST + 1},}}$", digits))


def _letter_marks(values: Mapping[str, int], parsed: Mapping[str, re.Match[str]]) -> list[str]:
    """Return single letters that mark a few of many bare numbers, such as 12.5a."""
    letters = Counter[str]()
    bare = 0
    for text, match in parsed.items():
        if re.fullmatch("[a-z]", match["unit"] or "") and match["digits"] + match["unit"] in text:
            letters[match["unit"]] += values[text]
        elif not match["unit"] and not match["before"]:
            bare += values[text]
    return sorted(letters) if letters and 4 * sum(letters.values()) <= bare else []


def _units(
    values: Mapping[str, int], parsed: Mapping[str, re.Match[str]], marks: list[str]
) -> list[str] | None:
    """Return the spellings of the one unit, with an empty one if numbers may lack it.

    None if there are several, or if per cent and bare numbers are mixed.
    """
    spelt: dict[str, set[str]] = {}
    for match in parsed.values():
        unit = match["before"] or match["unit"] or ""
        unit = "" if unit in marks else unit
        spelt.setdefault(_one_name(unit), set()).add(unit)
    named = [name for name in spelt if name]
    if len(named) > 1 or (named in (["%"], ["‰"]) and "" in spelt):
        return None
    return [unit for name in sorted(spelt, reverse=True) for unit in sorted(spelt[name])] * bool(
        named
    )


def _one_name(unit: str) -> str:
    """Return one name for the spellings of a unit: kg, KG and Kg., year and years."""
    name = unit.casefold().strip(".")
    return name.removesuffix("s") if len(name) > 3 else name


def _formats(
    values: Mapping[str, int], parsed: Mapping[str, re.Match[str]]
) -> tuple[list[tuple[str, str]], set[str]]:
    """Return the signs that fit most rows, and the texts that they fit."""
    best: list[tuple[str, str]] = []
    most, fitting = 0, set[str]()
    for signs in FORMATS:
        fits = {t for t, match in parsed.items() if _fits(match["digits"], *signs)}
        rows = sum(values[t] for t in fits)
        if rows > most:
            best, most, fitting = [signs], rows, fits
        elif rows and fits == fitting:
            best.append(signs)
    enough = most > HALF * sum(values.values()) and len(fitting) >= LEAST_VALUES
    return (best if enough else []), fitting


def _fits(digits: str, decimal: str, thousands: str) -> bool:
    return _number(decimal, thousands).fullmatch(digits) is not None


@functools.cache
def _number(decimal: str, thousands: str) -> re.Pattern[str]:
    point, mark = re.escape(decimal), re.escape(thousands)
    fraction = rf"(?:{point}[0-9]*)?"
    grouped = rf"|[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+{fraction}" if thousands else ""
    indian = r"|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}" + fraction if thousands == "," else ""
    return re.compile(rf"[0-9]+{fraction}|{point}[0-9]+{grouped}{indian}")


def _are_keys(digits: list[str], sign: str) -> bool:
    """Return True for numbers of the same length in three groups or more, such as telephone."""
    lengths = {len(re.sub("[^0-9]", "", text)) for text in digits}
    return len(lengths) == 1 and all(text.count(sign) >= 2 for text in digits)


def _numeric(
    values: Mapping[str, int],
    numbers: list[str],
    others: list[str],
    chosen: Mapping[str, Any],
    decimal: str,
) -> bool:
    """Return True if the texts are numbers, and the others few enough to stand for a null."""
    plain = not chosen or chosen == {"decimal": decimal}
    share = sum(values[t] for t in numbers) / sum(values.values())
    if plain and not others:
        return chosen.get("decimal", ".") != "." and len(numbers) >= LEAST_VALUES
    if plain:
        return len(numbers) > LEAST_PLAIN and len(others) <= FEW_TEXTS
    return len(others) <= FEW_TEXTS or (len(others) <= MORE_TEXTS and share >= NEARLY_ALL)
