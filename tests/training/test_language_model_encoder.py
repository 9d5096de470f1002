"""An encoder of molecules that starts from a language model is that model, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from schemas.config import CausalTransformerModel
from schemas.digest import file_ref
from schemas.errors import ConfigError
from schemas.init_records import InitialWeights, InitInputs
from schemas.load import declare
from schemas.series_config import WindowConfig
from schemas.transformer_config import TransformerEncoder
from tests.training.kind_cases import Prepared, evaluated, exported, prepared, served
from tests.training.test_molecules import NULL, rows
from tests.training.test_token_transformer import COLUMNS as TEXT_COLUMNS
from tests.training.test_token_transformer import rows as text_rows
from training.checkpoint.state import model_digest
from training.data.arrays.shards import load_arrays
from training.data.serving_expressions import molecules as made
from training.data.serving_text.tokenizers import encode, framed
from training.models.build import build_model
from training.models.causal_transformer import CausalTransformer
from training.models.code_rows import inputs_of
from training.models.initial import initial_network
from training.models.shape import ModelShape
from training.models.token_transformer import TokenTransformer

ENCODER = {
    "kind": "transformer",
    "size": 4,
    "width": 8,
    "depth": 2,
    "heads": 2,
    "attention": "causal",
    "positions": "rotary",
}
PART = "encoders.parts.0"
MAP = {
    "body.embedding": f"{PART}.tokens",
    "body.blocks.*.norm1": f"{PART}.blocks.*.first",
    "body.blocks.*.attention": f"{PART}.blocks.*.attention",
    "body.blocks.*.norm2": f"{PART}.blocks.*.second",
    "body.blocks.*.widen": f"{PART}.blocks.*.inner",
    "body.blocks.*.narrow": f"{PART}.blocks.*.outer",
    "body.norm": f"{PART}.norm",
}
INIT: dict[str, Any] = {
    "from": "models:/before/1",
    "map": MAP,
    "new": ["body", f"{PART}.out", f"{PART}.missing"],
}
COLUMNS = {
    "row": "id",
    "y": "label",
    "drug": {"kind": "smiles", "smiles": NULL | {"descriptors": False}, "encoder": ENCODER},
    "x": "ignore",
}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("molecules"), rows(), COLUMNS)


@pytest.fixture(scope="module")
def language(case: Prepared) -> tuple[tuple[str, ...], CausalTransformer]:
    """A language model whose vocabulary has another order, one token more and one less."""
    stats = case.run.statistics.tensor[0].molecule
    assert stats is not None
    values = ("[Xe]", *stats.values[-2::-1])
    shape = ModelShape(0, 0, (), (), {}, 4 + len(values), (), context=64)
    config = CausalTransformerModel(width=8, depth=2, heads=2, dropout=0.0)
    torch.manual_seed(3)
    network = CausalTransformer(shape, config, packed=False)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return values, network


def written(folder: Path, tensors: dict[str, Tensor], inputs: InitInputs) -> InitialWeights:
    torch.save(tensors, folder / "weights.pt")
    return InitialWeights(
        given="models:/before/1",
        resolved="models:/before/1",
        file=file_ref(folder / "weights.pt"),
        sha256=model_digest(tensors),
        inputs=inputs,
    )


def started(case: Prepared, weights: InitialWeights, init: dict[str, Any]) -> nn.Module:
    """The network of the case, with weights."""
    tree = case.declaration.model_dump(mode="json", by_alias=True)
    tree["model"]["init"] = init
    return initial_network(declare(tree), case.run.statistics, weights).eval()


def of_language(folder: Path, language: Any) -> InitialWeights:
    values, network = language
    tensors = {f"body.{name}": t for name, t in network.state_dict().items()}
    return written(folder, tensors, InitInputs(tokens=values))


def test_each_token_has_the_vector_that_the_language_model_gives_it(
    case: Prepared, language: Any, tmp_path: Path
) -> None:
    network = started(case, of_language(tmp_path, language), INIT)
    part = network.encoders.parts[0]
    assert isinstance(part, TokenTransformer)
    stored = torch.from_numpy(load_arrays(case.run.arrays.train)["tensor_drug"].copy())
    values, model = language
    known = {"tokenizer": "smiles", "values": values}
    norms = list[Tensor]()
    model.norm.register_forward_hook(lambda *found: norms.append(found[2]))
    looked_at = 0
    for text, row in zip(texts(case), stored, strict=True):
        read = made.molecule(text) if text else None
        own = [] if read is None else made.tokens(read)
        # a token that only one of the two knows has no row in common
        if not own or len(own) > part_length(case) or unlike(own, case, values):
            continue
        codes = part.framed(row[made.PACKED :].long()[None])
        found = part.vectors(codes)[0, : len(own) + 2]
        numbers = torch.from_numpy(framed(*encode([made.canonical(read)], known)).copy())[None]
        with torch.no_grad():
            model({"tokens": numbers.long(), "segments": torch.ones_like(numbers)})
        torch.testing.assert_close(found, norms.pop()[0], rtol=1e-5, atol=1e-5)
        looked_at += 1
    assert looked_at > 20


def texts(case: Prepared) -> list[str | None]:
    import pandas as pd

    found = pd.read_parquet(case.split.train.file.path)["drug"]
    return found.astype(object).where(found.notna(), None).tolist()


def part_length(case: Prepared) -> int:
    return case.run.statistics.tensor[0].shape[0] - made.PACKED


def unlike(own: list[str], case: Prepared, values: tuple[str, ...]) -> bool:
    stats = case.run.statistics.tensor[0].molecule
    assert stats is not None
    return any((token in stats.values) != (token in values) for token in own)


def test_tokens_without_weights_keep_what_they_were_built_with(
    case: Prepared, language: Any, tmp_path: Path
) -> None:
    values, model = language
    network = started(case, of_language(tmp_path, language), INIT)
    built = build_model(case.declaration, case.run.statistics).state_dict()
    table, name = network.state_dict()[f"{PART}.tokens.weight"], f"{PART}.tokens.weight"
    stats = case.run.statistics.tensor[0].molecule
    assert stats is not None and len(table) == 258
    rows = ["padding", "unknown", *stats.values]
    theirs = ["padding", "begin", "end", "unknown", *values]
    for code, row in enumerate([*rows, *[None] * (256 - len(rows)), "begin", "end"]):
        known = row in theirs
        place = theirs.index(row) if known else code
        source = model.embedding.weight[place] if known else built[name][code]
        assert torch.equal(table[code], source), row
    new = next(code for code, row in enumerate(rows) if row not in theirs)
    assert torch.equal(table[new], built[name][new])


def test_a_name_that_the_map_leaves_out_is_refused(
    case: Prepared, language: Any, tmp_path: Path
) -> None:
    less = {key: value for key, value in MAP.items() if "norm2" not in key}
    with pytest.raises(ConfigError, match=r"blocks.0.second.weight \[8\].*model.init.new"):
        started(case, of_language(tmp_path, language), INIT | {"map": less})


@pytest.mark.parametrize("kind", ["smiles", pytest.param("text", marks=pytest.mark.long)])
def test_rows_go_by_their_tokens_between_two_runs(
    kind: str, case: Prepared, tmp_path: Path
) -> None:
    if kind == "text":
        case = prepared(tmp_path / "texts", text_rows(), TEXT_COLUMNS)
    statistics = case.run.statistics
    name = f"{PART}.tokens.weight" if kind == "smiles" else "bags.parts.0.tokens.weight"
    if kind == "smiles":
        stats = statistics.tensor[0]
        assert stats.molecule is not None
        turned = stats.molecule.model_copy(update={"values": stats.molecule.values[::-1]})
        now = {"tensor": (stats.model_copy(update={"molecule": turned}),)}
        values, first = stats.molecule.values, 2
    else:
        bag = statistics.bags[0]
        values, first = bag.values, 2
        bags = (bag.model_copy(update={"values": values[::-1]}), *statistics.bags[1:])
        now = {"bags": bags}
    tensors = {
        key: torch.randn(t.shape)
        for key, t in build_model(case.declaration, statistics).state_dict().items()
    }
    weights = written(tmp_path, tensors, inputs_of(statistics))
    changed = Prepared(
        case.declaration,
        case.validated,
        case.split,
        case.run.model_copy(update={"statistics": statistics.model_copy(update=now)}),
    )
    table = started(changed, weights, {"from": "models:/before/1"}).state_dict()[name]
    end = first + len(values)
    assert torch.equal(table[first:end], tensors[name][first:end].flip(0))
    assert torch.equal(table[:first], tensors[name][:first])
    if kind == "text":
        assert torch.equal(table[end:], tensors[name][end:])


def test_more_filling_changes_nothing_and_order_does() -> None:
    torch.manual_seed(0)
    network = TokenTransformer(TransformerEncoder(**ENCODER), 9, 6).eval()
    longer = TokenTransformer(TransformerEncoder(**ENCODER), 9, 11).eval()
    longer.load_state_dict(network.state_dict())
    rows = torch.tensor([[3, 4, 5, 0, 0, 0], [5, 4, 3, 0, 0, 0], [0] * 6, [2, 3, 4, 5, 6, 7]])
    found = network(rows)
    assert torch.allclose(found, longer(nn.functional.pad(rows, (0, 5))), atol=1e-6)
    assert not torch.allclose(found[0], found[1]) and torch.isfinite(found).all()
    assert network.framed(rows)[0].tolist() == [9, 3, 4, 5, 10, 0, 0, 0]


def test_a_token_sees_none_after_it() -> None:
    torch.manual_seed(0)
    network = TokenTransformer(TransformerEncoder(**ENCODER), 9, 6).eval()
    codes = torch.tensor([[9, 3, 4, 5, 10]])
    other = torch.tensor([[9, 3, 4, 6, 10]])
    found, changed = network.vectors(codes)[0], network.vectors(other)[0]
    assert torch.allclose(found[:3], changed[:3], atol=1e-6)
    assert not torch.allclose(found[4], changed[4], atol=1e-3)


@pytest.mark.long
def test_it_is_served_as_it_was_evaluated(case: Prepared, tmp_path: Path) -> None:
    import pandas as pd

    model, weights = exported(case, tmp_path)
    wanted = evaluated(case, weights, "test")
    frame = rows().set_index("row").loc[list(wanted)].reset_index()
    found = served(model, frame[["drug"]].astype(object).where(pd.notna, None))
    assert abs(found - list(wanted.values())).max() < 1e-6


def test_what_cannot_be_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValidationError, match="6 / 2 is odd; use positions: learned"):
        TransformerEncoder(width=6, heads=2, positions="rotary")
    with pytest.raises(ValidationError, match="attention and positions are for texts"):
        WindowConfig(columns=("x",), look_back=8, encoder=ENCODER)
    plain = TransformerEncoder().model_dump()
    assert "attention" not in plain and "positions" not in plain
