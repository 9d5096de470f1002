"""Hints in the name of a column. A name is a hint only; what the values do decides."""

from __future__ import annotations

import re
from typing import Literal

Hint = Literal["entity", "place", "key", ""]
KEYS = {"id", "ids", "uid", "uuid", "guid", "key", "no", "nr", "nbr", "#", "identifier"}
NUMBERS = {"num", "number", "ref", "index", "instant", "row"}  # "number of rooms" is no key
ALONE = {
    *("pid", "mrn", "ssn", "ptid", "subjid", "usubjid", "hhid", "empid", "custid", "userid"),
    "who",
}
ENTITIES = {
    *("patient", "person", "people", "user", "subject", "participant", "customer", "client"),
    *("member", "donor", "animal", "device", "machine", "engine", "vehicle", "sensor", "speaker"),
    *("writer", "author", "employee", "student", "respondent", "case", "unit"),
}
PLACES = {
    *("family", "household", "account", "site", "station", "hospital", "clinic", "school", "store"),
    *("shop", "group", "batch", "session", "team", "village", "town", "ward"),
}
# also words for a count or a measure: years of school, size of a family
MEASURES = {"family", "household", "school", "group", "batch", "session"}
# what R and pandas call the number or the name of a row in a file
ROW_NAMES = {"rownames", "rowname", "rownumber", "rownum", "unnamed", "seqn", "seqno", "serialno"}
JOINED = re.compile(rf"({'|'.join([*ENTITIES, *PLACES])})(ids?|no|nr|nbr|num|number|key|code)")
TIMES = {
    *("time", "timestamp", "ts", "epoch", "unixtime", "datetime", "date", "when", "created", "at"),
    *("updated", "seen", "recorded", "event", "started", "ended", "moment", "clock"),
}
BIRTHS = {"birth", "birthday", "birthdate", "dob", "born", "expiry", "expires", "due"}
CALENDAR = {
    *("year", "yr", "month", "mnth", "week", "weekday", "day", "hour", "hr", "quarter", "doy"),
    *("minute", "date", "dow", "season", "weeknum"),
}


def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a column's name, in lower case.

    >>> name_words("Patient ID"), name_words("CaseID"), name_words("subject#"), name_words("a_b2")
    (('patient', 'id'), ('case', 'id'), ('subject', '#'), ('a', 'b2'))
    """
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    apart = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1 \2", apart)
    return tuple(word.lower() for word in re.findall(r"[^\W\d_]+\d*|#|\d+", apart))


def hint_of(name: str) -> Hint:
    """Return the kind of thing that a column's name seems to number.

    >>> hint_of("participant-no"), hint_of("school"), hint_of("record_id"), hint_of("patient age")
    ('entity', 'place', 'key', '')
    >>> hint_of("Unnamed: 0")
    'key'
    """
    words = name_words(name)
    if not words:
        return ""
    if is_row_name(name):
        return "key"
    things = [w for w in words if w in ENTITIES or w in PLACES or w in ALONE or JOINED.fullmatch(w)]
    rest = set(words) - set(things) - KEYS - NUMBERS - {"name", "code"}
    alone = len(words) == 1 and words[0] not in ("num", "number")
    counted = words[-1] in NUMBERS and (alone or bool(things))
    keyed = words[-1] in KEYS or counted or any(JOINED.fullmatch(w) for w in words)
    if things and not rest:
        if keyed or any(w in ENTITIES or w in ALONE for w in things):
            return "entity"
        return "place"
    return "key" if keyed else ""


def is_row_name(name: str) -> bool:
    """Return True for a column that numbers or names the rows of a file, not what they are about.

    >>> is_row_name("Unnamed: 0"), is_row_name("id")
    (True, False)
    """
    words = name_words(name)
    return words[:1] != () and (words[0] in ROW_NAMES or words == ("row", "names"))


def has_word(name: str, words: set[str]) -> bool:
    """Return True if the name contains one of these words."""
    return bool(words & set(name_words(name)))
