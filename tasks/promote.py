"""Promote a version: under one lock, in one request, with an event for those who wait for it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.events import emit_event
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_URL

from schemas.confinement import require_registered
from schemas.errors import RegistryError
from schemas.home import home
from schemas.look_records import look_at
from schemas.records import (
    GateReport,
    Registered,
    SplitTables,
    TableRef,
    ValidatedTable,
)
from schemas.registry_records import Outcome, Promotion
from schemas.scratch import scratch_folder
from tasks.context import RunContext
from tasks.embedded import EmbeddedServer
from tasks.live import announce_outcome
from tasks.looks import count_looks
from tasks.say import say
from training.tracking.mlflow import default_tracking_uri

if TYPE_CHECKING:
    from training.registry.registry import LoadedModel
    from training.registry.version_record import Recorded

EVENT = "bulkhead.model.promoted"
LIMIT = "bulkhead-promote"
LIMIT_SECONDS = 120.0  # a promotion holds the limit for a few requests


@contextmanager
def one_promotion(name: str) -> Iterator[None]:
    """Prevent two promotions at once: hold this home's lock and, if set, the Prefect server's
    limit.

    Raises:
        TimeoutError: another promotion held the limit for two minutes.
    """
    folder = home() / "locks"
    folder.mkdir(exist_ok=True)
    with open(folder / f"promote-{name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        # only this process uses a server that it started
        if EmbeddedServer.is_own(PREFECT_API_URL.value()):
            yield
            return
        ensure_limit()
        with concurrency(LIMIT, timeout_seconds=LIMIT_SECONDS, strict=True):
            yield


def ensure_limit() -> None:
    """Create the limit of one if the server lacks it: without a limit everybody would pass."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            with suppress(ObjectAlreadyExists):  # another process was first
                client.create_global_concurrency_limit(
                    GlobalConcurrencyLimitCreate(name=LIMIT, limit=1, active=True)
                )


def announce(made: Promotion) -> None:
    """Send Prefect an event that can trigger deployments; report a failure to send it."""
    try:
        resource = {
            "prefect.resource.id": f"bulkhead.model.{made.name}",
            "prefect.resource.name": made.name,
            "bulkhead.version": made.version,
        }
        emit_event(EVENT, resource=resource, payload=made.model_dump(mode="json"))
    except Exception as error:  # the version is already promoted
        say("event", f"{EVENT} could not be sent: {error}", "warn")


@task(
    name="promote registered",
    description=(
        "Give the new version its alias: champion, or challenger where a person decides; then tell"
        " Prefect."
    ),
    tags=["register"],
    cache_policy=NO_CACHE,
)
def promote_registered(registered: Registered, gate: GateReport, run: RunContext) -> Registered:
    """Return the version that the run registered, with the alias of `register.promotion`."""
    from training.registry import promotion
    from training.registry.registry import CHAMPION

    how = run.declaration.register_.promotion
    if not registered.registered or registered.version is None or how == "never":
        return registered
    if not gate.replaces:
        say("promote", f"version {gate.champion_version} stays {CHAMPION}", "cached")
        return registered
    alias = CHAMPION if how == "automatic" else promotion.CHALLENGER
    with one_promotion(registered.name):
        made = promotion.move_alias(
            registered.name,
            registered.version,
            alias,
            run.tracker.uri,
            gate.champion_version,
            gate.verdict,
        )
    if alias == CHAMPION:
        announce(made)
    by_hand = (
        ""
        if alias == CHAMPION
        else f"; to put it to use: bulkhead promote models:/{made.name}@{alias}"
    )
    say("promote", f"{made.uri} → {alias}{by_hand}")
    return registered.model_copy(update={"alias": alias, "uri": f"models:/{made.name}@{alias}"})


class Candidate:
    """A registered version that will take an alias, and the version that has it now."""

    def __init__(self, recorded: Recorded, alias: str, tracking_uri: str) -> None:
        from training.registry import promotion

        self.recorded, self.alias, self.tracking_uri = recorded, alias, tracking_uri
        found = promotion.holder(recorded.model.name, alias, tracking_uri)
        self.holder: str | None = str(found.version) if found else None

    @property
    def is_there(self) -> bool:
        """True if it already has the alias."""
        return self.holder == self.recorded.model.version

    @property
    def is_alone(self) -> bool:
        """True if there is nothing to compare it with."""
        return self.holder is None or self.is_there


@task(
    name="prove version",
    description=(
        "Files, digests, checks, gate and run of the version agree; what bulkhead verify says."
    ),
    tags=["register", "check"],
    cache_policy=NO_CACHE,
)
def prove_version(model_uri: str, alias: str) -> Candidate:
    """Return the version after every check that needs the registry alone.

    Raises:
        RegistryError: a check fails.
    """
    from training.registry.verify import verify_version
    from training.registry.version_record import recorded_version

    require_registered(model_uri)
    uri = default_tracking_uri(None)
    proven = verify_version(model_uri, uri)
    if proven.failed:
        raise RegistryError(
            f"models:/{proven.name}/{proven.version} is not promoted:"
            f" {'; '.join(f'{r.name}: {r.summary}' for r in proven.failed)};"
            f" {proven.failed[0].remedy}"
        )
    say("verify", f"models:/{proven.name}/{proven.version}: {len(proven.results)} statements hold")
    return Candidate(recorded_version(f"models:/{proven.name}/{proven.version}", uri), alias, uri)


