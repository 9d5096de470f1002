"""One process for each GPU; a number that the machine lacks is refused first. Devices are
simulated.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.load import declare, given_paths, load_declaration
from tasks.ranks import require_gpus, require_same_ranks, with_ranks
from training.launch.torchrun import command
from training.run.record import DECLARED, StartedRun

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE, LONG = "tests/clinic_visits.yaml", pytest.mark.long
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.fixture()
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let torch find `count` devices."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def declared(**train: Any) -> Declaration:
    columns = {"y": "label", "*": "feature"}
    return declare(
        {
            "name": "a",
            "data": {"uri": "a.parquet", "columns": columns},
            "task": {"kind": "binary"},
            "split": {"kind": "random"},
            "train": train,
        }
    )


@pytest.mark.parametrize("found", [0, 1, 8])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_has_a_process_for_each_gpu(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: Path, found: int
) -> None:
    monkeypatch.setenv("BULKHEAD_DATA", str(tmp_path))
    gpus(found)
    declaration = load_declaration(path)
    resolved = with_ranks(declaration)
    assert resolved.train.ranks == max(1, found)
    assert resolved == declaration.model_copy(
        update={"train": declaration.train.model_copy(update={"ranks": max(1, found)})}
    ), "nothing else"
    assert given_paths(resolved) == given_paths(declaration), (
        "still a default, which the report explains"
    )
    recorded = declare(
        yaml.safe_load(yaml.safe_dump(resolved.model_dump(mode="json", by_alias=True)))
    )
    gpus(64)
    assert with_ranks(recorded).train.ranks == max(1, found), (
        "what a run recorded is what resume and reproduce take"
    )


@pytest.mark.parametrize(
    ("train", "found", "ranks"),
    [
        ({}, 8, 8),
        ({"ranks": "auto"}, 8, 8),
        ({"ranks": None}, 2, 2),
        ({"ranks": 2}, 8, 2),
        ({"ranks": 4}, 0, 4),
        ({"device": "cpu"}, 8, 1),
        ({"device": "cpu", "ranks": 3}, 1, 3),
        ({"batch_size": 5}, 8, 5),
        ({"mode": "elastic"}, 8, 4),
        ({"mode": "elastic", "logical_shards": 16}, 6, 4),
        ({"nodes": 2, "rendezvous": "a:29400"}, 8, 16),
        ({"nodes": 2, "rendezvous": "a:29400"}, 0, 2),
        ({"nodes": 2, "rendezvous": "a:29400", "ranks": 16}, 8, 16),
        ({"nodes": 3, "rendezvous": "a:29400", "batch_size": 10}, 8, 9),
    ],
)
def test_what_is_declared_is_taken_and_what_is_not_suits_the_machine(
    gpus: Any, train: dict[str, Any], found: int, ranks: int
) -> None:
    gpus(found)
    resolved = with_ranks(declared(**train))
    assert resolved.train.ranks == ranks and resolved.train.ranks % resolved.train.nodes == 0
    assert declare(resolved.model_dump(mode="json", by_alias=True)).train.ranks == ranks, (
        "valid as a declaration"
    )


@pytest.mark.parametrize(
    ("train", "found", "message"),
    [
        (
            {"ranks": 2},
            1,
            (
                r"train\.ranks is 2: each process needs its own GPU, and torch finds 1 here;"
                r" leave train\.ranks out .*, set train\.ranks=1, or .*device=cpu"
            ),
        ),
        ({"ranks": 9}, 8, r"train\.ranks is 9: .*torch finds 8 here.*train\.ranks=8"),
        (
            {"nodes": 2, "rendezvous": "a:29400", "ranks": 6},
            2,
            (
                r"train\.ranks is 6 on 2 machines, so 3 on this one: .*torch finds 2"
                r" here.*train\.ranks=4"
            ),
        ),
        (
            {"device": "cuda"},
            0,
            r"train\.device is cuda, but torch finds no GPU here; set train\.device: cpu or auto",
        ),
    ],
)
def test_what_the_machine_cannot_give_is_refused_with_the_remedy(
    gpus: Any, train: dict[str, Any], found: int, message: str
) -> None:
    gpus(found)
    with pytest.raises(ConfigError, match=message):
        with_ranks(declared(**train))


def test_hidden_devices_are_named(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ConfigError, match=r"torch finds 1 here \(CUDA_VISIBLE_DEVICES=3\)"):
        require_gpus(declared(ranks=2).train)


def test_a_run_goes_on_only_where_its_processes_have_a_gpu_each(gpus: Any, tmp_path: Path) -> None:
    (tmp_path / DECLARED).write_text(declared(ranks=8).model_dump_json(by_alias=True))
    StartedRun(
        run_id="r",
        name="n",
        kind="pipeline",
        tracking_uri="sqlite:///x",
        mlflow_run_id="m",
        created="2026-01-01",
    ).write(tmp_path)
    for found in (0, 8):
        gpus(found)
        require_same_ranks(tmp_path)
    gpus(2)
    with pytest.raises(ConfigError, match=r"train\.ranks is 8: .*torch finds 2 here"):
        require_same_ranks(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    ["run", pytest.param("train", marks=LONG), pytest.param("run cv.folds=3", marks=LONG)],
)
def test_the_command_line_refuses_before_anything_is_prepared(tmp_path: Path, command: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.abc, importlib.machinery, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name != 'torch.cuda': return None\n"
        "        spec = importlib.machinery.PathFinder.find_spec(name, path)\n"
        "        load = spec.loader.exec_module\n"
        "        def exec_module(module): load(module); module.device_count = lambda: 1\n"
        "        spec.loader.exec_module = exec_module\n"
        "        return spec\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    home = tmp_path / "home"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "BULKHEAD_HOME": str(home),
        "BULKHEAD_CLINIC": "/nowhere.parquet",
    }
    environment.pop("PREFECT_API_URL", None)
    words = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", words[0], EXAMPLE, "train.ranks=2", *words[1:]],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert (
        re.search(r"ConfigError: train\.ranks is 2: .*torch finds 1 here", done.stderr)
        and "✓ source" not in done.stderr
    ), done.stderr
    assert not (home / "runs").exists()


def test_torchrun_gets_no_option_that_it_does_not_know(tmp_path: Path) -> None:
    from torch.distributed.run import get_args_parser

    from training.agent import with_known

    given = command(2, tmp_path / "resolved.json", tmp_path)
    arguments = given[given.index("training.agent") + 1 :]
    known = get_args_parser().parse_args(with_known(arguments, get_args_parser()))
    assert known.nproc_per_node == "2" and known.training_script == "training.main"
    older = get_args_parser()
    older._option_string_actions.pop("--shutdown-timeout", None)
    assert "--shutdown-timeout" not in with_known(arguments, older)
    assert with_known(["a"], get_args_parser()) == ["--shutdown-timeout", "15", "a"]
