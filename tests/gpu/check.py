"""Check training on a GPU: python -m tests.gpu.check [--device cpu] [--only NAME …]   (8 minutes at most; exit code 1 where a check fails)

Prints one table and, with `--markdown FILE`, writes it. Needs a device, Python 3.11 or newer, torch
2.11 or newer and no network. `--device cpu` runs the same checks on the CPU, small, as the default
tests do. Exit code 2: no such device.
"""  # noqa: E501

from __future__ import annotations

import argparse
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.made_up import prepare, prepare_images, prepare_texts, variant
from benchmarks.page import markdown_table
from schemas.errors import NonFiniteError
from schemas.records import RunSpec
from tests.faults.final_state import final_state
from tests.training.runs import keep_torch_settings
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.main import read_spec
from training.replay.replay import replay

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300.0  # limit of a check's process
# Largest distance of an update on the device from that on the CPU, as a share of the update's
# length.
# fp32: other orders of addition; bf16 and fp16: products of 8 and 11 bits (2^-8, 2^-11), through a
# few layers.
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}
PRECISIONS = tuple(TOLERANCE)
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp", **NO_DROPOUT},
    "resmlp": {"kind": "resmlp", **NO_DROPOUT},
    "realmlp": {"kind": "realmlp", **NO_DROPOUT},
    "tabm": {"kind": "tabm", "width": 64, "members": 8, **NO_DROPOUT},
    "ft_transformer": {
        "kind": "ft_transformer",
        "width": 32,
        "heads": 4,
        "depth": 2,
        "attention_dropout": 0.0,
        **NO_DROPOUT,
    },
    "cnn": {"kind": "cnn", "channels": [8, 16], "hidden": 32, **NO_DROPOUT},
    "causal_transformer": {
        "kind": "causal_transformer",
        "width": 32,
        "heads": 4,
        "depth": 2,
        **NO_DROPOUT,
    },
}
SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0}
SMALL: dict[str, Any] = {
    "batch_size": 64,
    "epochs": 2,
    "threads": 1,
    "log_every": 1,
    "eval_every": 8,
    "checkpoint_every": 4,
}


class CheckError(Exception):
    """A check found a wrong result."""


