"""Reference of the audit: the target, statistic, threshold, effect and remedy of every check.

A test compares this page with the results: it fails if a check is not described here, or is
described but never run.
"""

from __future__ import annotations

from training.data.leakage.explanation import EXACT, FITTED, GIVEN, KEYS, SAMPLE, SEEN, Explanation
from training.data.leakage.window_faults import EXPLANATION as WINDOWS

__all__ = ["CATALOGUE", "Explanation", "explanation", "how_to_allow"]

CATALOGUE: dict[str, Explanation] = {
    "row_coverage": Explanation(
        "Rows on no side",
        "rows of the validated table that stand on no side, on two, or come from elsewhere",
        "counts of rows and an anti-join by id",
        (),
        EXACT,
        KEYS,
        "Rows that vanish between validation and test are seldom a random choice; a test side"
        " without its difficult rows scores better.",
        "Delete the prepared files and prepare again.",
    ),
    "fold_coverage": Explanation(
        "Rows of a fold",
        "rows that stand on no side of a fold, on two, or come from elsewhere",
        "counts of rows and an anti-join by id, fold by fold",
        (),
        EXACT,
        KEYS,
        "Rows that a fold loses make its score that of another table; rows on two sides are"
        " repeated from memory.",
        "Delete the prepared folds and run again.",
    ),
    "fold_intervals": Explanation(
        "Times of a fold",
        "train rows of a fold that lie within its test interval, or nearer to it than the embargo",
        "times of train rows against each test interval, in time units",
        (),
        EXACT,
        KEYS,
        "A row next to the test interval tells it: labels and windows overlap.",
        "Use cv.kind: purged or walk_forward with an embargo as long as the label looks ahead.",
    ),
    "id_overlap": Explanation(
        "Ids on two sides",
        "an id that stands on more than one side, or twice on one",
        "number of such ids",
        (),
        EXACT,
        KEYS,
        SEEN,
        "Make the id column unique, or correct the split column.",
    ),
    "id_alias": Explanation(
        "Ids on two sides in another spelling",
        "ids that are equal once case, spaces, punctuation, unicode form and leading zeros are"
        " taken away",
        "number of such ids, by the strongest normaliser that keeps train's ids apart",
        (),
        "A normaliser that would merge two ids of train is not used.",
        KEYS,
        SEEN,
        "Bring ids to one form with data.derive before the split.",
    ),
    "group_overlap": Explanation(
        "Groups on two sides",
        "a declared group (patient, user, device, site) with rows on more than one side",
        "number of such groups",
        (),
        EXACT,
        KEYS,
        "The model recognises the person or device instead of the pattern; on new ones it does"
        " worse than its score says.",
        "Set split.kind: group (or stratified_group, group_time).",
    ),
    "group_alias": Explanation(
        "Groups on two sides in another spelling",
        "groups that are equal once case, spaces, punctuation, unicode form and leading zeros are"
        " taken away",
        "number of such groups, by the strongest normaliser that keeps train's groups apart",
        (),
        "A normaliser that would merge two groups of train is not used.",
        KEYS,
        "The same as a group on two sides: its other spelling hides it from the split.",
        "Bring the group to one form with data.derive before the split.",
    ),
    "time_overlap": Explanation(
        "Times out of order",
        "train rows that are not earlier than the held-out rows, with the embargo between them",
        "first and last time of each side",
        (),
        EXACT + " Only splits that promise an order in time are held to it.",
        KEYS,
        "The model is fitted on the future of the rows it is scored on: trends and events of the"
        " test period are known to it.",
        "Use split.kind: time, or correct the split column.",
    ),
    "label_interval": Explanation(
        "Labels known too late",
        "train rows whose label became known only after the held-out rows begin",
        "end of each train label's interval against the first held-out time",
        (),
        EXACT,
        KEYS,
        "A label that looks thirty days ahead overlaps the test period: part of what is predicted"
        " was fitted on.",
        "Make split.embargo as long as the label looks ahead.",
    ),
    "availability": Explanation(
        "Features known too late",
        "rows whose feature became known after the moment of the prediction",
        "declared time of availability against the row's time",
        (),
        EXACT,
        KEYS,
        GIVEN,
        "Use the value as it was known at the time, or declare role ignore for the feature.",
    ),
    "stratification": Explanation(
        "Shares of the label",
        "sides of a stratified split whose label differs from that of all rows",
        "largest difference of a class's share, or of the mean in standard deviations",
        ("stratify_tolerance",),
        "A stratified split keeps shares to within a row or a group; the tolerance is far wider.",
        KEYS,
        "A test side with another share of the rare class is easier or harder than the rows in"
        " use.",
        "Look at groups that are larger than a side, or change split.fractions.",
    ),
    "min_rows": Explanation(
        "Sides too small",
        "sides with fewer rows than are needed, and test rows too few to show skill",
        "rows of each side; number of ways in which the test labels can be ordered, over groups"
        " where rows have them",
        ("min_rows",),
        EXACT,
        KEYS,
        "A score over a handful of rows is luck; the best of several lucky runs is chosen.",
        "Change split.fractions, or give more rows.",
    ),
    "duplicates": Explanation(
        "Equal rows on two sides",
        "held-out rows whose features, and windows of series, all equal those of a train row",
        "share of such rows, by a 64-bit hash of the features that a 128-bit one confirms",
        ("max_duplicate_share",),
        "It fails where there are more such rows than train's own rate of equal rows explains"
        " (binomial, 1 %), or where they are 1 % of a side and fewer than a tenth of them (or"
        " than 3) have another label, counted alone and together with the rows that train repeats"
        " itself; else it warns: coarse features make different subjects alike on every side.",
        "one hash of every row, about a fifth of a second a million",
        SEEN,
        "Drop the copies, declare what they share as a group, or leave the id out so that equal"
        " rows stay together.",
    ),
    "label_conflicts": Explanation(
        "Copies with different labels",
        "rows that are equal, or of one derived cluster of near-copies, and carry different labels",
        "number of such rows, side by side",
        (),
        EXACT + " It only warns.",
        "one hash of every row",
        "No model can be right on both: the conflict bounds the score, and shows that labels are"
        " noisy or a feature is missing.",
        "Look at the pairs; keep the label that is right, or add the feature that tells them"
        " apart.",
    ),
    "near_duplicates": Explanation(
        "Near-copies of train rows",
        "held-out rows that differ from a train row by noise, or by the spelling of categories",
        "distance to the nearest train row over that to the nearest of yet another group, against"
        " the same of train rows",
        ("collision_chance", "collision_warning"),
        "The ratio is alike in dense and in thin parts of a table, and train's own is the null;"
        " where no train row is so near, the power with which train's lowest ratios become rare"
        " says how likely it is, less two standard errors. Less than three rows never fail.",
        SAMPLE + ": about a second",
        SEEN,
        "Make augmented copies after the split and of train rows only, or declare what copies share"
        " as a group.",
    ),
    "interpolated_rows": Explanation(
        "Mixtures of train rows",
        "held-out rows on a straight line between two train rows, as oversampling before the split"
        " makes them",
        "distance from the nearest segment between neighbours, relative to the distance from"
        " its end",
        ("collision_chance", "collision_warning"),
        "Measurements in three and more columns miss a line; values of a coarse scale and nulls are"
        " left out, and train's own rate is the null.",
        SAMPLE + ": about a second",
        SEEN,
        "Oversample after the split, and train rows only.",
    ),
    "text_copies": Explanation(
        "Copied texts, molecules and pictures",
        "texts that train has in other case, accents, punctuation or spacing, or with some words"
        " changed; molecules in another SMILES; pictures of the same pixels in another file",
        "equal foldings and pixels of all rows; canonical SMILES and word triples on a sample",
        ("collision_chance", "collision_warning", "text_similarity"),
        "Short texts agree by chance and are held against train's own rate; only molecules,"
        " pictures, and texts of twenty and more letters, count for themselves.",
        "a second a million texts; RDKit reads 8,000 molecules in about two seconds",
        SEEN + " Where the copies' labels differ, the score is also bounded by the conflict.",
        "Keep one row of each, or declare a normalised text as the group.",
    ),
    "label_proxy": Explanation(
        "A column that is (almost) the label",
        "a column that alone predicts the label, its sibling, or one that little is known without",
        "strength (2 AUROC - 1, or explained variance of ranks) learned on half of train, scored on"
        " the other half, with errors by group",
        ("proxy_strength", "proxy_warning", "dominance_ratio"),
        "Two standard errors are taken off; coarse settings and the label's last values are lawful."
        " A sibling fails only if nothing else explains the label or what the column leaves open.",
        SAMPLE + ": under a second",
        GIVEN,
        "Declare role ignore for it if it is not known when the prediction is made.",
    ),
    "label_combination": Explanation(
        "Columns that make up the label",
        "several numeric columns that add up or multiply to the label, whose sum tells its class,"
        " or that are equal in the rows of some classes alone",
        "unexplained variance of a least-squares fit on half of train, on the other half; strength"
        " of a class's sum there and on held-out rows, shares of classes with two columns equal",
        ("combination_error", "proxy_strength"),
        "A fit to the sixth digit on rows it has not seen is arithmetic, not learning. A class may"
        " well be predicted by many good columns: so its sum is chosen on half of train alone, must"
        " set the classes apart twice as far as columns would that know something each, and fails"
        " only without any error, on groups enough (150 at a threshold of 0.98); else it warns.",
        SAMPLE + ": some hundredths of a second",
        GIVEN,
        "Declare role ignore for at least one of the columns.",
    ),
    "label_missingness": Explanation(
        "Gaps that predict the label",
        "a column that is filled only after one outcome: its nulls, or the value that stands for"
        " nothing, tell which it was",
        "strength, for the class or the end of a number that is told best, of whether the column is"
        " empty",
        ("missingness_strength", "proxy_strength"),
        "Nulls of honest tables tell something, seldom most of the label.",
        SAMPLE + ": some hundredths of a second",
        GIVEN,
        "Ask when the column is filled; declare role ignore for it if that is after the outcome.",
    ),
    "pure_values": Explanation(
        "Values of one class alone",
        "a value (null included) whose rows all have the rarer label, or an extreme number",
        "chance of so many rows on all sides by the label's share in the column's other values,"
        " times the number of values that could be a finding",
        ("pure_value_chance",),
        "Rows of a group count once, and where a column's other values differ in the label, too, as"
        " along a scale, a pure one is no surprise. It only warns.",
        SAMPLE + ": some tenths of a second",
        GIVEN,
        "Ask when the value is written; declare role ignore for the column if that is after the"
        " outcome.",
    ),
    "equal_values": Explanation(
        "Values equal to the label",
        "a numeric column that holds the label's own number in some rows",
        "equal pairs, against those after the labels are moved among rows of like values",
        ("equal_values",),
        "Measurements agree to the last digit only if one was copied; small whole numbers agree in"
        " the null as well.",
        SAMPLE + ": some hundredths of a second",
        GIVEN,
        "Take the label out of the column, or declare role ignore for it.",
    ),
    "id_order": Explanation(
        "Ids in the order of the label",
        "ids whose number predicts the label, because rows were numbered after sorting",
        "strength of the number in the id, less what the declared time tells",
        ("order_strength",),
        "The number must be another one in every row, and tell more than time does.",
        SAMPLE + ": some hundredths of a second",
        "An id that becomes a feature, or a split by position, hands over the label.",
        "Keep the id out of the features, and split by hash.",
    ),
    "row_order": Explanation(
        "A feature that numbers the rows",
        "a feature that counts rows and predicts the label",
        "strength of a column of whole numbers without repeats",
        ("order_strength",),
        "Measurements repeat or have gaps that a count has not.",
        SAMPLE + ": some hundredths of a second",
        "The model learns where in the file a class stands; new rows stand elsewhere.",
        "Declare role ignore for it.",
    ),
    "file_order": Explanation(
        "The file is in the order of the label",
        "files from elsewhere that were sorted by the label (only `bulkhead audit --train --test`"
        " still sees their order)",
        "2 AUROC - 1, or R2 of ranks, of a row's place in its file, beyond what the declared time"
        " tells; it warns",
        ("order_strength",),
        "A shuffled file, and one in the order of its time, says nothing by place.",
        SAMPLE,
        "Whatever goes by place, a batch, a loader or a fold, predicts the label.",
        "Shuffle the files, and ask how their rows came to be in this order.",
    ),
    "look_ahead": Explanation(
        "Features from the label's future",
        "windows, leads and differences that run past the moment of the prediction",
        "share of what is new in the next values that a feature tells beyond the present and the"
        " last ones, against the reverse",
        ("look_ahead_gain",),
        "Trends and seasons are in the present and last values already; calendars have few values;"
        " countdowns have nothing new. Each category or whole number that may name an entity is"
        " tried as one, too; of these only a column with nearly all of the next values fails.",
        "40,000 rows in order of time, 12,000 for each possible entity: about a second",
        "The model reads the next values instead of predicting them.",
        "End the window at the last label that is known when the prediction is made.",
    ),
    "shared_times": Explanation(
        "Moments on two sides",
        "held-out rows whose time is in train under other groups that move together",
        "correlation of a held-out label with the mean label of train at the same time",
        ("shared_time_correlation",),
        "Shared moments alone prove nothing: the labels must agree.",
        "one pass over times and labels",
        "Stations, shops or shares of the same hour resemble each other: the test hour is known"
        " from its neighbours.",
        "Set split.kind: group_time with an embargo.",
    ),
    "dependence": Explanation(
        "Rows that belong together on two sides",
        "rows of one person, device or session, neighbours in the source or in time, and later rows"
        " among earlier ones, that a split by single rows puts on both sides",
        "strength of a quick, fixed learner (boosting) on folds of train and validation rows as the"
        " split draws them, and on folds that keep rows together: of one value of a column or of"
        " columns, of a cluster of near rows, of a run of neighbours; test rows are not read",
        ("dependence_fall", "dependence_left"),
        "The fall must be three standard errors (three and a half to fail), counted by ties, in two"
        " draws of folds. A category that is rightly a feature falls, too, when its values are held"
        " out: so values of one column count only where other columns never change within them,"
        " where it is a measurement whose values repeat, or where the value alone says the label;"
        " and what no feature explains must be alike within a tie. Combined categories only warn.",
        "at most 20,000 train and validation rows, 4,000 to a fit: under three seconds",
        "The model recognises the person, device or moment and repeats its label; on new ones it"
        " does as badly as the second score says.",
        "Declare what ties the rows as group with split.kind: group, or the time with split.kind:"
        " time.",
    ),
    "pooled_scaling": Explanation(
        "Columns scaled over all rows",
        "mean 0 and deviation 1, or a range of exactly 0 to 1, over all sides and not over train",
        "chance of so neat a statistic by sampling error, over all sides and over train",
        ("pooled_chance",),
        "By chance a pooled mean comes this near to 0 once in a million tables.",
        "one pass over the numeric columns",
        FITTED,
        "Give the column as it was before scaling.",
    ),
    "pooled_fill": Explanation(
        "Gaps filled over all rows",
        "a frequent value that is the mean or median of all other rows and not of train's",
        "distance from the pooled statistic, and from train's",
        ("pooled_chance",),
        "A value that is the mean to the sixth digit was computed; where train's fits as well,"
        " nothing is said. Medians only warn.",
        "one pass over columns with such a value",
        FITTED,
        "Give the column with its gaps.",
    ),
    "pooled_target_codes": Explanation(
        "Categories encoded by labels of all rows",
        "numbers that are the mean label of a category with the held-out labels included",
        "unexplained share of the codes by the mean labels of all sides, and by those of train",
        (),
        "Smoothing towards the overall mean by any number of rows is tried for both, so that"
        " shrinkage is not mistaken for test labels.",
        "one pass for each numeric column of few values",
        "The test labels are in the feature. The score rises, most of all with rare categories.",
        "Give the category itself.",
    ),
    "shift": Explanation(
        "How far the sides differ",
        "columns by which held-out rows differ from train",
        "strength with which a side differs from train, by each column and by all, against two"
        " halves of train",
        (),
        "Information alone: it never warns or fails.",
        SAMPLE + ": about half a second",
        "Not a leak. A score over rows unlike train's says how the model does there, not where it"
        " was fitted.",
        "Ask whether the test rows are drawn from the population that the model will serve.",
    ),
    "windows": WINDOWS,
    "poison": Explanation(
        "Fits that look at held-out rows",
        "fitted artefacts that change when held-out rows are corrupted",
        "SHA-256 of statistics, vocabulary, selection and class weights, with true and with"
        " corrupted held-out rows",
        (),
        EXACT,
        "the fits once more on a sample",
        FITTED,
        "Fit on the train table alone.",
    ),
}


def explanation(name: str) -> Explanation:
    """Return the description of the check.

    Raises:
        KeyError: no check has this name.
    """
    return CATALOGUE[name]


def how_to_allow(name: str, column: str | None = None) -> str:
    """Return the lines of a declaration that allow a finding with a reason.

    >>> how_to_allow("label_proxy", "duration")
    'checks: {allow: [{check: label_proxy, column: duration, reason: "…"}]}'
    """
    where = f", column: {column}" if column else ""
    return f'checks: {{allow: [{{check: {name}{where}, reason: "…"}}]}}'
