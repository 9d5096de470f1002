"""The command line of the review: forms, exit codes, changes against a revision."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from tests.training.watch.programs import OF_RANKS, OF_SHARDED, RANKS, SHARDED
from training.review.changed import changed_files

ROOT = Path(__file__).resolve().parent.parent
HOOK = ROOT / "deployments" / "review_hook.py"
SOUND = """import torch


def train(model, optimizer, loader, loss_fn):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
"""
CLEARED = "        optimizer.zero_grad()\n"
PICKLED = "\n\ndef save(model):\n    torch.save(model, 'model.pt')\n"


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "TERM": "dumb"}
    command = [sys.executable, "-m", "flows.cli", "review", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=120,
        check=False,
    )


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "train.py").write_text(SOUND)
    (tmp_path / "old.py").write_text("import torch\n" + PICKLED)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "Begin")
    return tmp_path


@pytest.mark.req("M5")
def test_exit_codes_and_text(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOUND)
    sound = call(tmp_path, "train.py")
    assert sound.returncode == 0 and "nothing found" in sound.stdout
    (tmp_path / "train.py").write_text(SOUND.replace(CLEARED, ""))
    found = call(tmp_path, ".")
    assert found.returncode == 1
    assert (
        "train.py:7:9: BH101 [zero-grad-missing] error:" in found.stdout
        and "call `optimizer.zero_grad" in found.stdout
    )
    for wrong in (
        ["absent.py"],
        [],
        ["--select", "XX1", "train.py"],
        ["--explain", "BH999"],
        ["--format", "xml", "train.py"],
        ["--diff"],
    ):
        done = call(tmp_path, *wrong)
        assert done.returncode == 2 and "Traceback" not in done.stderr, wrong
    assert call(tmp_path, "--ignore", "BH101", "train.py").returncode == 0
    assert call(tmp_path, "--select", "BH2", "train.py").returncode == 0
    unknown = call(tmp_path, "--explain", "zero-grad-mising").stderr
    assert "did you mean zero-grad-missing" in unknown and "BH888" not in unknown
    explained = call(tmp_path, "--explain", "BH101")
    assert (
        explained.returncode == 0
        and "# wrong" in explained.stdout
        and "# right" in explained.stdout
    )


RUNS = """import torch

x = torch.randn(64, 3)
y = x.sum(1)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(12):
    optimizer.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    optimizer.step()
