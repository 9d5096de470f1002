"""Train the members of an ensemble or portfolio one by one, and combine them.

Each member is a training run of its own in RUN_DIR/members/NN. A resumed run takes the members
that are finished, goes on with the one that was interrupted, and starts the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.config import AutoModel, Declaration
from schemas.load import declare
from schemas.members import (
    first_network_number,
    folded,
    has_members,
    last_without_limit,
    member_for_rows,
    members_of,
)
from schemas.records import ArraysRef, Prepared, RunSpec, TrainReport
from schemas.seal import write_sealed
from tasks.child_runs import member_run
from tasks.context import RunContext, await_servers
from tasks.early import start_ranks
from tasks.launch import train_one
from tasks.say import say
from training.run.record import RESULT, SPEC, read_part
from training.run.result_files import member_folder

if TYPE_CHECKING:
    from training.evaluation.ensembling import Trained

ENSEMBLE, ARRAYS = "ensemble", "arrays"


def checked_network(spec: RunSpec) -> RunSpec:
    """Return the run of the first network, on which the checks before training are made."""
    declaration = declare(spec.declaration)
    if not has_members(declaration):
        return spec
    number = first_network_number(declaration)
    return _of_member(spec, member_for_rows(declaration, number, spec.arrays.train.rows))


def train_members(spec: RunSpec, prepared: Prepared, run: RunContext) -> list[Trained]:
    """Train the members in their order; return those that were trained.

    Of `model.kind: auto`, no further candidate is started after the declared minutes of training.
    One that was started is finished, also by a resumed run.
    """
    declared, model = members_of(run.declaration), run.declaration.model
    total, unlimited = len(declared), last_without_limit(run.declaration)
    minutes = model.minutes if isinstance(model, AutoModel) else float("inf")
    trained: list[Trained] = []
    for number in range(1, total + 1):
        spent = sum(member.report.seconds for member in trained) / 60
        is_begun = (member_folder(run.run_dir, number) / SPEC).exists()
        if spent >= minutes and number > unlimited and not is_begun:
            left = f"{total - len(trained)} of {total} candidates are not started"
            say("members", f"{left}: model.minutes is {minutes:g}, used {spent:.1f}", "info")
            break
        await_servers(run)
        trained.append(train_member(spec, prepared, run, number, total))
    return trained


@task(
    name="train member",
    task_run_name="train member {number}/{total}",
    description="torchrun for one network of several; a finished member is taken as it is.",
    tags=["train"],
    cache_policy=NO_CACHE,
)
def train_member(
    spec: RunSpec, prepared: Prepared, run: RunContext, number: int, total: int
) -> Trained:
    """Return the inputs and the result of a member, counted from 1."""
    from training.engine.result import finished_report
    from training.evaluation.ensembling import Trained

    folder = member_folder(run.run_dir, number)
    member = _member_spec(spec, prepared, folder, number)
    declaration = declare(member.declaration)
    name = f"member {number}/{total}"
    finished = finished_report(folder, member.run_id)
    if finished is not None:
        say(name, f"{declaration.model.kind}, trained before", "cached")
        return Trained(number, member, TrainReport.model_validate(finished))
    say(name, f"{declaration.model.kind}, seed {declaration.train.seed}", "info")
    with member_run(run, number, folder, declaration) as child:
        start_ranks(run, prepared.validated, number + 1)
        return Trained(number, member, train_one(member, folder, child.tracker))


@task(
    name="combine members",
    description="Weights of the members, one file of one network, its validation metric.",
    tags=["train"],
    cache_policy=NO_CACHE,
)
def combine_trained(
    spec: RunSpec, trained: Sequence[Trained], run: RunContext
) -> tuple[RunSpec, TrainReport]:
    """Write the ensemble and the records of the whole run; return them."""
    from training.evaluation.ensembling import combine_members

    whole, report = combine_members(spec, trained, run.run_dir / ENSEMBLE)
    write_sealed(run.run_dir / SPEC, whole.model_dump_json(indent=1))
    write_sealed(run.run_dir / RESULT, report.model_dump_json(indent=1))
    run.tracker.log_record("train.json", report)
    run.tracker.log_metrics({f"val/{report.metric}": report.best_metric})
    shares = ", ".join(f"{m.weight:.2f} {m.kind} (member {m.number})" for m in report.members)
    value = "undefined" if report.best_metric is None else f"{report.best_metric:.4f}"
    say("ensemble", f"val {report.metric} {value}; weights {shares}")
    return whole, report


def _of_member(spec: RunSpec, declaration: Declaration) -> RunSpec:
    return spec.model_copy(
        update={"declaration": declaration.model_dump(mode="json", by_alias=True)}
    )


def _member_spec(spec: RunSpec, prepared: Prepared, folder: Path, number: int) -> RunSpec:
    """Return the inputs of a member's training: those written before, or else written now."""
    if (folder / SPEC).exists():
        return read_part(folder, SPEC, RunSpec)
    declaration = declare(spec.declaration)
    arrays = _arrays(spec, prepared, declaration, folder, number)
    own = member_for_rows(declaration, number, arrays.train.rows)
    member = _of_member(spec, own).model_copy(
        update={"run_id": f"{spec.run_id}-member-{number:02d}", "arrays": arrays}
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder / SPEC, member.model_dump_json(indent=1))
    return member


def _arrays(
    spec: RunSpec, prepared: Prepared, declaration: Declaration, folder: Path, number: int
) -> ArraysRef:
    """Return the arrays that a member is trained on: the run's, or those of its fold."""
    from training.data.arrays.fold_arrays import write_fold
    from training.data.split.member_folds import member_fold

    by_folds = folded(declaration)
    if by_folds is None:
        return spec.arrays
    rows = member_fold(prepared.validated, prepared.split, by_folds, number)
    return write_fold(spec.arrays, rows.train, rows.val, folder / ARRAYS)
