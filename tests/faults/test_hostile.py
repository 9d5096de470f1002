"""Forged run directories: a writer can forge every digest, but no byte of it is executed."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.digest import sha256_file
from schemas.errors import CheckpointError
from tests.faults.saved_runs import opened, save
from tests.faults.watch import watched
from training.checkpoint.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    load_part,
    read_manifest,
    verify_checkpoint,
)
from training.engine.result import finished_report
from training.main import read_spec
from training.run.lease import LEASE, Lease
from training.run.record import RESULT


class Payload:
    """A pickle that makes a folder when anything but `weights_only` unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def as_torch(payload: object) -> bytes:
    file = io.BytesIO()
    torch.save({"w": payload}, file)
    return file.getvalue()


def as_legacy(payload: object) -> bytes:
    file = io.BytesIO()
    torch.save({"w": payload}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def as_script_archive(payload: object) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in {
            "data.pkl": pickle.dumps(payload),
            "constants.pkl": pickle.dumps(payload),
            "version": b"3\n",
            "code/__torch__.py": b"import os",
        }.items():
            archive.writestr(f"archive/{name}", data)
    return file.getvalue()


CONTAINERS: dict[str, Callable[[object], bytes]] = {
    "torch": as_torch,
    "pickle": pickle.dumps,
    "legacy": as_legacy,
    "script": as_script_archive,
}
READ = [("whole", "step", name) for name in ("model.pt", "optimizer.pt", "trainer.pt")]
READ += [("sharded", "step", name) for name in ("trainer.pt", "shard-00000-of-00001.pt")] + [
    ("whole", "best", "model.pt")
]


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint and correct its manifest, as any reader of our source can."""
    (folder / name).write_bytes(content)
    manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    entry = FileEntry(sha256=sha256_file(folder / name), num_bytes=len(content))
    (folder / MANIFEST).write_bytes(
        manifest.model_copy(update={"files": {**manifest.files, name: entry}}).sealed().text()
    )


@pytest.mark.req("S1")
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("layout", "kind", "name"), READ)
def test_a_payload_under_a_right_manifest_runs_nothing(
    tmp_path: Path, layout: str, kind: str, name: str, container: str
) -> None:
    root, mark = tmp_path / "run", tmp_path / "executed"
    save(root, layout)
    opened(root).newest()
    folder = root / f"{kind}-00000030"
    forge(folder, name, CONTAINERS[container](Payload(mark)))
    # the digests agree, so only the unpickler protects
    verify_checkpoint(folder, ("model.pt",) if kind == "best" else None)
    told: list[str] = []
    with watched() as seen:
        with pytest.raises(CheckpointError, match="holds something else"):
            load_part(
                folder, name, read_manifest(folder, ("model.pt",) if kind == "best" else None)
            )
        assert opened(root, told).newest() == 20
    assert seen.events == [] and not mark.exists()
    assert (
        len(told) == 1
        and name in told[0]
        and "holds something else than tensors and plain values" in told[0]
    )


@pytest.mark.req("S1")
@pytest.mark.parametrize("container", ["torch", "pickle", "legacy"])
def test_the_payload_works_where_it_is_let(tmp_path: Path, container: str) -> None:
    content = CONTAINERS[container](Payload(tmp_path / "executed"))
    with watched() as seen:
        (
            pickle.loads(content)
            if container == "pickle"
            else torch.serialization.load(io.BytesIO(content), weights_only=False)
        )
    assert (tmp_path / "executed").is_dir()
    assert any("mkdir" in event for event in seen.events), "and the watch sees it"


@pytest.mark.req("S1")
def test_what_is_read_as_json_is_never_unpickled(tmp_path: Path) -> None:
    save(tmp_path, "whole")
    content = pickle.dumps(Payload(tmp_path / "executed"))
    for path in (
        tmp_path / "step-00000030" / MANIFEST,
        tmp_path / RESULT,
        tmp_path / "resolved.json",
        tmp_path / LEASE,
    ):
        path.write_bytes(content)
    told: list[str] = []
    with watched() as seen:
        assert opened(tmp_path, told).newest() == 20 and "manifest.json cannot be read" in told[0]
        assert finished_report(tmp_path, "run-1") is None
        with pytest.raises(ValueError, match=r"resolved.json: expected a resolved run"):
            read_spec(tmp_path / "resolved.json")
        lease = Lease(tmp_path)
        lease.take(lambda: False)
        lease.check()
        lease.release()
    assert seen.events == [] and not (tmp_path / "executed").exists()


@pytest.mark.req("S1")
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"files": ' * 5000,
        "1e999",
        '"\\ud800"',
        '{"format": 1, "identity": {"a": NaN}}',
    ],
)
def test_a_manifest_that_breaks_parsers_is_damage_like_any_other(tmp_path: Path, text: str) -> None:
    save(tmp_path, "whole")
    (tmp_path / "step-00000030" / MANIFEST).write_text(text)
    assert opened(tmp_path).newest() == 20


@pytest.mark.req("S1")
@pytest.mark.parametrize("name", ["model.pt", MANIFEST])
def test_a_pipe_or_a_folder_in_place_of_a_file_is_damage_like_any_other(
    tmp_path: Path, name: str
) -> None:
    save(tmp_path, "whole")
    for step, make in ((30, os.mkfifo), (20, os.mkdir)):
        (tmp_path / f"step-{step:08d}" / name).unlink()
        make(tmp_path / f"step-{step:08d}" / name)
    assert opened(tmp_path).newest() == 10
