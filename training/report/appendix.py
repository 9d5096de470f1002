"""Later sections of the report: predictions, preflight, statistics, configuration, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.config import Declaration
from schemas.records import (
    EvaluationReport,
    PreflightReport,
    Prepared,
    Registered,
    Statistics,
    TableSpec,
    TrainReport,
    digest_of,
)
from training.formatting import (
    MISSING,
    capital,
    count,
    duration,
    number,
    plain,
    plural,
    share,
    show,
)
from training.report import labels as report_labels
from training.report import plots as report_plots
from training.report import prediction_plots
from training.report.blocks import (
    Badge,
    Block,
    Code,
    Facts,
    Gallery,
    Heading,
    Matrix,
    Table,
    Words,
    checks,
    table,
)
from training.report.data import Ints, Predictions
from training.report.feature_tables import bag_table, tensor_table
from training.report.language_model import vocabulary_blocks
from training.report.reasons import column_rows, settings
from training.report.svg import Picture

MAX_MATRIX = 20
MAX_ROWS = 30
TRACKING = "MLflow tracking"  # key of `links` with the address that the snippet sets


# -------------------------------------------------------------------------------------- predictions


def prediction_blocks(test: EvaluationReport, prepared: Prepared, rows: Predictions) -> list[Block]:
    """Return pictures and tables of the scored test rows, by the kind of task."""
    spec, statistics = prepared.validated.spec, prepared.statistics
    note: list[Block] = (
        [
            Words(
                "Pictures and tables of this section count every row once, without the declared"
                " weights."
            )
        ]
        if spec.weight
        else []
    )
    if rows.probability is None:
        time = prediction_plots.residuals_over_time(rows, spec.time_is_timestamp)
        pictures = [
            prediction_plots.predicted_against_true(rows, spec.label),
            prediction_plots.residual_histogram(rows),
            *([time] if time else []),
        ]
        return [Gallery(tuple(pictures)), *note, _error_table(rows)]
    matrix = confusion(rows, len(statistics.classes))
    tables: list[Block] = [
        Heading("Confusion matrix"),
        _matrix(matrix, statistics),
        Heading("By class"),
        _class_table(matrix, statistics),
    ]
    return [Gallery(_class_pictures(test, statistics, rows)), *note, *tables]


def _class_pictures(
    test: EvaluationReport, statistics: Statistics, rows: Predictions
) -> tuple[Picture, ...]:
    probability = rows.probability
    if probability is None:
        return ()
    if len(statistics.classes) != 2:
        hit, totals = (
            probability.argmax(axis=1) == rows.label,
            np.bincount(rows.label, minlength=len(statistics.classes)),
        )
        shown = np.sort(np.argsort(-totals, kind="stable")[:MAX_MATRIX])
        hits = np.bincount(rows.label[rows.label == rows.prediction], minlength=len(totals))
        recall = prediction_plots.recall_by_class(
            [str(statistics.classes[i]) for i in shown],
            hits[shown].astype(float),
            totals[shown].astype(float),
        )
        return recall, prediction_plots.calibration(
            probability.max(axis=1), hit, "probability of the most likely class"
        )
    positive = plain(statistics.classes[1], 30)
    calibration = prediction_plots.calibration(
        probability[:, 1], rows.label == 1, f"predicted probability of {positive}"
    )
    scores = prediction_plots.scores_by_class(rows, positive)
    if len(np.unique(rows.label)) < 2:  # ROC and precision-recall need both classes
        return calibration, scores
    values = {m: v.value for m, v in test.metrics.items()}
    return (
        prediction_plots.roc(rows, values.get("auroc")),
        prediction_plots.precision_recall(rows, values.get("pr_auc")),
        calibration,
        scores,
    )


def confusion(rows: Predictions, num_classes: int) -> Ints:
    """Count [C, C] true (first axis) by predicted (second axis) classes."""
    pairs = rows.label.astype(np.int64) * num_classes + rows.prediction.astype(np.int64)
    counts: Ints = (
        np.bincount(pairs, minlength=num_classes * num_classes)
        .reshape(num_classes, num_classes)
        .astype(np.int64)
    )
    return counts


def _matrix(counts: Ints, statistics: Statistics) -> Matrix:
    names = [plain(c, 24) for c in statistics.classes]
    shown = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:MAX_MATRIX])
    part, totals = counts[np.ix_(shown, shown)], np.maximum(counts.sum(axis=1)[shown], 1)
    note = "Rows: true class; columns: predicted class; the shade is the share of the row."
    if len(names) > MAX_MATRIX:
        note += (
            f" The {MAX_MATRIX} most frequent of {count(len(names))} classes;"
            f" {plural(int(counts.sum() - part.sum()), 'row')} of other pairs are not shown."
        )
    return Matrix(
        labels=tuple(names[i] for i in shown),
        counts=tuple(tuple(count(int(v)) for v in row) for row in part),
        shades=tuple(tuple(round(float(v), 3) for v in row) for row in part / totals[:, None]),
        note=note,
    )


def _class_table(counts: Ints, statistics: Statistics) -> Table:
    hits, true, said = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    rows = []
    for i in np.argsort(-true, kind="stable") if len(true) > MAX_ROWS else range(len(true)):
        precision, recall = _ratio(hits[i], said[i]), _ratio(hits[i], true[i])
        f1 = _ratio(2 * hits[i], true[i] + said[i])
        rows.append(
            [
                plain(statistics.classes[i], 40),
                count(true[i]),
                count(said[i]),
                number(precision),
                number(recall),
                number(f1),
            ]
        )
    return table(
        ["Class", "True rows", "Predicted rows", "Precision", "Recall", "F1"],
        rows,
        limit=MAX_ROWS,
        what="classes, most frequent first",
    )


def _ratio(part: int, whole: int) -> float | None:
    return float(part) / float(whole) if whole else None


def _error_table(rows: Predictions) -> Table:
    """Return quantiles of label, prediction and error in a table."""
    levels = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    named: tuple[tuple[str, NDArray[Any]], ...] = (
        ("true value", rows.label),
        ("prediction", rows.prediction),
        ("error (predicted − true)", rows.prediction - rows.label),
        ("size of the error", np.abs(rows.prediction - rows.label)),
    )
    headers = ["", "Smallest", *[f"{level:.0%}" for level in levels[1:-1]], "Largest"]
    return table(
        headers,
        [
            [name, *[number(float(v)) for v in np.quantile(values, levels)]]
            for name, values in named
        ],
    )


# ---------------------------------------------------------------------------------------- preflight


def preflight_blocks(preflight: PreflightReport) -> list[Block]:
    """Show the checks on one batch before the long run: initial loss, overfit curve, others."""
    expected, losses = preflight.expected_loss, preflight.overfit_losses
    ratio = preflight.initial_loss / expected if expected else None
    facts = [
        ("initial loss", number(preflight.initial_loss)),
        ("expected of an uninformed model", number(expected)),
        ("initial / expected", number(ratio)),
        ("loss after overfitting one batch", number(losses[-1]) if losses else MISSING),
        ("steps on that batch", count(preflight.overfit_steps or len(losses))),
        ("parameters", count(preflight.num_parameters)),
        ("of which trained", count(preflight.num_trainable)),
        ("time", duration(preflight.seconds)),
    ]
    curve: list[Block] = (
        [Gallery((report_plots.overfit_curve(losses, expected),))]
        if losses
        else [Words("No overfit curve was recorded.")]
    )
    return [Facts(tuple(facts)), *curve, checks(preflight.checks.results)]


# --------------------------------------------------------------------------------------- statistics


def statistics_blocks(prepared: Prepared) -> list[Block]:
    """Show what was fitted on train, column by column."""
    fitted = prepared.statistics
    if fitted.tokens is not None:
        return vocabulary_blocks(fitted, fitted.tokens)
    blocks: list[Block] = [
        Words(
            f"Fitted on the {plural(fitted.rows, 'train row')} alone; no validation or test row was"
            " read for it."
        )
    ]
    blocks += [Heading("Numeric features"), _numeric_table(fitted)] if fitted.numeric else []
    blocks += (
        [Heading("Categorical features"), _category_table(fitted)] if fitted.categorical else []
    )
    blocks += [Heading("Tensor features"), tensor_table(fitted)] if fitted.tensor else []
    blocks += [Heading("Texts and sets"), bag_table(fitted)] if fitted.bags else []
    blocks += [Heading("Label"), _label_table(fitted)]
    if fitted.dropped:
        rows = [[plain(name, 60), plain(why, 200)] for name, why in fitted.dropped.items()]
        blocks += [
            Heading("Dropped columns"),
            table(["Column", "Why"], rows, words=(0, 1), limit=MAX_ROWS, what="columns"),
        ]
    return blocks


def _numeric_table(fitted: Statistics) -> Table:
    rows = []
    for s in fitted.numeric:
        missing = f"{count(s.nulls)} ({share(s.nulls / max(1, fitted.rows))})" if s.nulls else "0"
        filled = MISSING if s.fill is None else number(float(s.fill))
        center, scale = (
            (MISSING, MISSING)
            if s.method in ("quantile", "none")
            else (number(s.center), number(s.scale))
        )
        rows.append(
            [
                plain(s.name, 40),
                s.method,
                center,
                scale,
                number(s.mean),
                number(s.std),
                number(s.min),
                number(s.max),
                missing,
                filled,
                "yes" if s.indicator else "",
            ]
        )
    headers = [
        "Column",
        "Scaling",
        "Centre",
        "Scale",
        "Mean",
        "Deviation",
        "Smallest",
        "Largest",
        "Missing",
        "Filled with",
        "Indicator",
    ]
    return table(headers, rows, words=(0, 1, 10), limit=MAX_ROWS, what="numeric features")


def _category_table(fitted: Statistics) -> Table:
    rows = []
    for s in fitted.categorical:
        top = sorted(zip(s.values, s.counts, strict=False), key=lambda pair: -pair[1])[:4]
        most = ", ".join(f"{plain(v, 24)} ({count(n)})" for v, n in top) + (
            ", …" if len(s.values) > 4 else ""
        )
        rows.append(
            [plain(s.name, 40), count(len(s.values)), count(s.rare_rows), count(s.nulls), most]
        )
    return table(
        ["Column", "Vocabulary", "Rows in the unknown slot", "Missing", "Most frequent"],
        rows,
        words=(0, 4),
        limit=MAX_ROWS,
        what="categorical features",
    )


def _label_table(fitted: Statistics) -> Table:
    if fitted.labels:
        return report_labels.statistics_table(fitted)
    if not fitted.classes:
        rows = [
            ["mean on train", number(fitted.label_mean)],
            ["standard deviation on train", number(fitted.label_std)],
        ]
        rows += [
            ["subtracted before training", number(fitted.target_center)],
            ["then divided by", number(fitted.target_scale)],
        ]
        return table(["", report_labels.value_header(fitted)], rows)
    weights = fitted.class_weights
    total = max(1, sum(fitted.class_counts))
    rows = [
        [plain(name, 40), count(n), share(n / total), *([number(weights[i])] if weights else [])]
        for i, (name, n) in enumerate(zip(fitted.classes, fitted.class_counts, strict=False))
    ]
    return table(
        ["Class", "Train rows", "Share", *(["Weight in the loss"] if weights else [])],
        rows,
        limit=MAX_ROWS,
        what="classes",
    )


# ------------------------------------------------------------------------------------ configuration


def configuration_blocks(
    declaration: Declaration, given: Sequence[str], prepared: Prepared
) -> list[Block]:
    """Show every resolved value, marked given or default, with the reason for each default.

    The columns follow.
    """
    rows = [
        (s.path, s.value, Badge("mark", "given") if s.given else Badge("info", "default"), s.reason)
        for s in settings(declaration, given, prepared)
    ]
    columns = table(
        ["Column or pattern", "Role", "Kind", "Limits"],
        column_rows(declaration.data.columns),
        words=range(4),
        limit=60,
        what="declared columns",
    )
    return [
        Words(
            "The whole declaration as it ran. What the file or the command line did not say is a"
            " default, chosen for the task; the reason stands next to it."
        ),
        table(
            ["Setting", "Value", "From", "Why this default"],
            rows,
            words=range(4),
            limit=200,
            what="settings",
        ),
        Heading("Columns as declared"),
        columns,
        *_resolved_columns(prepared),
    ]


def _resolved_columns(prepared: Prepared) -> list[Block]:
    spec = prepared.validated.spec
    kinds = (
        ("numeric", spec.numeric),
        ("categorical", spec.categorical),
        ("tensor", (*spec.tensor, *spec.images)),
        ("window", tuple(spec.windows)),
        ("text", (*_text(spec), *(n for n, kind in spec.bags.items() if kind == "text"))),
        *((k, tuple(n for n, own in spec.bags.items() if own == k)) for k in ("set", "smiles")),
        ("ignored", spec.ignored),
    )
    rows = [[kind, count(len(names)), _names(names)] for kind, names in kinds if names]
    found = table(["Kind", "Columns", "Names"], rows, words=(0, 2))
    return [Heading("Columns as they were found"), found]


def _text(spec: TableSpec) -> tuple[str, ...]:
    return (spec.text,) if spec.text else ()


def _names(names: Sequence[str], limit: int = 40) -> str:
    return ", ".join(plain(n, 40) for n in names[:limit]) + (
        f", … ({count(len(names) - limit)} more)" if len(names) > limit else ""
    )


# --------------------------------------------------------------------------------------- provenance


def provenance_blocks(
    declaration: Declaration,
    prepared: Prepared,
    train: TrainReport,
    test: EvaluationReport,
    *,
    registered: Registered | None,
    provenance: dict[str, Any],
    links: dict[str, str],
    run_id: str,
) -> list[Block]:
    """Show how to load the model and open the run's records; then the origin of the model."""
    promise = plain(train.promise, 1000) or f"mode {declaration.train.mode}"
    return [
        Heading("Use the model"),
        *_use(declaration, prepared, registered, links.get(TRACKING)),
        Heading("Records of this run"),
        Facts(
            (("run", plain(run_id)), *((plain(k, 60), plain(v, 1000)) for k, v in links.items()))
        ),
        Words("Both user interfaces, on this machine, with one command:"),
        Code("bulkhead up        # Prefect and MLflow; prints their addresses"),
        Heading("Promise of reproducibility"),
        Words(capital(promise) + ("" if promise.endswith(".") else ".")),
        Facts(
            (
                ("training seed", str(declaration.train.seed)),
                *_split_seed(declaration),
                (
                    "prepared data",
                    "reused from an earlier run" if prepared.cached else "made in this run",
                ),
            )
        ),
        Heading("SHA-256 digests"),
        table(["Of", "Digest"], digests(prepared, train, test), words=(0, 1)),
        Heading("Code, libraries, machine"),
        table(["Entry", "Value"], flatten(provenance), words=(0, 1), limit=80, what="entries"),
    ]


