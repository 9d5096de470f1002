"""What somebody can do who may write to the registry and its files, but does not have the home's
key.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from schemas.digest import sha256_file
from schemas.records import Evidence
from training.registry import signing, trust
from training.serving.serving import MANIFEST, READER, SIGNATURE


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def folder_of(uri: str, version: str = "1", name: str = "clinic") -> Path:
    """Where the registry keeps a version's files."""
    client = MlflowClient(uri, uri)
    return Path(client.get_model_version_download_uri(name, version).removeprefix("file://"))


def copy_version(uri: str, source: str = "1", name: str = "clinic") -> Path:
    """Register another version with a copy of the files and the tags of one; the folder of the
    copy.
    """
    client = MlflowClient(uri, uri)
    known, files = client.get_model_version("clinic", source), folder_of(uri, source)
    copy = files.with_name(f"copied-{name}-{len(list(files.parent.iterdir()))}")
    shutil.copytree(files, copy)
    if name != "clinic":
        client.create_registered_model(name)
    client.create_model_version(name, source=str(copy), run_id=known.run_id, tags=dict(known.tags))
    return copy


def newest(uri: str, name: str = "clinic") -> str:
    """Number of the newest version."""
    return str(
        max(int(v.version) for v in MlflowClient(uri, uri).search_model_versions(f"name='{name}'"))
    )


def agree(uri: str, folder: Path, version: str, name: str = "clinic") -> None:
    """Make the tags of a version agree with its files, as anybody can who reads our source."""
    client = MlflowClient(uri, uri)
    for key in client.get_model_version(name, version).tags:
        if key.startswith(trust.DIGEST_TAG):
            file = key.removeprefix(trust.DIGEST_TAG)
            path = (
                folder / file
                if file in (trust.CODE, trust.MLMODEL)
                else folder / "artifacts" / file
            )
            client.set_model_version_tag(name, version, key, sha256_file(path))


def edit_spec(folder: Path, **changes: object) -> None:
    """Change the spec of a version in place."""
    path = folder / "artifacts" / "spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def plant_code(folder: Path, mark: Path, name: str = "serving.py") -> None:
    """Put a command at the head of a version's code."""
    path = folder / name
    path.write_text(
        f"import os; os.mkdir({str(mark)!r})\n"
        + path.read_text().replace("from __future__ import annotations\n", "")
    )


def plant_pickle(folder: Path, mark: Path) -> None:
    """Put a pickle into the program, and let the spec name its new digest."""
    path = folder / "artifacts" / "program.pt2"
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, pickle.dumps(Bomb(mark)) if "sample_inputs" in name else content)
    spec = json.loads((folder / "artifacts" / "spec.json").read_text())
    edit_spec(folder, program=spec["program"] | {"sha256": sha256_file(path)})


