"""Columns of pictures, from files to a served model: encoders, nulls, augmentation, kill, ranks."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from schemas.config import AugmentConfig
from schemas.encoder_config import CnnEncoder, ResnetEncoder
from schemas.errors import ConfigError, DataError
from schemas.load import declare
from tests.training.kind_cases import Prepared, digests, evaluated, exported, served
from tests.training.kind_runs import require_exact_resume, require_preflight
from tests.training.picture_cases import (
    COLUMNS,
    IMAGE,
    as_bytes,
    picture_case,
    picture_rows,
    picture_run,
    pixels_of,
    png,
)
from training.boosting.tree_run import fit_trees
from training.data.arrays.shards import load_arrays
from training.data.leakage import check_leakage
from training.engine.augment import Augment
from training.evaluation.feature_groups import features_of
from training.models.build import build_model
from training.models.encoders import build_encoder
from training.models.picture_encoders import without_picture
from training.serving import serving
from training.serving.export import export_model
from training.serving.signature import input_example, input_types

KINDS: dict[str, Any] = {
    "realmlp": {"hidden": [8]},
    "mlp": {"hidden": [8]},
    "tabm": {"width": 8, "members": 2},
    "linear": {},
    "ft_transformer": {"width": 8, "depth": 1, "heads": 2},
}
TRAIN = {"epochs": 3, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 4, "threads": 1}
CNN = {"kind": "cnn", "channels": [4], "hidden": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def frame(folder: Path) -> pd.DataFrame:
    return picture_rows(folder, nulls=12)


@pytest.fixture(scope="module")
def case(folder: Path, frame: pd.DataFrame) -> Prepared:
    return picture_case(folder, frame)


@pytest.fixture(scope="module")
def exported_case(case: Prepared, folder: Path) -> tuple[Any, dict[str, float]]:
    """The exported model, and what evaluation says of the test rows."""
    model, weights = exported(case, folder / "model")
    return model, evaluated(case, weights, "test")


def test_arrays_hold_the_pixels_and_zeros_for_no_picture(
    case: Prepared, frame: pd.DataFrame
) -> None:
    pixels = dict(zip(frame["row"], pixels_of()[0], strict=True))
    missing = set(frame.loc[frame["scan"].isna(), "row"])
    for side in ("train", "val", "test"):
        refs = case.run.arrays.side(side)
        ids, found = pd.read_parquet(refs.ids.path)["__id"], load_arrays(refs)["tensor_scan"]
        wanted = np.stack([pixels[i] * (i not in missing) for i in ids])
        np.testing.assert_array_equal(found, wanted)
    fitted = case.run.statistics.tensor[0]
    train = load_arrays(case.run.arrays.train)["tensor_scan"]
    seen = train[train.any(axis=(1, 2))]
    assert fitted.nulls == len(train) - len(seen) > 0
    np.testing.assert_allclose([fitted.mean[0], fitted.std[0]], [seen.mean(), seen.std()])


@pytest.mark.long
def test_bytes_and_paths_give_the_same_arrays(
    case: Prepared, frame: pd.DataFrame, folder: Path, tmp_path: Path
) -> None:
    other = picture_case(tmp_path, as_bytes(frame, folder))
    for side in ("train", "val", "test"):
        assert digests(case, side) == digests(other, side)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_model_of_each_kind_takes_bytes(
    case: Prepared, frame: pd.DataFrame, folder: Path, tmp_path: Path, kind: str
) -> None:
    declaration = case.run.declaration | {"model": {"kind": kind} | KINDS[kind]}
    run = case.run.model_copy(
        update={"declaration": declare(declaration).model_dump(mode="json", by_alias=True)}
    )
    own = case._replace(run=run, declaration=declare(run.declaration))
    model, weights = exported(own, tmp_path)
    assert model.parity < 1e-6
    wanted = evaluated(own, weights, "test")
    raw = as_bytes(frame, folder).set_index("row").loc[list(wanted)]
    np.testing.assert_allclose(served(model, raw), list(wanted.values()), atol=1e-12)


@pytest.mark.long
def test_a_served_model_reads_paths_below_its_operators_folder_alone(
    exported_case: Any,
    frame: pd.DataFrame,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, wanted = exported_case
    raw = frame.set_index("row").loc[list(wanted)]
    assert model.parity < 1e-6
    found = served(model, as_bytes(raw, folder))
    np.testing.assert_allclose(found, list(wanted.values()), atol=1e-12)
    with pytest.raises(ValueError, match="a path, and this model reads none: pass the bytes"):
        served(model, raw)
    monkeypatch.setenv("BULKHEAD_PICTURES", str(folder))
    np.testing.assert_allclose(served(model, raw), list(wanted.values()), atol=1e-12)
    (tmp_path / "outside.png").write_bytes(png(pixels_of()[0][0]))
    for path, why in (
        ("../" * 9 + "etc/hostname", "outside of the folder"),
        (str(tmp_path / "outside.png"), "outside of the folder"),
        ("scans/none.png", "no such file"),
    ):
        odd = raw.assign(scan=path)
        with pytest.raises(ValueError, match=rf"pictures cannot be used \(index .*{why}"):
            served(model, odd)
    texts = [
        None if pd.isna(path) else "data:image/png;base64," + base64.b64encode(data).decode()
        for path, data in zip(raw["scan"], as_bytes(raw, folder)["scan"], strict=True)
    ]
    monkeypatch.delenv("BULKHEAD_PICTURES")
    as_json = raw.assign(scan=pd.Series(texts, raw.index, dtype=object))
    np.testing.assert_allclose(served(model, as_json), list(wanted.values()), atol=1e-12)
    spec = serving.read_spec(model.spec.path)
    example = input_example(spec)
    assert input_types(spec)["scan"] == "binary" and len(served(model, example)) == 2
    with pytest.raises(ValueError, match="neither PNG nor JPEG"):
        served(model, raw.assign(scan=b"GIF89a"))


@pytest.mark.long
def test_nulls_that_train_has_not_are_refused(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path)
    split = {"kind": "predefined"}
    sides = np.resize(["train", "train", "val", "test"], len(frame))
    frame["side"] = sides
    columns = COLUMNS | {"side": "split"}
    case = picture_case(tmp_path, frame, columns, split=split)
    model, _ = exported(case, tmp_path / "model")
    with pytest.raises(ValueError, match="null, which training never saw there"):
        served(model, frame.assign(scan=None))
    frame.loc[np.flatnonzero(sides == "test")[:2], "scan"] = None
    with pytest.raises(DataError, match=r"'scan' has 2 nulls on the test side.*data.filter"):
        picture_case(tmp_path, frame, columns, split=split)


def test_a_missing_picture_is_learned_apart_from_a_black_one(case: Prepared) -> None:
    network = build_model(case.declaration, case.run.statistics).eval()
    arrays = load_arrays(case.run.arrays.train)
    batch = {key: torch.tensor(np.array(arrays[key][:2])) for key in network.shape.keys}
    none, black = torch.zeros_like(batch["tensor_scan"]), torch.ones_like(batch["tensor_scan"])
    assert without_picture(none).all() and not without_picture(black).any()
    scores = [network(batch | {"tensor_scan": scan}) for scan in (none, black)]
    assert not torch.allclose(*scores)
    vectors = network.encoders({"tensor_scan": none.float()}, {"tensor_scan": none})["tensor_scan"]
    out = network.encoders.parts[0].out
    torch.testing.assert_close(vectors[0], out.weight[:, -1] + out.bias)
    vectors.sum().backward()
    assert out.weight.grad is not None and bool((out.weight.grad[:, -1] != 0).all())
    assert not out.weight.grad[:, :-1].any()


@pytest.mark.long
def test_the_pixels_go_to_a_cnn_and_others_get_the_default_encoder(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path)
    columns = COLUMNS | {"scan": {"kind": "image", "image": IMAGE}}
    plain = picture_case(tmp_path / "a", as_bytes(frame, tmp_path), columns)
    assert plain.run.statistics.tensor[0].encoder == CnnEncoder(channels=(32, 64, 128))
    own = picture_case(tmp_path / "b", as_bytes(frame, tmp_path), columns, model=CNN)
    assert own.run.statistics.tensor[0].encoder is None
    model, _ = exported(own, tmp_path / "model")
    assert model.parity < 1e-6
    frame.loc[:9, "scan"] = None
    nulls = picture_case(tmp_path / "c", as_bytes(frame, tmp_path), columns, model=CNN)
    with pytest.raises(ConfigError, match="cnn reads the picture itself, and train rows have none"):
        build_model(nulls.declaration, nulls.run.statistics)


def test_rows_of_a_resnet_do_not_depend_on_each_other() -> None:
    torch.manual_seed(0)
    config = ResnetEncoder(channels=(8, 16), blocks=2, size=6)
    part = build_encoder(config, "tensor_scan", (3, 21, 13)).double().train()
    pictures = torch.randn(5, 3, 21, 13, dtype=torch.float64)
    together = part(pictures)
    alone = torch.cat([part(pictures[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    assert together.shape == (5, 6) and not list(part.buffers())
    first, second = (torch.autograd.grad(part(pictures).sum(), part.parameters()) for _ in "ab")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_augmentation_moves_pictures_and_leaves_no_picture(case: Prepared) -> None:
    arrays = load_arrays(case.run.arrays.train)
    batch = {key: torch.tensor(np.array(arrays[key])) for key in ("tensor_scan", "numeric")}
    change = Augment(AugmentConfig(flip=True, shift=2), 0, batch)
    torch.manual_seed(3)
    once = change(batch)["tensor_scan"]
    torch.manual_seed(3)
    assert torch.equal(once, change(batch)["tensor_scan"])
    assert not torch.equal(once, batch["tensor_scan"]) and once.dtype == torch.uint8
    assert torch.equal(without_picture(once), without_picture(batch["tensor_scan"]))


def test_a_picture_is_one_input_of_importance(case: Prepared) -> None:
    found = features_of(case.run)
    assert [f.name for f in found] == ["x", "z", "ward", "scan"]
    assert found[-1].places == (("tensor_scan", None),)


@pytest.mark.long
def test_the_same_picture_on_two_sides_is_found(tmp_path: Path) -> None:
    clean = picture_case(tmp_path / "clean", picture_rows(tmp_path / "clean", 240))

    def found(case: Prepared, name: str) -> Any:
        report = check_leakage(case.split, case.validated, case.declaration)
        return next(r for r in report.results if r.name == name)

    assert found(clean, "text_copies").verdict == "pass"
    assert found(clean, "duplicates").verdict == "pass"
    frame = picture_rows(tmp_path / "planted", 240)
    frame["side"] = np.resize(["train", "train", "val", "test"], len(frame))
    for i in range(2, 62, 4):  # another file of the pixels of a train row with other numbers
        copy = png(pixels_of(240)[0][i - 1], compress_level=1)
        (tmp_path / f"planted/scans/{i:03d}.png").write_bytes(copy)
        frame.loc[i, "y"] = frame.loc[i - 1, "y"]
    columns, options = COLUMNS | {"side": "split"}, {"split": "predefined"}
    planted = found(picture_case(tmp_path / "planted", frame, columns, **options), "text_copies")
    assert planted.verdict == "fail" and planted.columns == ("scan",)
    assert "have the 'scan' of a train row (equal pixels)" in planted.summary
    few = {k: v for k, v in columns.items() if k in ("row", "y", "scan", "side")}
    alone = picture_case(tmp_path / "planted", frame[list(few)], few, **options)
    assert found(alone, "duplicates").verdict == "fail"


@pytest.mark.long
def test_changed_held_out_pictures_change_no_train_array(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path)
    first = picture_case(tmp_path, frame)
    held = [*evaluated_ids(first, "val"), *evaluated_ids(first, "test")]
    for row in held:
        (tmp_path / f"scans/{row[1:]}.png").write_bytes(png(255 - pixels_of()[0][int(row[1:])]))
    second = picture_case(tmp_path, frame)
    assert digests(first, "train") == digests(second, "train")
    assert digests(first, "test") != digests(second, "test")
    assert first.run.statistics.model_dump(exclude={"train_sha256"}) == (
        second.run.statistics.model_dump(exclude={"train_sha256"})
    )
    assert first.run.statistics.train_sha256 == second.run.statistics.train_sha256


def evaluated_ids(case: Prepared, side: str) -> list[str]:
    return list(pd.read_parquet(case.run.arrays.side(side).ids.path)["__id"])


@pytest.mark.long
@pytest.mark.req("C5")
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path, nulls=12)
    picture_run(tmp_path, frame, train=TRAIN | {"augment": {"flip": True, "shift": 1}})
    require_exact_resume(tmp_path)


@pytest.mark.long
@pytest.mark.req("M4")
@pytest.mark.parametrize("kind", [*KINDS, "cnn", "boosting"])
def test_the_preflight_passes(tmp_path: Path, kind: str) -> None:
    options = {} if kind in ("linear", "boosting", "cnn") else KINDS[kind]
    options = {n: v for n, v in options.items() if n not in ("hidden", "width", "members")}
    columns = COLUMNS | ({"scan": {"kind": "image", "image": IMAGE}} if kind == "cnn" else {})
    run = picture_run(
        tmp_path,
        picture_rows(tmp_path, nulls=0 if kind == "cnn" else 20),
        columns=columns,
        model={"kind": kind, **options},
        train=TRAIN | {"clip": "none"},
    )
    require_preflight(run)


@pytest.mark.long
def test_boosting_takes_the_summary_and_serves_bytes(tmp_path: Path) -> None:
    frame = picture_rows(tmp_path, nulls=12)
    case = picture_case(tmp_path, frame, model={"kind": "boosting"})
    weights = Path(fit_trees(case.run, tmp_path / "run").best_checkpoint.path)
    assert export_model(case.run, weights, tmp_path / "model", case.split.val).parity < 1e-6
