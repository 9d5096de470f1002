"""Repeat a step that was not finite, and show where that began."""

from __future__ import annotations

from pathlib import Path

from training.replay.replay import replay
from training.replay.replay_report import ReplayReport
from training.run.record import find


def replay_step(run: str, step: int | None) -> ReplayReport:
    """Repeat a dumped step in this process and return the result.

    Args:
        run: a run directory, a run id or the id of an MLflow run.
        step: one of its dumped steps; None for the last one.
    """
    return replay(Path(run).absolute() if Path(run).is_dir() else find(run), step)


def lines(report: ReplayReport) -> list[str]:
    """Format the result for a person."""
    shown = [
        f"step {report.step} {'is not finite again' if report.reproduced else 'came out finite'},"
        f" from {report.checkpoint}, on {report.device}"
    ]
    shown += [f"  {report.message}"]
    for rank in report.ranks:
        same = (
            "the recorded losses to the bit" if rank.same_losses else "other losses than recorded"
        )
        shown.append(
            f"  rank {rank.rank}: {'finite' if rank.finite else 'NOT FINITE'}, loss {rank.loss},"
            f" gradient norm {rank.grad_norm}, {same}"
        )
        if rank.largest_activations:
            shown.append(
                "    largest outputs: "
                + ", ".join(
                    f"{name or 'network'} {value:.3g}"
                    for name, value in rank.largest_activations.items()
                )
            )
    return shown + [f"  → {way}" for way in report.advice]
