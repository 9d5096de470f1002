"""A run resumes only with the data that it started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import IntegrityError
from schemas.records import Prepared
from tasks.prepared import require_same, require_same_source
from tests.training.report_inputs import build


@pytest.fixture()
def recorded(tmp_path: Path) -> Prepared:
    return build(tmp_path, "binary", rows=600).prepared


@pytest.mark.req("C5")
def test_a_changed_source_is_refused_by_the_names_of_its_files(recorded: Prepared) -> None:
    require_same_source(recorded.source, recorded)
    require_same_source(recorded.source, None)
    file = recorded.source.files[0]
    other = file.model_copy(update={"sha256": "f" * 64})
    new = file.model_copy(update={"path": "/data/late.parquet"})
    changed = recorded.source.model_copy(update={"sha256": "1" * 64, "files": (other, new)})
    with pytest.raises(
        IntegrityError,
        match=(
            rf"the source has changed since the run was started: .*{Path(file.path).name} \(SHA-256"
            r" was .*, is ffffffffffff…\)"
        ),
    ):
        require_same_source(changed, recorded)
    with pytest.raises(IntegrityError, match=r"late.parquet \(is new\)"):
        require_same_source(changed, recorded)
    with pytest.raises(IntegrityError, match=rf"{Path(file.path).name} \(is gone\)"):
        require_same_source(changed.model_copy(update={"files": (new,)}), recorded)


@pytest.mark.req("C5")
def test_the_first_step_that_makes_something_else_is_named(recorded: Prepared) -> None:
    assert require_same(recorded, recorded) is recorded
    arrays = recorded.arrays.model_copy(update={"sha256": "2" * 64})
    statistics = recorded.statistics.model_copy(update={"rows": recorded.statistics.rows + 1})
    with pytest.raises(
        IntegrityError,
        match=r"the SHA-256 of the arrays was .*, is 222222222222…: the code or the ledger",
    ):
        require_same(recorded.model_copy(update={"arrays": arrays}), recorded)
    with pytest.raises(IntegrityError, match="the SHA-256 of the statistics was"):
        require_same(
            recorded.model_copy(update={"arrays": arrays, "statistics": statistics}), recorded
        )
