"""Move the aliases of versions; no other module does.

Alias `champion` is the version in use, `previous` the one before it, `challenger` the newest that
waits for approval. MLflow has no compare-and-swap on aliases. Callers therefore hold a lock
(tasks/promote.py) and name the version that they compared with, so that none is replaced unseen.
"""

from __future__ import annotations

from datetime import UTC, datetime

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from schemas.errors import RegistryError
from schemas.registry_records import Promotion
from training.registry.registry import CHAMPION, is_absent, problem_of, refused

PREVIOUS, CHALLENGER = "previous", "challenger"
# tags of a version: when it took the alias, and from which version
MOVED_TAG, REPLACED_TAG = ("bulkhead.promoted", "bulkhead.replaced")


def holder(name: str, alias: str, uri: str) -> ModelVersion | None:
    """Return the version at an alias; None if there is no such model or alias.

    Raises:
        RegistryError: the registry cannot be reached, or refuses.
    """
    with refused(name, uri):
        try:
            return MlflowClient(uri, uri).get_model_version_by_alias(name, alias)
        except MlflowException as error:
            if is_absent(error):
                return None
            raise


def move_alias(
    name: str, version: str, alias: str, uri: str, expected: str | None, verdict: str
) -> Promotion:
    """Point an alias to a version; the last champion gets alias `previous`.

    Args:
        name: name of the model.
        version: new version at the alias.
        alias: moved in one request, as the last step.
        uri: address of the registry.
        expected: version at the alias during the comparison; None if there was none.
        verdict: verdict of the gate, for the record.

    Raises:
        RegistryError: another version took the alias meanwhile, or the registry refuses. The alias
            is then unchanged.
    """
    found = holder(name, alias, uri)
    current = str(found.version) if found else None
    if found is not None and current == version:
        return promotion(found, alias, None, f"version {version} is {alias} already")
    if alias == CHAMPION and current != expected:
        raise RegistryError(
            f"version {version} of {name!r} is registered but not {alias}: the gate compared it"
            f" with version {expected}, while {alias} is now {current}; bulkhead promote"
            f" models:/{name}/{version} compares again"
        )
    client = MlflowClient(uri, uri)
    with refused(name, uri):
        if alias == CHAMPION:
            client.set_model_version_tag(
                name, version, MOVED_TAG, datetime.now(UTC).isoformat(timespec="seconds")
            )
            client.set_model_version_tag(name, version, REPLACED_TAG, current or "none")
            if current is not None:
                client.set_registered_model_alias(name, PREVIOUS, current)
        client.set_registered_model_alias(name, alias, version)
        waiting = holder(name, CHALLENGER, uri)
        if alias == CHAMPION and waiting is not None and str(waiting.version) == version:
            client.delete_registered_model_alias(name, CHALLENGER)
    return promotion(client.get_model_version(name, version), alias, current, verdict)


def roll_back(name: str, uri: str) -> Promotion:
    """Move alias `champion` back to the version at `previous`, which must still work; swap the two.

    Raises:
        RegistryError: there is no previous version, or it does not predict. The aliases are then
            unchanged.
    """
    current, before = holder(name, CHAMPION, uri), holder(name, PREVIOUS, uri)
    if current is None or before is None or current.version == before.version:
        raise RegistryError(
            f"{name!r} has no version at alias {PREVIOUS} to go back to; promote one by its number:"
            f" bulkhead promote models:/{name}/NUMBER"
        )
    model_uri = f"models:/{name}/{before.version}"
    problem = problem_of(model_uri, uri)
    if problem:
        raise RegistryError(
            f"{model_uri}, the version before, does not work: {problem}; {CHAMPION} stays at"
            f" version {current.version}"
        )
    client = MlflowClient(uri, uri)
    with refused(name, uri):
        client.set_registered_model_alias(name, CHAMPION, before.version)
        client.set_registered_model_alias(name, PREVIOUS, current.version)
    return promotion(before, CHAMPION, str(current.version), "rolled back")


def promotion(version: ModelVersion, alias: str, previous: str | None, verdict: str) -> Promotion:
    """Return the record of a version that took an alias."""
    return Promotion(
        name=version.name,
        version=str(version.version),
        previous_version=previous,
        alias=alias,
        uri=f"models:/{version.name}/{version.version}",
        run_id=version.tags.get("bulkhead.run_id", ""),
        git_sha=version.tags.get("bulkhead.git_sha", ""),
        verdict=verdict,
    )
