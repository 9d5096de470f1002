"""Trial of a small run that is killed up to three times and must end as the undisturbed one."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.final_state import final_state, unsound
from tests.faults.launches import Kill, Launch, launch, reached, wait_until_gone
from tests.training.runs import make_run
from training.run.crash_points import POINTS

TRAIN: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 16,
    "micro_batch_size": 3,
    "ranks": 2,
    "threads": 1,
    "precision": "fp16",
    "loss_scale": {
        "initial": 2.0**24,
        "growth_interval": 3,
    },  # overflows at the start, and again whenever it has grown
    "augment": {"noise": 0.1},
    "ema": 0.9,
    "checkpoint_every": 3,
    "eval_every": 7,
    "keep": 2,
    "log_every": 4,
}
SECTIONS: dict[str, Any] = {
    "model": {"kind": "custom", "path": "tests.faults.networks:Delicate"},
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "schedule": {"kind": "plateau", "patience": 0},
    "train": TRAIN,
}
SETUPS: dict[str, dict[str, Any]] = {
    "exact": SECTIONS,
    "sharded": {
        **SECTIONS,
        "model": {"kind": "resmlp", "width": 16, "depth": 2, "dropout": 0.3},
        "train": {**TRAIN, "parallel": "fsdp"},
    },
    "elastic": {
        **SECTIONS,
        "model": {"kind": "mlp", "hidden": [16, 16], "dropout": 0.3},
        "train": {**TRAIN, "mode": "elastic", "logical_shards": 4},
    },
}
WORLDS = {"exact": (2,), "sharded": (2,), "elastic": (1, 2, 4)}
ROWS = (150, 40)
STEPS = TRAIN["epochs"] * -(-ROWS[0] // TRAIN["batch_size"])
# points that all ranks reach, by the first part of their names
EVERY_RANK = ("start", "step", "evaluation", "finish")
MOST_HITS = {
    "step": 20,
    "evaluation": 3,
    "checkpoint.file_written": 15,
    "checkpoint.pruned": 3,
    "checkpoint": 6,
}  # almost, in a whole run
ATTEMPTS = 3  # to end a trial after its last kill


@dataclass(frozen=True)
class Reference:
    """The undisturbed run of a setup: its final state, and the duration of its parts."""

    folder: Path
    state: dict[str, str]
    start_seconds: float
    training_seconds: float


@dataclass
class Trial:
    """One trial and its result.

    `worlds`: numbers of ranks to choose from. `killed`: the ends of launches, in words. `hits`:
    crash points that were reached. `failure`: empty if it ended as the undisturbed run.
    """

    number: int
    setup: str
    worlds: tuple[int, ...]
    kills: list[Kill] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)
    launches: int = 0
    failure: str = ""


def points_of(setup: str) -> list[str]:
    """Return the crash points that a run of the setup reaches."""
    return sorted(
        (p for p in POINTS if setup == "sharded" or p != "checkpoint.shards_agreed"),
        key=lambda p: p != "checkpoint.shards_agreed",
    )


def make_reference(folder: Path, setup: str, worlds: tuple[int, ...]) -> Reference:
    """Train a setup undisturbed, on each of these numbers of ranks.

    Raises:
        RuntimeError: it does not finish, or ends differently on another number of ranks.
    """
    states = []
    for world in worlds:
        place = folder / f"{setup}-{world}"
        make_run(place, rows=ROWS, **SETUPS[setup])
        done = launch(place, place / "launch.log", world)
        if done.code != 0:
            raise RuntimeError(
                f"the undisturbed run of {setup} on {world} ranks failed:"
                f" {(place / 'launch.log').read_text()[-3000:]}"
            )
        states.append(final_state(place / "run"))
    if any(state != states[0] for state in states):
        raise RuntimeError(f"the undisturbed runs of {setup} on {worlds} ranks differ: {states}")
    return Reference(place, states[0], done.start_seconds, done.training_seconds)


def plan(number: int, setup: str, aim: str, dice: random.Random, reference: Reference) -> Trial:
    """Choose the kills of a trial.

    Args:
        number: of the trial.
        setup: exact, sharded or elastic.
        aim: crash point that the first kill must hit; empty for a random moment.
        dice: random generator of the trial.
        reference: says for how long there is something to kill.
    """
    trial = Trial(number, setup, WORLDS[setup])
    # a checkpoint is replaced only if the run died between the best weights and the whole state
    if aim == "checkpoint.old_moved":
        trial.kills = [Kill("point", "evaluation.best_saved:1"), Kill("point", f"{aim}:1")]
    else:
        trial.kills = [_at_point(setup, aim, 1.0, dice) if aim else _at_moment(dice, reference)]
    for _ in range(dice.choice((0, 0, 1, 1, 2)) if len(trial.kills) == 1 else dice.choice((0, 1))):
        trial.kills.append(
            _at_point(setup, dice.choice(points_of(setup)), 0.3, dice)
            if dice.random() < 0.5
            else _at_moment(dice, reference)
        )
    return trial


def _at_point(setup: str, point: str, share: float, dice: random.Random) -> Kill:
    family = point.split(".", maxsplit=1)[0]
    most = (
        MOST_HITS.get(point, MOST_HITS.get(family, 1))
        if point not in ("checkpoint.old_moved", "finish.result_written")
        else 1
    )
    rank = (
        dice.choice(("", ":0", ":1"))
        if family in EVERY_RANK and point != "evaluation.measuring" and 1 not in WORLDS[setup]
        else ""
    )
    return Kill("point", f"{point}:{dice.randint(1, max(1, int(most * share)))}{rank}")


def _at_moment(dice: random.Random, reference: Reference) -> Kill:
    target = dice.choice(("agent", "worker", "all"))
    if dice.random() < 0.25:
        return Kill(target, seconds=dice.uniform(0.0, reference.start_seconds))
    return Kill(
        target,
        step=dice.randrange(0, STEPS - 2, TRAIN["log_every"]),
        seconds=dice.uniform(0.0, 0.3),
    )


def run(trial: Trial, folder: Path, reference: Reference, dice: random.Random) -> Trial:
    """Run a trial; remove its folder if it ended as it must."""
    place = folder / f"trial-{trial.number:04d}"
    make_run(place, rows=ROWS, **SETUPS[trial.setup])
    try:
        _disturb(trial, place, dice)
        trial.failure = trial.failure or compare(place, reference)
    except Exception as error:  # a trial that cannot run has failed; the others continue
        trial.failure = f"{type(error).__name__}: {error}"
    if not trial.failure:
        shutil.rmtree(place)
    return trial


def _disturb(trial: Trial, place: Path, dice: random.Random) -> None:
    for kill in trial.kills:
        done = _launch(trial, place, dice, kill)
        if done.landed:
            trial.killed.append(str(kill))
        if done.code == 0:
            break
        if kill.target != "agent" and (wrong := unsound(place / "run")):
            trial.failure = f"after a kill {kill}: {wrong}"
            return
    while not trial.failure and _launch(trial, place, dice).code != 0:
        if trial.launches >= len(trial.kills) + ATTEMPTS:
            trial.failure = f"did not end after {trial.launches} launches"


def _launch(trial: Trial, place: Path, dice: random.Random, kill: Kill | None = None) -> Launch:
    log = place / f"launch-{trial.launches}.log"
    trial.launches += 1
    done = launch(place, log, dice.choice(trial.worlds), kill)
    trial.hits += sorted(set(reached(log)))
    return done


def compare(place: Path, reference: Reference) -> str:
    """Compare the end of a trial with that of the undisturbed run; return the difference, or
    nothing.
    """
    left = wait_until_gone(place)
    if left:
        return f"processes {left} are left"
    found = final_state(place / "run")
    differing = [name for name, value in reference.state.items() if found[name] != value]
    return f"other {', '.join(differing)} than the undisturbed run" if differing else ""
