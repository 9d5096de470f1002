"""Simulated years of nightly retrains, judged by the gate itself: do claimed scores rise with luck?

    python -m benchmarks.ratchet [--quick] [--seed N]

Each night gives a model that is as good as every other, tested on the same rows. The project's own
`compare` and `judge` decide. Writes docs/benchmarks-ratchet.md; exit code 1 if a limit of the
acceptance is not kept. `--quick`: fewer years and nights, nothing is written.
Nor with `--seed`, which draws other rows and models than those that the gate was set on.

A model's score for a row is s + c + n: s is what can be known of the row, c an error that all
models share (they are trained on the same table), n one of its own. The label is drawn from s. A
better model has less of c.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.page import table
from schemas.config import Declaration
from schemas.digest import write_atomic
from schemas.load import declare
from schemas.look_records import standard_error
from schemas.records import EvaluationReport, FileRef, GateReport, Interval
from training.objectives.bootstrap import intervals
from training.objectives.metrics import compute_predictions
from training.registry.gate import compare, judge
from training.registry.ladder import Comparison
from training.run.look_ledger import Scope, record_look, row_set

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-ratchet.md"
NIGHTS, BETTER_NIGHTS = 365, 10
BETTER = 2.0  # standard errors of one test
LARGE = 100_000  # rows of the sample that gives true scores
MOST_BIAS, MOST_PROMOTIONS, LEAST_WINS = 0.25, 0.05, 0.95
NO_FILE = FileRef(path="/none", sha256="0", num_bytes=0)
METRICS = {"binary": "auroc", "regression": "rmse"}


@dataclass(frozen=True)
class Setting:
    """A table and a gate.

    `own`: standard deviation of a model's own error; the shared one is 1. `grows`: test rows that
    are added each night. `rule`: of `register.replace`. `resamples`: of the paired interval.
    """

    kind: str
    rows: int
    years: int
    own: float = 0.25
    grows: int = 0
    rule: str = "better"
    resamples: int = 100
    nights: int = NIGHTS


@dataclass
class Year:
    """Figures of a simulated year, in standard errors of one test.

    `claim`, `score`: by how much the claimed score, and the score that the champion had when it
    was promoted, ended above those of the first champion, which are right on average. `luck`:
    spread of the nightly scores on the same rows. `won`: night on which a better model was
    promoted, begun on the first night and after the year; 0: not within ten.
    """

    claim: float = 0.0
    score: float = 0.0
    promotions: int = 0
    refused: int = 0
    luck: float = 0.0
    won: list[int] = field(default_factory=list)


class World:
    """Rows, their labels, and models that differ by their own errors alone."""

    def __init__(self, setting: Setting, rows: int, seed: int) -> None:
        self.setting, self.draw = setting, np.random.default_rng(seed)
        self.known, self.shared = self.draw.normal(size=(2, rows))
        chance = 1 / (1 + np.exp(-1.5 * self.known))
        self.target: np.ndarray = (
            (self.draw.random(rows) < chance).astype(np.int64)
            if setting.kind == "binary"
            else self.known + self.draw.normal(size=rows)
        )

    def model(self, better: float = 0.0) -> np.ndarray:
        """Return a new model's predictions: probabilities [N, 2], or values [N].

        Args:
            better: share of the shared error that it does not have.
        """
        own = self.setting.own * self.draw.normal(size=len(self.known))
        found: np.ndarray = self.known + (1 - better) * self.shared + own
        if self.setting.kind == "regression":
            return found
        positive = 1 / (1 + np.exp(-found))
        return np.stack([1 - positive, positive], axis=1)


class Registry:
    """Champion, claim and count of looks, as a run of the pipeline would leave them."""

    def __init__(self, world: World, declaration: Declaration, ledger: Path | None) -> None:
        self.world, self.declaration, self.ledger = world, declaration, ledger
        self.metric = METRICS[world.setting.kind]
        self.looks = self.version = 0
        self.champion: np.ndarray | None = None
        self.claim: float | None = None
        self.score = 0.0
        self.keys = np.sort(np.random.default_rng(0).integers(0, 2**63, len(world.known)))

    def retrain(self, model: np.ndarray, rows: int) -> GateReport:
        """Judge a night's model on the first rows, and let it take the champion's place."""
        self._count_look(rows)
        target = self.world.target[:rows]
        values = compute_predictions(self.world.setting.kind, model[:rows], target)
        found = {self.metric: Interval(value=values[self.metric])}
        evaluation = EvaluationReport(
            side="test", rows=rows, metrics=found, predictions=NO_FILE, verdict=""
        )
        gate = judge(self.declaration, evaluation, (), self._compared(model, rows, target))
        if gate.passed and gate.replaces:
            self.champion, self.version = model, self.version + 1
            self.claim = gate.claim.value if gate.claim else None
            self.score = float(values[self.metric] or 0.0)
        return gate

    def _compared(self, model: np.ndarray, rows: int, target: np.ndarray) -> Comparison | None:
        if self.champion is None:
            return None
        everything = np.ones(rows, dtype=bool)
        ours, theirs = model[:rows], self.champion[:rows]
        found = compare(self.declaration, str(self.version), ours, theirs, target, everything)
        return found.model_copy(update={"looks": self.looks, "claim": self.claim})

    def _count_look(self, rows: int) -> None:
        self.looks += 1
        if self.ledger is not None:
            seen, scope = row_set(np.sort(self.keys[:rows])), Scope("nightly", "table")
            counts = record_look(
                self.ledger, scope, seen, (self.metric,), f"model {self.looks}", "nightly"
            )
            self.looks = counts[self.metric]


def declared(setting: Setting) -> Declaration:
    """Return a declaration of the setting."""
    return declare(
        {
            "name": "nightly",
            "data": {"uri": "rows.parquet", "columns": {"y": "label", "*": "feature"}},
            "task": {"kind": setting.kind},
            "split": {"kind": "random"},
            "train": {"metric": METRICS[setting.kind]},
            "evaluate": {"bootstrap": setting.resamples},
            "register": {"replace": setting.rule},
        }
    )


def error_of_a_test(setting: Setting) -> float:
    """Return the standard error of one test of so many rows, in units of the metric."""
    world, metric = World(setting, min(setting.rows, 5000), 1), METRICS[setting.kind]
    found = intervals(declared(setting), world.model(), world.target, resamples=300)[metric]
    scale = float(np.sqrt(len(world.known) / setting.rows))
    return float((standard_error(found, 0.95) or 0.0) * scale)


def share_of(setting: Setting, gain: float) -> float:
    """Return the share of the shared error without which a model is better by so much."""
    world, metric = World(setting, LARGE, 2), METRICS[setting.kind]

    def score(better: float) -> float:
        world.draw = np.random.default_rng(3)
        value = compute_predictions(setting.kind, world.model(better), world.target)[metric]
        return float(value or 0.0) * (1 if metric == "auroc" else -1)

    low, high, base = 0.0, 1.0, score(0.0)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) - base < gain else (low, middle)
    return high


def simulate(setting: Setting, seed: int, error: float, share: float) -> Year:
    """Let a year pass; then, and on its first night, see when a better model wins.

    Args:
        setting: the table and the gate.
        seed: of the rows and the models.
        error: standard error of one test.
        share: of the shared error that a better model does not have.
    """
    most = setting.rows + setting.grows * (setting.nights + BETTER_NIGHTS)
    world, declaration, year = World(setting, most, 100 + seed), declared(setting), Year()
    sign = 1 if setting.kind == "binary" else -1
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "looks.jsonl" if setting.grows else None
        registry = Registry(world, declaration, ledger)
        registry.retrain(world.model(), setting.rows)
        first_claim, first_score, scores = registry.claim or 0.0, registry.score, []
        year.won.append(nights_to_win(registry, share, 1))
        for night in range(2, setting.nights + 1):
            model, rows = world.model(), setting.rows + setting.grows * (night - 1)
            gate = registry.retrain(model, rows)
            scores.append(gate.difference.value if gate.difference else 0.0)
            year.refused += not gate.passed
        year.promotions = registry.version - 1
        year.claim = sign * ((registry.claim or 0.0) - first_claim) / error
        year.score = sign * (registry.score - first_score) / error
        year.luck = float(np.std([s for s in scores if s is not None])) / error
        year.won.append(nights_to_win(registry, share, setting.nights))
    return year


def nights_to_win(registry: Registry, share: float, night: int) -> int:
    """Return the night on which a better recipe's model is promoted; 0: not within ten.

    The registry stays as it was.
    """
    trial = Registry(registry.world, registry.declaration, None)
    trial.champion, trial.claim, trial.looks = registry.champion, registry.claim, registry.looks
    setting = registry.world.setting
    for number in range(1, BETTER_NIGHTS + 1):
        rows = setting.rows + setting.grows * (night + number - 1)
        gate = trial.retrain(registry.world.model(share), rows)
        if gate.passed and gate.replaces:
            return number
    return 0


def settings() -> list[Setting]:
    """Return what the page shows."""
    return [
        Setting("binary", 500, 4),
        Setting("binary", 500, 4, own=0.6),
        Setting("binary", 1653, 2),
        Setting("binary", 5000, 1),
        Setting("regression", 500, 6),
        Setting("regression", 5000, 3),
        Setting("regression", 50_000, 1, resamples=50),
        Setting("binary", 1653, 1, grows=5),
        Setting("binary", 500, 1, rule="not_worse", resamples=20),
    ]


def measured(chosen: Sequence[Setting], seed: int = 0) -> dict[Setting, list[Year]]:
    """Simulate every year of every setting, on all cores, the longest first."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        errors = list(pool.map(error_of_a_test, chosen))
        shares = list(pool.map(share_of, chosen, [BETTER * error for error in errors]))
        jobs = [
            (setting, seed + year, error, share)
            for setting, error, share in zip(chosen, errors, shares, strict=True)
            for year in range(setting.years)
        ]
        jobs.sort(key=lambda job: -job[0].rows * job[0].resamples)
        found = list(pool.map(simulate, *zip(*jobs, strict=True)))
    years: dict[Setting, list[Year]] = {setting: [] for setting in chosen}
    for (setting, *_), year in zip(jobs, found, strict=True):
        years[setting].append(year)
    return years


