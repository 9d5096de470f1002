"""Report of a run: one HTML file with the result and the reasons to trust it, in reading order.

The file needs nothing else: no script, font or address is loaded (its content security policy
forbids it), pictures are inline, and text from data is escaped. The same inputs give the same
bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from schemas.config import Declaration
from schemas.digest import write_atomic
from schemas.records import (
    EvaluationReport,
    FileRef,
    Prepared,
)
from training.formatting import plain
from training.report import appendix, choices, labels, sections, tree_words
from training.report.blocks import Block, Section
from training.report.checklist_section import checklist_blocks
from training.report.closer_sections import closer_parts
from training.report.curve_section import curve_blocks
from training.report.curves import read_history
from training.report.data import read_predictions, read_sides
from training.report.headline import Headline, ReportInputs, headline
from training.report.language_model import document_blocks
from training.report.member_section import member_blocks
from training.report.search_section import search_blocks
from training.report.svg import VARIABLES

TEMPLATE = "report.html.j2"


def write_report(inputs: ReportInputs, path: Path) -> FileRef:
    """Write the report completely or not at all; the same inputs give the same bytes.

    Args:
        inputs: the records of a finished run; the files they name are read.
        path: path of the HTML file.

    Raises:
        DataError: the predictions lack a column or contain a class that train did not have.
    """
    return write_run_page(
        path,
        inputs.declaration,
        inputs.run_id,
        inputs.prepared.validated.spec.label,
        headline(inputs),
        report_sections(inputs),
    )


def write_run_page(
    path: Path,
    declaration: Declaration,
    run_id: str,
    label: str,
    head: Headline,
    parts: tuple[Section, ...],
    kind: str = "run",
) -> FileRef:
    """Write a page about a run of a declaration, completely or not at all.

    Args:
        path: path of the HTML file.
        declaration: gives name, description and task.
        run_id: id of the run.
        label: the predicted label.
        head: headline of the page.
        parts: the sections.
        kind: kind of report, in a word.
    """
    return write_page(
        path,
        TEMPLATE,
        kind=kind,
        name=declaration.name,
        description=plain(declaration.description, 2000),
        task=declaration.task.kind,
        label=plain(label),
        run_id=plain(run_id),
        headline=head,
        sections=parts,
    )


def write_page(path: Path, template: str, **values: Any) -> FileRef:
    """Fill a template and write it completely or not at all; every value is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template(template).render(
        colours={name: colour for colour, name in VARIABLES.items()}, **values
    )
    return write_atomic(path, page.encode("utf-8", "replace"))


def report_sections(inputs: ReportInputs) -> tuple[Section, ...]:
    """Return the sections after the headline, in the order of a reader's questions."""
    declaration, prepared, train = inputs.declaration, inputs.prepared, inputs.train
    test, sides, history = inputs.test, read_sides(prepared), read_history(inputs.metrics_path)
    predictions = [*_prediction_blocks(test, prepared), *choices.choice_blocks(train, test)]
    members = member_blocks(declaration, train, test)
    curves = [] if members else curve_blocks(declaration, history, train, inputs.preflight, test)
    parts: tuple[tuple[str, str, str, list[Block]], ...] = (
        (
            "metrics",
            "Test metrics",
            "How good is it, how sure is that, and is it better than something simple?",
            sections.metric_blocks(declaration, test, inputs.val),
        ),
        *closer_parts(test),
        (
            "split",
            "Split",
            "Which rows trained, which chose, which tested?",
            sections.split_blocks(declaration, prepared, sides, inputs.new_rows),
        ),
        (
            "checks",
            "Checks",
            "Did anything cross from test to train?",
            sections.check_blocks(declaration, prepared, inputs.gate),
        ),
        (
            "curves",
            "Learning curves",
            "Did it learn, and did it learn too much?",
            curves,
        ),
        ("search", "Search", "What was tried first?", search_blocks(declaration, train, test)),
        ("members", "Members", "Which networks is it made of, and do they agree?", members),
        ("predictions", "Predictions", "Where is it right and where is it wrong?", predictions),
        (
            "preflight",
            "Preflight",
            tree_words.preflight_question(declaration),
            appendix.preflight_blocks(inputs.preflight),
        ),
        (
            "checklist",
            "Checklist",
            "What must hold of any training, and how does this run show it?",
            checklist_blocks(inputs.checklist) if inputs.checklist else [],
        ),
        (
            "statistics",
            "Statistics",
            "What was fitted on train before training?",
            appendix.statistics_blocks(prepared),
        ),
        (
            "configuration",
            "Configuration",
            "What was set, and why?",
            appendix.configuration_blocks(declaration, inputs.given, prepared),
        ),
        (
            "provenance",
            "Provenance",
            "What is it made of, and how is it used?",
            appendix.provenance_blocks(
                declaration,
                prepared,
                train,
                test,
                registered=inputs.registered,
                provenance=inputs.provenance,
                links=inputs.links,
                run_id=inputs.run_id,
            ),
        ),
    )
    return tuple(
        Section(anchor, title, question, tuple(blocks))
        for anchor, title, question, blocks in parts
        if blocks
    )


def _prediction_blocks(test: EvaluationReport, prepared: Prepared) -> list[Block]:
    """Show the scored rows, documents or labels."""
    if prepared.statistics.tokens:
        return document_blocks(test)
    return (
        labels.prediction_blocks(test)
        if test.by_label
        else appendix.prediction_blocks(test, prepared, read_predictions(test, prepared))
    )