print("trained")
"""
FITTING = RUNS.replace("y = x.sum(1)", "y = x.sum(1, keepdim=True)")


BY_HAND = (
    RUNS[: RUNS.index("optimizer =")]
    + """for _ in range(12):
    gradients = torch.autograd.grad(((net(x).squeeze(1) - y) ** 2).mean(), list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(net.parameters(), gradients):
            p -= 0.01 * g
"""
)


@pytest.mark.req("M5")
def test_a_program_that_is_run_adds_what_was_seen_to_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RUNS)
    done = call(tmp_path, "train.py", "--run", "--format", "json")
    told = json.loads(done.stdout)  # without the output of the program
    assert done.returncode == 1 and "trained" in done.stderr
    assert [(f["rule"], f["path"], f["line"]) for f in told["findings"]] == [
        ("BH310", "train.py", 9)
    ]
    assert (
        "seen while it ran" in told["findings"][0]["message"]
        and "[64, 1] meets [64]" in told["findings"][0]["message"]
    )
    assert told["run"] | {"seconds": 0} == {
        "steps": 12,
        "complete": True,
        "error": "",
        "seconds": 0,
        "unseen": [],
        "backwards": 12,
    }


ALL_AT_ONCE = """import torch

torch.manual_seed(0)
x = torch.randn(300, 4)
y = (x.sum(1) > 0).float()
order = torch.randperm(300)
fit, held = order[:200], order[200:]
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    for rows in fit.split(20):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(net(x[rows]).squeeze(1), y[rows]).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    scores = net(x).squeeze(1)
    right = ((scores[held] > 0) == (y[held] > 0)).float().mean()
print(right)
"""  # noqa: E501


@pytest.mark.long
@pytest.mark.req("M5")
def test_rows_of_both_sides_may_be_scored_at_once_and_told_apart_behind_that(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(ALL_AT_ONCE)
    assert call(tmp_path, "train.py", "--run").returncode == 0
    (tmp_path / "train.py").write_text(ALL_AT_ONCE.replace("[held]", ""))
    told = json.loads(call(tmp_path, "train.py", "--run", "--format", "json").stdout)
    assert [(f["rule"], f["line"]) for f in told["findings"]] == [("BH803", 17)]


WINDOWS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit(rows, window=4):
    torch.manual_seed(0)
    x = torch.randn(rows, 3)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        optimizer.zero_grad()
        for i, (a, b) in enumerate(loader):
            (nn.functional.mse_loss(model(a), b) / window).backward()
            if (i + 1) % window == 0:
                optimizer.step()
                optimizer.zero_grad()


fit(ROWS)
"""


@pytest.mark.long
@pytest.mark.req("M5")
@pytest.mark.parametrize(("rows", "told"), [(256, False), (264, True)])
def test_a_run_shows_whether_batches_are_left_behind_the_last_window(
    tmp_path: Path, rows: int, told: bool
) -> None:
    (tmp_path / "train.py").write_text(WINDOWS.replace("ROWS", str(rows)))
    assert "BH122" in call(tmp_path, "train.py").stdout  # the number of batches cannot be read
    assert ("BH122" in call(tmp_path, "train.py", "--run").stdout) == told


@pytest.mark.long
def test_a_run_that_fails_or_shows_nothing_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "allowed.py").write_text(
        RUNS.replace(
            ".backward()",
            ".backward()  # bulkhead: allow[BH310] a broadcast is wanted in this test",
        )
    )
    (tmp_path / "broken.py").write_text(FITTING + "raise KeyError('column')\n")
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    (tmp_path / "idle.py").write_text("print('no training')\n")
    (tmp_path / "endless.py").write_text(FITTING.replace("range(12)", "iter(int, 1)"))
    assert call(tmp_path, "allowed.py", "--run").returncode == 0
    broken = call(tmp_path, "broken.py", "--run")
    assert broken.returncode == 1 and "12 optimizer steps, ended with KeyError" in broken.stdout
    by_hand = call(tmp_path, "by_hand.py", "--run")
    assert (
        by_hand.returncode == 0
        and "0 optimizer steps, 12 backward passes, came to its end" in by_hand.stdout
    )
    idle = call(tmp_path, "idle.py", "--run")
    assert (
        idle.returncode == 2
        and "nothing was seen" in idle.stderr
        and "Traceback" not in idle.stderr
    )
    endless = call(tmp_path, "endless.py", "--run", "--seconds", "3")
    assert endless.returncode == 0 and "ended when its time was up" in endless.stdout
    assert call(tmp_path, "idle.py", "broken.py", "--run").returncode == 2
    assert call(tmp_path, "idle.py", "--run", "--ranks", "2").returncode == 2


ALONE = (
    (
        "        loss = F.cross_entropy(net(x), y)\n        loss.backward()\n       "
        " optimizer.step()\n"
    ),
    """        with net.no_sync():
            loss = F.cross_entropy(net(x), y)
            loss.backward()
        optimizer.step()
    for p in net.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
""",
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "old", "new"), [("", "", ""), ("", *ALONE), *OF_RANKS], ids=lambda part: part[:5]
)
def test_two_ranks_of_a_program(tmp_path: Path, rule: str, old: str, new: str) -> None:
    assert old in RANKS
    (tmp_path / "ranks.py").write_text(RANKS.replace(old, new) if old else RANKS)
    done = call(tmp_path, "ranks.py", "--run", "--ranks", "2", "--format", "json")
    found = [f["rule"] for f in json.loads(done.stdout)["findings"]]
    assert (rule in found) if rule else (done.returncode == 0 and found == []), done.stdout


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("rule", "old", "new"), [("", "", ""), *OF_SHARDED], ids=lambda part: part[:5]
)
def test_ranks_that_hold_shares_of_the_weights(
    tmp_path: Path, ranks: int, rule: str, old: str, new: str
) -> None:
    assert old in SHARDED
    (tmp_path / "ranks.py").write_text(SHARDED.replace(old, new) if old else SHARDED)
    done = call(tmp_path, "ranks.py", "--run", "--ranks", str(ranks), "--format", "json")
    told = json.loads(done.stdout)
    assert {f["rule"] for f in told["findings"]} == (
        {rule} if rule and (rule, ranks) != ("BH513", 1) else set()
    )
    assert told["run"]["steps"] == 12 // ranks * (2 if rule == "BH513" and ranks == 2 else 1)
    assert told["run"]["complete"] and told["run"]["unseen"] == []