def rewrite_manifest(folder: Path) -> None:
    """Write the digests of the files as they are now into the manifest, under the old signature."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: sha256_file(folder / name) for name in manifest["files"]}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))


def seal_again(folder: Path) -> None:
    """Write manifest and signature of the files as they are now, with the key of the home that is
    set.
    """
    for name in (MANIFEST, SIGNATURE):
        (folder / name).unlink()
    trust.seal(
        folder, Evidence.model_validate_json((folder / "artifacts" / "evidence.json").read_bytes())
    )


def seal_elsewhere(folder: Path, home: Path) -> str:
    """Sign the files with the key of another home; its public key."""
    before = os.environ["BULKHEAD_HOME"]
    os.environ["BULKHEAD_HOME"] = str(home)
    try:
        seal_again(folder)
        return signing.create_key()
    finally:
        os.environ["BULKHEAD_HOME"] = before


def strip(uri: str, folder: Path, version: str) -> None:
    """Make a version look like one of an earlier Bulkhead: nothing is signed, and the tags
    say so.
    """
    for name in (MANIFEST, SIGNATURE, READER, "__pycache__"):
        (folder / name).unlink()
    agree(uri, folder, version)
    MlflowClient(uri, uri).delete_model_version_tag("clinic", version, trust.SIGNER_TAG)


Forge = Callable[[str, Path, Path], object]


def _copied(change: Callable[[Path, Path], object]) -> Forge:
    """A copy of version 1 with a change, and tags that agree."""

    def forge(uri: str, mark: Path, elsewhere: Path) -> None:
        folder = copy_version(uri)
        change(folder, mark)
        agree(uri, folder, newest(uri))

    return forge


def _plant_bytecode(folder: Path, mark: Path) -> None:
    (folder / "__pycache__").unlink()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "serving.cpython-311.pyc").write_bytes(
        b"what Python would run in place of serving.py"
    )


def _swap_program(uri: str, mark: Path, elsewhere: Path) -> None:
    folder, other = copy_version(uri), folder_of(uri, "2")
    for name in ("program.pt2", "spec.json", "evidence.json"):
        shutil.copy(other / "artifacts" / name, folder / "artifacts" / name)
    agree(uri, folder, newest(uri))


def _stripped(uri: str, mark: Path, elsewhere: Path) -> None:
    folder = copy_version(uri)
    plant_code(folder, mark)
    strip(uri, folder, newest(uri))


def _without_digests(uri: str, mark: Path, elsewhere: Path) -> None:
    client, folder = MlflowClient(uri, uri), copy_version(uri)
    plant_code(folder, mark)
    strip(uri, folder, newest(uri))
    client.delete_model_version_tag("clinic", newest(uri), f"{trust.DIGEST_TAG}serving.py")


def _signed_elsewhere(uri: str, mark: Path, elsewhere: Path) -> None:
    folder = copy_version(uri)
    plant_code(folder, mark)
    seal_elsewhere(folder, elsewhere)
    agree(uri, folder, newest(uri))


def _other_tags(uri: str, mark: Path, elsewhere: Path) -> None:
    copy_version(uri)
    MlflowClient(uri, uri).set_model_version_tag(
        "clinic", newest(uri), f"{trust.DIGEST_TAG}program.pt2", "0" * 64
    )


FORGERIES: dict[str, tuple[Forge, str]] = {
    "a command in the code": (
        _copied(plant_code),
        r"serving.py of version \d+ of 'clinic': SHA-256 is",
    ),
    "a command in the reader": (
        _copied(lambda f, m: plant_code(f, m, READER)),
        r"program_reader.py of version \d+ of 'clinic': SHA-256 is",
    ),
    "a pickle in the program": (
        _copied(plant_pickle),
        r"(program.pt2|spec.json) of version \d+ of 'clinic': SHA-256 is",
    ),
    "another spec": (
        _copied(lambda f, m: edit_spec(f, classes=["yes", "no"])),
        r"spec.json of version \d+ of 'clinic': SHA-256 is",
    ),
    "other requirements": (
        _copied(lambda f, m: (f / "requirements.txt").write_text("evil")),
        r"requirements.txt of version \d+ of 'clinic': SHA-256 is",
    ),
    "another loader": (
        _copied(lambda f, m: (f / "MLmodel").write_text("loader_module: evil")),
        r"MLmodel of version \d+ of 'clinic': SHA-256 is",
    ),
    "no requirements": (
        _copied(lambda f, m: (f / "requirements.txt").unlink()),
        r"requirements.txt of version \d+ of 'clinic': SHA-256 is no file",
    ),
    "one more file": (
        _copied(lambda f, m: (f / "artifacts" / "sitecustomize.py").touch()),
        r"sitecustomize.py of version \d+ .* is none of the registered",
    ),
    "one more link": (
        _copied(lambda f, m: (f / "code").symlink_to(f / "artifacts")),
        r"code/\S+ of version \d+ of 'clinic': is none of the registered files",
    ),
    "bytecode": (
        _copied(_plant_bytecode),
        (
            r"__pycache__/serving.cpython-311.pyc of version \d+ of 'clinic': is none of the"
            r" registered files"
        ),
    ),
    "another manifest": (
        _copied(lambda f, m: (plant_code(f, m), rewrite_manifest(f))),
        r"version \d+ .*: manifest.json is not what this home's key has signed",
    ),
    "no manifest": (
        _copied(lambda f, m: (f / MANIFEST).unlink()),
        r"version \d+ of 'clinic': manifest.json is missing although it was signed",
    ),
    "no signature": (
        _copied(lambda f, m: (f / SIGNATURE).unlink()),
        r"version \d+ of 'clinic': manifest.sig is missing although it was signed",
    ),
    "a damaged signature": (
        _copied(lambda f, m: (f / SIGNATURE).write_text("[")),
        r"version \d+ of 'clinic': manifest.sig cannot be read",
    ),
    "a signature by another key": (
        _signed_elsewhere,
        (
            r"version \d+ .* signed by the key SHA256:\w+, which is neither this home's nor one of"
            r" BULKHEAD_TRUSTED_KEYS"
        ),
    ),
    "nothing signed": (
        _stripped,
        (
            r"version \d+ of 'clinic' is not signed, and is none of the versions that were there"
            r" when this home began to sign"
        ),
    ),
    "nothing signed, a digest less": (
        _without_digests,
        r"version \d+ of 'clinic' was not registered by bulkhead: it has no digests",
    ),
    "a program of another version": (
        _swap_program,
        r"version \d+ of 'clinic': SHA-256 is .* the file was changed in the artifact store",
    ),
    "other tags": (
        _other_tags,
        r"tag bulkhead.sha256.program.pt2 of version \d+ of 'clinic': is 000000000000, signed was",
    ),
}
