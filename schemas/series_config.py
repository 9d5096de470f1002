"""Section `data.windows`: the past of a row's series as a feature, and what reads it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.duration import Duration, seconds_of
from schemas.section import Section
from schemas.transformer_config import TransformerEncoder


class _SeriesEncoder(Section):
    """What every encoder of a window has."""

    size: int = Field(64, ge=1, description="Width of the vector.")
    width: int = Field(64, ge=1, description="Channels inside.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Share of values dropped in training.")


class TcnEncoder(_SeriesEncoder):
    """Causal convolutions whose dilation doubles, until the newest step sees the whole window."""

    kind: Literal["tcn"] = "tcn"
    kernel: int = Field(3, ge=2, description="Steps that one convolution reads.")


class GruEncoder(_SeriesEncoder):
    """A gated recurrent network from the oldest step to the newest."""

    kind: Literal["gru"] = "gru"
    depth: int = Field(1, ge=1, description="Layers.")


SeriesEncoder = Annotated[TcnEncoder | GruEncoder | TransformerEncoder, Field(discriminator="kind")]


class WindowConfig(Section):
    """A feature of its own: the last steps of the row's series, oldest first."""

    columns: tuple[str, ...] = Field(
        min_length=1,
        description=(
            "Numeric columns that the window holds, in any role, also ignore. The label may be one"
            " of them: with ahead, or with a lag of at least 1."
        ),
    )
    look_back: int | Duration = Field(
        description=(
            "Rows that the window holds, e.g. 72; with step a length of time, e.g. 72h. What a"
            " series does not have that far back is masked."
        ),
        examples=[72, "72h"],
    )
    step: Duration | None = Field(
        None,
        description=(
            "Distance of the steps of a regular series, e.g. 1h: a step without a row is masked."
            " Default: one step for each row, whatever lies between them."
        ),
        examples=["1h"],
    )
    lag: int = Field(
        0,
        ge=0,
        description=(
            "How many of the newest rows (with step: steps) are left out. 0: the window ends with"
            " the row itself; 1: before it."
        ),
    )
    encoder: SeriesEncoder = Field(
        TcnEncoder(), description="The network that makes one vector of the window."
    )

    season: int | Duration | None = Field(
        None,
        exclude_if=lambda length: length is None,
        description=(
            "Of a window that holds the label: after how long, or how many rows, values repeat,"
            " e.g. 24h. Adds the baseline seasonal_value to last_value."
        ),
        examples=["24h"],
    )

    @model_validator(mode="after")
    def _length_is_whole(self) -> WindowConfig:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("columns names a column twice; name each once")
        if self.length < 2:
            raise ValueError(f"a window has at least 2 steps, got look_back {self.look_back}")
        if isinstance(self.encoder, TransformerEncoder) and not self.encoder.reads_steps:
            raise ValueError(
                "encoder transformer: attention and positions are for texts and molecules; remove"
                " them from the encoder of a window"
            )
        return self

    @property
    def length(self) -> int:
        """Number of steps.

        Raises:
            ValueError: look_back and step do not fit together.
        """
        return self.steps_of(self.look_back, "look_back")

    def seasonal_step(self, ahead: tuple[str, float | str] | None) -> int | None:
        """Return the step that lies a whole number of seasons before the label's moment, or None.

        Raises:
            ValueError: the window is shorter than that, or a length is no number of its steps.
        """
        if self.season is None:
            return None
        season = self.steps_of(self.season, "season")
        before = 0 if ahead is None else self.steps_of(ahead[1], "ahead")
        # seasons back from the label's moment until the newest step is reached
        seasons = max(1, -(-(before + self.lag) // season))
        step = self.length - 1 + before + self.lag - seasons * season
        if step < 0:
            raise ValueError(
                f"season {self.season}: the window is too short to hold it; lengthen look_back"
            )
        return step

    def steps_of(self, size: float | str, name: str) -> int:
        """Return a length of time, or a number of rows, in steps of the window.

        Raises:
            ValueError: it is no whole number of steps.
        """
        if self.step is None:
            if isinstance(size, str) or size != int(size):
                raise ValueError(
                    f"{name} {size} is a length of time, which needs the distance of the window's"
                    " steps, e.g. step: 1h; or give a number of rows"
                )
            return int(size)
        sizes = [v if not isinstance(v, str) else seconds_of(v) for v in (size, self.step)]
        alike = isinstance(size, str) == isinstance(self.step, str)
        steps = sizes[0] / sizes[1] if alike and sizes[1] else 0.5
        if abs(steps - round(steps)) > 1e-9:
            raise ValueError(
                f"{name} {size} is no whole number of steps of {self.step}; give both as lengths"
                " such as 72h and 1h"
            )
        return round(steps)