@task(
    name="judge version",
    description=(
        "Thresholds, checks, skill, and the version that has the alias now, on today's test rows"
        " that neither has learned from."
    ),
    tags=["register", "check"],
    cache_policy=NO_CACHE,
)
def judge_version(
    candidate: Candidate, today: tuple[ValidatedTable, SplitTables] | None
) -> GateReport:
    """Return the gate's verdict, passed.

    Args:
        candidate: from `prove_version`.
        today: current content of the declared source; None if there is nothing to compare with.

    Raises:
        RegistryError: a condition of the gate does not hold.
    """
    from training.data.arrays.shards import materialise_rows
    from training.registry.compare_champion import Rows, challenge_version
    from training.registry.gate import UNCHANGED, judge
    from training.registry.registry import load_model

    known, comparison = candidate.recorded, None
    if today is not None:
        validated, split = today
        current = load_model(
            f"models:/{known.model.name}/{candidate.holder}", candidate.tracking_uri
        )
        with scratch_folder(home(), "promote") as scratch:
            arrays = materialise_rows(
                split.test, validated.spec, known.statistics, scratch / "test"
            )
            looks = _count_both(known, current, split.test)
            comparison = challenge_version(
                known.declaration,
                Rows(validated.spec, known.statistics, split.test, arrays),
                known.model,
                current,
                looks,
            )
    gate = judge(
        known.declaration, known.evaluation, known.evidence.checks, comparison, by_hand=True
    )
    say("gate", gate.verdict, "done" if gate.passed else "fail")
    if not gate.passed:
        outcome: Outcome = "unchanged" if gate.verdict.startswith(UNCHANGED) else "refused"
        announce_outcome(
            outcome,
            known.model.name,
            {"run_id": "", "version": known.model.version, "verdict": gate.verdict},
        )
        raise RegistryError(f"{known.uri} is not promoted: {gate.verdict}")
    return gate


def _count_both(known: Recorded, current: LoadedModel, table: TableRef) -> int:
    """Count the looks of a version and of the one that has the alias; return those so far."""
    weights = (known.evidence.model_sha256, (current.evidence or {}).get("model_sha256"))
    counted = [
        count_looks(known.declaration, table, str(model), "promote") for model in weights if model
    ]
    metric = known.declaration.register_.metric or known.declaration.metric
    look = look_at(counted[-1], metric)
    return look.number if look else 1


@task(
    name="promote version",
    description="Move the alias under a limit of one, keep the version before, tell Prefect.",
    tags=["register"],
    cache_policy=NO_CACHE,
)
def promote_version(candidate: Candidate, gate: GateReport) -> Promotion:
    """Move the alias to the version; return the record."""
    from training.registry import promotion
    from training.registry.registry import CHAMPION

    name, version = candidate.recorded.model.name, str(candidate.recorded.model.version)
    with one_promotion(name):
        made = promotion.move_alias(
            name, version, candidate.alias, candidate.tracking_uri, candidate.holder, gate.verdict
        )
    if candidate.alias == CHAMPION and not candidate.is_there:
        announce(made)
    return _told(made)


@task(
    name="roll back",
    description="The version before becomes champion again; the two change places.",
    tags=["register"],
    cache_policy=NO_CACHE,
)
def roll_back_to_previous(name: str) -> Promotion:
    """Move alias `champion` back to the previous version; return the record."""
    from training.registry import promotion

    with one_promotion(name):
        made = promotion.roll_back(name, default_tracking_uri(None))
    announce(made)
    return _told(made)


def outcome_of_promotion(candidate: Candidate) -> Outcome:
    """Return the outcome of a promotion: nothing new if the version already had the alias."""
    from training.registry.registry import CHAMPION

    return (
        "unchanged"
        if candidate.is_there
        else "promoted"
        if candidate.alias == CHAMPION
        else "registered"
    )


def _told(made: Promotion) -> Promotion:
    before = f"; version {made.previous_version} before" if made.previous_version else ""
    say("promote", f"{made.uri} → {made.alias}{before}")
    back = (
        f"\n\nBack to version {made.previous_version}: `bulkhead promote models:/{made.name}"
        " --rollback`"
        if made.previous_version
        else ""
    )
    create_markdown_artifact(
        key="promotion",
        markdown=f"# `{made.uri}` is {made.alias}\n\n{made.verdict}{back}\n",
        description=f"{made.name}: {made.alias}",
    )
    return made
