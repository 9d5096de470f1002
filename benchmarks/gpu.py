"""Training on a GPU: python -m benchmarks.gpu [--device cpu --small]   (10 minutes on a GPU; exit code 2 where there is none)

Two cases, in each of which Bulkhead's loop and a loop written by hand take turns in one process: a
table that lies on the device whole, and a causal transformer of 124 million parameters in bf16,
compiled, with flash attention. For each: rows (tokens) a second, time of a step by part, seconds
that a checkpoint delays training, and waits for the device in a step. For the transformer also the
share of the device's arithmetic that it reaches. Writes its section of docs/benchmarks.md.

`--device cpu --small` runs the same code on small networks in seconds, without compiling; its
figures mean nothing.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.loops import HandWritten, OwnLoop, take_turns, together
from benchmarks.made_up import prepare, prepare_texts, variant
from benchmarks.page import PAGE, machine, markdown_table, write_section
from benchmarks.throughput import ratios, spread
from benchmarks.waits import Waits
from schemas.records import RunSpec
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.main import read_spec

PHASES = ("gather", "forward and backward", "clip and gate", "update", "the rest")
# Dense bf16 arithmetic of a device as its vendor states it, in FLOP/s.
STATED = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "B200": 2250e12,
}


class Case(NamedTuple):
    """One measurement. `per_row`: tokens of a row, or 1 if rows are counted; `size`: arguments of
    `data`; `steps`: of a turn, and of each measurement of Bulkhead's loop alone.
    """

    name: str
    data: Callable[..., RunSpec]
    size: dict[str, int]
    model: dict[str, Any]
    train: dict[str, Any]
    per_row: int
    steps: int


def cases(small: bool) -> tuple[Case, Case]:
    """Return the two cases, or their small twins."""
    if small:
        text = {"kind": "causal_transformer", "width": 32, "heads": 2, "depth": 2}
        return (
            Case(
                "table on the device, MLP",
                prepare,
                {"rows": 1_000},
                {"kind": "mlp", "hidden": [16]},
                {"batch_size": 64, "threads": 1},
                1,
                2,
            ),
            Case(
                "causal transformer",
                prepare_texts,
                {"rows": 40, "context": 32},
                text,
                {"batch_size": 4, "precision": "bf16", "threads": 1},
                32,
                2,
            ),
        )
    half = {"batch_size": 32, "precision": "bf16", "compile": True}
    # 13 * 12 * 896² = 125 million
    text = {"kind": "causal_transformer", "width": 896, "heads": 14, "depth": 13, "dropout": 0.0}
    return (
        Case(
            "table on the device, MLP",
            prepare,
            {"rows": 2_000_000},
            {"kind": "mlp"},
            {"batch_size": 8192},
            1,
            50,
        ),
        Case(
            "causal transformer",
            prepare_texts,
            {"rows": 4_000, "context": 1024, "letters": 4096},
            text,
            half,
            1024,
            10,
        ),
    )


def flops_per_token(trainer: Trainer, context: int) -> float:
    """Return the FLOP of a forward and backward pass for one token: 6 for each parameter of a
    matrix product, and 6 L T W for causal attention.

    Source: Kaplan et al. 2020, arXiv:2001.08361, sec. 2.1, and Dao 2023, arXiv:2307.08691, sec. 4.1
    (half of the scores are masked).
    """
    model = trainer.declaration.model.model_dump()
    matrices: int = sum(
        p.numel()
        for name, p in trainer.model.named_parameters()
        if p.ndim == 2 and "position" not in name
    )
    return 6.0 * matrices + 6.0 * int(model["depth"]) * int(model["width"]) * context


def reached_by_a_product(device: torch.device, size: int) -> float:
    """Measure the FLOP/s of a square bf16 matrix product on this device: the median of ten."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(13):
        together(Parallel(device=device))
        begun = time.perf_counter()
        torch.mm(left, right)
        together(Parallel(device=device))
        seconds.append(time.perf_counter() - begun)
    return 2.0 * size**3 / float(median(seconds[3:]))


# measurements of one case


@contextmanager
def timed(trainer: Trainer, seconds: dict[str, float]) -> Iterator[None]:
    """Add up the seconds of each part of a step, which waits for the device at its end."""
    parts = [
        (trainer.reader, "_gather", "gather"),
        (trainer.step, "gradients", "forward and backward"),
        (trainer.step, "clip", "clip and gate"),
        (trainer.step, "gate", "clip and gate"),
        (trainer.step, "update", "update"),
    ]

    def clocked(work: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            found = work(*args, **kwargs)
            together(trainer.parallel)
            seconds[name] += time.perf_counter() - begun
            return found

        return run

    for owner, method, name in parts:
        setattr(owner, method, clocked(getattr(owner, method), name))
    try:
        yield
    finally:
        for owner, method, _ in parts:
            delattr(owner, method)


def breakdown(own: OwnLoop, steps: int) -> dict[str, float]:
    """Return the milliseconds of a step by part, with a wait after each; `whole` without waits."""
    parallel, seconds = own.trainer.parallel, dict.fromkeys(PHASES, 0.0)
    together(parallel)
    begun = time.perf_counter()
    own.run(steps)
    together(parallel)
    whole = time.perf_counter() - begun
    with timed(own.trainer, seconds):
        begun = time.perf_counter()
        own.run(steps)
        seconds["the rest"] = time.perf_counter() - begun - sum(seconds.values())
    return {name: 1000 * value / steps for name, value in ({"whole": whole} | seconds).items()}


def waits_per_step(own: OwnLoop, steps: int) -> float:
    """Return how often a step waits for the device, besides the arrival of the gate before it.

    On CUDA torch reports the waits, else operations are counted.
    """
    if own.trainer.parallel.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            own.run(steps)
        torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in told) / steps
    with Waits() as waits:
        own.run(steps)
    return (sum(waits.found.values()) - waits.found["Tensor.tolist"]) / steps


