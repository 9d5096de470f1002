"""Section `model`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from schemas.init_config import NetworkSection, refuse_on_trees
from schemas.section import Section


class LinearModel(NetworkSection):
    """One linear layer over numeric features and category embeddings of size 1 per output."""

    model_config = ConfigDict(title="Linear")
    kind: Literal["linear"] = "linear"


class MlpModel(NetworkSection):
    """Multi-layer perceptron with category embeddings."""

    model_config = ConfigDict(title="MLP")
    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (256, 128), min_length=1, description="Widths of the hidden layers."
    )
    dropout: float = Field(0.1, ge=0, lt=1)
    numeric_embedding: Literal["none", "periodic"] = Field(
        "periodic",
        description=(
            "periodic: each numeric column also enters as a learned mixture of cosines, so that"
            " steps and bumps can be fitted; none: as it is."
        ),
    )


class ResMlpModel(NetworkSection):
    """Residual MLP: pre-norm blocks `x + W2(dropout(gelu(W1(norm(x)))))` on a common width."""

    model_config = ConfigDict(title="Residual MLP")
    kind: Literal["resmlp"] = "resmlp"
    width: int = Field(192, ge=1)
    depth: int = Field(3, ge=1)
    expansion: float = Field(
        2.0, gt=0, description="Hidden width of a block as a multiple of `width`."
    )
    dropout: float = Field(0.1, ge=0, lt=1)
    numeric_embedding: Literal["none", "periodic"] = Field(
        "periodic",
        description=(
            "periodic: each numeric column also enters as a learned mixture of cosines, so that"
            " steps and bumps can be fitted; none: as it is."
        ),
    )


class RealMlpModel(NetworkSection):
    """RealMLP: three wide layers on periodic embeddings, with rates and decay by part.

    Its scaling, optimizer, schedule and training are those of its paper, unless they are given.
    """

    model_config = ConfigDict(title="RealMLP")
    kind: Literal["realmlp"] = "realmlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (256, 256, 256), min_length=1, description="Widths of the hidden layers."
    )
    activation: Literal["auto", "selu", "mish", "relu", "gelu", "silu"] = Field(
        "auto",
        description=(
            "Its share in each unit is learned. auto: mish for a regression, selu for all else."
        ),
    )
    dropout: float = Field(0.15, ge=0, lt=1)
    dropout_schedule: Literal["constant", "flat_cos"] = Field(
        "flat_cos",
        description="flat_cos: as declared for half of the training, then down to 0 by a cosine.",
    )
    numeric_embedding: Literal["pbld", "none"] = Field(
        "pbld",
        description=(
            "pbld: each numeric column also enters as three learned mixtures of 16 cosines; none:"
            " as it is."
        ),
    )
    frequency_std: float = Field(
        0.1, gt=0, description="Standard deviation of the first frequencies, in cycles per unit."
    )
    one_hot: int = Field(
        8,
        ge=0,
        description=(
            "Categorical columns of at most so many values enter as one column a value (of two"
            " values, as one column of -1 and 1)."
        ),
    )
    embedding_size: int = Field(8, ge=1, description="Of the other categorical columns.")
    clamp: bool = Field(
        True, description="Predictions of a regression stay within the labels of train."
    )


class TabMModel(NetworkSection):
    """TabM: an ensemble of MLPs that share their matrices and differ in learned factors.

    The loss is the mean of the members' losses, the prediction the mean of their probabilities.
    Its scaling, optimizer, schedule and training are those of its paper, unless they are given.
    """

    model_config = ConfigDict(title="TabM")
    kind: Literal["tabm"] = "tabm"
    members: int = Field(32, ge=1, description="MLPs of the ensemble.")
    width: int = Field(512, ge=1, description="Of the hidden layers.")
    depth: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="Hidden layers. auto: 2 with embedded numbers, 3 without."
    )
    dropout: float = Field(0.1, ge=0, lt=1)
    bins: Annotated[int, Field(ge=2)] | None = Field(
        48,
        description=(
            "Most bins of a numeric column, between quantiles of train; each gets its own slope in"
            " the column's embedding. null: columns enter as they are."
        ),
    )
    embedding_size: int = Field(
        16,
        ge=1,
        description="Of a numeric column, and of a categorical one without one-hot.",
    )
    one_hot: int = Field(
        256,
        ge=0,
        description="Categorical columns of at most so many values enter as one column a value.",
    )


class FtTransformerModel(NetworkSection):
    """FT-Transformer: a token for each column, pre-norm blocks of attention and a gated
    feed-forward part.
    """

    model_config = ConfigDict(title="FT-Transformer")
    kind: Literal["ft_transformer"] = "ft_transformer"
    width: int = Field(192, ge=1, description="Size of a token; a multiple of heads.")
    depth: int = Field(3, ge=1)
    heads: int = Field(8, ge=1)
    expansion: float = Field(
        4 / 3, gt=0, description="Hidden width of the feed-forward part as a multiple of `width`."
    )
    activation: Literal["reglu", "geglu"] = Field(
        "reglu", description="Gate of the feed-forward part."
    )
    attention_dropout: float = Field(0.2, ge=0, lt=1)
    dropout: float = Field(0.1, ge=0, lt=1, description="In the feed-forward part.")
    residual_dropout: float = Field(
        0.0, ge=0, lt=1, description="Of what each part of a block adds."
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> FtTransformerModel:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of heads {self.heads}; change one of them"
            )
        return self


class CnnModel(NetworkSection):
    """Small convolutional network with group normalisation for image-shaped tensors."""

    model_config = ConfigDict(title="CNN")
    kind: Literal["cnn"] = "cnn"
    channels: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (32, 64), min_length=1, description="Channels of the stages; each halves the picture."
    )
    hidden: int = Field(128, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)


class CausalTransformerModel(NetworkSection):
    """Decoder-only transformer: pre-norm blocks of causal attention and a GELU network over
    tokens.
    """

    model_config = ConfigDict(title="Causal transformer")
    kind: Literal["causal_transformer"] = "causal_transformer"
    width: int = Field(128, ge=2, description="Size of a token's vector.")
    depth: int = Field(4, ge=1, description="Blocks.")
    heads: int = Field(
        4, ge=1, description="Attention heads of a block; they share the width evenly."
    )
    expansion: float = Field(
        4.0, gt=0, description="Hidden width of a block's network as a multiple of `width`."
    )
    dropout: float = Field(0.1, ge=0, lt=1)
    positions: Literal["rotary", "learned"] = Field(
        "rotary",
        description=(
            "rotary: queries and keys are turned by their positions, so that distances count;"
            " learned: a vector for each position."
        ),
    )
    tied: bool = Field(True, description="One matrix embeds the tokens and scores them.")

    @model_validator(mode="after")
    def _heads_fit(self) -> CausalTransformerModel:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} cannot be shared by {self.heads} heads; make it a multiple"
            )
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(
                f"rotary positions turn pairs of a head's numbers, and {self.width} / {self.heads}"
                " is odd; use positions: learned, or another width"
            )
        return self


class BoostingModel(Section):
    """Gradient boosting of trees on binned inputs (scikit-learn's HistGradientBoosting)."""

    model_config = ConfigDict(title="Gradient boosting")
    kind: Literal["boosting"] = "boosting"
    learning_rate: float = Field(0.1, gt=0, le=1, description="Factor on the values of each tree.")
    max_iter: int = Field(1000, ge=1, description="Most iterations; each adds a tree for a score.")
    patience: int = Field(
        20,
        ge=1,
        description=(
            "Iterations without a lower validation loss before fitting stops; the trees up to the"
            " lowest loss are kept."
        ),
    )
    max_leaf_nodes: int = Field(31, ge=2, description="Most leaves of a tree.")
    min_samples_leaf: int = Field(20, ge=1, description="Fewest train rows of a leaf.")
    l2: float = Field(0.0, ge=0, description="L2 penalty on the values of leaves.")
    max_features: float = Field(
        1.0, gt=0, le=1, description="Share of the columns, drawn at random, that a split may use."
    )
    max_bins: int = Field(
        255,
        ge=2,
        le=255,
        description=(
            "Most bins of a numeric column. A column with at most so many category codes is split"
            " into sets of values, one with more by the order of its codes."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _no_weights(cls, values: object) -> object:
        reason = "trees have no weights that could go on; name a network, e.g. model.kind: mlp"
        return refuse_on_trees(values, "boosting", reason)


class CustomModel(NetworkSection):
    """Your own `nn.Module`, from a package that BULKHEAD_ALLOW_IMPORTS names."""

    model_config = ConfigDict(title="Your own module")
    kind: Literal["custom"] = "custom"
    path: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="package.module:ClassName"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the class."
    )


def _named(value: object) -> object:
    """Return the section that a kind alone stands for."""
    return {"kind": value} if isinstance(value, str) else value


Candidate = Annotated[
    Annotated[
        LinearModel
        | MlpModel
        | ResMlpModel
        | RealMlpModel
        | TabMModel
        | FtTransformerModel
        | CnnModel
        | BoostingModel,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_named),
]


Effort = Literal["quick", "default", "best"]
# trees of three sizes on random columns: seconds each, and their errors differ
TREES = (
    BoostingModel(
        learning_rate=0.05, max_iter=2000, max_leaf_nodes=63, min_samples_leaf=5, max_features=0.7
    ),
    BoostingModel(learning_rate=0.03, max_iter=3000, max_leaf_nodes=15, l2=1.0, max_features=0.5),
    BoostingModel(
        learning_rate=0.05, max_iter=2000, max_leaf_nodes=8, min_samples_leaf=10, max_features=0.5
    ),
)
EFFORTS: dict[str, tuple[float, tuple[Candidate, ...]]] = {  # minutes, candidates
    "quick": (0.5, (*TREES, LinearModel(), RealMlpModel())),
    # one network: no clock decides what is trained, so that a second run gives the same bytes
    "default": (5.0, (*TREES, LinearModel(), RealMlpModel())),
    # TabM takes too long on a processor for the default
    "best": (
        60.0,
        (
            *TREES,
            LinearModel(),
            RealMlpModel(),
            TabMModel(),
            RealMlpModel(),
            RealMlpModel(),
            TabMModel(),
        ),
    ),
}


class AutoModel(Section):
    """Portfolio: candidates are trained in order, and the blend that validation rows prefer is
    kept.
    """

    model_config = ConfigDict(title="Auto")
    kind: Literal["auto"] = "auto"
    effort: Effort = Field(
        "default",
        description=(
            "What may be spent: quick, default or best. It sets the candidates, the minutes and the"
            " most steps of a network, unless they are given."
        ),
    )
    minutes: float = Field(
        EFFORTS["default"][0],
        gt=0,
        description=(
            "Training time after which no candidate is started; those up to the first network"
            " and the first boosting always run, and one that runs is finished. Default: 0.5, 5"
            " or 60, by effort."
        ),
    )
    candidates: tuple[Candidate, ...] = Field(
        EFFORTS["default"][1],
        min_length=1,
        max_length=20,
        description=(
            "In the order in which they are trained: a kind, or a whole model section. Default: by"
            " effort."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _no_weights(cls, values: object) -> object:
        reason = (
            "it is several models, which share no names; name one network, e.g. model.kind: mlp"
        )
        return refuse_on_trees(values, "auto", reason)

    @model_validator(mode="after")
    def _by_effort(self) -> AutoModel:
        minutes, candidates = EFFORTS[self.effort]
        started = [c.kind for c in self.candidates if isinstance(c, NetworkSection) and c.init]
        if started:
            raise ValueError(
                f"candidate {started[0]} has init, and model.kind auto compares models from"
                " scratch; name one network, with init"
            )
        for name, value in (("minutes", minutes), ("candidates", candidates)):
            if name not in self.model_fields_set:
                object.__setattr__(self, name, value)
        return self


Model = Annotated[
    LinearModel
    | MlpModel
    | ResMlpModel
    | RealMlpModel
    | TabMModel
    | FtTransformerModel
    | CnnModel
    | CausalTransformerModel
    | BoostingModel
    | CustomModel
    | AutoModel,
    Field(discriminator="kind"),
]
