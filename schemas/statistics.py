"""Records of what is fitted on train rows; training/data/fit/normalize.py explains them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from schemas.encoder_config import EncoderConfig
from schemas.label_config import LabelKind
from schemas.references import Record
from schemas.series_config import SeriesEncoder


class NumericStats(Record):
    """One numeric column: `(x - center) / scale`, or the knots of a quantile map; nulls become
    `fill` first.

    `knots` are train quantiles at equally spaced levels; the map is piecewise linear onto normal
    scores. Smooth scaling bounds the scaled value softly by 3. `indicator`: a 0/1 column for nulls
    is added. `nullable`: a null at serving is filled, not refused.

    `bounded`: values beyond `min` and `max` of train are taken for these, as the days of a date.

    `bins`: strictly increasing edges in raw units, where the model asks for bins. The record is
    written without them where they are empty, and without `bounded` where it is false, so that its
    digest stays what it was.
    """

    name: str
    method: Literal["standard", "robust", "smooth", "quantile", "none"]
    center: float = 0.0
    scale: float = 1.0
    knots: tuple[float, ...] = ()
    bins: tuple[float, ...] = Field((), exclude_if=lambda edges: not edges)
    bounded: bool = Field(False, exclude_if=lambda is_bounded: not is_bounded)
    fill: float | None = None
    indicator: bool = False
    nulls: int = 0
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None


class CategoryStats(Record):
    """One categorical column. Code 0 is unknown (and rare), 1 is null, then `values` in
    this order.
    """

    name: str
    values: tuple[str, ...]
    counts: tuple[int, ...]
    nulls: int = 0
    rare_rows: int = 0


class TensorStats(Record):
    """One tensor column: per-channel mean and standard deviation over train (leading axis
    if 3-d).

    `encoder`: the declared part of the network that makes one vector of it, or None.

    `window`: of a feature of `data.windows`, its channels. Its shape is [2C, length]: the C
    channels, oldest step first, then for each channel 1 where its value is known. Unknown values
    are the channel's mean, so that they are 0 after scaling; `mean` and `std` of the flags are 0
    and 1, and those of the channels count each step of train's windows once.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    encoder: EncoderConfig | SeriesEncoder | None = Field(
        None, exclude_if=lambda encoder: encoder is None
    )
    window: tuple[str, ...] = Field((), exclude_if=lambda channels: not channels)

    @property
    def key(self) -> str:
        """Name of its array, and its key in a batch."""
        return f"tensor_{self.name}"


class LabelFit(Record):
    """What is fitted on one label: of classes their values in order, of a regression `(y -
    target_center) / target_scale`.

    `class_counts`: train rows of each class; `class_weights`: their weights in the loss;
    `label_mean`, `label_std`: of train. `label_quantile`: of train, only with loss quantile.
    `label_low`, `label_high`: smallest and largest value of a regression label in train, in its
    units, where the model clamps its predictions. `target_transform`: the label is this function of
    the column; then all figures here are on its scale.
    """

    classes: tuple[bool | int | float | str, ...] = ()
    class_counts: tuple[int, ...] = ()
    class_weights: tuple[float, ...] = ()
    label_mean: float = 0.0
    label_std: float = 1.0
    # left out where it is not needed: digests of other statistics stay as they were
    label_quantile: float | None = Field(None, exclude_if=lambda value: value is None)
    target_center: float = 0.0
    target_scale: float = 1.0
    label_low: float | None = Field(None, exclude_if=lambda value: value is None)
    label_high: float | None = Field(None, exclude_if=lambda value: value is None)
    target_transform: Literal["log", "log1p"] | None = Field(
        None, exclude_if=lambda value: value is None
    )


class LabelStats(LabelFit):
    """One of several labels, over the rows whose label is known.

    `known`: those rows. `share`: their weight (sample weight times class weight) as a share of all
    rows' sample weight.
    """

    name: str
    kind: LabelKind
    known: int
    share: float


class TokenStats(Record):
    """The vocabulary of a text column, and how its documents become sequences.

    Tokens 0 to 3 are padding, begin, end and unknown; then `values` in this order. Bytes stand as
    the characters 0 to 255. `counts`: of `values` in train; `unknown`: train tokens that are too
    rare to be among them. `documents`, `characters` and `longest` (in tokens) of train. `stride`:
    of evaluation and serving.
    """

    name: str
    tokenizer: Literal["character", "smiles", "bytes"]
    values: tuple[str, ...]
    counts: tuple[int, ...]
    unknown: int = 0
    documents: int = 0
    characters: int = 0
    longest: int = 0
    context: int
    stride: int
    packing: Literal["documents", "windows"]

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary, special ones included."""
        return 4 + len(self.values)


class BagStats(Record):
    """One text or set column: `values` are the pieces that train rows have often enough.

    `counts`: train rows with each. A row is stored as the codes of its different pieces, filled up
    with 0 to `length`: 1 is null, then `values` in this order from 2. `unknown_rows`: train rows
    with a piece that is none of them. `separator`: between the values of a set; None for a text,
    whose pieces are `ngrams` words or characters long. `size` and `combine`: of their vectors.
    """

    name: str
    separator: str | None
    unit: Literal["words", "characters"]
    ngrams: tuple[int, int]
    values: tuple[str, ...]
    counts: tuple[int, ...]
    nulls: int
    unknown_rows: int
    length: int
    size: int
    combine: Literal["root", "mean", "sum"]

    @property
    def key(self) -> str:
        """Name of its array, and of its input in a batch."""
        return f"bag_{self.name}"

    @property
    def num_codes(self) -> int:
        """Number of codes: filling, null and the values."""
        return 2 + len(self.values)

    def rule(self) -> dict[str, Any]:
        """Return what `training.data.serving_expressions.bag_codes` needs, as JSON."""
        names = ("name", "separator", "unit", "ngrams", "values")
        found: dict[str, Any] = self.model_dump(mode="json", include=set(names))
        # columns of a frame that get the codes and what is unknown
        own = {"codes": f"__codes_{self.name}", "unread": f"__unread_{self.name}"}
        return found | own | {"shape": [self.length], "dtype": "int32"}


class Statistics(LabelFit):
    """Everything fitted on train, and nothing else is. `digest_of(statistics)` identifies it.

    The fields of `LabelFit` are those of a single label; `labels`: where there are several, each
    one's statistics, and those fields are empty.
    """

    train_sha256: str
    rows: int
    numeric: tuple[NumericStats, ...]
    categorical: tuple[CategoryStats, ...]
    tensor: tuple[TensorStats, ...]
    bags: tuple[BagStats, ...] = Field((), exclude_if=lambda found: not found)
    dropped: dict[str, str] = {}
    clip: float | None = None
    labels: tuple[LabelStats, ...] = ()
    tokens: TokenStats | None = None

    @property
    def num_numeric(self) -> int:
        """Width of the numeric block: scaled columns, then indicators."""
        return len(self.numeric) + sum(s.indicator for s in self.numeric)