class Bench:
    """The device, a folder, and the prepared data that checks share.

    Args:
        device: `cuda` or `cpu`.
        folder: gets all files.
    """

    def __init__(self, device: str, folder: Path) -> None:
        self.device, self.folder, self._made, self._runs = device, folder, dict[str, RunSpec](), 0

    def data(self, kind: str) -> RunSpec:
        """Return prepared rows: `table`, `images` or `texts`."""
        if kind not in self._made:
            folder = self.folder / kind
            folder.mkdir()
            make: dict[str, Callable[[], RunSpec]] = {
                "table": lambda: prepare(folder, 1_200, numeric_columns=8),
                "images": lambda: prepare_images(folder, 300),
                "texts": lambda: prepare_texts(folder, 60, context=32),
            }
            self._made[kind] = make[kind]()
        return self._made[kind]

    def run_of(
        self, model: dict[str, Any], device: str | None = None, **train: Any
    ) -> tuple[Path, Path]:
        """Make a `resolved.json` and an empty run folder."""
        kind = {"cnn": "images", "causal_transformer": "texts"}.get(model["kind"], "table")
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        folder.mkdir()
        # the same for all: the schedule of RealMLP's recipe begins at rate 0
        sections: dict[str, Any] = {"schedule": {"kind": "warmup_cosine"}}
        sections |= {name: train.pop(name) for name in ("optimizer", "loss") if name in train}
        options = (
            SMALL
            | ({"batch_size": 8} if kind == "texts" else {})
            | {"device": device or self.device}
            | train
        )
        return (
            variant(
                self.data(kind), folder / "resolved.json", model=model, train=options, **sections
            ),
            folder,
        )

    def trainer(self, model: dict[str, Any], device: str | None = None, **train: Any) -> Trainer:
        """Return a trainer in this process, before its first step."""
        config, folder = self.run_of(model, device, **train)
        return Trainer(
            read_spec(config), folder, Parallel.open(device or self.device), StopSignal()
        )

    def launch(self, config: Path, folder: Path, ranks: int = 1) -> subprocess.Popen[bytes]:
        """Launch the training program in its own process, under torchrun."""
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
        ]
        with (folder / "train.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *command,
                    "-m",
                    "training.main",
                    "--config",
                    str(config),
                    "--run-dir",
                    str(folder),
                ],
                cwd=ROOT,
                env=os.environ | {"BULKHEAD_ALLOW_IMPORTS": "tests"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finished(self, config: Path, folder: Path, ranks: int = 1) -> dict[str, str]:
        """Return digests of the final state of a launched run."""
        code = self.launch(config, folder, ranks).wait(SECONDS)
        require(
            code == 0, f"training ended with {code}: {(folder / 'train.log').read_text()[-600:]}"
        )
        return final_state(folder)


def require(holds: bool, otherwise: str) -> None:
    """Raise if something does not hold; not an assert, which `python -O` leaves out."""
    if not holds:
        raise CheckError(otherwise)


def weights(trainer: Trainer) -> Tensor:
    """Return all parameters as one vector in double precision on the CPU."""
    return torch.cat([p.detach().cpu().double().flatten() for p in trainer.model.parameters()])


def update_of(trainer: Trainer, steps: int = 1) -> Tensor:
    """Return the change of the parameters after `steps` steps."""
    before = weights(trainer)
    for _ in range(steps):
        trainer._train_one_step()
    trainer._settle()
    return weights(trainer) - before


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the length of the difference as a share of the wanted vector's."""
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


# checks


def equals_cpu(bench: Bench) -> str:
    """Check one step of every model in every precision: the weights change as on the CPU."""
    worst = dict.fromkeys(PRECISIONS, 0.0)
    for name, model in MODELS.items():
        for precision in PRECISIONS:
            train = {"precision": precision, "optimizer": SGD} | (
                {"loss_scale": {"initial": 256.0}} if precision == "fp16" else {}
            )
            found, wanted = (
                update_of(bench.trainer(model, device, **train)) for device in (bench.device, "cpu")
            )
            require(
                bool(torch.isfinite(found).all()) and float(wanted.norm()) > 0,
                f"{name} {precision}: the step changed nothing, or is not finite",
            )
            apart = distance(found, wanted)
            worst[precision] = max(worst[precision], apart)
            require(
                apart <= TOLERANCE[precision],
                f"{name} {precision}: {apart:.2g} from the CPU, at most {TOLERANCE[precision]:g}"
                " expected",
            )
    return f"{len(MODELS)} models; furthest: " + ", ".join(
        f"{p} {d:.1g} (≤ {TOLERANCE[p]:g})" for p, d in worst.items()
    )


def exact_twice(bench: Bench) -> str:
    """Check that a run with dropout ends with the same SHA-256 twice in exact mode."""
    digests = []
    for _ in range(2):
        report = bench.trainer({"kind": "mlp", "dropout": 0.2}).run()
        digests.append(report.model_sha256)
    require(digests[0] == digests[1], f"SHA-256 {digests[0][:12]} and {digests[1][:12]}")
    return f"SHA-256 {digests[0][:12]} twice, {report.steps} steps"


def kill_and_resume(bench: Bench) -> str:
    """Check that a run killed with SIGKILL and restarted ends as the undisturbed run."""
    model, train = (
        {"kind": "custom", "path": "tests.faults.networks:Delicate"},
        {
            "epochs": 30,
            "checkpoint_every": 3,
        },
    )
    wanted = bench.finished(*bench.run_of(model, **train))
    config, folder = bench.run_of(model, **train)
    kills = 0
    for least in (1, 4):
        process, deadline = bench.launch(config, folder), time.monotonic() + SECONDS
        while (
            len(list((folder / "checkpoints").glob("step-*"))) < min(least, 2)
            or _newest(folder) < 3 * least
        ):
            require(
                time.monotonic() < deadline and process.poll() is None,
                f"nothing to kill: {(folder / 'train.log').read_text()[-600:]}",
            )
            time.sleep(0.01)
        _kill(process)
        kills += 1
        require(
            not (folder / "result.json").exists(),
            "the run had ended before it was killed; make it longer",
        )
    found = bench.finished(config, folder)
    wrong = [part for part in wanted if found[part] != wanted[part]]
    require(not wrong, f"after {kills} kills other {', '.join(wrong)}")
    return f"after {kills} kills the same {', '.join(wanted)}"


def _newest(folder: Path) -> int:
    return max(
        (
            int(p.name.removeprefix("step-"))
            for p in (folder / "checkpoints").glob("step-*")
            if p.name[5:].isdigit()
        ),
        default=0,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the launcher and its ranks, each of which has its own session."""
    from training.launch.stop_signal import children

    for pid in (*children(process.pid), process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def fp16_overflow(bench: Bench) -> str:
    """Check that a loss scale which overflows skips the update and the schedule, nothing else."""
    train = {
        "precision": "fp16",
        "loss_scale": {"initial": 2.0**24, "growth_interval": 4},
        "epochs": 4,
    }
    trainer = bench.trainer(MODELS["mlp"], **train)
    report = trainer.run()
    skipped = report.steps - trainer.state.updates
    require(
        report.skipped_steps == skipped > 0,
        f"{report.skipped_steps} skipped steps reported, {skipped} updates missing; overflows were"
        " forced",
    )
    counts = {int(s["step"]) for s in trainer.optimizer.state_dict()["state"].values()}
    require(
        counts == {trainer.state.updates},
        f"the optimizer counted {counts}, the run {trainer.state.updates} updates",
    )
    rate = trainer.optimizer.param_groups[0]["lr"]
    require(
        rate == trainer.schedule.rate(trainer.state.updates),
        "the schedule moved with a skipped step",
    )
    return (
        f"{skipped} of {report.steps} steps skipped; {trainer.state.updates} updates of weights and"
        " schedule"
    )


def stops_before_nan(bench: Bench) -> str:
    """Check that a non-finite gradient stops the run before the update; replay finds the module."""
    config, folder = bench.run_of(
        {"kind": "custom", "path": "tests.training.networks:Cliff"}, checkpoint_every=1
    )
    trainer = Trainer(read_spec(config), folder, Parallel.open(bench.device), StopSignal())
    before = weights(trainer)
    try:
        trainer.run()
    except NonFiniteError as error:
        message = str(error).splitlines()[0]
    else:
        raise CheckError("a gradient that is not finite did not stop the run")
    require(torch.equal(weights(trainer), before), "weights changed in the step that was stopped")
    found = replay(folder)
    require(
        found.reproduced and found.device == torch.device(bench.device).type,
        f"replay on {found.device}: reproduced {found.reproduced}",
    )
    return f"stopped ({message[:60]}…); replayed on {found.device}: {found.message[:60]}…"


def compile_equals_eager(bench: Bench) -> str:
    """Check that three compiled steps change the weights as eager ones do."""
    train = {"optimizer": SGD, "epochs": 4}
    eager, compiled = (
        update_of(bench.trainer(MODELS["mlp"], compile=wanted, **train), 3)
        for wanted in (False, True)
    )
    apart = distance(compiled, eager)
    require(
        apart <= TOLERANCE["fp32"], f"{apart:.2g} apart, at most {TOLERANCE['fp32']:g} expected"
    )
    return f"{apart:.1g} apart (≤ {TOLERANCE['fp32']:g})"


def resident_equals_streamed(bench: Bench) -> str:
    """Check that a table on the device and one sent window by window train to the same SHA-256."""
    from training.engine import batches

    share, digests, places = batches.DEVICE_SHARE, [], []
    try:
        for allowed in (share, 0.0):
            batches.DEVICE_SHARE = allowed
            trainer = bench.trainer({"kind": "mlp", "dropout": 0.2})
            places.append(trainer.train_tensors["label"].device.type)
            digests.append(trainer.run().model_sha256)
    finally:
        batches.DEVICE_SHARE = share
    if bench.device == "cuda":
        require(places == ["cuda", "cpu"], f"rows were on {places}")
    require(digests[0] == digests[1], f"SHA-256 {digests[0][:12]} and {digests[1][:12]}")
    return f"rows on {' and '.join(places)}: SHA-256 {digests[0][:12]}"


def fsdp_equals_ddp(bench: Bench) -> str:
    """Check that sharded weights train to the SHA-256 of replicated ones."""
    ranks = max(1, torch.cuda.device_count()) if bench.device == "cuda" else 2
    found = [
        bench.finished(*bench.run_of(MODELS["mlp"], parallel=kind, ranks=ranks, epochs=1), ranks)[
            "result"
        ]
        for kind in ("ddp", "fsdp")
    ]
    require(found[0] == found[1], "ddp and fsdp end with other weights")
    return f"the same result on {ranks} rank{'s' * (ranks > 1)}"


def device_tests(bench: Bench) -> str:
    """Check that the test files which take a device pass on it."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "tests/gpu/test_device.py",
    ]
    if bench.device == "cuda":
        command.append("tests/training/test_ahead.py")
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"BULKHEAD_TEST_DEVICE": bench.device},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    require(done.returncode == 0, f"pytest ended with {done.returncode}: {done.stdout[-800:]}")
    return (
        f"{', '.join(c for c in command if c.endswith('.py'))}:"
        f" {done.stdout.strip().splitlines()[-1]}"
    )


