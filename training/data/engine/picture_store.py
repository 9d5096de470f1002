"""Decoded pictures of a table: different ones one after the other in a file, found by their digest.

The digest is the SHA-256 of the pixels, so that equal pictures are one, whatever their files are.
Rows are read with `pread`: memory does not grow with the pictures. Shape of a picture: [H, W] or
[3, H, W]. N rows.
"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.digest import file_ref, settle, verify
from schemas.errors import IntegrityError
from schemas.references import PictureSpec

DTYPE = "uint8"
STEM = "pictures"  # of the files of a store


def pixels_digest(pixels: np.ndarray) -> str:
    """Return the SHA-256 of a picture's values; its shape is that of the column."""
    return hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()


class PictureWriter:
    """Append pictures to a new store, each different one once.

    Args:
        folder: of the files, created if absent.
        position: of the column among the columns of pictures.
        spec: how its pictures are decoded.
    """

    def __init__(self, folder: Path, position: int, spec: PictureSpec) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._paths = (
            folder / f"{STEM}_{position}.u8",
            folder / f"{STEM}_{position}.parquet",
        )
        self._spec, self._places = spec, dict[str, int]()
        self._file = self._paths[0].open("wb")

    def __enter__(self) -> PictureWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is not None:
            for path in self._paths:
                path.unlink(missing_ok=True)

    def add(self, pixels: np.ndarray) -> str:
        """Write a picture unless it is there, and return its digest."""
        digest = pixels_digest(pixels)
        if digest not in self._places:
            self._places[digest] = len(self._places)
            self._file.write(np.ascontiguousarray(pixels).data)
        return digest

    def finish(self) -> PictureSpec:
        """Flush the files and return the spec with references to them."""
        self._file.close()
        in_order = sorted(self._places)
        columns = {
            "digest": pa.array(in_order, pa.string()),
            "place": pa.array([self._places[d] for d in in_order], pa.int64()),
        }
        pq.write_table(pa.table(columns), self._paths[1], use_dictionary=False)
        for path in self._paths:
            settle(path)
        pixels, index = map(file_ref, self._paths)
        return self._spec.model_copy(update={"pixels": pixels, "index": index})


class PictureStore:
    """Pictures by their digests.

    Args:
        spec: of the column, after decoding; the digests of its files are compared.

    Raises:
        IntegrityError: a file is missing or was changed.
    """

    def __init__(self, spec: PictureSpec) -> None:
        if spec.pixels is None or spec.index is None:
            raise IntegrityError("the pictures of this table were not decoded; prepare it again")
        self.shape, self._path = spec.shape, verify(spec.pixels)
        index = pq.read_table(verify(spec.index))
        self._digests = np.array(index["digest"].to_pylist(), dtype="S64")
        self._places = index["place"].to_numpy()

    def read(self, digests: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Return the pictures uint8 [N, *shape] of digests; zeros for null.

        Raises:
            IntegrityError: a digest is none of the store's.
        """
        wanted = np.array([d or "" for d in digests.to_pylist()], dtype="S64")
        found = np.zeros((len(wanted), *self.shape), dtype=DTYPE)
        rows = np.flatnonzero(wanted != b"")
        if not len(rows):
            return found
        at = np.searchsorted(self._digests, wanted[rows])
        at = np.minimum(at, max(len(self._digests) - 1, 0))
        if not len(self._digests) or (self._digests[at] != wanted[rows]).any():
            raise IntegrityError(
                f"{self._path}: does not hold a picture that the table names; prepare it again"
            )
        size = math.prod(self.shape)
        with open(self._path, "rb") as file:
            for row, place in zip(rows, self._places[at], strict=True):
                part = os.pread(file.fileno(), size, int(place) * size)
                found[row] = np.frombuffer(part, dtype=DTYPE).reshape(self.shape)
        return found
