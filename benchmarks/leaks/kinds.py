"""Kinds of planted leaks, and the findings of each tool that count as a hit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.leaks import plants_duplicates as rows
from benchmarks.leaks import plants_labels as labels
from benchmarks.leaks import plants_roles as roles
from benchmarks.leaks import plants_ties as ties
from benchmarks.leaks.plants_roles import Planted, Rng
from benchmarks.leaks.splitting import Sides

RATES = (0.001, 0.01, 0.1)
ANY = (0.01,)  # for kinds without a share of rows


@dataclass(frozen=True)
class Kind:
    """A kind of leak: how it is planted, at which rates, and the checks of each tool that count as
    a hit.
    """

    name: str
    family: str
    plant: Callable[[Sides, float, Rng], Planted | None]
    hits: dict[str, frozenset[str]]
    rates: tuple[float, ...] = RATES
    by_poison: bool = False  # a statistic over all rows: the poison test sees it at its source

    @property
    def words(self) -> str:
        """Return one line that says what is planted."""
        return (self.plant.__doc__ or "").strip().splitlines()[0]


def _kind(
    family: str,
    plant: Callable[[Sides, float, Rng], Planted | None],
    ours: str,
    deepchecks: str = "",
    cleanlab: str = "",
    rates: tuple[float, ...] = RATES,
    by_poison: bool = False,
) -> Kind:
    hits = {"bulkhead": ours, "deepchecks": deepchecks, "cleanlab": cleanlab}
    return Kind(
        plant.__name__,
        family,
        plant,
        {tool: frozenset(names.split()) for tool, names in hits.items()},
        rates,
        by_poison,
    )


COPIES = "duplicates near_duplicates interpolated_rows text_copies"
MIX = "TrainTestSamplesMix DataDuplicates ConflictingLabels"
NEAR = "near_duplicate"
COLUMN = "label_proxy label_combination label_missingness pure_values equal_values"
TIES = "dependence near_duplicates"
PPS = "FeatureLabelCorrelation FeatureLabelCorrelationChange"

KINDS: tuple[Kind, ...] = (
    _kind("roles", roles.shared_ids, "id_overlap", "IndexTrainTestLeakage"),
    _kind("roles", roles.respelt_ids, "id_alias", "StringMismatchComparison"),
    _kind("roles", roles.straddling_groups, "group_overlap"),
    _kind("roles", roles.respelt_groups, "group_alias", "StringMismatchComparison"),
    _kind(
        "roles",
        roles.later_train,
        "time_overlap",
        "DateTrainTestLeakageOverlap DateTrainTestLeakageDuplicates",
    ),
    _kind(
        "roles",
        roles.broken_embargo,
        "time_overlap",
        "DateTrainTestLeakageOverlap DateTrainTestLeakageDuplicates",
    ),
    _kind("roles", roles.late_feature, "availability"),
    _kind("roles", roles.overlapping_labels, "label_interval"),
    _kind("copies", rows.whole_rows, f"id_overlap {COPIES}", f"IndexTrainTestLeakage {MIX}", NEAR),
    _kind("copies", rows.new_ids, COPIES, MIX, NEAR),
    _kind("copies", rows.other_labels, f"{COPIES} label_conflicts", MIX, NEAR),
    _kind("copies", rows.noisy_numbers, COPIES, MIX, NEAR),
    _kind("copies", rows.respelt_copies, COPIES, f"{MIX} StringMismatchComparison", NEAR),
    _kind("copies", rows.jittered, COPIES, MIX, NEAR),
    _kind("copies", rows.interpolated, COPIES, MIX, NEAR),
    _kind("copies", rows.recased_text, COPIES, f"{MIX} StringMismatchComparison", NEAR),
    _kind("copies", rows.reworded_text, COPIES, MIX, NEAR),
    _kind("copies", rows.respelt_smiles, COPIES, MIX, NEAR),
    _kind("label", labels.label_copy, COLUMN, PPS),
    _kind("label", labels.strong_proxy, COLUMN, PPS, rates=ANY),
    _kind("label", labels.proxy, COLUMN, PPS, rates=ANY),
    _kind("label", labels.weak_proxy, COLUMN, PPS, rates=ANY),
    _kind("label", labels.sibling, COLUMN, PPS, rates=ANY),
    _kind("label", labels.post_outcome, COLUMN, PPS),
    _kind("label", labels.missingness, COLUMN, PPS),
    _kind("label", labels.pure_category, COLUMN, PPS),
    _kind("label", labels.column_sum, COLUMN, PPS, rates=ANY),
    _kind("order", labels.id_order, "id_order", "IdentifierLabelCorrelation"),
    _kind("order", labels.row_order, "file_order", "", "non_iid"),
    _kind("order", labels.look_ahead, f"look_ahead {COLUMN}", PPS, rates=ANY),
    _kind("order", labels.look_ahead_of_entity, f"look_ahead {COLUMN}", PPS, rates=ANY),
    _kind(
        "fitted",
        labels.target_encoding,
        f"pooled_target_codes {COLUMN}",
        PPS,
        rates=ANY,
        by_poison=True,
    ),
    _kind(
        "fitted",
        labels.group_encoding,
        f"pooled_target_codes {COLUMN}",
        PPS,
        rates=ANY,
        by_poison=True,
    ),
    _kind("fitted", labels.selected, COLUMN, PPS, rates=ANY, by_poison=True),
    _kind("fitted", labels.scaled, "pooled_scaling pooled_fill", rates=ANY, by_poison=True),
    _kind("ties", ties.hidden_people, TIES, "", "non_iid", rates=ANY),
    _kind("ties", ties.measured_people, TIES, MIX, f"non_iid {NEAR}", rates=ANY),
    _kind("ties", ties.neighbours, TIES, MIX, f"non_iid {NEAR}", rates=ANY),
    _kind("fitted", labels.imputed, "pooled_scaling pooled_fill", rates=ANY, by_poison=True),
)
ROLE_KINDS = tuple(k.name for k in KINDS if k.family == "roles")
