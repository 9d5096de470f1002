"""Check a model version from the registry alone, for `bulkhead verify`."""

from __future__ import annotations

from schemas.records import Verification
from training.registry.verify import verify_version
from training.tracking.mlflow import default_tracking_uri


def verify_model(model_uri: str, tracking_uri: str | None) -> Verification:
    """Check each statement: files, digests, checks, metrics and run of a version agree."""
    return verify_version(model_uri, tracking_uri or default_tracking_uri(None))
