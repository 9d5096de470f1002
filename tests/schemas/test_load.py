"""P1: unknown keys and impossible combinations are refused with the path of the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from schemas.config import Declaration
from schemas.duration import Duration, seconds_of
from schemas.errors import ConfigError
from schemas.load import apply_overrides, declare, given_paths, load_declaration


def tree(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "visits",
        "data": {
            "uri": "visits.parquet",
            "columns": {
                "visit": "id",
                "patient": "group",
                "seen": "time",
                "late": "label",
                "side": "split",
                "*": "feature",
            },
        },
        "task": {"kind": "binary"},
        "split": {"kind": "group"},
    }
    return apply_overrides(base, [f"{k}={v}" for k, v in changes.items()])


@pytest.mark.req("P1")
def test_a_short_declaration_validates_and_round_trips() -> None:
    declared = declare(tree())
    again = Declaration.model_validate(declared.model_dump(mode="json"))
    assert again == declared
    assert declared.metric == "auroc" and declared.greater_is_better and declared.loss_kind == "bce"


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epoch=3", r"train\.epoch: unknown key; did you mean 'epochs'"),
        ("split.fractons={}", r"split\.group\.fractons: unknown key; did you mean 'fractions'"),
        ("train.ranks=0", r"train\.ranks: .*greater than or equal to 1; got 0"),
        ("train.batch_size=1 # x\ntrain.ranks=2", r"batch_size"),
        ("split.kind=grouped", r"split: .*grouped"),
        ("split.fractions={train: 0.9, val: 0.2, test: 0.1}", r"must be 1, got 1\.2"),
        ("loss.kind=mse", r"loss\.kind 'mse' does not fit task 'binary'"),
        ("loss.label_smoothing=0.1", r"label_smoothing needs a multiclass task"),
        ("train.metric=rmse", r"train\.metric: unknown metric 'rmse'"),
        ("register.thresholds={auroc: {}}", r"give min, max or both"),
        ("name=../up", r"name: .*pattern"),
        ("model={kind: custom, path: os.system}", r"model\.custom\.path"),
        ("data.columns={a: label, b: label}", r"exactly one column with role label"),
        (
            "data.columns={late: label, x: feature}",
            r"split\.kind 'group' needs a column with role group",
        ),
        (
            "data.columns={late: label, patient: group, x: {min: 3, max: 1}}",
            r"min 3\.0 is above max 1\.0",
        ),
        (
            "data.columns={late: label, patient: group, x: {kind: tensor}}",
            r"needs kind: tensor together with shape",
        ),
        ("split={kind: time, embargo: soon}", r"expected a duration such as 24h"),
        ("checks.allow=[{check: duplicates, reason: ok}]", r"checks\.allow\.0\.reason"),
        ("optimizer={kind: sgd, nesterov: true, momentum: 0}", r"nesterov needs momentum"),
        ("train.clip_at=.nan", r"train\.clip_at"),
    ],
)
def test_a_mistake_is_named_with_its_path(override: str, message: str) -> None:
    changed = (
        apply_overrides(tree(), [override])
        if "\n" not in override
        else apply_overrides(tree(), ["train.batch_size=1", "train.ranks=2"])
    )
    with pytest.raises(ConfigError, match=message):
        declare(changed)


@pytest.mark.req("P1")
def test_several_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        declare(tree(**{"train.epoch": 1, "train.ranks": 0}))
    assert "train.epoch" in str(caught.value) and "train.ranks" in str(caught.value)


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping of sections, got NoneType"),
        ("- a\n- b\n", "expected a mapping of sections, got list"),
        ("name: x\nname: y\n", "line 2: key 'name' is given twice"),
        ("name: [x\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [echo]\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_declaration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_declaration(file)


def test_a_missing_file_and_a_binary_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_declaration(tmp_path / "none.yaml")
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"not UTF-8 text .*save it as UTF-8"):
        load_declaration(tmp_path / "bin.yaml")


@pytest.mark.parametrize("name", ["visits.parquet", "visits 2.csv.gz", "VISITS.XLSX"])
def test_a_table_in_place_of_a_declaration_leads_to_init(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1\xff")
    with pytest.raises(ConfigError, match="got a table; draft one with `bulkhead init"):
        load_declaration(tmp_path / name)


@pytest.mark.parametrize("override", ["epochs", "=3", "train..epochs=3", "name.x=3"])
def test_a_malformed_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="override"):
        apply_overrides({"name": "x"}, [override])


def test_paths_start_at_the_file_and_take_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    file = tmp_path / "conf" / "run.yaml"
    file.parent.mkdir()
    file.write_text(
        yaml.safe_dump(tree(**{"data.uri": "${BULKHEAD_SOME_FOLDER:-../data}/v.parquet"}))
    )
    assert load_declaration(file).data.uri == str(tmp_path / "data" / "v.parquet")
    monkeypatch.setenv("BULKHEAD_SOME_FOLDER", "/elsewhere")
    assert load_declaration(file).data.uri == "/elsewhere/v.parquet"
    file.write_text(yaml.safe_dump(tree(**{"data.uri": "${BULKHEAD_NOT_SET}/v.parquet"})))
    with pytest.raises(ConfigError, match="BULKHEAD_NOT_SET is not set"):
        load_declaration(file)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30min", 1800),
        ("1.5h", 5400),
        ("7d", 604800),
        ("2w", 1209600),
        ("500ms", 0.5),
        ("3 days", 259200),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    # the unit stays until the time column's is known
    assert TypeAdapter(Duration).validate_python(text) == text


@pytest.mark.parametrize("bad", ["7 moons", "", "-1d", -1, True, None])
def test_bad_durations(bad: Any) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        TypeAdapter(Duration).validate_python(bad)


def test_given_paths_tell_what_the_file_said_from_defaults() -> None:
    paths = given_paths(declare(tree(**{"train.epochs": 3})))
    assert "train.epochs" in paths and "split.kind" in paths
    assert "train.batch_size" not in paths


def test_another_kind_keeps_only_the_keys_that_it_knows() -> None:
    base = {
        "model": {"kind": "resmlp", "width": 96, "dropout": 0.3},
        "split": {
            "kind": "stratified",
            "bins": 5,
            "fractions": {"train": 0.8, "val": 0.1, "test": 0.1},
        },
    }
    changed = apply_overrides(base, ["model.kind=mlp", "model.hidden=[8]", "split.kind=group"])
    assert changed["model"] == {"kind": "mlp", "dropout": 0.3, "hidden": [8]}
    assert changed["split"] == {
        "kind": "group",
        "fractions": {"train": 0.8, "val": 0.1, "test": 0.1},
    }
    assert apply_overrides(base, ["model.kind=resmlp"]) == base
    assert apply_overrides(base, ["model.kind=none"])["model"]["width"] == 96


@pytest.mark.parametrize(
    ("override", "path", "kind"),
    [
        ("optimizer.lr=0.01", "optimizer", "adamw"),
        ("schedule.warmup=2", "schedule", "warmup_cosine"),
        ("model.dropout=0.1", "model", "mlp"),
    ],
)
def test_an_override_of_a_section_that_is_absent_starts_from_its_default(
    override: str, path: str, kind: str
) -> None:
    key, _, value = override.partition("=")
    section = getattr(declare(apply_overrides(tree(), [override])), path)
    assert section.kind == kind and getattr(section, key.rpartition(".")[2]) == pytest.approx(
        float(value)
    )


def test_the_default_kind_is_that_of_the_task() -> None:
    base = {
        "name": "texts",
        "data": {"uri": "x.parquet", "columns": {"body": "text"}},
        "task": {"kind": "causal_lm"},
        "split": {"kind": "random"},
    }
    assert declare(apply_overrides(base, ["model.depth=2"])).model.kind == "causal_transformer"
    with pytest.raises(ConfigError, match=r"split\.kind: required, but not given; one of random"):
        declare(apply_overrides({k: v for k, v in base.items() if k != "split"}, ["split.seed=1"]))