def whole_run(bench: Bench) -> str:
    """Check that `bulkhead run` of the default example ends with a champion."""
    home = bench.folder / "home"
    rows = str(bench.folder / "clinic_visits.parquet")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    places = {"BULKHEAD_HOME": str(home), "BULKHEAD_CLINIC": rows, "PYTHONPATH": path}
    environment = os.environ | places
    for command in (
        [sys.executable, "examples/clinic_visits.py", rows],
        [
            sys.executable,
            "-m",
            "flows.cli",
            "run",
            "tests/clinic_visits.yaml",
            f"train.device={bench.device}",
        ],
    ):
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        output = done.stdout + done.stderr
        require(
            done.returncode == 0,
            f"{' '.join(command[1:4])} ended with {done.returncode}: {output[-800:]}",
        )
    require("→ champion" in output, f"no champion: {output[-800:]}")
    return next((line.strip() for line in output.splitlines() if "evaluate" in line), "a champion")[
        :110
    ]


CHECKS: dict[str, Callable[[Bench], str]] = {
    "equals the CPU": equals_cpu,
    "exact twice": exact_twice,
    "fp16 overflow": fp16_overflow,
    "stop before NaN": stops_before_nan,
    "compile equals eager": compile_equals_eager,
    "resident equals streamed": resident_equals_streamed,
    "kill and resume": kill_and_resume,
    "fsdp equals ddp": fsdp_equals_ddp,
    "device tests": device_tests,
    "default example": whole_run,
}


