"""Where a run came from, with nothing secret in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.run.provenance import dirty_diff, git_state, masked, provenance


def git(folder: Path, *arguments: str) -> str:
    identity = [
        "-c",
        "user.name=n",
        "-c",
        "user.email=n@example.org",
        "-c",
        "init.defaultBranch=main",
    ]
    return subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


@pytest.mark.req("P6")
def test_a_clean_checkout_gives_commit_and_branch(checkout: Path) -> None:
    state = git_state(checkout)
    assert (state["sha"], state["branch"], state["dirty"]) == (
        git(checkout, "rev-parse", "HEAD").strip(),
        "main",
        False,
    )
    assert dirty_diff(checkout) == ""
    git(checkout, "checkout", "-q", "--detach")
    assert git_state(checkout)["branch"] is None


@pytest.mark.req("P6")
def test_a_changed_file_is_in_the_diff_and_an_untracked_one_is_only_counted(checkout: Path) -> None:
    (checkout / "code.py").write_text("a = 2\nurl = 'postgresql://ann:hunter2@db/m'\n")
    (checkout / ".env").write_text("TOKEN=hunter3\n")
    state, diff = git_state(checkout), dirty_diff(checkout)
    assert state["dirty"]
    assert (state["untracked_files"], state["diff_lines"]) == (1, diff.count("\n"))
    assert "-a = 1\n+a = 2\n+url = 'postgresql://***@db/m'" in diff
    assert "hunter" not in diff + json.dumps(provenance(checkout))


@pytest.mark.req("S1")
def test_the_repositorys_own_settings_start_no_program(checkout: Path) -> None:
    marker = checkout / "started"
    for key in ("core.fsmonitor", "diff.external"):
        git(checkout, "config", key, f"touch {marker};:")
    (checkout / "code.py").write_text("a = 2\n")
    assert "+a = 2" in dirty_diff(checkout)
    assert git_state(checkout)["dirty"]
    assert not marker.exists()


@pytest.mark.req("P6")
def test_without_a_repository_or_git_the_rest_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for repo in (None, tmp_path, tmp_path / "absent"):
        found = provenance(repo)
        assert found["git"]["sha"] is None
        assert found["git"]["reason"]
        assert found["versions"]["torch"]
        assert found["hardware"]["cores"] >= 1
        json.dumps(found)
    monkeypatch.setenv("PATH", "")
    assert provenance(tmp_path)["git"]["sha"] is None


@pytest.mark.req("S1")
def test_the_environment_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2")
    assert "hunter2" not in json.dumps(provenance(Path(__file__).parent))


word = st.text("abcXYZ019", min_size=4, max_size=9)


@pytest.mark.req("S1")
@given(
    user=word,
    secret=word.map(lambda w: f"S3-{w}"),
    key=st.sampled_from(
        ["password", "sslpassword", "X-Amz-Signature", "sig", "access_token", "api_key"]
    ),
)
def test_credentials_of_an_address_are_masked_and_the_rest_stays(
    user: str, secret: str, key: str
) -> None:
    text = f"see http://{user}:{secret}@host:5000/a?x=1&{key}={secret}&y=2 and s3://bucket/part"
    assert masked(text) == f"see http://***@host:5000/a?x=1&{key}=***&y=2 and s3://bucket/part"
    assert masked(masked(text)) == masked(text)
