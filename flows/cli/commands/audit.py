"""`bulkhead audit`: every leak check without training, for a declaration or for data files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.output import print_json
from flows.cli.shared import AsJson, Debug, declared_paths, environment, server_starting, stated
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from schemas.audit import AuditReport, FilesToAudit

EXAMPLE = "bulkhead audit FILE, or bulkhead audit --train train.csv --test test.csv --label outcome"


def _columns(context: typer.Context, incomplete: str) -> list[str]:
    """Tab-completion of roles: the columns of the train file."""
    from tasks.audit_files import column_names

    return [
        name
        for name in column_names(list(context.params.get("train") or []))
        if name.startswith(incomplete)
    ]


def _targets(incomplete: str) -> list[str]:
    """Tab-completion of the first arguments: declarations here, and paths that can be set."""
    return [
        str(p)
        for pattern in ("*.yaml", "*/*.yaml")
        for p in sorted(Path().glob(pattern))
        if str(p).startswith(incomplete)
    ] + declared_paths(incomplete)


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        help=(
            "A declaration and values that replace its own; of --train and --test only values of"
            " checks, task and split, e.g. split.embargo=7d."
        ),
        metavar="[FILE] [path=value]…",
        autocompletion=_targets,
    ),
]
AVAILABLE = (
    "Column of the moment at which features became known: of all, or COLUMN=FEATURE,FEATURE."
)
Train = Annotated[
    list[str] | None,
    typer.Option(help="File, folder or glob of the train rows; may be repeated.", metavar="PATH"),
]
Test = Annotated[list[str] | None, typer.Option(help="The test rows.", metavar="PATH")]
Val = Annotated[
    list[str] | None, typer.Option(help="The validation rows, if there are any.", metavar="PATH")
]
Id = Annotated[
    list[str] | None,
    typer.Option(
        help="Column that names a row; several together make one key.",
        autocompletion=_columns,
        metavar="COLUMN",
    ),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of the person, device or site that a row belongs to.",
        autocompletion=_columns,
        metavar="COLUMN",
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        help="Column of the moment of prediction.", autocompletion=_columns, metavar="COLUMN"
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        help="Column to predict; guessed when absent.", autocompletion=_columns, metavar="COLUMN"
    ),
]
LabelTime = Annotated[
    str | None,
    typer.Option(
        help="Column of the moment at which the label became known.",
        autocompletion=_columns,
        metavar="COLUMN",
    ),
]
Available = Annotated[list[str] | None, typer.Option(help=AVAILABLE, metavar="COLUMN[=FEATURE,…]")]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help="Column that no model will see.", autocompletion=_columns, metavar="COLUMN"),
]
Task = Annotated[
    str | None,
    typer.Option(
        help=(
            "binary, multiclass or regression, guessed when absent; or causal_lm, whose --label is"
            " the column of texts."
        ),
        metavar="TASK",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        help="Where the report goes. Default: the folder audits of the Bulkhead home.",
        metavar="OUT",
    ),
]


@stated
def audit(
    targets: Targets = None,
    train: Train = None,
    test: Test = None,
    val: Val = None,
    id: Id = None,
    group: Group = None,
    time: Time = None,
    label: Label = None,
    label_time: LabelTime = None,
    available: Available = None,
    ignore: Ignore = None,
    task: Task = None,
    html: Html = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Look for leaks, with no training: in the split of a declaration, or between two or three
    files from anywhere.

    Exit code 0: nothing failed; 1: something failed or could not be read; 2: usage.
    """
    files = _request(
        targets or [],
        {"train": train, "test": test, "val": val},
        {
            "id": id,
            "group": group,
            "time": time,
            "label": label,
            "label_time": label_time,
            "available": _known(available),
            "ignore": ignore,
            "task": task,
        },
    )
    if files is None:
        report, page = _of_declaration(targets or [], html, debug)
    else:
        from tasks.audit_files import audit_files

        report, page = audit_files(files, html)
    if as_json:
        print_json(report.model_dump(mode="json") | {"report": str(page)})
    else:
        from flows.cli.audit_table import print_audit

        print_audit(report, page)
    raise typer.Exit(1 if report.checks.failed else 0)


def _known(available: list[str] | None) -> dict[str, tuple[str, ...]]:
    """Parse columns of times and the features that were known by then.

    >>> _known(["seen=a,b", "drawn"])
    {'seen': ('a', 'b'), 'drawn': ()}
    """
    parts = [text.partition("=") for text in available or ()]
    return {name: tuple(f for f in features.split(",") if f) for name, _, features in parts}


def _request(
    targets: list[str], files: dict[str, list[str] | None], roles: dict[str, Any]
) -> FilesToAudit | None:
    """Return the files to audit, or None for a declaration.

    Raises:
        ConfigError: both or neither were given, or a role without files.
    """
    from schemas.audit import read_request

    named = [t for t in targets if "=" not in t]
    if not any(files.values()):
        if len(named) != 1:
            raise ConfigError(
                f"expected one declaration, or --train and --test, got {named or 'neither'};"
                f" {EXAMPLE}"
            )
        if given := [f"--{name.replace('_', '-')}" for name, value in roles.items() if value]:
            raise ConfigError(
                f"{', '.join(given)}: for --train and --test only; a declaration says it itself, or"
                " set data.columns there"
            )
        return None
    if named or not files["train"] or not files["test"]:
        raise ConfigError(
            "expected --train and"
            f" --test{f', but no declaration, got {named[0]!r}' if named else ''}; {EXAMPLE}"
        )
    return read_request(
        {"settings": targets, **{name: value for name, value in (files | roles).items() if value}}
    )


def _of_declaration(targets: list[str], html: Path | None, debug: bool) -> tuple[AuditReport, Path]:
    from schemas.load import load_declaration
    from schemas.output_file import require_room

    file = next(t for t in targets if "=" not in t)
    if html is not None:
        require_room(html, "--html")
    overrides = [t for t in targets if "=" in t]
    load_declaration(file, overrides)
    environment(debug)
    with server_starting():
        from flows.audit import audit as flow
        from tasks.audit import load_poison_test, report_path

        load_poison_test()  # its seconds are those in which the server starts

    page = html or report_path(Path(file).stem)
    return flow(config_path=file, overrides=overrides, stop=False, html=str(page)), page
