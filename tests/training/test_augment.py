"""Random changes of train inputs: what they do, what they leave alone, and that they follow from
the window's stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from schemas.config import AugmentConfig
from schemas.errors import ConfigError
from training.engine.augment import Augment

ROWS = 400


def images(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(ROWS * int(np.prod(shape)), dtype=torch.float32).reshape(ROWS, *shape)


@pytest.mark.req("T13")
def test_noise_has_the_declared_size_and_leaves_flags_alone() -> None:
    batch = {
        "numeric": torch.zeros(5_000, 3),
        "categorical": torch.ones(5_000, 1, dtype=torch.int64),
    }
    torch.manual_seed(0)
    changed = Augment(AugmentConfig(noise=0.5), 1, batch)(batch)
    assert abs(float(changed["numeric"][:, :2].std()) - 0.5) < 0.02
    assert not changed["numeric"][:, 2].any()
    assert changed["categorical"] is batch["categorical"]
    assert not batch["numeric"].any(), "the batch itself is not written to"


@pytest.mark.req("T13")
@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7)])
@pytest.mark.parametrize("config", [{"flip": True}, {"shift": 2}, {"flip": True, "shift": 1}])
def test_each_image_is_one_of_the_declared_pictures(
    shape: tuple[int, ...], config: dict[str, Any]
) -> None:
    """Against every move made by padding with the edge and cutting out."""
    batch, by = {"tensor_x": images(shape)}, config.get("shift", 0)
    torch.manual_seed(0)
    changed = Augment(AugmentConfig(**config), 0, batch)(batch)["tensor_x"]
    seen = set()
    for before, after in zip(batch["tensor_x"], changed, strict=True):
        layers = before if before.ndim == 3 else before.unsqueeze(0)
        padded = F.pad(layers.unsqueeze(0), (by, by, by, by), mode="replicate")[0] if by else layers
        cut = {
            (y, x): padded[:, y : y + 5, x : x + 7].reshape(shape)
            for y in range(2 * by + 1)
            for x in range(2 * by + 1)
        }
        options = cut | (
            {(*place, "mirrored"): picture.flip(-1) for place, picture in cut.items()}
            if config.get("flip")
            else {}
        )
        matching = [name for name, picture in options.items() if torch.equal(picture, after)]
        assert len(matching) == 1
        seen.add(matching[0])
    assert len(seen) == (2 * by + 1) ** 2 * (2 if config.get("flip") else 1), "every move occurs"


@pytest.mark.req("T12")
def test_the_same_stream_gives_the_same_pictures() -> None:
    batch = {"tensor_x": images((4, 4)).to(torch.uint8)}
    augment, drawn = Augment(AugmentConfig(flip=True, shift=1), 0, batch), []
    for _ in range(2):
        torch.manual_seed(7)
        drawn.append(augment(batch)["tensor_x"])
    assert torch.equal(*drawn)
    assert drawn[0].dtype == torch.uint8


@pytest.mark.parametrize(
    ("config", "message"),
    [({"noise": 0.1}, "needs numeric columns"), ({"flip": True}, "need a tensor column of shape")],
)
def test_what_the_data_do_not_have_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Augment(AugmentConfig(**config), 0, {"categorical": torch.ones(2, 1)})
