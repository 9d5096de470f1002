"""Generate text with a language model, for `bulkhead sample`."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import ConfigError
from schemas.records import SampleReport
from training.data.serving_text import sampling
from training.evaluation.text_samples import sample_run
from training.registry.score_file import sample_model


def sample(
    target: str, prompt: str, count: int, tracking_uri: str | None = None, **how: float
) -> SampleReport:
    """Generate texts with a finished run or a registered model.

    Args:
        target: a run directory or a model URI.
        prompt: beginning of each text.
        count: number of texts.
        tracking_uri: address of the registry.
        how: max_new_tokens, temperature, top_k, seed.

    Raises:
        ConfigError: an option is invalid, or the target is not a language model.
    """
    try:
        options = sampling(how)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if (Path(target) / "resolved.json").is_file():
        return sample_run(Path(target), prompt, count, options)
    return sample_model(target, prompt, count, options, tracking_uri)
