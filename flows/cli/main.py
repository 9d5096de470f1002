"""Command line: `bulkhead run FILE [path=value …]` and the other commands.

Exit codes: 0 done, 1 the run refused or failed for a stated reason, 2 usage error (also in the
declaration). Heavy modules are imported only on use, so `--help` answers at once.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated

import typer

from flows.cli.commands.audit import audit
from flows.cli.commands.begin import doctor, init, schema
from flows.cli.commands.explain import explain
from flows.cli.commands.look import look
from flows.cli.commands.operate import deploy, up, worker
from flows.cli.commands.registry import (
    evaluate,
    predict,
    promote,
    reevaluate,
    reproduce,
    sample,
    verify,
)
from flows.cli.commands.review import review
from flows.cli.commands.run import join, prepare, replay, resume, run, search, train
from flows.cli.output import stated_errors

app = typer.Typer(
    name="bulkhead",
    help=(
        "A table and one YAML file in, a registered PyTorch model whose test score can be believed"
        " out."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"bulkhead {version('bulkhead')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of the command itself; its help is the app's."""


def _unwrapped(docstring: str) -> str:
    """Join the lines of each paragraph, which the terminal wraps at its own width."""
    return "\n\n".join(" ".join(text.split()) for text in inspect.cleandoc(docstring).split("\n\n"))


COMMANDS = (  # in the order of the help
    run,
    search,
    prepare,
    audit,
    review,
    train,
    resume,
    join,
    replay,
    evaluate,
    predict,
    explain,
    verify,
    reevaluate,
    promote,
    reproduce,
    sample,
    schema,
    look,
    init,
    doctor,
    up,
    worker,
    deploy,
)

for command in COMMANDS:
    app.command(help=_unwrapped(command.__doc__ or ""))(command)


def main() -> None:
    """Run the `bulkhead` command."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        # closed by the caller; started programs need it too
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal of ASCII gets ? for ✓, not a traceback
    from tasks.family import end_with_me
    from tasks.stop import command as stoppable

    end_with_me()
    with stoppable():
        try:
            with stated_errors("--debug" in sys.argv):
                _call()
        except typer.Exit as end:
            sys.exit(end.exit_code)


def _call() -> None:
    """Run the command and flush its output; a failed write, e.g. on a full disk, is an error."""
    try:
        app()
    finally:
        try:
            sys.stdout.flush()
        except OSError as error:
            # else the interpreter tries again at its end and prints an error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):  # the reader, e.g. head, has seen enough
                raise typer.Exit(1) from None
            raise
