"""Formats of files of rows, by the ending of their names."""

from __future__ import annotations

from typing import Literal

Format = Literal["parquet", "csv", "arrow", "jsonl"]
FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".tab": "csv",
    ".tab.gz": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
}
TAB_ENDINGS = (".tsv", ".tsv.gz", ".tab", ".tab.gz")
EXCEL_ENDINGS = (".xlsx", ".xlsm")
# read of a folder only where nothing of the above is in it
FURTHER: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson": "jsonl",
    ".ndjson.gz": "jsonl",
    **dict.fromkeys((".txt", ".txt.gz", ".dat", ".data"), "csv"),
    **dict.fromkeys(EXCEL_ENDINGS, "csv"),
}
