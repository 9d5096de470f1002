"""Sections of the report that look closer at the test rows: slices, and reasons."""

from __future__ import annotations

from schemas.records import EvaluationReport
from training.report.blocks import Block
from training.report.reason_section import reason_blocks
from training.report.slice_section import slice_blocks


def closer_parts(test: EvaluationReport) -> tuple[tuple[str, str, str, list[Block]], ...]:
    """Return anchor, title, question and blocks of each section."""
    return (
        ("slices", "Slices", "Is it as good on every part of the rows?", slice_blocks(test)),
        ("reasons", "Reasons", "What does the score rest on?", reason_blocks(test)),
    )
