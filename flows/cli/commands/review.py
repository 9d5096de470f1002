"""`bulkhead review`: find well-known mistakes of training code without running it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli.shared import AsJson, Debug, stated


def _ids(incomplete: str) -> list[tuple[str, str]]:
    """Tab-completion of rules."""
    from tasks.review import rule_ids

    return [(id, title) for id, title in rule_ids() if id.startswith(incomplete.upper())]


@stated
def review(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Python files, notebooks or folders; with --diff perhaps a revision before them.",
            metavar="[PATH]…",
        ),
    ] = None,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff",
            help=(
                "Only what stands on lines that differ from a revision: --diff [REV] [PATH]…, HEAD"
                " when it is absent."
            ),
        ),
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these rules, or those that begin so, e.g. BH1,BH301.",
            autocompletion=_ids,
            metavar="IDS",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Not these rules.", autocompletion=_ids, metavar="IDS")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also notes: what sound code does too.")
    ] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help=(
                "Also run the one program that is given, under watch: what its steps, losses and"
                " loaders really do. It runs as it is."
            ),
        ),
    ] = False,
    args: Annotated[
        str,
        typer.Option(
            "--args",
            help="Its command line, with --run, e.g. '--epochs 2 --data rows.csv'.",
            metavar="TEXT",
        ),
    ] = "",
    seconds: Annotated[
        float,
        typer.Option(min=1, help="After which it is ended at its next optimizer step, with --run."),
    ] = 120,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=16,
            help=(
                "Processes of it in one group, as torchrun starts them, with --run. Default: two"
                " for a gloo group, else one."
            ),
        ),
    ] = None,
    form: Annotated[
        Literal["text", "json", "sarif"], typer.Option("--format", help="How findings are printed.")
    ] = "text",
    explain: Annotated[
        str | None,
        typer.Option(
            help="Explain a rule, with wrong and right code; all: list the rules.",
            autocompletion=_ids,
            metavar="ID",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Look for well-known mistakes in training and model code; nothing is imported or run, unless
    --run asks for it.

    Exit code 0: nothing found; 1: something found; 2: usage. A finding is allowed where it stands,
    with a reason: # bulkhead: allow[BH101] why this is right
    """
    from schemas.errors import ConfigError
    from tasks.review import (
        choose,
        chooses,
        explanation,
        review_changes,
        review_paths,
        review_run,
        revision_and_paths,
        rule_ids_in,
        trains,
    )

    if explain is not None:
        print(explanation(explain))
        return
    selected, ignored = rule_ids_in(select or ()), rule_ids_in(ignore or ())
    rules = choose(selected, ignored, strict)
    if run:
        if diff or len(paths or []) != 1:
            raise ConfigError("--run takes one program, and no --diff")
        reviewed = review_run(
            (paths or [])[0],
            shlex.split(args),
            seconds,
            ranks,
            rules,
            chooses(selected, ignored),
        )
    elif diff:
        revision, below = revision_and_paths(paths or [])
        reviewed = review_changes(revision, below, rules)
    else:
        reviewed = review_paths(paths or [], rules)
    print(reviewed.render("json" if as_json else form))
    if (
        not run
        and not as_json
        and form == "text"
        and len(paths or []) == 1
        and trains((paths or [])[0])
    ):
        print("  read, not run: --run also watches it train, which finds more", file=sys.stderr)
    raise typer.Exit(0 if reviewed.clean else 1)
