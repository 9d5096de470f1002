"""D4, C3: the ledger is appended to, never changed, and refused when damaged."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import IntegrityError
from training.data.engine.engine import connect, rows
from training.data.split.ledger import DRAFT, copy_as_of, opened

ONE = "(select 'k1' as key_hash, 'train' as side union all select 'k2', 'val')"
TWO = "(select 'k3' as key_hash, 'test' as side)"
TABLE = "0" * 64


def append(
    path: Path, decided: str | None, frozen: dict[str, Any] | None = None, way: str = "a"
) -> None:
    with opened(path, way) as book:
        book.append(connect(threads=1), {"kind": "stratified"}, TABLE, frozen or {}, decided)


def assigned(path: Path, way: str = "a") -> dict[str, str]:
    with opened(path, way) as book:
        return dict(rows(connect(threads=1), f"select * from {book.assigned}"))


@pytest.mark.req("D4")
def test_what_was_decided_is_read_back_by_the_same_way_of_splitting_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger"
    assert assigned(path) == {} and not path.exists()
    append(path, ONE, {"bin_edges": [0.1, 0.2]})
    first = path.read_bytes()
    append(path, TWO)
    append(path, "(select 'k1' as key_hash, 'test' as side)", way="b")
    assert (
        assigned(path) == {"k1": "train", "k2": "val", "k3": "test"}
        and assigned(path, "b") == {"k1": "test"}
        and assigned(path, "c") == {}
    )
    assert path.read_bytes().startswith(first) and len(path.read_text().splitlines()) == 3
    with opened(path, "a") as book:
        assert book.frozen == {"bin_edges": [0.1, 0.2]}
        copy = book.copy_to(tmp_path / "copy.jsonl")
    assert [
        line for line in path.read_text().splitlines() if '"way": "a"' in line
    ] == copy.file.read_text().splitlines()


@pytest.mark.req("R3")
def test_a_ledger_can_be_had_as_it_was(tmp_path: Path) -> None:
    path, old, never = tmp_path / "ledger", tmp_path / "deep" / "old", tmp_path / "never"
    append(path, ONE, {"bin_edges": [0.1, 0.2]})
    append(path, "(select 'k1' as key_hash, 'test' as side)", way="b")
    append(path, "(select 'k4' as key_hash, 'val' as side)")
    with opened(path, "a") as book:
        then = book.copy_to(tmp_path / "copy.jsonl")
    append(path, TWO)
    assert copy_as_of(path, then.sha256, old)
    assert assigned(old) == {"k1": "train", "k2": "val", "k4": "val"} and assigned(old, "b") == {
        "k1": "test"
    }
    assert assigned(path)["k3"] == "test"
    assert not copy_as_of(path, "0" * 64, never) and not copy_as_of(
        tmp_path / "absent", then.sha256, never
    )
    assert not never.exists() and not Path(f"{never}.parts").exists()


@pytest.mark.req("D4")
def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    append(tmp_path / "ledger", "(select 'k' as key_hash, 'val' as side where false)")
    append(tmp_path / "ledger", None)
    assert not (tmp_path / "ledger").exists()


def _edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _part(path: Path, number: int = 0) -> Path:
    return sorted(Path(f"{path}.parts").glob("*.parquet"))[number]


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "a side changed in a part",
        lambda p: _edit(_part(p), lambda b: b.replace(b"train", b"tests")),
        "part .* is missing or was changed",
    ),
    (
        "one bit of a part",
        lambda p: _edit(_part(p), lambda b: b[:100] + bytes([b[100] ^ 1]) + b[101:]),
        "part .* is missing or was changed",
    ),
    ("a part gone", lambda p: _part(p).unlink(), "part .* is missing or was changed"),
    ("the file gone", lambda p: p.unlink(), "no line names part"),
    ("the file emptied", lambda p: p.write_bytes(b""), "the file is empty"),
    ("cut within a line", lambda p: _edit(p, lambda b: b[:-40]), "line 2 is no entry"),
    (
        "the last line gone",
        lambda p: _edit(p, lambda b: b.splitlines(True)[0]),
        "no line names part",
    ),
    (
        "the first line gone",
        lambda p: _edit(p, lambda b: b.splitlines(True)[1]),
        "line 1 was changed, or does not follow",
    ),
    (
        "lines swapped",
        lambda p: _edit(p, lambda b: b"".join(reversed(b.splitlines(True)))),
        "line 1 was changed, or does not follow",
    ),
    (
        "a cut point changed",
        lambda p: _edit(p, lambda b: b.replace(b"70.5", b"71.5")),
        "line 1 was changed",
    ),
    (
        "the last line changed",
        lambda p: _edit(p, lambda b: b.replace(b"85.5", b"86.5")),
        "line 2 was changed",
    ),
    ("no text", lambda p: p.write_bytes(b"\xff\xfe\x00"), "line 1 is no entry"),
]


@pytest.mark.req("C3")
@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_a_damaged_ledger_is_refused_with_what_to_do(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "ledger"
    append(path, ONE, {"val": 70.5})
    append(path, TWO, {"test": 85.5})
    damage(path)
    with pytest.raises(
        IntegrityError,
        match=(
            rf"ledger is damaged: {message}.*restore the ledger, its .sha256 and its .parts folder"
            r" from a backup"
        ),
    ):
        assigned(path)


LOST: list[tuple[str, Callable[[Path], object], str]] = [
    ("the file gone", lambda p: p.unlink(), "found no file"),
    (
        "the last line gone",
        lambda p: _edit(p, lambda b: b.splitlines(True)[0]),
        "does not match its digest",
    ),
    (
        "the seal changed",
        lambda p: _edit(Path(f"{p}.sha256"), lambda b: b"0" * 64 + b[64:]),
        "does not match its digest",
    ),
    ("the seal emptied", lambda p: Path(f"{p}.sha256").write_bytes(b""), "has no digest in it"),
]


@pytest.mark.req("S2")
@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in LOST], ids=[d[0] for d in LOST])
def test_lines_that_no_part_belongs_to_are_missed_by_the_seal(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "ledger"
    append(path, None, {"val": 70.5})
    append(path, None, {"test": 85.5})
    assert assigned(path) == {}
    damage(path)
    with pytest.raises(
        IntegrityError,
        match=(
            rf"ledger is damaged: .*{message}.*restore the ledger, its .sha256 and its .parts"
            r" folder from a backup"
        ),
    ):
        assigned(path)


@pytest.mark.req("S2")
def test_a_ledger_of_an_earlier_version_is_read_and_gets_a_seal(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    append(path, ONE)
    Path(f"{path}.sha256").unlink()
    assert assigned(path) == {"k1": "train", "k2": "val"}
    append(path, TWO)
    assert Path(f"{path}.sha256").is_file() and assigned(path) == {
        "k1": "train",
        "k2": "val",
        "k3": "test",
    }


@pytest.mark.req("C3")
def test_a_kill_before_or_after_the_line_leaves_the_ledger_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    append(path, ONE)
    # killed after the line, before its part got its name
    _part(path).rename(Path(f"{path}.parts") / DRAFT)
    assert (
        assigned(path) == {"k1": "train", "k2": "val"}
        and not (Path(f"{path}.parts") / DRAFT).exists()
    )
    # killed while the next part was drafted
    (Path(f"{path}.parts") / DRAFT).write_bytes(b"half a part")
    append(path, TWO)
    assert assigned(path) == {"k1": "train", "k2": "val", "k3": "test"}


def _hold(path: Path, ready: Any) -> None:
    with opened(path, "a") as book:
        ready.set()
        time.sleep(0.5)
        book.append(connect(threads=1), {}, TABLE, {}, ONE)


@pytest.mark.req("D4")
def test_two_runs_do_not_decide_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "ledger", ready))
    other.start()
    assert ready.wait(30)
    # waited for the other to finish
    assert assigned(tmp_path / "ledger") == {"k1": "train", "k2": "val"}
    other.join(30)
    assert other.exitcode == 0