def spawning(program: str, starts: str = "spawn", options: str = "") -> str:
    """Write a program that starts its two ranks itself."""
    imports, _, rest = program.partition("dist.init_process_group")
    body = textwrap.indent(
        "dist.init_process_group"
        + rest.replace('("gloo")', '("gloo", f"file://{meeting}", rank=rank, world_size=2)'),
        "    ",
    )
    ends = (
        "if __name__ == '__main__':\n    meeting = tempfile.mktemp()\n   "
        f" torch.multiprocessing.{starts}(work, args=(meeting,), nprocs=2{options})\n"
    )
    return (
        f"import tempfile\nfrom torch.nn.utils import clip_grad_norm_\n{imports}\ndef work(rank,"
        f" meeting):\n{body}\n\n{ends}"
    )


CLIPPED = "        loss.backward()\n        optimizer.step()\n"
OF_SPAWNED = (
    ("", "", ""),
    (
        "BH106",
        CLIPPED,
        (
            "        loss.backward()\n        optimizer.step()\n       "
            " globals()['clip_grad_norm_'](net.parameters(), 1.0)\n"
        ),
    ),  # seen by the run alone
    *(
        (rule, old, new.replace("dist.all_reduce", "getattr(dist, 'all_reduce')"))
        for rule, old, new in OF_RANKS
        if rule in ("BH604", "BH824")
    ),
)


@pytest.mark.long
@pytest.mark.parametrize(("rule", "old", "new"), OF_SPAWNED, ids=lambda part: part[:5])
def test_ranks_that_a_program_starts_itself_are_watched(
    tmp_path: Path, rule: str, old: str, new: str
) -> None:
    starts = "start_processes" if rule == "BH824" else "spawn"
    (tmp_path / "spawns.py").write_text(spawning(RANKS.replace(old, new) if old else RANKS, starts))
    done = call(tmp_path, "spawns.py", "--run", "--format", "json")
    told = json.loads(done.stdout)
    found = [f["rule"] for f in told["findings"] if f["message"].startswith("seen while it ran")]
    assert rule in found if rule else (done.returncode == 0 and told["findings"] == []), done.stdout
    assert told["run"]["steps"] == 12 or rule == "BH604"
    assert told["run"]["error"] == "" or rule == "BH604"


@pytest.mark.long
@pytest.mark.parametrize(("rule", "old", "new"), OF_SPAWNED, ids=lambda part: part[:5])
def test_ranks_that_are_forked_are_watched_and_keep_what_the_program_made_before(
    tmp_path: Path, rule: str, old: str, new: str
) -> None:
    text = spawning(
        RANKS.replace(old, new) if old else RANKS, "start_processes", ", start_method='fork'"
    )
    (tmp_path / "forks.py").write_text(
        text.replace("args=(meeting,)", "args=(None,)").replace(
            "{meeting}", "{globals()['meeting']}"
        )
    )
    done = call(tmp_path, "forks.py", "--run", "--format", "json")
    told = json.loads(done.stdout)
    found = [f["rule"] for f in told["findings"] if f["message"].startswith("seen while it ran")]
    assert rule in found if rule else (done.returncode == 0 and told["findings"] == []), done.stdout
    assert (told["run"]["steps"] == 12 and told["run"]["error"] == "") or rule == "BH604"


@pytest.mark.long
def test_a_rank_that_fails_in_a_process_of_its_own_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(
        spawning(RANKS.replace("    net.train()\n", "    raise KeyError('column')\n"))
    )
    done = call(tmp_path, "spawns.py", "--run")
    assert (
        done.returncode == 1
        and "ended with ProcessRaisedException" in done.stdout
        and "KeyError" in done.stderr
    )


