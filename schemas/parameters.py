"""Fields of Prefect's form that start a flow; bad values are refused before anything runs.

Prefect's form shows titles, descriptions, defaults and choices from these types. Their validators
read the project's files: a missing declaration or a bad value ends a flow run before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from schemas.load import load_declaration, read_tree

ModelChoice = Literal[
    "as declared",
    "auto",
    "linear",
    "mlp",
    "resmlp",
    "realmlp",
    "tabm",
    "ft_transformer",
    "boosting",
    "cnn",
    "causal_transformer",
]
RegistrationChoice = Literal["as declared", "no"]


def shown(title: str, description: str, pattern: str = "", **bounds: Any) -> Any:
    """Describe a field for Prefect's form, which replaces a field's own title and description.

    Args:
        title: title of the field.
        description: what to fill in.
        pattern: pattern of the JSON schema. The form and the server refuse other text; a caller in
            Python gets the reason from the flow.
        bounds: bounds for pydantic.
    """
    extra: dict[str, Any] = {"title": title, "description": description} | (
        {"pattern": pattern} if pattern else {}
    )
    return Field(json_schema_extra=extra, **bounds)


Model = Annotated[
    ModelChoice,
    shown(
        "Model",
        "Another kind of model than the declaration's; its other values are then the defaults.",
    ),
]
Epochs = Annotated[
    int, shown("Epochs", "At most so many passes over the training rows. 0: as declared.", ge=0)
]
Folds = Annotated[
    int, shown("Folds", "How many folds to train and test. 0: as declared.", ge=0, le=100)
]
Trials = Annotated[int, shown("Trials", "How many values to try. 0: as declared.", ge=0, le=10_000)]
Hours = Annotated[
    float, shown("Hours", "Begin no trial after so many hours. 0: as declared.", ge=0)
]
Registration = Annotated[
    RegistrationChoice,
    shown("Registration", "“no” judges the model and leaves the registry as it is."),
]
ModelUri = Annotated[
    str,
    shown(
        "Model",
        "A registered version or what has an alias, e.g. models:/clinic-visits/3 or"
        " models:/clinic-visits@champion.",
        r"^models:/[^/@]+(/[0-9]+|@[A-Za-z][A-Za-z0-9_-]*)$",
    ),
]
ModelName = Annotated[
    str, shown("Model", "Name of the registered model, e.g. clinic-visits.", r"^[^/:@]+$")
]
Alias = Annotated[
    str,
    shown(
        "Alias",
        "What the version shall be called; champion is the version in use.",
        r"^[A-Za-z][A-Za-z0-9_-]*$",
    ),
]
Source = Annotated[
    str,
    shown("Rows", "Parquet or CSV file with the model's columns; a folder or glob of them.", r"\S"),
]
Target = Annotated[
    str,
    shown(
        "Target",
        "File to write: .parquet, .csv or .csv.gz. Replaced when all rows are scored.",
        r"\.(parquet|csv|csv\.gz)$",
    ),
]
ApplyDiff = Annotated[
    bool,
    shown(
        "Run uncommitted changes",
        "Also run the changes that were not committed then; read dirty.diff of the MLflow run"
        " first.",
    ),
]
Stop = Annotated[
    bool,
    shown("Fail on a difference", "End the flow run as failed where something is not as it was."),
]
Override = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*=", title="path=value")]


def chosen(
    epochs: int = 0,
    model: str = "as declared",
    registration: str = "as declared",
    folds: int = 0,
    trials: int = 0,
    hours: float = 0,
) -> tuple[str, ...]:
    """Return the fields as overrides of the declaration.

    >>> chosen(epochs=5, model="mlp", registration="no")
    ('train.epochs=5', 'model.kind=mlp', 'register.enabled=false')
    """
    found = {
        "train.epochs": epochs,
        "model.kind": model,
        "cv.folds": folds,
        "search.trials": trials,
        "search.hours": hours,
        "register.enabled": "false" if registration == "no" else "",
    }
    return tuple(
        f"{path}={value}" for path, value in found.items() if value not in (0, "", "as declared")
    )


def _readable(path: str) -> str:
    """Refuse a file that is not YAML with sections."""
    read_tree(path)
    return path


def _fits(overrides: Sequence[str], info: ValidationInfo) -> Sequence[str]:
    """Refuse a declaration that the given values make invalid; skip an unreadable file."""
    given = info.data
    if "config_path" in given:
        small = chosen(
            **{
                name: given[name]
                for name in ("epochs", "model", "registration", "folds", "trials", "hours")
                if name in given
            }
        )
        load_declaration(given["config_path"], (*small, *overrides))
    return overrides


ConfigPath = Annotated[
    str,
    shown(
        "Declaration",
        "Path of the YAML file that says which data, model and training: absolute, or as seen from"
        " the project's folder.",
        min_length=1,
    ),
    AfterValidator(_readable),
]
Overrides = Annotated[
    Sequence[Override],
    shown(
        "Other values",
        "Values that replace the declaration's, each as path=value, e.g. optimizer.lr=0.0003 or"
        " train.batch_size=512; `bulkhead schema` lists all paths.",
        validate_default=True,
    ),
    AfterValidator(_fits),
]
