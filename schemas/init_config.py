"""Keys of section `model` that all networks have: `init`, `freeze`, `unfreeze_at`, `lora`,
`input_dropout`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from schemas.section import Section

Pattern = Annotated[str, Field(pattern=r"^[\w*]+(\.[\w*]+)*$")]
SeenRows = Literal["refuse", "exclude", "unchecked"]
FILES = (".safetensors", ".pt", ".pth", ".bin")
VERSION = re.compile(r"models:/[^/@]+(/\d+|@[^/@]+)")
PATTERNS = (
    "Names of parameters; a name also stands for all that is inside of it, and * for any part of a"
    " name"
)


class InitConfig(Section):
    """Weights that the network starts from, and what of them does not fit.

    Parameters go by their names. A name that is on one side alone, or has another shape, is refused
    unless it is listed.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)
    from_: str = Field(
        alias="from",
        min_length=1,
        description=(
            "A registered version (models:/NAME/3, or models:/NAME@champion, which is looked up"
            " once), a run (its id or directory), or a file: .safetensors, or a state dict that"
            " torch.save wrote (.pt, .pth, .bin), read without running code in it."
        ),
    )
    sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="Of the file; needed for files alone."
    )
    map: dict[Pattern, Pattern] = Field(
        {},
        description=(
            "Name in the weights: name in the network. Both may have one *, e.g. {encoder.*:"
            " body.*}."
        ),
    )
    new: tuple[Pattern, ...] = Field(
        (), description=f"{PATTERNS}. These are not loaded: they start at random, as without init."
    )
    unused: tuple[Pattern, ...] = Field(
        (), description="Names in the weights, after `map`, that the network has not."
    )
    other_inputs: Literal["refuse", "accept"] = Field(
        "refuse",
        description=(
            "accept: take weights of another Bulkhead model although its columns or classes are"
            " not those of this run."
        ),
    )
    seen_rows: SeenRows = Field(
        "refuse",
        description=(
            "Rows of validation and test that the weights were trained on. refuse: the run stops;"
            " exclude: they are on no side; unchecked: nobody looks, and the evidence says so."
        ),
    )

    @property
    def is_file(self) -> bool:
        """Return True if the weights are in a file of tensors."""
        return self.from_.endswith(FILES)

    @model_validator(mode="after")
    def _fits_together(self) -> InitConfig:
        if self.from_.startswith("models:") and not VERSION.fullmatch(self.from_):
            raise ValueError(
                f"init.from {self.from_!r}: expected models:/NAME/VERSION or models:/NAME@ALIAS"
            )
        if self.is_file and self.sha256 is None:
            raise ValueError(
                f"init.from {self.from_!r} is a file; give its sha256, as sha256sum prints it"
            )
        if not self.is_file and self.sha256 is not None:
            raise ValueError(
                "init.sha256 is for files alone: a version or run has a recorded digest; remove it"
            )
        for theirs, ours in self.map.items():
            if theirs.count("*") != ours.count("*") or theirs.count("*") > 1:
                raise ValueError(f"init.map: {theirs!r}: {ours!r} must have one * each, or none")
        return self


class LoraConfig(Section):
    """Adapters of low rank: each named layer W learns W + (alpha / rank) B A, and W stays."""

    rank: int = Field(8, ge=1, description="Rank of B A: rows of A, columns of B.")
    alpha: float = Field(16.0, gt=0, description="B A is multiplied by alpha / rank.")
    on: tuple[Pattern, ...] = Field(
        min_length=1,
        description=(
            f"{PATTERNS}, here of linear layers, e.g. body.blocks.*.attention. Of all other"
            " parameters only those under init.new are trained."
        ),
    )


class NetworkSection(Section):
    """What every network has that is trained step by step."""

    # left out where they are not given: other declarations keep their digest
    init: InitConfig | None = Field(
        None,
        exclude_if=lambda found: found is None,
        description="Weights to start from; null: the network starts at random.",
    )
    freeze: tuple[Pattern, ...] = Field(
        (),
        exclude_if=lambda found: not found,
        description=f"{PATTERNS}. These are never trained.",
    )
    unfreeze_at: dict[Pattern, Annotated[int, Field(ge=1)]] = Field(
        {},
        exclude_if=lambda found: not found,
        description=(
            f"{PATTERNS}. These are trained from so many steps on; the state of the optimizer for"
            " them begins there."
        ),
    )
    lora: LoraConfig | None = Field(
        None,
        exclude_if=lambda found: found is None,
        description=(
            "Train adapters of low rank instead of the weights of init; the registered model holds"
            " them merged into the weights."
        ),
    )

    input_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        exclude_if=lambda share: not share,
        description=(
            "In training, the probability that a row's text, set, molecule, picture or window is"
            " taken as missing, each for itself; the network then learns to do without it."
        ),
    )

    @model_validator(mode="after")
    def _adapters_fit(self) -> NetworkSection:
        if self.lora is None:
            return self
        if self.init is None:
            raise ValueError("lora adapts weights that exist; give init, or remove lora")
        for key in ("freeze", "unfreeze_at"):
            if getattr(self, key):
                raise ValueError(
                    "lora trains its adapters and what init.new lists, and nothing else; remove"
                    f" {key}"
                )
        return self


def refuse_on_trees(values: object, kind: str, reason: str) -> object:
    """Return the given values of a section; refuse the keys of a network.

    Raises:
        ValueError: one is there.
    """
    keys = {"init", "freeze", "unfreeze_at", "lora", "input_dropout"}
    if found := sorted(keys & set(values)) if isinstance(values, dict) else []:
        raise ValueError(f"model.{found[0]} does not fit model.kind {kind!r}: {reason}")
    return values
