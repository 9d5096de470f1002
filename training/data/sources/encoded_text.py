"""Text files in another encoding than UTF-8, converted once and strictly."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path

from schemas.config import DataConfig
from schemas.csv_config import UTF_8
from schemas.errors import SourceError
from schemas.references import Snapshot
from training.data.sources.other_formats import encoding
from training.data.sources.snapshots import converted_file

CHUNK = 1 << 20


def read_encoded(path: Path, data: DataConfig) -> Snapshot:
    """Return a copy in UTF-8 of a file in the declared encoding.

    Raises:
        SourceError: the file has bytes that the encoding lacks; with their place.
    """
    name = data.csv.encoding
    ending = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
    plain = ending.lower().removesuffix(".gz")

    def write(target: Path) -> None:
        decoder = codecs.getincrementaldecoder(name)()
        done = 0
        with (
            gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file,
            target.open("w", encoding="utf-8", newline="") as copy,
        ):
            while True:
                chunk = file.read(CHUNK)
                try:
                    copy.write(decoder.decode(chunk, not chunk))
                except UnicodeError as error:
                    place = done + getattr(error, "start", 0)
                    raise _undecoded(path, data, place) from error
                done += len(chunk)
                if not chunk:
                    return

    return converted_file(path, (name,), f"-utf8{plain}", write, encoding=name)


def _undecoded(path: Path, data: DataConfig, place: int) -> SourceError:
    likely = encoding(path) or UTF_8
    is_other = likely != data.csv.encoding
    advice = f"declare data.csv: {{encoding: {likely}}}" if is_other else "write it as UTF-8"
    return SourceError(
        f"{path}: expected text in {data.csv.encoding} (data.csv.encoding), but byte {place:,} is"
        f" none; {advice}"
    )
