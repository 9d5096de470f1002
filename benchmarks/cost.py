"""Growth of time and memory, each constant measured: python -m benchmarks.cost   (under 5 minutes on 2 cores; rewrites docs/cost.md)

Each cost is a sum of terms with constants that are not negative. They are fitted to a few small
measurements by relative error, and then predict configurations that were left out of the fit. The
page shows predictions and measurements.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from benchmarks.made_up import prepare, variant, write_table
from benchmarks.page import PAGE, machine, markdown_table, write_section
from benchmarks.preparation.processes import sampled

COST_PAGE = PAGE.with_name("cost.md")
Figures = dict[str, float]
TABLES = ((20_000, 10), (100_000, 10), (40_000, 40), (100_000, 40))  # rows, numeric columns
TABLES_LEFT_OUT = ((70_000, 25), (200_000, 20))
# units of two layers, batch
NETWORKS = ((64, 512), (64, 4096), (512, 256), (512, 2048), (1024, 256), (1024, 1024))
NETWORKS_LEFT_OUT = ((768, 512), (256, 2048))
NUMBERS = (1_000, 100_000, 1_000_000, 4_000_000)  # of a gradient
CATEGORICAL = 4


class Term(NamedTuple):
    """One term of a cost: a constant with a unit, times a quantity of a measurement. `scale`: of
    the printed constant.
    """

    constant: str
    times: str
    quantity: Callable[[Figures], float]
    scale: float = 1.0


class Cost(NamedTuple):
    """A cost: the figure `measured` as a sum of terms; `of` names a measurement."""

    name: str
    unit: str
    measured: str
    terms: tuple[Term, ...]
    of: Callable[[Figures], str]


def table_name(f: Figures) -> str:
    """Describe a preparation in words."""
    return f"{f['rows']:,.0f} rows, {f['columns']:.0f} features"


def network_name(f: Figures) -> str:
    """Describe a training run in words."""
    return f"{f['parameters']:,.0f} parameters, batch {f['batch']:,.0f}"


def ranks_name(f: Figures) -> str:
    """Describe an exchange in words."""
    return f"{f['numbers']:,.0f} numbers over {f['ranks']:.0f} ranks"


ONE = lambda f: 1.0  # noqa: E731 - reads as the quantity of a constant term
COSTS = (
    Cost(
        "preparation",
        "CPU s",
        "cpu_seconds",
        (
            Term("s", "start", ONE),
            Term("s a million rows", "rows", lambda f: f["rows"], 1e6),
            Term("s a million values", "rows × features", lambda f: f["rows"] * f["columns"], 1e6),
        ),
        table_name,
    ),
    Cost(
        "memory of preparation",
        "MB",
        "peak_mb",
        (
            Term("MB", "start", ONE),
            Term("bytes a value", "rows × features", lambda f: f["rows"] * f["columns"] / 1e6),
        ),
        table_name,
    ),
    Cost(
        "step",
        "CPU ms",
        "step_ms",
        (
            Term("ms", "each step", ONE),
            Term("ns a parameter", "parameters", lambda f: f["parameters"] / 1e6),
            Term(
                "ps a parameter and row",
                "parameters × rows of the batch",
                lambda f: f["parameters"] * f["batch"] / 1e9,
            ),
            Term(
                "ns a unit and row",
                "units × rows of the batch",
                lambda f: f["units"] * f["batch"] / 1e6,
            ),
        ),
        network_name,
    ),
    Cost(
        "evaluation",
        "CPU ms",
        "evaluation_ms",
        (
            Term("ms", "each", ONE),
            Term(
                "ps a parameter and row",
                "parameters × rows",
                lambda f: f["parameters"] * f["rows_evaluated"] / 1e9,
            ),
            Term(
                "ns a unit and row",
                "units × rows",
                lambda f: f["units"] * f["rows_evaluated"] / 1e6,
            ),
        ),
        network_name,
    ),
    Cost(
        "checkpoint",
        "ms",
        "checkpoint_ms",
        (
            Term("ms", "each", ONE),
            Term("ns a byte", "bytes (12 a parameter)", lambda f: f["checkpoint_bytes"] / 1e6),
        ),
        network_name,
    ),
    Cost(
        "memory of training",
        "MB",
        "peak_mb",
        (
            Term("MB", "start", ONE),
            Term("bytes a parameter", "parameters", lambda f: f["parameters"] / 1e6),
            Term(
                "bytes a unit and row",
                "units × rows of the batch",
                lambda f: f["units"] * f["batch"] / 1e6,
            ),
        ),
        network_name,
    ),
    Cost(
        "exchange of gradients",
        "ms",
        "exchange_ms",
        (
            Term("ms a neighbour", "(ranks − 1)", lambda f: f["ranks"] - 1),
            Term(
                "ns a byte",
                "bytes × 2 (ranks − 1) / ranks",
                lambda f: 4 * f["numbers"] * 2 * (f["ranks"] - 1) / f["ranks"] / 1e6,
            ),
        ),
        ranks_name,
    ),
)


def fitted(cost: Cost, found: list[Figures]) -> np.ndarray:
    """Fit the constants of a cost [terms], none negative, by least squares of relative errors.

    >>> cost = Cost("", "", "y", (Term("", "", lambda f: 1.0), Term("", "", lambda f: f["x"])), str)
    >>> fitted(cost,
    ...     [{"x": 1.0, "y": 5.0}, {"x": 3.0, "y": 9.0}, {"x": 4.0, "y": 11.0}]).round(6).tolist()
    [3.0, 2.0]
    """
    measured = np.array([f[cost.measured] for f in found])
    design = np.array([[term.quantity(f) for term in cost.terms] for f in found])
    return np.asarray(nnls(design / measured[:, None], np.ones(len(found)))[0])


def foretold(cost: Cost, constants: np.ndarray, figures: Figures) -> float:
    """Predict the cost of a configuration."""
    return float(
        sum(
            constant * term.quantity(figures)
            for constant, term in zip(constants, cost.terms, strict=True)
        )
    )


# measurements


def work(folder: Path, *arguments: object, ranks: int = 0) -> Figures:
    """Run benchmarks.cost_work once; return its figures, with CPU seconds and peak memory of all
    its processes.
    """
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        if ranks
        else []
    )
    command = [sys.executable, *launch, "-m", "benchmarks.cost_work", *map(str, arguments)]
    peak = sampled(command, os.environ | {"OMP_NUM_THREADS": "1"}, folder / "log")
    text = (folder / "log").read_text()
    if not peak.ended_well:
        raise RuntimeError(f"{' '.join(command)} failed: {text[-2000:]}")
    last = next(line for line in reversed(text.splitlines()) if line.startswith("{"))
    return dict(json.loads(last)) | {
        "cpu_seconds": peak.cpu_seconds,
        "peak_mb": peak.anonymous / 1e6,
    }


def preparations(folder: Path, tables: tuple[tuple[int, int], ...]) -> list[Figures]:
    """Measure preparations of generated tables with these numbers of rows and numeric columns."""
    found = []
    for rows, numeric in tables:
        table = write_table(folder / "table.parquet", rows, numeric_columns=numeric)
        with tempfile.TemporaryDirectory(dir=folder) as out:
            found.append(
                work(folder, "prepare", table, out)
                | {
                    "rows": float(rows),
                    "columns": float(numeric + CATEGORICAL),
                }
            )
    return found


def trainings(folder: Path, networks: tuple[tuple[int, int], ...]) -> list[Figures]:
    """Measure trainings of MLPs with two layers of these units, at these batch sizes."""
    spec = folder / "spec.json"
    if not spec.exists():
        variant(prepare(folder, 20_000), spec)
    found = []
    for units, batch in networks:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            figures = work(folder, "train", spec, out, units, batch)
        found.append(
            figures
            | {
                f"{name}_ms": 1000 * figures[f"{name}_seconds"]
                for name in ("step", "evaluation", "checkpoint")
            }
        )
    return found


def exchanges(folder: Path, ranks: int) -> list[Figures]:
    """Measure exchanges of gradients of growing size over ranks on this machine."""
    figures: Any = work(folder, "exchange", ",".join(map(str, NUMBERS)), ranks=ranks)
    pairs = zip(NUMBERS, figures["seconds"], strict=True)
    return [
        {"ranks": float(ranks), "numbers": float(number), "exchange_ms": 1000 * seconds}
        for number, seconds in pairs
    ]


def measured(folder: Path) -> dict[str, tuple[list[Figures], list[Figures]]]:
    """Return for each cost the measurements of the fit, and those left out."""
    tables = preparations(folder, TABLES), preparations(folder, TABLES_LEFT_OUT)
    networks = trainings(folder, NETWORKS), trainings(folder, NETWORKS_LEFT_OUT)
    ranks = exchanges(folder, 2), exchanges(folder, 4)[-2:]
    return {
        cost.name: (
            tables if cost.of is table_name else networks if cost.of is network_name else ranks
        )
        for cost in COSTS
    }


# page


def section(found: dict[str, tuple[list[Figures], list[Figures]]]) -> str:
    """Return the constants and the errors of their predictions, as Markdown."""
    constants, checks = [], []
    for cost in COSTS:
        kept, left_out = found[cost.name]
        values = fitted(cost, kept)
        worst = max(abs(foretold(cost, values, f) / f[cost.measured] - 1) for f in kept)
        sums = " + ".join(
            f"{value * term.scale:.3g} {term.constant} · {term.times}"
            for value, term in zip(values, cost.terms, strict=True)
        )
        constants.append(
            {"cost": cost.name, "is": sums, "worst error in the fit": f"{100 * worst:.0f} %"}
        )
        for f in left_out:
            told = foretold(cost, values, f)
            row = {
                "cost": cost.name,
                "configuration": cost.of(f),
                "foretold": f"{told:,.1f} {cost.unit}",
                "measured": f"{f[cost.measured]:,.1f} {cost.unit}",
            }
            checks.append(row | {"off by": f"{100 * (told / f[cost.measured] - 1):+.0f} %"})
    return f"""## The constants, measured

`python -m benchmarks.cost`; {machine()}. Steps and evaluations are measured in one thread, and in its processor time, like preparation:
more cores share the work, other processes do not disturb it. Checkpoints and exchanges wait for disk and peers, and are measured by the clock.

{markdown_table(constants)}

## Foretold and measured

Configurations that no constant was fitted to; of the exchange, another number of ranks.

{markdown_table(checks)}
"""  # noqa: E501


def main(arguments: list[str] | None = None) -> int:
    """Measure, fit and write the page's section."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--output", type=Path, default=COST_PAGE, help="page whose section is rewritten"
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bulkhead-cost-") as name:
        found = measured(Path(name))
    text = section(found)
    print(json.dumps(found, indent=1) if options.json else text)
    write_section("cost", text, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
