"""Statistics of a column of pictures in train, and the encoder that it gets."""

from __future__ import annotations

from schemas.encoder_config import CnnEncoder
from schemas.records import TensorStats
from schemas.statistics import PictureFit
from training.data.fit.tensors import picture_moments
from training.data.fit.train_rows import TrainRows

DEFAULT = CnnEncoder(channels=(32, 64, 128))  # docs/pictures.md compares encoders


def fit_pictures(train: TrainRows, name: str, dropped: dict[str, str]) -> TensorStats:
    """Return the statistics of a column of pictures; `dropped` gets the reason of a useless one.

    Without a declared encoder it gets the default, except for a model that reads pixels itself.
    """
    spec, model = train.spec.images[name], train.declaration.model
    means, stds, constant, count, nulls = picture_moments(train.path, name, spec)
    if constant:
        dropped[name] = f"always {means[0]:g}" if count else "all null"
    declared = train.declaration.data.column(name)
    own = declared.encoder if declared is not None else None
    default = None if model.kind == "cnn" else DEFAULT
    return TensorStats(
        name=name,
        shape=spec.shape,
        dtype="uint8",
        mean=tuple(means),
        std=tuple(stds),
        encoder=own or default,
        picture=PictureFit(mode=spec.mode, resize=spec.resize),
        nulls=nulls,
    )