def figures(setting: Setting, years: Sequence[Year]) -> dict[str, float]:
    """Return means over the years; promotions and refusals as a share of the nights."""
    nights = (setting.nights - 1) * len(years)
    won = [night for year in years for night in year.won]
    return {
        "claim": float(np.mean([year.claim for year in years])),
        "score": float(np.mean([year.score for year in years])),
        "luck": float(np.mean([year.luck for year in years])),
        "promotions": sum(year.promotions for year in years) / nights,
        "refused": sum(year.refused for year in years) / nights,
        "wins": float(np.mean([night > 0 for night in won])),
        "night": float(np.mean([night for night in won if night] or [0])),
    }


def broken(setting: Setting, found: dict[str, float]) -> list[str]:
    """Return which limits a setting does not keep; the old rule has none."""
    if setting.rule != "better":
        return []
    limits = {
        "the claim rises": found["claim"] > MOST_BIAS,
        "equal models are promoted": found["promotions"] > MOST_PROMOTIONS,
        "a better model waits": found["wins"] < LEAST_WINS,
    }
    return [f"{setting}: {name}: {found}" for name, is_broken in limits.items() if is_broken]


def page(years: dict[Setting, list[Year]], seconds: float) -> str:
    """Return the page."""
    rows = []
    for setting, some in years.items():
        found = figures(setting, some)
        growth = f" + {setting.grows} a night" if setting.grows else ""
        rows.append(
            [
                METRICS[setting.kind],
                f"{setting.rows:,}{growth}",
                setting.rule,
                f"{setting.years}",
                f"{found['luck']:.2f}",
                f"{found['claim']:+.3f}" if setting.rule == "better" else "–",
                f"{found['score']:+.3f}",
                f"{found['promotions']:.2%}",
                f"{found['refused']:.2%}",
                f"{found['wins']:.0%} (night {found['night']:.1f})",
            ]
        )
    headers = [
        *("metric", "test rows", "register.replace", "years", "luck"),
        *("claim too high", "champion's score too high", "promoted", "refused", "better one wins"),
    ]
    return f"{TEXT}\n{table(headers, rows)}\n\n{NOTES.format(minutes=seconds / 60)}"