class Row(NamedTuple):
    """One check's result."""

    name: str
    verdict: str
    seconds: float
    words: str


def run_checks(
    device: str, folder: Path, names: list[str], report: Callable[[Row], None]
) -> list[Row]:
    """Run the named checks one after the other; a check that fails hides no other."""
    bench, rows = Bench(device, folder), []
    for name in names:
        begun = time.monotonic()
        with keep_torch_settings():
            try:
                verdict, words = "pass", CHECKS[name](bench)
            except Exception as error:
                verdict, words = "FAIL", f"{type(error).__name__}: {error}"
                if not isinstance(error, CheckError):
                    traceback.print_exc()
        rows.append(Row(name, verdict, time.monotonic() - begun, " ".join(words.split())))
        report(rows[-1])
    return rows


def describe(device: str) -> str:
    """Describe the device and the software, for the head of the table."""
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else platform.processor() or platform.machine()
    )
    cuda = f", CUDA {torch.version.cuda}" if device == "cuda" else ""
    return f"{name}; Python {platform.python_version()}, torch {torch.__version__}{cuda}"


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=tuple(CHECKS),
        default=None,
        metavar="NAME",
        help=f"some of: {', '.join(CHECKS)}",
    )
    parser.add_argument("--markdown", type=Path, help="write the table to this file as well")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "no CUDA device here; run this on a machine that has one, or with --device cpu",
            file=sys.stderr,
        )
        return 2
    os.environ["BULKHEAD_ALLOW_IMPORTS"] = "tests"
    print(describe(options.device), flush=True)
    with tempfile.TemporaryDirectory(prefix="bulkhead-gpu-check-") as folder:
        rows = run_checks(
            options.device,
            Path(folder),
            options.only or list(CHECKS),
            lambda r: print(f"{r.verdict}  {r.name:26} {r.seconds:6.1f} s  {r.words}", flush=True),
        )
    failed = [row.name for row in rows if row.verdict != "pass"]
    total = math.fsum(row.seconds for row in rows)
    print(
        f"{len(rows) - len(failed)} of {len(rows)} checks pass in {total:.0f} s"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    if options.markdown:
        table = markdown_table(
            [
                {
                    "check": r.name,
                    "verdict": r.verdict,
                    "s": f"{r.seconds:.1f}",
                    "seen": r.words.replace("|", "/"),
                }
                for r in rows
            ]
        )
        options.markdown.write_text(f"{describe(options.device)}\n\n{table}\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
