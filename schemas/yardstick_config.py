"""Estimators that `evaluate.against` names: classes with fit and predict, for comparison alone."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from schemas.data_config import TaskConfig
from schemas.section import Section

TAKEN = ("model", "constant", "linear", "boosting", "morgan-forest", "unigram", "bigram", "5-gram")


class YardstickConfig(Section):
    """A class like scikit-learn's, from a package that BULKHEAD_ALLOW_IMPORTS names."""

    model_config = ConfigDict(title="Yardstick")
    path: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="package.module:ClassName"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the class."
    )
    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}$",
        description="Name in report and MLflow. Default: that of the class.",
    )

    @property
    def title(self) -> str:
        """Name in report and MLflow."""
        return self.name or self.path.partition(":")[2]


def _written_out(value: object) -> object:
    """Return the section that a path alone stands for."""
    return {"path": value} if isinstance(value, str) else value


Yardstick = Annotated[
    YardstickConfig, BeforeValidator(_written_out, json_schema_input_type=str | YardstickConfig)
]


def check_yardsticks(against: tuple[YardstickConfig, ...], task: TaskConfig) -> None:
    """Check names and task of the declared yardsticks; import nothing.

    Raises:
        ValueError: the task has no single label, or a name is taken; with what to do.
    """
    if against and (task.has_several or task.kind == "causal_lm"):
        raise ValueError(
            "evaluate.against compares estimators of a single label, got task.kind"
            f" {task.kind!r}; remove evaluate.against"
        )
    seen: set[str] = set()
    for name in (yardstick.title for yardstick in against):
        if name.lower() in TAKEN:
            raise ValueError(
                f"evaluate.against: the name {name!r} is that of the model or a baseline; give"
                " another one as {path: …, name: …}"
            )
        if name.lower() in seen:
            raise ValueError(
                f"evaluate.against: expected different names, got {name!r} twice; give one of them"
                " another name as {path: …, name: …}"
            )
        seen.add(name.lower())