TEXT = f"""# Do claimed scores rise with luck?

`make bench-ratchet` hands the gate {NIGHTS} nightly retrains of equally good models on the same test rows, with the
functions that a run uses. All figures are in standard errors of one test of so many rows. Limits: the claim ends at most
{MOST_BIAS} too high, at most {MOST_PROMOTIONS:.0%} of the nights promote, and a model that is better by {BETTER:g} standard
errors is promoted within {BETTER_NIGHTS} nights.
"""  # noqa: E501
NOTES = """- luck: standard deviation of the difference between a night's model and the champion. It is far below the √2 of models
  that have nothing in common: models of one recipe agree on most rows. The second line has models that agree less.
- claim too high: mean of the claim at the end minus the claim of the first champion, which is right on average.
- champion's score too high: the same of the test score that the champion had when it was promoted, which its evidence
  keeps next to the claim.
- better one wins: share of the cases in which the better model was promoted within ten nights, begun on the second night
  of the year and after it, and the mean night.
- The growing table uses the ledger of looks itself; the others count one look a night.
- `not_worse` is the rule of earlier versions, on fewer resamples.

Written in {minutes:.1f} minutes.
"""  # noqa: E501


def main() -> int:
    """Simulate, write the page, and print what does not keep its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given, started = parser.parse_args(), time.perf_counter()
    chosen = settings()
    if given.quick:
        chosen = [replace(s, years=2, nights=40) for s in chosen if s.rows <= 2000]
    years = measured(chosen, given.seed)
    text = page(years, time.perf_counter() - started)
    print(text)
    if not (given.quick or given.seed):
        write_atomic(PAGE, text)
    failed = [line for s, some in years.items() for line in broken(s, figures(s, some))]
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