def attention(own: OwnLoop) -> str:
    """Return the attention kernel that a step uses: flash, or another."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (
        own.trainer.parallel.device.type == "cuda"
    )
    with profile(activities=activities) as found:
        own.run(1)
    names = {
        event.key
        for event in found.key_averages()
        if "attention" in event.key or "flash" in event.key
    }
    return "flash" if any("flash" in name for name in names) else ", ".join(sorted(names)) or "none"


def stall(own: OwnLoop) -> float:
    """Return the seconds that a checkpoint and the best weights delay training: median of three."""
    seconds = []
    for _ in range(3):
        own.run(1)
        together(own.trainer.parallel)
        begun = time.perf_counter()
        own.save()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def measure(case: Case, folder: Path, parallel: Parallel, rounds: int) -> dict[str, Any]:
    """Measure everything for one case."""
    train = {
        "epochs": 100_000,
        "patience": 100_000,
        "log_every": 20,
        "device": parallel.device.type,
    } | case.train
    spec = read_spec(
        variant(
            case.data(folder, **case.size), folder / "resolved.json", model=case.model, train=train
        )
    )
    own = OwnLoop(Trainer(spec, folder / "run", parallel, StopSignal()))
    own.trainer.step.ahead = True  # as on a GPU anyway
    hand = HandWritten(spec, parallel, careful=True)
    seconds = take_turns({"bulkhead": own.run, "careful": hand.run}, rounds, case.steps, parallel)
    torch.use_deterministic_algorithms(True)
    rate = int(case.train["batch_size"]) * case.per_row * case.steps / median(seconds["bulkhead"])
    found = {
        "case": case.name,
        "parameters": own.trainer.num_parameters,
        "unit": "tokens" if case.per_row > 1 else "rows",
        "rate": rate,
        "of_careful": spread(ratios(seconds["bulkhead"], seconds["careful"])),
        "breakdown": breakdown(own, case.steps),
        "waits": waits_per_step(own, case.steps),
        "stall": stall(own),
    }
    if case.per_row > 1:
        done = rate * flops_per_token(own.trainer, case.per_row)
        reached = reached_by_a_product(
            parallel.device, 8192 if parallel.device.type == "cuda" else 256
        )
        found |= {
            "flops": done,
            "of_product": done / reached,
            "of_stated": done / stated(parallel.device),
            "attention": attention(own),
        }
    return found


def stated(device: torch.device) -> float:
    """Return the FLOP/s that the vendor states; NaN if this page does not know the device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next(
        (value for key, value in STATED.items() if key in name.replace("-", " ").split()), math.nan
    )


# page


def section(results: list[dict[str, Any]], device: torch.device) -> str:
    """Return the results as Markdown."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else "the CPU (small networks: of no meaning)"
    )
    rows = []
    for result in results:
        share = result["of_careful"]
        rows.append(
            {
                "": result["case"],
                "parameters": f"{result['parameters']:,}",
                "a second": f"{result['rate']:,.0f} {result['unit']}",
                "of the loop by hand": (
                    f"{share['median']:.2f} ({share['low']:.2f} to {share['high']:.2f})"
                ),
                **{
                    f"{part}, ms": f"{result['breakdown'][part]:.2f}" for part in ("whole", *PHASES)
                },
                "waits a step": f"{result['waits']:.2f}",
                "a checkpoint, s": f"{result['stall']:.2f}",
            }
        )
    text = next(result for result in results if "flops" in result)
    share = (
        ""
        if math.isnan(text["of_stated"])
        else f", {100 * text['of_stated']:.0f} % of what its maker states"
    )
    return f"""## On a GPU

`python -m benchmarks.gpu` on {name}; {machine()}. The loop by hand has the same network, precision, compilation and fused optimizer, all rows on the device,
and no deterministic algorithms. Parts of a step are measured with a wait after each, so that they add up to more than the whole.
The transformer does {text["flops"] / 1e12:.2f} TFLOP/s: {100 * text["of_product"]:.0f} % of what a large bf16 matrix product reaches there{share}; attention: {text["attention"]}.

{markdown_table(rows)}
"""  # noqa: E501


def main(arguments: list[str] | None = None) -> int:
    """Measure both cases; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small networks, not compiled")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each loop")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--output", type=Path, default=PAGE, help="page whose section is rewritten")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "benchmarks.gpu needs a CUDA device, and torch finds none here; --device cpu --small"
            " runs the same code on the CPU",
            file=sys.stderr,
        )
        return 2
    logging.disable(logging.INFO)
    results = []
    with Parallel.open(options.device) as parallel:
        for case in cases(options.small):
            with tempfile.TemporaryDirectory(prefix="bulkhead-bench-") as name:
                results.append(measure(case, Path(name), parallel, options.rounds))
        text = section(results, parallel.device)
    print(json.dumps(results, indent=1) if options.json else text)
    write_section("gpu", text, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
