"""Digests: a process reads a large file once, and again after any touch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemas import digest
from schemas.digest import file_ref, replacing, settle, sha256_file, sha256_once, verify
from schemas.errors import IntegrityError


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths whose bytes were read, in order; files of 1 kB count as large."""
    found: list[str] = []
    monkeypatch.setattr(digest, "LARGE", 1000)
    monkeypatch.setattr(
        digest, "sha256_file", lambda path: found.append(str(path)) or sha256_file(path)
    )
    return found


@pytest.mark.req("D5")
def test_a_large_file_is_read_once_and_a_small_one_each_time(
    tmp_path: Path, reads: list[str]
) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(b"x" * 1000)
    small.write_bytes(b"x" * 999)
    refs = [file_ref(large), file_ref(small)]
    for ref in refs * 2:
        verify(ref)
    assert [reads.count(str(p)) for p in (large, small)] == [1, 3]
    # as when a finished step is installed: a new time of change, so read again
    moved = large.rename(tmp_path / "moved")
    assert sha256_once(moved) == refs[0].sha256


@pytest.mark.req("D5")
@pytest.mark.parametrize("keep_times", [False, True])
def test_a_touched_file_is_read_again_and_refused(
    tmp_path: Path, reads: list[str], keep_times: bool
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 1000)
    ref, before = file_ref(path), path.stat()
    while not keep_times and path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(b"x" * 999 + b"y")  # until the clock of the file system advances
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(b"x" * 999 + b"y")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(IntegrityError, match="the file was changed after it was written"):
        verify(ref)
    assert len(reads) == 2


@pytest.mark.req("D5")
@pytest.mark.parametrize("size", [999, 1000])
def test_a_file_is_read_while_it_is_flushed_and_not_again_for_its_reference(
    tmp_path: Path, reads: list[str], size: int
) -> None:
    path, folder = tmp_path / "table", tmp_path / "folder"
    with replacing(path) as file:
        file.write(b"x" * size)
    assert len(reads) == (size == 1000)
    folder.mkdir()
    (folder / "array").write_bytes(b"x" * size)
    settle(folder / "array")
    found = [file_ref(path), file_ref(folder.rename(tmp_path / "renamed") / "array")]
    assert {ref.sha256 for ref in found} == {sha256_file(path)}
    assert len(reads) == 2
    path.write_bytes(b"y" * size)
    with pytest.raises(IntegrityError, match="the file was changed after it was written"):
        verify(found[0])


@pytest.mark.req("D5")
def test_what_could_not_be_flushed_takes_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "table").write_bytes(b"before")
    monkeypatch.setattr(digest.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), replacing(tmp_path / "table") as file:
        file.write(b"after")
    assert [p.name for p in tmp_path.iterdir()] == ["table"]
    assert (tmp_path / "table").read_bytes() == b"before"