@pytest.mark.long
def test_ranks_that_a_program_starts_itself_end_when_their_time_is_up(tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(spawning(RANKS.replace("range(2)", "range(10**6)")))
    done = call(tmp_path, "spawns.py", "--run", "--seconds", "3")
    assert done.returncode == 0 and "ended when its time was up" in done.stdout, done.stdout


def test_json_and_sarif(tmp_path: Path) -> None:
    allowed = (
        "    torch.save(model, 'model.pt')  # bulkhead: allow[BH702] loaded by the same commit"
        " only\n"
    )
    (tmp_path / "train.py").write_text(
        SOUND.replace(CLEARED, "") + "\n\ndef save(model):\n" + allowed
    )
    told = json.loads(call(tmp_path, "train.py", "--json").stdout)
    assert [(f["rule"], f["line"], f["path"]) for f in told["findings"]] == [
        ("BH101", 7, "train.py")
    ]
    assert [(f["rule"], f["reason"]) for f in told["allowed"]] == [
        ("BH702", "loaded by the same commit only")
    ]
    log = json.loads(call(tmp_path, "train.py", "--format", "sarif").stdout)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and [r["id"] for r in run["tool"]["driver"]["rules"]] == [
        "BH101",
        "BH702",
    ]
    first, second = run["results"]
    region = first["locations"][0]["physicalLocation"]["region"]
    assert (first["ruleId"], first["level"], region["startLine"], region["startColumn"]) == (
        "BH101",
        "error",
        7,
        9,
    )
    assert "suppressions" not in first and second["suppressions"][0]["kind"] == "inSource"


@pytest.mark.req("M5")
def test_diff_tells_only_what_a_change_brought(repository: Path) -> None:
    assert call(repository, "--diff").returncode == 0
    assert call(repository, ".").returncode == 1  # findings that existed before
    (repository / "train.py").write_text(SOUND.replace(CLEARED, "") + PICKLED)
    (repository / "new.py").write_text("import torch\n" + PICKLED)
    changed = call(repository, "--diff")
    assert changed.returncode == 1
    assert {
        line.split(" ")[1]
        for line in changed.stdout.splitlines()
        if "BH" in line and ".py:" in line
    } == {"BH101", "BH702"}
    assert "old.py" not in changed.stdout and "new.py" in changed.stdout
    below = call(repository, "--diff", "HEAD", "new.py")
    assert below.returncode == 1 and "train.py" not in below.stdout
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "Change")
    assert call(repository, "--diff").returncode == 0
    assert "BH101" in call(repository, "--diff", "HEAD~1").stdout
    unknown = call(repository, "--diff", "no-such-branch")
    assert unknown.returncode == 2 and "neither a path nor a revision" in unknown.stderr


def test_changes_of_files_with_spaces_and_letters_beyond_ascii(repository: Path) -> None:
    (repository / "ein Lauf ä.py").write_text("x = 1\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "Add")
    (repository / "ein Lauf ä.py").write_text("x = 1\ny = 2\n")
    (changes,) = [
        c for p, c in changed_files("HEAD", repository).items() if p.name == "ein Lauf ä.py"
    ]
    assert changes.added == ((2, 2),)


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys, tasks.review; print([m for m in ('torch', 'prefect', 'mlflow', 'numpy',"
        " 'duckdb', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.req("M5")
@pytest.mark.parametrize("options", [("-I", "-S", str(HOOK)), ("-S", "-m", "training.review")])
def test_the_hook_needs_the_standard_library_alone(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    def review(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(text)
        command = [sys.executable, *options, "train.py", "--format", "sarif"]
        only = {"PYTHONPATH": str(ROOT)}  # without site-packages
        return subprocess.run(
            command, capture_output=True, text=True, env=only, cwd=tmp_path, check=False
        )

    assert review(SOUND).returncode == 0
    faulty = review(SOUND.replace(CLEARED, ""))
    assert faulty.returncode == 1, faulty.stderr
    (found,) = json.loads(faulty.stdout)["runs"][0]["results"]
    assert found["ruleId"] == "BH101"


def test_the_hook_is_a_script_that_nothing_is_installed_for() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["language"] == "script" and ROOT / hook["entry"] == HOOK
    assert os.access(HOOK, os.X_OK)
