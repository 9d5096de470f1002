"""Parts of the report on the gate: its conditions, the claimed score, and looks at test rows."""

from __future__ import annotations

from schemas.records import EvaluationReport, GateReport
from training.formatting import capital, interval, metric_name, number, plain, plural
from training.registry.ladder import WAITS
from training.report.blocks import Block, Callout, Words, checks


def gate_blocks(gate: GateReport) -> list[Block]:
    """Show the verdict, the comparison with the champion, the claim, and the conditions."""
    title = "The model may be registered" if gate.passed else "The model may not be registered"
    blocks: list[Block] = [
        Callout(
            "good" if gate.passed else "bad",
            title if gate.replaces else "Registered; the champion stays",
            capital(plain(gate.verdict, 1000)),
        )
    ]
    if gate.champion_version is not None and not gate.verdict.startswith(WAITS):
        difference = "" if gate.difference is None else f"; difference {interval(gate.difference)}"
        blocks.append(
            Words(
                f"Compared with champion version {plain(gate.champion_version)} on"
                f" {plural(gate.compared_rows, 'row')}{difference}."
            )
        )
    if gate.claim is not None and gate.champion_version is not None:
        blocks.append(
            Words(
                f"Claimed {metric_name(gate.claim.metric)}: {number(gate.claim.value)}. A claim"
                " moves only by the part of a gain that is larger than chance explains among"
                f" {plural(gate.claim.looks, 'model')} on the same rows, so it does not rise with"
                " lucky draws."
            )
        )
    if gate.claim is not None and gate.claim.window is not None:
        window = gate.claim.window
        blocks.append(
            Words(
                f"The claim rests on {plural(window.rows, 'row')} {plain(window.between)}; they"
                " decide no later comparison."
            )
        )
    return [*blocks, checks(gate.conditions)]


def look_blocks(test: EvaluationReport) -> list[Block]:
    """Show how often the test rows were looked at, and how much optimism that allows."""
    return [
        Words(
            f"{metric_name(look.metric)}: {look.sentence}. The bound is the standard error times"
            f" √(2 ln {look.number}), whatever the scores have in common; of models that agree"
            " on most rows it is much too large. Fresh test rows begin a new count."
        )
        for look in test.looks
        if look.number > 1
    ]
