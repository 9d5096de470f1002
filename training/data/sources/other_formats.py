"""Files that are not read as they are, each with the one line that converts it."""

from __future__ import annotations

import codecs
import gzip
import json
import shlex
from pathlib import Path

CHUNK = 1 << 20
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
EXCEL = "import pandas; pandas.read_excel({0}).to_csv({1}, index=False)"
PANDAS = "import pandas; pandas.{function}({{0}}{options}).to_parquet({{1}})"
# ending: packages to install, the ending of the new file, and the program
LINES: dict[str, tuple[str, str, str]] = {
    ".xlsx": ("openpyxl", ".csv", EXCEL),
    ".xlsm": ("openpyxl", ".csv", EXCEL),
    ".xls": ("xlrd", ".csv", EXCEL),
    ".ods": ("odfpy", ".csv", EXCEL),
    ".json": (
        "",
        ".parquet",
        PANDAS.format(function="read_json", options=", dtype=False, convert_dates=False"),
    ),
    ".orc": ("", ".parquet", PANDAS.format(function="read_orc", options="")),
    ".dta": ("", ".parquet", PANDAS.format(function="read_stata", options="")),
    ".sas7bdat": ("", ".parquet", PANDAS.format(function="read_sas", options="")),
    ".xpt": ("", ".parquet", PANDAS.format(function="read_sas", options="")),
    ".sav": ("pyreadstat", ".parquet", PANDAS.format(function="read_spss", options="")),
    **dict.fromkeys(
        (".zip", ".bz2", ".xz"),
        (
            "",
            ".csv",
            "import pandas; pandas.read_csv({0}, dtype=str, keep_default_na=False).to_csv({1},"
            " index=False)",
        ),
    ),
}


def convert_line(path: Path) -> str | None:
    """Return the command that makes a readable file of one in another format; None if unknown.

    >>> convert_line(Path("a.orc")).startswith("python -c 'import pandas; pandas.read_orc")
    True
    """
    ending = path.suffix.lower()
    if ending not in LINES:
        return None
    package, new, program = LINES[ending]
    stem = path.with_suffix("")
    target = stem if stem.suffix == new else stem.with_name(stem.name + new)
    first = f"pip install {package} && " if package else ""
    return first + _python(program.format(_quoted(path), _quoted(target)))


def encoding_advice(path: Path) -> str:
    """Return what to do with a text file that is not UTF-8; empty if it is UTF-8."""
    line = encoding_line(path)
    if line is None:
        return ""
    return f"declare data.csv: {{encoding: {encoding(path)}}}; or this line converts it: {line}"


def encoding_line(path: Path) -> str | None:
    """Return the command that writes a text file as UTF-8; None if it is UTF-8.

    Text of another encoding is UTF-16 if it begins like that, else that of Windows (cp1252), or
    Latin-1 if it has bytes that cp1252 lacks.
    """
    found = encoding(path)
    if found is None:
        return None
    ending = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
    target = path.with_name(path.name.removesuffix(ending) + "-utf8" + ending)
    opener = "gzip.open" if path.suffix.lower() == ".gz" else "open"
    return _python(
        f'import gzip; {opener}({_quoted(target)}, "wt", encoding="utf-8", newline="")'
        f'.writelines({opener}({_quoted(path)}, "rt", encoding="{found}", newline=""))'
    )


def encoding(path: Path) -> str | None:
    """Return the likely encoding of a text file that is not UTF-8; None if it is UTF-8."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        if file.read(2).startswith(UTF_16):
            return "utf-16"
    if _decodes(path, "utf-8"):
        return None
    return "cp1252" if _decodes(path, "cp1252") else "latin-1"


def _decodes(path: Path, name: str) -> bool:
    """Return True if all bytes of a text file are of an encoding."""
    decoder = codecs.getincrementaldecoder(name)()
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            while chunk := file.read(CHUNK):
                decoder.decode(chunk)
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def _quoted(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False)


def _python(program: str) -> str:
    return f"python -c {shlex.quote(program)}"
