"""Parameters whose rows are codes: of category values, pieces of texts, tokens of texts and SMILES.

Two runs number their values by their own train rows. A row of weights therefore goes by its value,
never by its number.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from schemas.init_records import InitInputs
from schemas.records import Statistics
from training.models.bag_vectors import Bags
from training.models.categories import Categories
from training.models.causal_transformer import CausalTransformer
from training.models.encoders import Encoders
from training.models.inputs import CategoryEmbeddings, CategoryTable
from training.models.shape import ModelShape
from training.models.token_transformer import MOLECULE_CODES, TokenTransformer

Row = tuple[str, str | None, str]  # kind, column, value or the name of a special code
TOKENS = ("padding", "begin", "end", "unknown")
UNUSED = "unused"  # kind of a row that no value has


def inputs_of(statistics: Statistics) -> InitInputs:
    """Return the inputs and classes of a network, in its order."""
    labels = statistics.labels or (statistics,)
    return InitInputs(
        numeric=(
            *(s.name for s in statistics.numeric),
            *(f"{s.name} is null" for s in statistics.numeric if s.indicator),
        ),
        categorical={s.name: s.values for s in statistics.categorical},
        tensor=tuple(s.name for s in statistics.tensor),
        bags={s.name: s.values for s in statistics.bags},
        molecules={
            s.name: s.molecule.values
            for s in statistics.tensor
            if s.molecule is not None and s.molecule.of == "tokens"
        },
        tokens=statistics.tokens.values if statistics.tokens else None,
        classes=tuple(tuple(map(repr, label.classes)) for label in labels),
    )


def code_parameters(network: nn.Module) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return parameters [codes, ...] with the kind and the positions of their columns."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    shape: ModelShape = network.shape
    for path, module in network.named_modules():
        match module:
            case CategoryTable():
                found[f"{path}.weight"] = "categorical", tuple(range(len(shape.categories)))
            case CategoryEmbeddings():
                for i in range(len(module.tables)):
                    found[f"{path}.tables.{i}.weight"] = "categorical", (i,)
            case Categories():
                for i in module.embeddings:
                    found[f"{path}.embeddings.{i}.weight"] = "categorical", (int(i),)
            case Bags():
                for i, part in enumerate(module.parts):
                    inner = ".tokens" if isinstance(part, TokenTransformer) else ""
                    found[f"{path}.parts.{i}{inner}.weight"] = "bags", (i,)
            case Encoders():
                read = [i for i, p in enumerate(module.parts) if isinstance(p, TokenTransformer)]
                for place, i in enumerate(read):
                    found[f"{path}.parts.{i}.tokens.weight"] = "molecules", (place,)
            case CausalTransformer():
                found[f"{path}.embedding.weight"] = "tokens", (0,)
                if module.head is not None:
                    found[f"{path}.head.weight"] = "tokens", (0,)
    return found


def rows_of(
    inputs: InitInputs, kind: str, positions: tuple[int, ...], count: int | None = None
) -> list[Row]:
    """Return what each row of a parameter of `code_parameters` stands for.

    Args:
        inputs: of the network, or of the weights.
        kind: of the parameter.
        positions: of its columns.
        count: its rows, where texts or molecules may be read in their order.

    >>> inputs = InitInputs(categorical={"ward": ("a",)})
    >>> [value for _, _, value in rows_of(inputs, "categorical", (0,))]
    ['unknown', 'null', 'a']
    """
    rows: list[Row] = []
    if kind == "tokens":
        return _named(TOKENS) + [("token", None, value) for value in inputs.tokens or ()]
    if kind == "molecules":
        values = list(inputs.molecules.values())[positions[0]]
        rows = _named(("padding", "unknown")) + [("token", None, value) for value in values]
        rows += [(UNUSED, None, str(code)) for code in range(len(rows), MOLECULE_CODES)]
        return rows + _named(("begin", "end") if count == MOLECULE_CODES + 2 else ())
    columns = list((inputs.categorical if kind == "categorical" else inputs.bags).items())
    special = ("unknown", "null") if kind == "categorical" else ("filling", "null")
    for name, values in (columns[i] for i in positions):
        rows += [("special", name, code) for code in special]
        rows += [("value", name, value) for value in values]
    if kind == "bags" and count is not None:  # of a text in its order, which has further codes
        rows += _named(("unknown", "begin", "end")[: max(0, count - len(rows))])
    return rows


def _named(codes: Iterable[str]) -> list[Row]:
    return [("special", None, code) for code in codes]


def differences(ours: InitInputs, theirs: InitInputs, by_rows: set[str]) -> list[str]:
    """Describe how the inputs differ that have no rows to go by; empty if they do not.

    Args:
        ours: of the network.
        theirs: of the weights.
        by_rows: categorical columns whose rows go by their values.
    """
    found = []
    lists = {
        "numeric columns": (ours.numeric, theirs.numeric),
        "categorical columns": (tuple(ours.categorical), tuple(theirs.categorical)),
        "tensors": (ours.tensor, theirs.tensor),
        "texts and sets": (tuple(ours.bags), tuple(theirs.bags)),
    }
    for what, (our, their) in lists.items():
        # whether nulls have a column of their own is not known of a version without its run
        if our != their and tuple(n for n in our if not n.endswith(" is null")) != their:
            apart = sorted(set(our) ^ set(their)) or ["they are in another order"]
            found.append(f"{what} ({', '.join(apart[:3])})")
    if (ours.tokens is None) != (theirs.tokens is None):
        found.append("one of them reads a text as tokens, the other columns")
    found += [
        f"the values of {name}, which enter one by one"
        for name, values in ours.categorical.items()
        if name not in by_rows and theirs.categorical.get(name, values) != values
    ]
    return found
