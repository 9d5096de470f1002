"""Section `tokens`: how text becomes token rows, and the rules for a language model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from schemas.model_config import CausalTransformerModel
from schemas.section import Section, with_defaults

if TYPE_CHECKING:
    from schemas.config import Declaration

TASK = "causal_lm"
BASELINES, OTHER_BASELINES = ("unigram", "bigram", "5-gram"), ("constant", "linear", "boosting")
ROWS = 32  # rows of an optimizer step; each is a whole sequence
ROLES = ("id", "group", "time", "weight", "split", "ignore")


class TokensConfig(Section):
    """How text becomes tokens, and tokens become the rows of a language model."""

    tokenizer: Literal["character", "smiles", "bytes"] = Field(
        "character",
        description=(
            "character: each Unicode character; smiles: atoms, bonds, rings and branches of a"
            " SMILES; bytes: the 256 bytes of UTF-8."
        ),
    )
    min_count: int = Field(
        1, ge=1, description="Tokens seen less often in train share the unknown token."
    )
    context: int = Field(
        256,
        ge=2,
        le=65_536,
        description="Tokens of one sequence; longer documents are cut into windows.",
    )
    packing: Literal["documents", "windows"] = Field(
        "documents",
        description=(
            "documents: several documents share a sequence, and none can see another; windows: one"
            " document, or one window of a long one, to a sequence."
        ),
    )
    stride: int | None = Field(
        None,
        ge=1,
        description=(
            "New tokens of each later window of a long document in evaluation and serving; the rest"
            " of the window repeats earlier ones. Default: context // 2."
        ),
    )
    samples: int = Field(
        5, ge=0, le=10_000, description="Texts that the trained model makes up, for the report."
    )
    sample_tokens: int = Field(300, ge=1, description="Most tokens of such a text.")

    @model_validator(mode="after")
    def _stride_fits(self) -> TokensConfig:
        if self.stride is not None and self.stride > self.context:
            raise ValueError(
                f"stride {self.stride} is above context {self.context}: tokens between two windows"
                " would be predicted by none"
            )
        return self

    @property
    def evaluation_stride(self) -> int:
        """`stride` with its default resolved."""
        return self.stride or max(1, self.context // 2)


# defaults of a language model that differ from other tasks
DEFAULTS: dict[str, Section] = {"tokens": TokensConfig(), "model": CausalTransformerModel()}


def fill_defaults(declaration: Declaration) -> None:
    """Set defaults that suit a language model where none is given; they still count as defaults."""
    if declaration.task.kind != TASK:
        return
    for name, value in DEFAULTS.items():
        if name not in declaration.model_fields_set:
            object.__setattr__(declaration, name, value)
    object.__setattr__(
        declaration,
        "train",
        with_defaults(declaration.train, batch_size=max(ROWS, declaration.train.ranks)),
    )
    object.__setattr__(
        declaration, "evaluate", with_defaults(declaration.evaluate, baselines=BASELINES)
    )


def conflicts(declaration: Declaration) -> Iterator[str]:
    """List the settings that contradict task causal_lm, or need it."""
    columns = declaration.data.columns
    texts = [name for name, column in columns.items() if column.kind == "text"]
    known = BASELINES if declaration.task.kind == TASK else OTHER_BASELINES
    for name in declaration.evaluate.baselines:
        if name not in known:
            yield (
                f"evaluate.baselines: {name!r} does not fit task {declaration.task.kind!r}; use"
                f" some of {list(known)}"
            )
    if declaration.task.kind != TASK:
        if declaration.tokens is not None:
            yield (
                f"tokens: only task.kind: causal_lm has tokens, this is {declaration.task.kind!r};"
                " remove the section"
            )
        if isinstance(declaration.model, CausalTransformerModel):
            yield "model.kind 'causal_transformer' predicts tokens; it needs task.kind: causal_lm"
        return
    for key in ("bag", "encoder"):
        if any(getattr(columns[name], key) is not None for name in texts):
            yield (
                f"data.columns.{texts[0]}.{key}: task causal_lm reads tokens in their order"
                f" (section tokens); remove {key}"
            )
    others = [
        name
        for name, column in columns.items()
        if column.kind != "text" and column.role not in ROLES
    ]
    if len(texts) != 1 or set("*?[") & set(texts[0]):
        yield (
            "task causal_lm needs exactly one column of kind text, named in full, in data.columns,"
            f" e.g. {{body: text}}; got {texts}"
        )
    elif texts[0] in declaration.data.derive:
        yield (
            f"data.derive.{texts[0]}: the text must be a column of the source, so that the"
            " registered model takes it as it is"
        )
    if others:
        yield (
            f"data.columns.{others[0]}: task causal_lm reads the text column alone; set role ignore"
            f" (its roles are {', '.join(ROLES)})"
        )
    yield from _settings(declaration)


def _settings(declaration: Declaration) -> Iterator[str]:
    """List conflicts of the other sections with task causal_lm."""
    packing = declaration.tokens.packing if declaration.tokens else "documents"
    if declaration.data.named("weight") and packing == "documents":
        yield (
            "data.columns: documents of different weights cannot share a sequence; set"
            " tokens.packing: windows, or ignore the weight"
        )
    if declaration.split.kind.startswith("stratified"):
        yield (
            f"split.kind {declaration.split.kind!r} needs a label, and a language model has none;"
            " use random, group, time or predefined"
        )
    if declaration.model.kind not in ("causal_transformer", "custom"):
        yield (
            f"model.kind {declaration.model.kind!r} cannot read tokens; use causal_transformer, or"
            " a module of your own"
        )
    if declaration.train.metric == "bits_per_character":
        yield (
            "train.metric: choose loss, which puts weights in the same order; bits_per_character is"
            " reported for the test side"
        )
    if declaration.loss.class_weights == "balanced":
        yield "loss.class_weights: tokens have no class weights; remove it"
