"""Tables whose features are so coarse that equal rows are no copies."""

from __future__ import annotations

import math

from training.data.draft.guesses import Draft, Table
from training.data.draft.yaml_lines import quoted

CROWDED = 10  # rows for each possible row of features: equal ones are unavoidable
ROW_NUMBER = "row_number"


def coarse_rows(table: Table, draft: Draft) -> Draft:
    """Number the rows where a row's content is no key, as equal rows are no copies of one event.

    The features have so few possible combinations that equal rows are unavoidable. Without an id,
    rows of equal content share a side, and a side may lack a class.
    """
    if draft.derive.keys() & {n for n, g in draft.columns.items() if g.is_feature}:
        return draft
    features = [c for c in table.columns if draft.columns[c.name].is_feature]
    if not features or any(c.family == "list" for c in features):
        return draft
    possible = math.prod(c.distinct + (c.null_share > 0) for c in features)
    if possible * CROWDED > table.rows:
        return draft
    words = (
        f"{len(features)} feature{'s have' if len(features) > 1 else ' has'} {possible} possible"
        f" combinations for {table.rows} rows, so equal rows are no copies"
    )
    reason = f"{{check: duplicates, reason: {quoted(words)}}}"
    draft = draft._replace(checks=((f"allow: [{reason}]", "equal rows are unavoidable here"),))
    has_id = any(g.role == "id" for g in draft.columns.values())
    if has_id or draft.groups or draft.time or draft.split or draft.molecules:
        return draft
    name = ROW_NUMBER
    while table.named(name):
        name += "_"
    return draft._replace(row_number=(name, f"{words}: each is a row of its own"))
