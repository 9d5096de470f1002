"""Rows numbered by `data.row_number`: in the order of the files, as an id and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import ConfigError
from schemas.load import declare
from training.data.sources.source import fingerprint
from training.data.table.validate import validate

pytestmark = pytest.mark.req("P1")


def declared(path: Path, **data: Any) -> dict[str, Any]:
    columns = {"row": "id", "y": "label", "*": "feature"}
    return {
        "name": "t",
        "data": {"uri": str(path), "row_number": "row", "columns": columns} | data,
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
    }


@pytest.mark.parametrize("form", ["parquet", "csv", "arrow"])
def test_ids_count_the_rows_in_the_order_of_the_file(tmp_path: Path, form: str) -> None:
    rows = 40_000
    table = pa.table({"a": np.arange(rows) * 0.5, "y": np.arange(rows) % 2})
    path = tmp_path / f"t.{form}"
    if form == "csv":
        table.to_pandas().to_csv(path, index=False)
    elif form == "arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3_000)
    else:
        pq.write_table(table, path, row_group_size=3_000)
    declaration = declare(declared(path, filter="a >= 10"))
    made = validate(fingerprint(declaration.data), declaration, tmp_path / "out")
    found = pq.read_table(made.table.file.path).to_pandas()
    assert len(found) == rows - 20 and found["__id"].is_unique
    assert (found["__id"].astype(int) * 0.5 == found["a"]).all()


def test_equal_rows_are_rows_of_their_own(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.0] * 50, "b": [0.0, 1.0] * 25, "y": [0, 1] * 25}).to_parquet(
        tmp_path / "t.parquet"
    )
    declaration = declare(declared(tmp_path / "t.parquet"))
    made = validate(fingerprint(declaration.data), declaration, tmp_path / "out")
    keys = pq.read_table(made.table.file.path, columns=["__key"]).column(0).to_pylist()
    assert sorted(keys, key=int) == [str(i) for i in range(50)]


def test_the_number_is_an_id_under_a_free_name_and_not_on_spark(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"Row": [1.0, 2.0], "y": [0, 1]}).to_parquet(path)
    taken = declare(declared(path))
    with pytest.raises(ConfigError, match=r"data\.row_number: the source has a column 'Row'"):
        validate(fingerprint(taken.data), taken, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"declare it as an id: columns: \{row: id\}"):
        declare(declared(path, columns={"row": "feature", "y": "label"}))
    with pytest.raises(ConfigError, match=r"data.engine: spark cannot do data\.row_number"):
        declare(declared(path, engine="spark"))


def test_a_derived_feature_cannot_use_it(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": [1.0, 2.0], "y": [0, 1]}).to_parquet(path)
    declaration = declare(declared(path, derive={"late": "row > 1"}))
    with pytest.raises(ConfigError, match="unknown column 'row'"):
        validate(fingerprint(declaration.data), declaration, tmp_path / "out")


def test_a_declaration_without_it_keeps_its_digest(tmp_path: Path) -> None:
    tree = declared(tmp_path / "t.parquet")
    del tree["data"]["row_number"], tree["data"]["columns"]["row"]
    assert "row_number" not in declare(tree).model_dump(mode="json")["data"]
