"""P5: a step runs again exactly when its inputs, its code or its files have changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.states import State

from schemas.digest import file_ref
from schemas.errors import IntegrityError
from schemas.records import CheckReport, CheckResult, TableRef
from tasks import store


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path))


def make(folder: Path) -> TableRef:
    (folder / "table.bin").write_bytes(b"rows")
    return TableRef(file=file_ref(folder / "table.bin"), rows=4)


@pytest.mark.req("P5")
def test_the_same_inputs_are_reused_and_others_are_not() -> None:
    first = store.stored("step", {"a": 1}, TableRef, make)
    assert isinstance(first, TableRef) and first.file.file.read_bytes() == b"rows"
    again = store.stored("step", {"a": 1}, TableRef, make)
    assert isinstance(again, State) and again.name == "Cached"
    assert store.load("step", store.step_key("step", {"a": 1}), TableRef) == first
    assert isinstance(store.stored("step", {"a": 2}, TableRef, make), TableRef)
    assert isinstance(store.stored("other", {"a": 1}, TableRef, make), TableRef)


@pytest.mark.req("P5")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: f.write_bytes(b"rowz"), "table.bin: SHA-256 is"),
        (lambda f: f.write_bytes(b"ro"), "table.bin: SHA-256 is"),
        (lambda f: f.unlink(), "table.bin: expected a file"),
        (
            lambda f: (f.parent / "record.json").write_text("{"),
            "record.json does not match its digest",
        ),
        (
            lambda f: (f.parent / "record.json").unlink(),
            "record.json: expected a record, found no file",
        ),
        (lambda f: (f.parent / "record.json.sha256").unlink(), "record.json.sha256 is missing"),
        (
            lambda f: (f.parent / "record.json.sha256").write_bytes(b"\xff"),
            "record.json.sha256 has no digest in it",
        ),
        (
            lambda f: shutil.copy(f, f.parent / "record.json"),
            "record.json does not match its digest",
        ),
    ],
)
def test_a_changed_or_missing_file_is_said_and_the_step_is_made_again(
    damage: Callable[[Path], object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = store.stored("step", {"a": 1}, TableRef, make)
    assert isinstance(first, TableRef)
    damage(first.file.file)
    again = store.stored("step", {"a": 1}, TableRef, make)
    assert isinstance(again, TableRef) and again.file.file.read_bytes() == b"rows"
    told = capsys.readouterr().err
    assert "↺ step           made again" in told and said in told
    assert isinstance(store.stored("step", {"a": 1}, TableRef, make), State)


@pytest.mark.req("S2")
def test_a_number_or_a_verdict_that_was_edited_is_not_believed() -> None:
    def judge(_: Path) -> CheckReport:
        return CheckReport(
            results=(CheckResult(name="near_duplicates", verdict="pass", summary="none"),)
        )

    first = store.stored("leakage", {"a": 1}, CheckReport, judge)
    record = store.folder("leakage", store.step_key("leakage", {"a": 1})) / "record.json"
    record.write_text(record.read_text().replace('"pass"', '"warn"'))
    with pytest.raises(IntegrityError, match=r"record\.json does not match its digest"):
        store.load("leakage", store.step_key("leakage", {"a": 1}), CheckReport)
    assert store.stored("leakage", {"a": 1}, CheckReport, judge) == first


@pytest.mark.req("P5")
def test_changed_code_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.step_key("step", {"a": 1})
    monkeypatch.setattr(store, "code_fingerprint", lambda: "another")
    assert store.step_key("step", {"a": 1}) != before


@pytest.mark.req("P5")
def test_the_fingerprint_follows_a_source_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rule.py").write_text("CUT = 1\n")

    class Module:
        __name__ = "package"
        __file__ = str(package / "__init__.py")

    monkeypatch.setattr(store, "schemas", Module)
    store.code_fingerprint.cache_clear()
    before = store.code_fingerprint()
    (package / "rule.py").write_text("CUT = 2\n")
    store.code_fingerprint.cache_clear()
    after = store.code_fingerprint()
    store.code_fingerprint.cache_clear()
    assert before != after


@pytest.mark.req("S2")
def test_a_step_that_fails_leaves_nothing_behind_and_keeps_what_was_good(tmp_path: Path) -> None:
    def fail(folder: Path) -> TableRef:
        (folder / "half.bin").write_bytes(b"ro")
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        store.save("step", "k" * 64, fail)
    assert list((tmp_path / "prepared").iterdir()) == []
    store.save("step", "k" * 64, make)
    with pytest.raises(ValueError, match="planted"):
        store.save("step", "k" * 64, fail)
    assert [p.name for p in (tmp_path / "prepared").iterdir()] == ["step-" + "k" * 20]
