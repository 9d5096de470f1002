"""Molecules as features: fingerprints, graphs, tokens, descriptors, and raw SMILES when served."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator, rdMolDescriptors
from sklearn.ensemble import RandomForestClassifier

from schemas.errors import ConfigError, SchemaError
from schemas.smiles_config import FingerprintEncoder, GraphEncoder
from schemas.transformer_config import TransformerEncoder
from tests.subset import some
from tests.training.kind_cases import (
    Prepared,
    digests,
    evaluated,
    exported,
    prepared,
    served,
)
from tests.training.kind_runs import require_exact_resume, require_preflight
from training.boosting.tree_inputs import matrix, num_columns
from training.boosting.tree_run import fit_trees
from training.data.arrays.shards import load_arrays
from training.data.leakage import check_leakage
from training.data.rdkit_extra import require_rdkit
from training.data.serving_expressions import molecules as made
from training.evaluation.baselines import baseline_predictions
from training.evaluation.feature_frame import column_names
from training.evaluation.forest import FEW_TREES, TREES, fit_forest, forest
from training.models import molecule_encoders
from training.models.build import build_model
from training.models.encoders import build_encoder, summary
from training.optim.depth import parameter_depths
from training.report.feature_tables import tensor_table
from training.serving.export import export_model

PARTS = [
    *("C", "N", "O", "c1ccccc1", "C(=O)O", "C(F)(F)F", "Cl", "c1ccncc1", "C1CCCC1", "S(=O)(=O)N"),
    *("C=C", "C#N", "[NH3+]", "[C@@H](C)N", "P(=O)(O)O", "Br"),
]
ENCODERS: dict[str, dict[str, Any]] = {
    "graph": {"kind": "graph", "size": 4, "width": 6, "steps": 2},
    "fingerprint": {"kind": "fingerprint", "size": 4},
    "transformer": {"kind": "transformer", "size": 4, "width": 8, "depth": 1, "heads": 2},
}
NULL = {"invalid": None}


def molecules(count: int, seed: int = 0) -> list[str]:
    """Different molecules, most of chained parts."""
    drawn, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        text = "C" + "".join(
            f"({part})C" for part in drawn.choices(PARTS[:12], k=drawn.randint(0, 4))
        )
        text += drawn.choice(PARTS[12:])
        read = made.molecule(text)
        if read is not None:
            found.setdefault(made.canonical(read), text)
    return list(found.values())


def columns(encoder: str = "fingerprint", **smiles: Any) -> dict[str, Any]:
    own = {"kind": "smiles", "smiles": NULL | smiles, "encoder": ENCODERS[encoder]}
    return {"row": "id", "y": "label", "drug": own, "x": "numeric"}


def rows(count: int = 120) -> pd.DataFrame:
    """Molecules, of which those with chlorine are 1; some null, two invalid."""
    texts: list[str | None] = [*molecules(count)]
    for row in range(5, count, 20):
        texts[row] = None
    texts[7], texts[33] = "C1CC", "CC(C)(C)(C)C"
    drawn = np.random.default_rng(0).normal(size=count).round(3)
    label = [int("Cl" in (text or "")) for text in texts]
    label[0], label[1] = 0, 1
    names = [f"r{i:03d}" for i in range(count)]
    return pd.DataFrame({"row": names, "y": label, "drug": texts, "x": drawn})


@pytest.fixture(scope="module", params=some(ENCODERS, 3))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("mol"), rows(), columns(request.param))


def table(case: Prepared, side: str = "train") -> pd.DataFrame:
    found = pd.read_parquet(case.split.side(side).file.path)  # type: ignore[arg-type]
    return found.assign(drug=found["drug"].astype(object).where(found["drug"].notna(), None))


def test_bits_are_those_of_rdkit(case: Prepared) -> None:
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    stored = load_arrays(case.run.arrays.train)["tensor_drug"]
    encoder = case.run.statistics.tensor[0].encoder
    bits = summary(encoder, torch.from_numpy(np.array(stored))).numpy()  # type: ignore[arg-type]
    for text, found in zip(table(case)["drug"], bits, strict=True):
        read = made.molecule(text) if text else None
        wanted = np.zeros(2048) if read is None else generator.GetFingerprintAsNumPy(read)
        np.testing.assert_array_equal(found, wanted)


def test_counts_and_descriptors_are_those_of_rdkit() -> None:
    read = Chem.MolFromSmiles("CCCCCCC(=O)Nc1ccc(Cl)cc1")
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=3, fpSize=2048)
    wanted = generator.GetCountFingerprintAsNumPy(read)
    np.testing.assert_array_equal(made.fingerprint(read, 3, counts=True), wanted)
    found = dict(zip(made.DESCRIPTORS, made.descriptors(read), strict=True))
    assert found["tpsa"] == rdMolDescriptors.CalcTPSA(read)
    assert found["CrippenClogP"] == rdMolDescriptors.CalcCrippenDescriptors(read)[0]
    assert found["NumHeavyAtoms"] == read.GetNumHeavyAtoms() and len(found) == 31


def test_descriptors_are_scaled_on_train_and_say_what_is_missing(case: Prepared) -> None:
    stats = case.run.statistics.tensor[1]
    stored = load_arrays(case.run.arrays.train)["tensor_drug.descriptors"]
    read = [made.molecule(text) if text else None for text in table(case)["drug"]]
    raw = np.array([made.descriptors(one) for one in read if one is not None])
    assert stats.molecule is not None
    low, middle, high = np.quantile(raw, (0.25, 0.5, 0.75), axis=0)
    np.testing.assert_allclose(stats.molecule.center, middle)
    wide = high > low
    np.testing.assert_allclose(
        np.array(stats.molecule.scale)[wide], (high - low)[wide] / 1.34898, 1e-4
    )
    missing = np.array([one is None for one in read])
    assert stored[:, -1].tolist() == missing.astype(float).tolist() and missing.any()
    assert not stored[missing, :-1].any() and np.abs(stored).max() <= made.LIMIT
    assert stats.molecule.nulls == missing.sum() and 0 < stats.molecule.unread <= 2


def test_held_out_rows_change_nothing_that_is_fitted(case: Prepared, tmp_path: Path) -> None:
    frame, encoder = rows(), case.run.statistics.tensor[0].encoder
    held = frame["row"].isin([*table(case, "val")["__id"], *table(case, "test")["__id"]])
    frame["drug"] = frame["drug"].where(~held, "[Fe]CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCO")
    other = prepared(tmp_path, frame, columns(encoder.kind))  # type: ignore[union-attr]
    assert other.run.statistics == case.run.statistics
    assert digests(other, "train") == digests(case, "train")
    assert digests(other, "test") != digests(case, "test")


def test_the_exported_model_takes_raw_smiles_in_any_spelling(
    case: Prepared, tmp_path: Path
) -> None:
    model, weights = exported(case, tmp_path)
    assert model.parity < 1e-6
    wanted = evaluated(case, weights, "test")
    raw = rows().set_index("row").loc[list(wanted)]
    np.testing.assert_allclose(served(model, raw), list(wanted.values()), atol=1e-12)
    other = raw.assign(drug=[respelt(text) for text in raw["drug"]])
    np.testing.assert_allclose(served(model, other), list(wanted.values()), atol=1e-9)


def respelt(text: str | None) -> str | None:
    read = made.molecule(text) if text else None
    return text if read is None else str(Chem.MolToSmiles(read, doRandom=True))


@pytest.mark.long
def test_a_refusing_model_names_the_rows(tmp_path: Path) -> None:
    frame = rows().assign(drug=molecules(120))
    case = prepared(tmp_path, frame, columns(invalid="refuse"))
    model, _ = exported(case, tmp_path / "out")
    raw = frame.head(3).assign(drug=["CCO", "C1CC", None])
    with pytest.raises(ValueError, match=r"'drug'.*no molecule in 1 of 3 rows \(row 1: 'C1CC'\)"):
        served(model, raw)
    assert np.isfinite(served(model, raw.assign(drug=["CCO", "CC", None]))).all()


@pytest.mark.parametrize("text", [*molecules(3, seed=9), "C[C@H](O)/C=C/c1ccccc1", "[Na+].[Cl-]"])
@pytest.mark.parametrize("kind", ["graph", "transformer"])
def test_all_spellings_of_a_molecule_give_the_same_array(kind: str, text: str) -> None:
    of = {"graph": "graph", "transformer": "tokens"}[kind]
    size = made.PACKED + (made.WIDTH * 30 if of == "graph" else 60)
    rule = {"of": of, "radius": 2, "counts": False, "values": ["C", "c"], "dtype": "uint8"}
    spelt = [text, *(str(respelt(text)) for _ in range(6))]
    found, invalid = made.encode(spelt, rule | {"shape": [size]})
    assert len(set(spelt)) > 1 and (found == found[0]).all() and not invalid.any()


def test_a_graph_does_not_depend_on_the_order_or_number_of_its_places() -> None:
    read = Chem.MolFromSmiles("C[C@H](O)/C=C/c1ccc(C#N)cc1")
    count = read.GetNumAtoms()
    atoms, lost = made.graph(read, count)
    assert not lost and made.graph(read, count - 1)[1]
    torch.manual_seed(0)
    module = molecule_encoders.Graph(GraphEncoder(width=8, size=5), count).double()
    first = len(made.ATOM_CODES)
    order = np.random.default_rng(0).permutation(count)
    turned = atoms[order].copy()
    near = turned[:, first : first + made.NEIGHBOURS]
    near[near > 0] = np.argsort(order)[near[near > 0] - 1] + 1
    np.testing.assert_allclose(vector(module, turned), vector(module, atoms), atol=1e-12)
    longer = molecule_encoders.Graph(GraphEncoder(width=8, size=5), count + 4).double()
    longer.load_state_dict(module.state_dict())
    np.testing.assert_allclose(vector(longer, atoms, 4), vector(module, atoms), atol=1e-12)
    changed = atoms.copy()
    changed[0, first + made.NEIGHBOURS] = 14  # the first bond is a double one
    assert not np.allclose(vector(module, changed), vector(module, atoms), atol=1e-6)


def vector(module: torch.nn.Module, atoms: np.ndarray, more: int = 0) -> np.ndarray:
    row = np.zeros(made.PACKED + made.WIDTH * (len(atoms) + more))
    row[made.PACKED : made.PACKED + atoms.size] = atoms.reshape(-1)
    with torch.inference_mode():
        return np.asarray(module(torch.from_numpy(row)[None])[0])


def test_a_network_knows_the_codes_that_are_written() -> None:
    for name in ("BITS", "PACKED", "NEIGHBOURS", "ATOM_CODES", "BOND_CODES", "WIDTH"):
        assert getattr(molecule_encoders, name) == getattr(made, name)
    for text in [*molecules(60), "[Fe+3]", "F[P-](F)(F)(F)(F)F", "C1CC2CCC1CC2", "[2H]C#[C-]"]:
        atoms, _ = made.graph(Chem.MolFromSmiles(text), 60)
        codes, bonds = atoms[:, : len(made.ATOM_CODES)], atoms[:, -made.NEIGHBOURS :]
        assert (codes < np.array(made.ATOM_CODES)).all() and (bonds < made.BOND_CODES).all()


@pytest.mark.parametrize("config", [FingerprintEncoder(), GraphEncoder(), TransformerEncoder()])
def test_a_row_without_a_molecule_has_a_learned_vector(config: Any) -> None:
    encoder = build_encoder(config, "tensor_a", (2048 if config.kind == "fingerprint" else 336,))
    blank = torch.zeros(2, 2048 if config.kind == "fingerprint" else 336)
    found = encoder.eval()(blank)
    torch.testing.assert_close(found, encoder.missing.weight[:1].expand(2, -1))
    found.sum().backward()
    assert bool((encoder.missing.weight.grad[0] != 0).all())
    for extreme in (blank + 255, blank - 3):
        assert bool(encoder(extreme).isfinite().all())


@pytest.mark.long
def test_trees_and_the_forest_get_the_bits(case: Prepared) -> None:
    statistics = case.run.statistics
    arrays = load_arrays(case.run.arrays.train)
    inputs = matrix(statistics, arrays)
    assert inputs.shape[1] == num_columns(statistics) == len(column_names(statistics))
    assert num_columns(statistics) == 1 + 2048 + 32
    found = baseline_predictions(case.declaration, statistics, case.run.arrays)
    bits = [
        summary(
            statistics.tensor[0].encoder,
            torch.from_numpy(
                np.array(
                    load_arrays(  # type: ignore[arg-type]
                        case.run.arrays.side(side)
                    )["tensor_drug"]
                )
            ),
        ).numpy()
        for side in ("train", "test")
    ]
    model = RandomForestClassifier(TREES, random_state=case.declaration.train.seed)
    model.fit(bits[0], arrays["label"])
    np.testing.assert_allclose(found["morgan-forest"], model.predict_proba(bits[1]))


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (
            {"drug": "smiles"},
            SchemaError,
            "no molecule in 2 rows .r007 'C1CC': unclosed ring; r033",
        ),
        ({"x": "smiles"}, SchemaError, "kind smiles needs text, got numbers"),
        ({"x": {"smiles": {}}}, ConfigError, "smiles is for kind smiles"),
        ({"x": {"encoder": ENCODERS["graph"]}}, ConfigError, "encoder is for kinds tensor"),
        (
            {"drug": {"kind": "text", "encoder": ENCODERS["graph"]}},
            ConfigError,
            "transformer., got",
        ),
        ({"drug": {"kind": "smiles", "encoder": {"kind": "cnn"}}}, ConfigError, "got cnn"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, column: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepared(tmp_path, rows(), columns() | column)


def test_invalid_molecules_are_counted_and_named(case: Prepared) -> None:
    [note] = case.validated.notes
    assert "2 rows, taken as null" in note and "Explicit valence for atom # 1 C, 5" in note


def test_the_report_counts_what_is_missing_or_cut(case: Prepared) -> None:
    stats = case.run.statistics.tensor[0].molecule
    assert stats is not None
    shown = str(tensor_table(case.run.statistics))
    assert f"{stats.nulls} missing, of which {stats.unread} unreadable" in shown
    assert "graph of molecules" in shown or "cut" not in shown


def test_without_rdkit_the_refusal_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rdkit", None)
    with pytest.raises(ConfigError, match=r"kind smiles needs RDKit.*'bulkhead\[chem\]'"):
        require_rdkit("data.columns.drug: kind smiles")


@pytest.mark.parametrize("are_copies", some([True, False], 2))
def test_the_same_molecule_in_another_spelling_is_found(tmp_path: Path, are_copies: bool) -> None:
    texts = molecules(120)
    if are_copies:
        texts = [texts[i // 2] if i % 2 == 0 else str(respelt(texts[i // 2])) for i in range(120)]
    case = prepared(tmp_path, rows().assign(drug=texts), columns())
    report = check_leakage(case.split, case.validated, case.declaration)
    found = next(r for r in report.results if r.name == "text_copies")
    assert (found.verdict in ("warn", "fail")) == are_copies
    assert found.columns == (("drug",) if are_copies else ())


@pytest.mark.long
def test_a_copy_of_the_column_has_another_encoder(tmp_path: Path) -> None:
    own = columns() | {"graph": columns("graph", descriptors=False)["drug"]}
    case = prepared(tmp_path, rows(), own, data={"derive": {"graph": "drug"}})
    assert [t.name for t in case.run.statistics.tensor] == ["drug", "drug.descriptors", "graph"]
    model, weights = exported(case, tmp_path / "out")
    wanted = evaluated(case, weights, "test")
    raw = rows().set_index("row").loc[list(wanted)]
    np.testing.assert_allclose(served(model, raw), list(wanted.values()), atol=1e-12)


def test_the_layers_of_an_encoder_are_the_lowest(case: Prepared) -> None:
    network = build_model(case.declaration, case.run.statistics)
    depths = parameter_depths(network)
    assert {depths[p] for p in network.encoders.parameters()} == {0} and max(depths.values()) > 0


TRAIN = {"epochs": 3, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 4, "threads": 1}


def encoded_run(folder: Path, encoder: str, **sections: Any) -> Any:
    run = prepared(folder, rows(), columns(encoder), **sections).run
    (folder / "resolved.json").write_text(run.model_dump_json())
    return run


@pytest.mark.long
@pytest.mark.req("C5")
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Path, encoder: str) -> None:
    encoded_run(tmp_path, encoder, train=TRAIN)
    require_exact_resume(tmp_path)


KINDS = ("realmlp", "mlp", "tabm", "linear", "ft_transformer", "boosting")


@pytest.mark.long
@pytest.mark.req("M4")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_preflight_passes(tmp_path: Path, encoder: str, kind: str) -> None:
    run = encoded_run(tmp_path, encoder, model={"kind": kind}, train=TRAIN | {"clip": "none"})
    require_preflight(run)


@pytest.mark.long
@pytest.mark.parametrize("kind", ("realmlp", "tabm", "linear", "ft_transformer"))
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_body_takes_the_vector(tmp_path: Path, encoder: str, kind: str) -> None:
    case = prepared(tmp_path, rows(), columns(encoder), model={"kind": kind})
    model, _ = exported(case, tmp_path / "out")
    assert model.parity < 1e-6


@pytest.mark.long
def test_boosting_takes_the_bits_and_serves_raw_smiles(tmp_path: Path) -> None:
    case = prepared(tmp_path, rows(), columns("graph"), model={"kind": "boosting"})
    weights = Path(fit_trees(case.run, tmp_path / "run").best_checkpoint.path)
    assert export_model(case.run, weights, tmp_path / "model", case.split.val).parity < 1e-6


@pytest.mark.long
def test_several_labels_with_nulls_have_a_forest_each(tmp_path: Path) -> None:
    frame = rows().assign(z=lambda f: f["y"].where(f.index % 3 > 0).astype("Int64"))
    case = prepared(tmp_path, frame, columns() | {"z": "label"}, task={"kind": "multilabel"})
    found = baseline_predictions(case.declaration, case.run.statistics, case.run.arrays)
    assert np.isfinite(found["morgan-forest"]).all()
    assert found["morgan-forest"].shape == found["linear"].shape


def test_many_rows_of_all_labels_together_have_fewer_trees(case: Prepared) -> None:
    assert forest(False, 0, 10_000).n_estimators == TREES
    assert forest(False, 0, 10_001).n_estimators == FEW_TREES
    arrays = load_arrays(case.run.arrays.train)
    given = (case.declaration, case.run.statistics, arrays, arrays)
    own, of_many = (fit_forest(*given, n)(arrays) for n in (1, 1 + 10_000 // len(arrays["label"])))
    assert not np.array_equal(own, of_many)