def _split_seed(declaration: Declaration) -> tuple[tuple[str, str], ...]:
    seed = getattr(declaration.split, "seed", None)
    return () if seed is None else (("split seed", str(seed)),)


def _use(
    declaration: Declaration,
    prepared: Prepared,
    registered: Registered | None,
    tracking: str | None,
) -> list[Block]:
    features = [n for n in prepared.validated.spec.features if n not in prepared.statistics.dropped]
    if registered is None or not registered.registered:
        why = (
            "registration was not part of this run"
            if registered is None
            else plain(registered.verdict, 1000)
        )
        return [
            Words(f"This run registered no version: {why}" + ("" if why.endswith(".") else "."))
        ]
    uri = (
        f"models:/{registered.name}@{registered.alias}"
        if registered.alias
        else registered.uri or f"models:/{registered.name}/{registered.version}"
    )
    where = f'mlflow.set_tracking_uri("{tracking}")\n' if tracking else ""
    code = (
        f"import mlflow, pandas as pd\n\n{where}"
        f'model = mlflow.pyfunc.load_model("{uri}")\n'
        'predictions = model.predict(pd.read_parquet("new_rows.parquet"))  # raw rows: nothing to'
        " scale, encode or fill\n\n"
        f"# or on the command line\nbulkhead predict {uri} new_rows.parquet predictions.parquet"
    )
    if prepared.statistics.tokens is not None:
        code += (
            f'\n\n# what a text goes on with\nmodel.predict(pd.DataFrame({{"{features[0]}":'
            ' ["Once"]}), params={"max_new_tokens": 200, "temperature": 0.8})'
        )
        code += f"\nbulkhead sample {uri} --prompt Once --count 3"
    derived = [n for n in features if n in declaration.data.derive]
    note = (
        [Words(f"{_names(derived)}: computed by data.derive, so that rows must bring them.")]
        if derived
        else []
    )
    return [
        Code(code),
        *note,
        Words(
            f"Columns it needs ({count(len(features))}; order and further columns do not matter):"
            f" {_names(features)}."
        ),
    ]


def digests(
    prepared: Prepared, train: TrainReport, test: EvaluationReport
) -> list[tuple[str, str]]:
    """Return the digests of the run, from the source to the predictions."""
    sides = [
        (f"{name} rows", prepared.split.side(name).file.sha256) for name in ("train", "val", "test")
    ]
    return [
        ("source files", prepared.source.sha256),
        ("validated table", prepared.validated.table.file.sha256),
        *sides,
        ("statistics", digest_of(prepared.statistics)),
        ("materialised arrays", prepared.arrays.sha256),
        ("best checkpoint", train.best_checkpoint.sha256),
        ("model weights", train.model_sha256),
        ("test predictions", test.predictions.sha256),
    ]


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Return dotted names and printed values of a nested dictionary.

    >>> list(flatten({"git": {"sha": "ab", "dirty": False}, "gpus": []}))
    [('git.sha', 'ab'), ('git.dirty', 'no'), ('gpus', 'none')]
    """
    items: Iterable[tuple[str, Any]] = value.items() if isinstance(value, dict) else ()
    for key, inner in items:
        name = f"{path}.{key}" if path else str(key)
        if isinstance(inner, dict) and inner:
            yield from flatten(inner, name)
        else:
            yield plain(name), show(inner, 400)
