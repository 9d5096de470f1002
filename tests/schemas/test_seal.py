"""A changed record is noticed before it is used; a kill during a replacement leaves the old or the
new.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from schemas import seal
from schemas.errors import IntegrityError
from schemas.records import Interval
from schemas.seal import read_record, read_sealed, remove_sealed, seal_path, write_sealed


@pytest.fixture
def record(tmp_path: Path) -> Path:
    write_sealed(tmp_path / "record.json", Interval(value=0.5).model_dump_json())
    return tmp_path / "record.json"


@pytest.mark.req("S2")
def test_a_sealed_record_is_read_and_sha256sum_agrees(record: Path) -> None:
    assert read_record(record, Interval, "run again") == Interval(value=0.5)
    subprocess.run(
        ["sha256sum", "--check", "--strict", seal_path(record).name],
        cwd=record.parent,
        check=True,
        capture_output=True,
    )


@pytest.mark.req("S2")
def test_every_flip_of_a_bit_in_record_and_seal_is_found(record: Path) -> None:
    for path in (record, seal_path(record)):
        content = path.read_bytes()
        for place in range(8 * len(content)):
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(IntegrityError, match=r"record\.json.*; run again"):
                read_record(record, Interval, "run again")
        path.write_bytes(content)
    read_record(record, Interval, "run again")


@pytest.mark.req("S2")
@pytest.mark.parametrize("name", ["record.json", "record.json.sha256"])
def test_a_truncated_or_absent_file_is_named(record: Path, name: str) -> None:
    path = record.with_name(name)
    content = path.read_bytes()
    for left in range(len(content)):
        path.write_bytes(content[:left])
        with pytest.raises(IntegrityError, match="run again"):
            read_sealed(record, "run again")
    path.unlink()
    with pytest.raises(IntegrityError, match=r"found no file|record\.json\.sha256 is missing"):
        read_sealed(record, "run again")


@pytest.mark.req("S2")
def test_only_where_it_is_allowed_a_record_of_an_earlier_version_is_read_without_a_seal(
    record: Path,
) -> None:
    seal_path(record).unlink()
    assert read_record(record, Interval, "run again", required=False) == Interval(value=0.5)
    seal_path(record).write_text("")
    with pytest.raises(IntegrityError, match="has no digest in it"):
        read_record(record, Interval, "run again", required=False)


@pytest.mark.req("S2")
def test_what_matches_its_seal_and_is_something_else_is_refused(record: Path) -> None:
    write_sealed(record, '{"value": "high"}')
    with pytest.raises(IntegrityError, match=r"expected a Interval, but it cannot be read as one"):
        read_record(record, Interval, "run again")


class Killed(BaseException):
    pass


@pytest.mark.req("S2")
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_a_kill_while_a_record_is_replaced_leaves_one_that_is_believed(
    record: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    write, left = seal.write_atomic, [writes]

    def write_until_killed(path: str | Path, content: bytes | str) -> object:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return write(path, content)

    monkeypatch.setattr(seal, "write_atomic", write_until_killed)
    if writes < 3:
        with pytest.raises(Killed):
            write_sealed(record, "new")
    else:
        write_sealed(record, "new")
    monkeypatch.undo()
    assert read_sealed(record, "run again") == (
        b"new" if writes > 1 else b'{"value":0.5,"low":null,"high":null}'
    )
    write_sealed(record, "newer")
    assert read_sealed(record, "run again") == b"newer"


@pytest.mark.req("S2")
def test_damage_is_not_blessed_by_the_next_write(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.write_text("damaged")
    write, written = seal.write_atomic, list[str]()

    def write_and_note(path: str | Path, content: bytes | str) -> object:
        written.append(str(content))
        return write(path, content)

    monkeypatch.setattr(seal, "write_atomic", write_and_note)
    write_sealed(record, "new")
    assert len(written) == 2 and written[0].count("\n") == 1, "the seal names the new content alone"


@pytest.mark.req("S2")
def test_removing_a_record_removes_its_seal(record: Path) -> None:
    remove_sealed(record)
    remove_sealed(record)
    assert list(record.parent.iterdir()) == []
