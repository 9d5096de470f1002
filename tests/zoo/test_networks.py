"""Preflight names the planted mistake of each network and run of the zoo, and lets every healthy
one through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from schemas.config import Declaration
from schemas.errors import BulkheadError, ConfigError
from schemas.records import CheckResult, PreflightReport, RunSpec
from tests.subset import some
from tests.training.modules import Sound
from tests.training.toys import CLASSES, declare, make_arrays, make_statistics, write_run
from training.models.shape import ModelShape
from training.optim.depth import parameter_depths
from training.preflight.run import preflight
from training.preflight.settings import check_smoothing

FAULTS: dict[str, tuple[str, str, str]] = {
    # network: task, the check that names the cause, words of it
    "DoubledInTraining": ("binary", "train_eval", "what is trained is not what is evaluated"),
    "RunningInAttribute": ("binary", "resume", "outside of its state dict"),
    "CountsItsSteps": ("binary", "resume", "outside of its state dict"),
    "NumpyNoise": ("regression", "resume", "draw random numbers from torch alone"),
    "Branching": ("multiclass", "export", "cannot be exported"),
    "FixedRows": ("binary", "forward", "batch of"),
    "WrongReshape": ("binary", "independence", "rows of a batch mix"),
    "AttentionOverRows": ("multiclass", "independence", "attention over dim 0"),
    "Centred": ("binary", "independence", "rows of a batch mix"),
    "NormalisedOverRows": ("regression", "independence", "norm"),
    "CumulatedOverRows": ("binary", "independence", "rows of a batch mix"),
    "NoRunningStatistics": ("binary", "forward", "batch of 1"),
    "ListOfLayers": ("binary", "parameters", "nn.ModuleList"),
    "ParameterInForward": ("binary", "parameters", "once, in __init__"),
    "TensorWithGradient": ("regression", "parameters", "nobody trains, moves or saves them"),
    "DoublePrecision": ("binary", "parameters", "head.weight is float64"),
    "ArgMax": ("binary", "gradients", "body.hidden.weight"),
    "HalfDetached": ("binary", "gradients", "body.second.weight"),
    "InnerNoGrad": ("binary", "gradients", "body.hidden.weight"),
    "Rounded": ("multiclass", "gradients", "gets a gradient of exactly 0"),
    "Reversed": ("binary", "overfit", "could not be overfit"),
    "Clamped": ("binary", "overfit", "could not be overfit"),
    "LogOfScore": ("binary", "forward", "not finite"),
    "DropsInEval": ("binary", "repeatable", "two passes in eval mode differ"),
    "WrongLevel": ("binary", "initial_loss", "wrong level"),
    "OneColumn": ("binary", "independence", "rows of a batch mix"),
    "ChangesItsBatch": ("regression", "effects", "changes the batch that it is given (numeric)"),
    "BackwardInForward": ("binary", "effects", "ran its own backward pass"),
    "ReplacesParameter": (
        "multiclass",
        "effects",
        "made or replaced parameters (body.hidden.weight)",
    ),
    "MadeAtFirstUse": (
        "binary",
        "effects",
        "made or replaced parameters (body.late.weight, body.late.bias)",
    ),
    "SwitchesItsMode": ("binary", "effects", "switches the mode of body.drop"),
    "SeedsInForward": ("regression", "effects", "seeds the global random generator"),
    "GrowsByItself": ("binary", "effects", "changes body.hidden.bias"),
    "LearnsInEval": ("multiclass", "effects", "in eval mode changes body.mean"),
    "CarriesState": ("binary", "repeatable", "two passes in eval mode differ"),
    "DividesByNorm": ("regression", "extremes", "not finite for rows of zeros"),
    "DropsOutliers": ("binary", "extremes", "got [0, 1]"),
    "RandomAttribute": ("binary", "resume", "made from another seed"),
    "KeepsActivations": ("regression", "effects", "keeps more with each batch (body.seen)"),
    "DropsAll": ("binary", "train_eval", "next to nothing (body.drop, p 0.98)"),
    "Saturated": ("regression", "overfit", "the output is bounded (tanh"),
}
NUMERICS: dict[str, tuple[str, str, str]] = {
    "WrongBackward": ("binary", "gradcheck", "The backward of SoftsignOfOutput is written by hand"),
    "MaskedByHook": (
        "regression",
        "gradcheck",
        "A hook changes the gradient of body.hidden.weight",
    ),
    "HalfOfTheWay": ("multiclass", "gradcheck", "cut out of the graph"),
    "InFloat16": ("binary", "extremes", "body computes in float16"),
    "StillNorm": ("regression", "train_eval", "body.norm stay near 0 and 1, where they began"),
    "LastBatchNorm": ("binary", "train_eval", "those of the last batch alone (momentum 0.99)"),
    "SlowNorm": ("binary", "train_eval", "momentum 1e-05"),
    "UnitsAlike": (
        "regression",
        "layers",
        "all units of body.hidden, body.more have the same weights",
    ),
    "CopiedMembers": ("binary", "layers", "the members of body.members have the same weights"),
    "NothingBetween": (
        "multiclass",
        "layers",
        "body.second takes what body.hidden gives, with nothing in between",
    ),
    "KeepsForEval": ("binary", "resume", "it keeps something of that time"),
    "ClampsByHook": ("regression", "gradcheck", "A backward hook of a module changes"),
    "RootOfZero": ("binary", "extremes", "the gradient of body.scale is not"),
    "WidePrior": ("multiclass", "forward", "scores are float64, from body.prior"),
    "ProbabilitiesInEval": (
        "binary",
        "train_eval",
        "eval mode gives probabilities, train mode scores",
    ),
    "OneNormForTwo": (
        "regression",
        "train_eval",
        "body.norm normalises 2 different inputs in one pass",
    ),
    "SignsAlone": ("regression", "inputs", "tell about 2 apart: a norm that leaves the sign"),
    "OtherInEval": ("multiclass", "train_eval", "also where batch norm knows these very rows"),
}
LOSSES: dict[str, tuple[str, str, str]] = {
    # the same, of tests/zoo/unread.py
    "SkipsAColumn": ("binary", "inputs", "depends on 1 of 6 inputs (x0)"),
    "PooledTokens": (
        "regression",
        "inputs",
        "All 5 numeric columns (x0, x1, x2, x3, x4) can be swapped",
    ),
    "TwoSummed": ("multiclass", "inputs", "2 of 5 numeric columns (x1, x2) can be swapped"),
    "WholeNumbers": ("regression", "inputs", "apart: rounded, cast to integers or clamped?"),
    "NothingBelowZero": ("binary", "inputs", "nearly half, at one end, give the same scores"),
    "KeepsThePlain": (
        "binary",
        "train_eval",
        "of the input of body.head is dropped at random and the rest multiplied by 1, not by 1.6",
    ),
    "PlainDepth": ("regression", "train_eval", "the output of body.branch is dropped at random"),
    "Ordered": ("multiclass", "overfit", "scores can only be ordered in one way"),
    "OneForAll": ("multiclass", "overfit", "are in the same order in every row"),
}
HEALTHY = (
    "BatchNorm",
    "GroupNorm",
    "TiedWeights",
    "FrozenBackbone",
    "Residual",
    "Recurrent",
    "ColumnAttention",
    "Experts",
    "WeightNormed",
    "Convolution",
    "Periodic",
    "Ensemble",
    "Highway",
    "StopGradient",
    "RegisteredBuffer",
    "FunctionalDropout",
    "MomentumEncoder",
    "RandomProjection",
    "SpectralNormed",
    "SpectralNormedByHook",
    "ZeroHead",
    "EqualWeights",
    "Binned",
    "DeepSets",
    "DeepDropout",
    "OwnDropout",
    "FrozenNorm",
    "FrozenStillNorm",
    "OwnBackward",
    "StraightThrough",
    "PaddedBins",
    "OneNormForBoth",
    "DeepNorms",
    "ByLen",
    "WideAndDeep",
)
SETTINGS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # what is declared, the check, its verdict, words
    "rate far too high": (
        {"optimizer": {"kind": "sgd", "lr": 500.0}},
        "rates",
        "fail",
        "the rate is too high",
    ),
    "rate a hundred times too high": (
        {"optimizer": {"kind": "adamw", "lr": 1.0}},
        "rates",
        "fail",
        "the rate is too high",
    ),
    "rate of nothing": (
        {"optimizer": {"kind": "adamw", "lr": 1e-9}},
        "rates",
        "warn",
        "the weights could move by",
    ),
    "weight decay that erases": (
        {"optimizer": {"kind": "adamw", "lr": 1e-2, "weight_decay": 100.0}},
        "rates",
        "fail",
        "takes 100% of each weight",
    ),
    "weight decay that erases slowly": (
        {"optimizer": {"kind": "adamw", "weight_decay": 100.0}},
        "rates",
        "fail",
        "takes 10% of each weight",
    ),
    "rate that is gone at once": (
        {"schedule": {"kind": "exponential", "every": 1, "factor": 0.01}},
        "optimizer",
        "warn",
        "gone before anything is learned",
    ),
    "clipping of all there is": (
        {"train": {"clip": "norm", "clip_at": 1e-12}},
        "rates",
        "fail",
        "the clipping takes what the rate would do",
    ),
    "rate of nothing for one layer": (
        {"optimizer": {"kind": "adamw", "modules": ({"match": "body.hidden.0", "lr": 1e-14},)}},
        "rates",
        "warn",
        "their weights stay",
    ),
    "rule for no module": (
        {"optimizer": {"kind": "adamw", "modules": ({"match": "nowhere", "lr": 1e-4},)}},
        "optimizer",
        "fail",
        "nowhere",
    ),
    "warm-up longer than the run": (
        {"schedule": {"kind": "warmup_cosine", "warmup": 10_000}},
        "optimizer",
        "fail",
        "warm",
    ),
}


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")


def made(folder: Path, declaration: Declaration, rows: int = 300) -> RunSpec:
    """A run on numeric columns alone."""
    task = declaration.task.kind
    sides = {
        side: {n: a for n, a in make_arrays(task, rows, seed=i).items() if n != "categorical"}
        for i, side in enumerate(("train", "val", "test"))
    }
    run = write_run(folder, declaration, rows=rows, sides=sides)
    return run.model_copy(
        update={"statistics": run.statistics.model_copy(update={"categorical": ()})}
    )


def report_on(folder: Path, task: str, path: str, **sections: Any) -> PreflightReport:
    return preflight(made(folder, declare(task, {"kind": "custom", "path": path}, **sections)))


def objected(report: PreflightReport) -> dict[str, CheckResult]:
    return {r.name: r for r in report.checks.results if r.verdict in ("fail", "warn")}


@pytest.mark.req("M4")
@pytest.mark.parametrize("network", [*some(FAULTS, 6), *some(LOSSES, 4), *some(NUMERICS, 6)])
def test_the_mistake_of_a_network_is_named_by_its_check(tmp_path: Path, network: str) -> None:
    file, kind = next(
        (file, kind)
        for file, kind in {"networks": FAULTS, "unread": LOSSES, "numerics": NUMERICS}.items()
        if network in kind
    )
    task, check, words = kind[network]
    try:
        found = objected(report_on(tmp_path, task, f"tests.zoo.{file}:{network}"))
        assert check in found, found
        text = f"{found[check].summary} {found[check].remedy}"
    except BulkheadError as error:  # nothing else could be checked
        text = str(error)
        assert text.startswith(f"{check}: ")
    assert words in text


@pytest.mark.req("M4")
@pytest.mark.parametrize("network", some(HEALTHY, 8))
def test_a_healthy_network_is_let_through_without_a_warning(tmp_path: Path, network: str) -> None:
    task = sorted(CLASSES)[HEALTHY.index(network) % len(CLASSES)]
    report = report_on(tmp_path, task, f"tests.zoo.healthy:{network}")
    assert {r.name: r.summary for r in objected(report).values()} == {}
    assert [r.name for r in report.checks.results[-5:]] == [
        "export",
        "rates",
        "gradcheck",
        "resume",
        "cost",
    ]


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("network", "train", "told"),
    [
        ("BatchNorm", {"batch_size": 4}, "on 4 rows at a time"),
        ("BatchNorm", {"batch_size": 64, "micro_batch_size": 2}, "on 2 rows at a time"),
        ("BatchNorm", {"batch_size": 12, "ranks": 2}, "on 6 rows at a time"),
        ("BatchNorm", {"batch_size": 8}, ""),
        ("FrozenNorm", {"batch_size": 4}, ""),
    ],
)
def test_a_batch_norm_of_few_rows_is_named(
    tmp_path: Path, network: str, train: dict[str, Any], told: str
) -> None:
    found = objected(report_on(tmp_path, "binary", f"tests.zoo.healthy:{network}", train=train))
    assert {name: r.verdict for name, r in found.items()} == (
        {"train_eval": "warn"} if told else {}
    )
    assert not told or (
        told in found["train_eval"].summary and "body.middle.0" in found["train_eval"].summary
    )


@pytest.mark.req("M4")
@pytest.mark.parametrize("setting", some(SETTINGS, 2))
def test_settings_that_cannot_train_are_named(tmp_path: Path, setting: str) -> None:
    sections, check, verdict, words = SETTINGS[setting]
    report = preflight(
        made(
            tmp_path,
            declare("regression", {"kind": "mlp", "numeric_embedding": "none"}, **sections),
        )
    )
    found = objected(report)
    assert set(found) == {check}
    assert found[check].verdict == verdict and words in found[check].summary


@pytest.mark.req("M4")
@pytest.mark.parametrize(("smoothing", "verdict"), [(0.2, "pass"), (0.99, "fail")])
def test_smoothing_that_leaves_nothing_of_the_labels_is_named(
    smoothing: float, verdict: str
) -> None:
    declaration = declare("multiclass", {"kind": "mlp"}, loss={"label_smoothing": smoothing})
    (found,) = check_smoothing(
        declaration, make_statistics("multiclass", make_arrays("multiclass", 100))
    )
    assert found.verdict == verdict
    assert ("hardly anything of the labels is left" in found.summary) == (verdict == "fail")
    assert (
        check_smoothing(declare("binary"), make_statistics("binary", make_arrays("binary", 100)))
        == []
    )


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    "network", ["Padded", "Scaled", pytest.param("ByHand", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_the_wrong_way_round_is_named(tmp_path: Path, network: str, turned: bool) -> None:
    report = report_on(tmp_path, "binary", f"tests.zoo.masks:{network}" + "Turned" * turned)
    (found,) = [r for r in report.checks.results if r.name == "attention"]
    if turned:
        assert (
            found.verdict == "fail"
            and "leaves out 6 of 16 that differ between rows. The mask is the wrong way round"
            in found.summary
        )
    else:
        assert {r.name: r.summary for r in objected(report).values()} == {}


@pytest.mark.req("M4")
def test_attention_that_is_called_by_names_is_looked_at(tmp_path: Path) -> None:
    report = report_on(tmp_path, "binary", "tests.zoo.masks:InNames")
    assert {r.name: r.summary for r in objected(report).values()} == {}
    assert "attention" in {r.name for r in report.checks.results}


class NamesALayerTwice(Sound):
    """Layers from input to output, one of them twice."""

    def ordered_layers(self) -> list[nn.Module]:
        return [self.hidden, self.hidden, self.head]


@pytest.mark.req("M4")
def test_a_gradient_that_cannot_be_measured_is_no_finding(tmp_path: Path) -> None:
    report = report_on(tmp_path, "binary", "tests.zoo.healthy:SinglePrecision")
    assert "gradcheck" not in objected(report)
    told = [r.summary for r in report.checks.results if r.name == "gradcheck"]
    assert len(told) == 1 and told[0].startswith(
        "Not measured: the network does not compute in float64"
    )


@pytest.mark.req("M4")
def test_tables_without_a_row_for_unknown_values_are_named(tmp_path: Path) -> None:
    found = objected(
        preflight(
            write_run(
                tmp_path,
                declare("binary", {"kind": "custom", "path": "tests.zoo.numerics:CodesFromOne"}),
                rows=300,
            )
        )
    )
    assert (
        "forward raised IndexError" in found["extremes"].summary
        and "category code 0" in found["extremes"].summary
    )
    assert "codes run from 0, unknown" in found["extremes"].remedy


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("network", "told"),
    [("JoinedTables", False), ("HashedTables", False), ("NeighboursShare", True)],
)
def test_columns_that_share_a_row_of_a_table_are_named(
    tmp_path: Path, network: str, told: bool
) -> None:
    found = objected(
        preflight(
            write_run(
                tmp_path,
                declare("binary", {"kind": "custom", "path": f"tests.zoo.numerics:{network}"}),
                rows=300,
            )
        )
    )
    assert set(found) == ({"inputs"} if told else set())
    assert (
        not told
        or "Codes of two columns share rows of one embedding (body.table, 1 rows)"
        in found["inputs"].summary
    )


@pytest.mark.req("M4")
def test_a_known_value_on_the_padding_row_is_named(tmp_path: Path) -> None:
    found = objected(
        preflight(
            write_run(
                tmp_path,
                declare(
                    "binary", {"kind": "custom", "path": "tests.zoo.numerics:LastValueIsPadding"}
                ),
                rows=300,
            )
        )
    )
    assert (
        "the padding row of body.tables.0, row 4, body.tables.1, row 4"
        in found["gradients"].summary
    )


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("method", "clip", "told"),
    [("standard", None, True), ("standard", 10.0, False), ("smooth", None, False)],
)
def test_scores_that_overflow_far_out_are_named_where_nothing_clips(
    tmp_path: Path, method: str, clip: float | None, told: bool
) -> None:
    run = made(
        tmp_path,
        declare("regression", {"kind": "custom", "path": "tests.zoo.numerics:OverflowingGate"}),
    )
    numeric = tuple(s.model_copy(update={"method": method}) for s in run.statistics.numeric)
    statistics = run.statistics.model_copy(update={"clip": clip, "numeric": numeric})
    found = objected(preflight(run.model_copy(update={"statistics": statistics})))
    assert [r.verdict for r in found.values()] == (["warn"] if told else [])
    assert (
        not told
        or "not finite for numbers +1,000 standard deviations out" in found["extremes"].summary
    )


@pytest.mark.req("M4")
def test_a_layer_that_is_named_twice_has_no_depth() -> None:
    shape = ModelShape(
        numeric=3, indicators=0, categories=(), unseen=(), tensors={}, outputs=1, prior=(0.0,)
    )
    with pytest.raises(
        ConfigError, match=r"ordered_layers\(\) of NamesALayerTwice names hidden more than once"
    ):
        parameter_depths(NamesALayerTwice(shape))


@pytest.mark.req("M4")
def test_a_machine_that_is_too_slow_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.preflight.overfit.MAX_SECONDS", 0.0)
    found = objected(
        preflight(made(tmp_path, declare("binary", {"kind": "mlp", "numeric_embedding": "none"})))
    )
    assert {name: r.verdict for name, r in found.items()} == {"overfit": "warn"}
    assert (
        "nothing is known" in found["overfit"].summary and "smaller size" in found["overfit"].remedy
    )


@pytest.mark.req("M4")
def test_a_finding_may_be_allowed_with_a_reason(tmp_path: Path) -> None:
    allowance = {"check": "overfit", "reason": "scores are bounded on purpose"}
    report = report_on(
        tmp_path, "binary", "tests.zoo.networks:Clamped", checks={"allow": [allowance]}
    )
    assert not report.checks.failed
    found = next(r for r in report.checks.results if r.name == "overfit")
    assert (found.verdict, found.reason) == ("allowed", allowance["reason"])
