"""YAML that could hang, fill the memory or is not text is refused with its line, in a readable
message.
"""

from __future__ import annotations

import pytest

from schemas.errors import ConfigError
from schemas.yaml_text import MAX_DEPTH, parse_yaml

BOMB = "a: &a [x, x]\n" + "".join(
    f"{n}: &{n} [*{p}, *{p}, *{p}]\n" for p, n in zip("abcdefghij", "bcdefghijk", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"run\.yaml: line 2: alias '\*a' is not allowed; write the value out"),
        ("a: &a [*a]", "alias"),
        ("[" * 5000 + "]" * 5000, "nested more than 32 levels deep"),
        ("{a: " * 5000 + "}" * 5000, "nested more than 32 levels deep"),
        ("a: " + "x" * 1_000_000, r"1,000,003 characters, expected at most 1,000,000"),
        ("n: " + "9" * 5000, "a value cannot be read"),
        ("when: 2024-13-45", "a value cannot be read .*month"),
        ("n: !!int abc", "a value cannot be read"),
        ("n: !!timestamp abc", "a value cannot be read"),
        ('n: "a\\0b"', r"line 1: .*NUL.*remove it"),
        ('n: "\\ud800"', "lone surrogate"),
        ("n: \x01", "not allowed"),
        ("n: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: 1\na: 2", "line 2: key 'a' is given twice"),
        ("x" * 900_000 + ": 1\n" + "x" * 99_000 + ": [", r"not valid YAML"),
    ],
)
def test_what_is_no_declaration_is_refused_in_few_words(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        parse_yaml(text, "run.yaml")
    assert str(refused.value).startswith("run.yaml: ") and len(str(refused.value)) < 600


def test_the_text_of_a_file_that_is_no_yaml_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match=r"line 2, column") as refused:
        parse_yaml("root:x:0:0:root:/root:/bin/bash\nhush: [a\nmore: hush", "/etc/passwd")
    assert "root" not in str(refused.value) and "hush" not in str(refused.value)


def test_plain_values_and_the_operators_aliases_are_read() -> None:
    assert parse_yaml("a: 1\nb: [x, 2.5, null, true]\nc: {d: é\u20ac}\ne: '\t'", "f") == {
        "a": 1,
        "b": ["x", 2.5, None, True],
        "c": {"d": "é\u20ac"},
        "e": "\t",
    }
    assert parse_yaml("a: &p {x: 1}\nb: *p", "prefect.yaml", aliases=True)["b"] == {"x": 1}
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_yaml(deep, "f") is not None
