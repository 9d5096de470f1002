"""A small writer of Excel files, so that tests need no further package."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

EPOCH = datetime(1899, 12, 30)
OOXML = "http://schemas.openxmlformats.org"
MAIN = f"{OOXML}/spreadsheetml/2006/main"
RELATED = f"{OOXML}/officeDocument/2006/relationships"
STYLES = (
    f'<styleSheet xmlns="{MAIN}"><fonts><font/></fonts><fills><fill/></fills><borders><border/>'
    '</borders><cellStyleXfs><xf/></cellStyleXfs><cellXfs><xf numFmtId="0"/><xf numFmtId="22"'
    ' applyNumberFormat="1"/></cellXfs></styleSheet>'
)


def write_xlsx(path: Path, sheets: Mapping[str, Sequence[Sequence[Any]]]) -> Path:
    """Write rows of values as sheets: numbers, texts, truth values, datetimes; None is no cell."""
    content, package = f"{OOXML}/package/2006/content-types", f"{OOXML}/package/2006/relationships"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml."
    numbers = range(1, len(sheets) + 1)
    overrides = "".join(
        f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{kind}worksheet+xml"/>'
        for n in numbers
    )
    links = "".join(
        f'<Relationship Id="r{n}" Type="{RELATED}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n in numbers
    )
    names = "".join(
        f'<sheet name="{escape(name)}" sheetId="{n}" r:id="r{n}"/>'
        for n, name in zip(numbers, sheets, strict=True)
    )
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{content}"><Default Extension="rels" ContentType='
        '"application/vnd.openxmlformats-package.relationships+xml"/><Override PartName='
        f'"/xl/workbook.xml" ContentType="{kind}sheet.main+xml"/><Override'
        f' PartName="/xl/styles.xml" ContentType="{kind}styles+xml"/>{overrides}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}"><Relationship Id="r1" Type="{RELATED}'
        '/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{RELATED}"><sheets>{names}</sheets>'
        "</workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}">{links}<Relationship Id='
        f'"s" Type="{RELATED}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": STYLES,
    }
    for n, lines in zip(numbers, sheets.values(), strict=True):
        cells = "".join(
            f'<row r="{r}">{"".join(_cell(r, c, v) for c, v in enumerate(line))}</row>'
            for r, line in enumerate(lines, 1)
        )
        parts[f"xl/worksheets/sheet{n}.xml"] = (
            f'<worksheet xmlns="{MAIN}"><sheetData>{cells}</sheetData></worksheet>'
        )
    with zipfile.ZipFile(path, "w") as file:
        for name, text in parts.items():
            file.writestr(name, '<?xml version="1.0" encoding="UTF-8"?>' + text)
    return path


def _cell(row: int, column: int, value: Any) -> str:
    place = f"{chr(65 + column)}{row}"
    if value is None:
        return ""
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, datetime):
        days = (value - EPOCH).total_seconds() / 86_400
        return f'<c r="{place}" s="1"><v>{days!r}</v></c>'
    if isinstance(value, int | float):
        return f'<c r="{place}"><v>{value!r}</v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
