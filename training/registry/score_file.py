"""Score a file, or generate text, with a registered model.

Commands: `bulkhead predict MODEL_URI IN OUT`, `bulkhead sample MODEL_URI`. Rows are read like a
training source (same delimiter and null texts), in batches. All their columns are written next to
the predictions, completely or not at all. The model itself derives its features.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from schemas.config import CsvConfig, DataConfig
from schemas.digest import replacing, sha256_file, write_atomic
from schemas.errors import DataError, RegistryError, first_few
from schemas.records import SampleReport, SourceRef
from schemas.registry_records import Scored
from training.data.engine.engine import connect, rows
from training.data.serving_text import Sampling
from training.data.sources.source import fingerprint, relation_sql
from training.data.sources.text_files import csv_texts
from training.evaluation.text_samples import sampled
from training.registry.registry import LoadedModel, load_model
from training.serving.serving import Unfamiliar, interval_columns, logits_of
from training.serving.signature import predicted_columns
from training.tracking.mlflow import default_tracking_uri

BATCH_ROWS = 16_384
MOST_ROWS = 2**31 - 1
READ_AHEAD = "16MB"  # the model, not the reader, is what takes time
FORMATS = (".parquet", ".csv", ".csv.gz")


def predict_file(
    model_uri: str,
    in_path: Path,
    out_path: Path,
    tracking_uri: str | None = None,
    intervals: bool = False,
) -> Scored:
    """Write every row of a file with its predictions, and a record of the version next to them.

    Args:
        model_uri: `models:/NAME@champion`, `models:/NAME/3`, or a folder with a model.
        in_path: Parquet, CSV, CSV.gz or Arrow; a folder or glob of them. Only the model's raw
            columns are needed.
        out_path: `.parquet`, `.csv` or `.csv.gz`; replaced if it exists. The version is in
            Parquet's metadata, or for text in `<out_path>.json`.
        tracking_uri: address of the registry; default: MLFLOW_TRACKING_URI, else the one in the
            Bulkhead home.
        intervals: add the bounds of each prediction, or the possible classes.

    Raises:
        RegistryError: there is no such model, or it has no intervals.
        IntegrityError: the model's files are not those that were registered.
        DataError: a column is missing, a value is refused, or the output cannot hold the columns.
            Nothing is written.
    """
    suffix = next((s for s in FORMATS if out_path.name.lower().endswith(s)), None)
    if suffix is None:
        raise DataError(f"{out_path}: expected a name that ends in {', '.join(FORMATS)}")
    model = load_model(model_uri, tracking_uri or default_tracking_uri(None))
    if intervals and not interval_columns(model.spec):
        raise RegistryError(
            f"{model_uri}: this model has no intervals; declare evaluate.intervals, e.g. 0.9, and"
            " train it again"
        )
    data = as_trained(model, in_path)
    source = fingerprint(data)
    made = Scored(
        source=str(in_path),
        source_sha256=source.sha256,
        target=str(out_path),
        rows=0,
        name=model.name,
        version=model.version,
        uri=f"models:/{model.name}/{model.version}" if model.version else model_uri,
        run_id=str(model.spec["run_id"]),
        program_sha256=model.program_sha256,
    )
    unfamiliar: Unfamiliar = {}
    with (
        closing(connect(read_ahead=READ_AHEAD)) as connection,
        replacing(out_path) as file,
        _writer(file, suffix, made) as write,
    ):
        rows = sum(
            write(batch)
            for batch in _scored(
                model,
                data,
                source,
                connection,
                unfamiliar,
                as_text=suffix != ".parquet",
                intervals=intervals,
            )
        )
    made = made.model_copy(
        update={"rows": rows, "sha256": sha256_file(out_path), "unfamiliar": unfamiliar}
    )
    if suffix != ".parquet":
        write_atomic(f"{out_path}.json", made.model_dump_json(indent=1) + "\n")
    return made


def as_trained(model: LoadedModel, in_path: Path) -> DataConfig:
    """Return how a file is read: as the training source, with the same spellings of numbers."""
    written = {n: {"written": how} for n, how in model.spec.get("spellings", {}).items()}
    return DataConfig(
        uri=str(in_path),
        csv=CsvConfig(**model.spec["csv"]),
        columns={**written, "*": "feature"},
    )


def sample_model(
    model_uri: str, prompt: str, count: int, how: Sampling, tracking_uri: str | None = None
) -> SampleReport:
    """Generate texts with a registered language model; see
    `training.evaluation.text_samples.sampled`.

    Raises:
        RegistryError: there is no such model, or it is not a language model.
        IntegrityError: the model's files are not those that were registered.
    """
    model = load_model(model_uri, tracking_uri or default_tracking_uri(None))
    if "text" not in model.spec:
        raise RegistryError(
            f"{model_uri}: expected a language model, this one predicts {model.spec['label']!r};"
            " use bulkhead predict"
        )
    return sampled(model.spec["text"], logits_of(model.model.program), prompt, count, how, None)


def _scored(
    model: LoadedModel,
    data: DataConfig,
    source: SourceRef,
    connection: duckdb.DuckDBPyConnection,
    unfamiliar: Unfamiliar,
    as_text: bool,
    intervals: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the file's columns with the predictions; one empty batch if there are no
    rows.

    Args:
        model: the model.
        data: how to read the file.
        source: source of the file.
        connection: the engine.
        unfamiliar: gets unknown categories and clipped numbers, summed over the batches.
        as_text: keep columns of a delimited file as text, so that 1.10 and 1e5 are written as they
            were read.
        intervals: add bounds or possible classes.
    """
    params = {"intervals": True} if intervals else None
    relation = relation_sql(source, data, connection)
    own = [row[0] for row in rows(connection, f"describe select * from {relation}")]
    added = interval_columns(model.spec) if intervals else []
    taken = [name for name in (*predicted_columns(model.spec), *added) if name in own]
    if taken:
        raise DataError(
            f"{data.uri}: has columns named {first_few(map(repr, taken))} already, where the"
            " predictions go; rename or drop them"
        )
    reader = connection.sql(f"select * from {relation}").to_arrow_reader(_batch_rows(model))
    nothing = pa.RecordBatch.from_pylist([], schema=reader.schema)
    texts = _texts(source, data) if as_text and source.format == "csv" else None
    for batch in chain([next(reader, nothing)], reader):
        counted: Unfamiliar = {}
        try:
            found = model.predict(
                batch.to_pandas(integer_object_nulls=True), params, unfamiliar=counted
            )
        except ValueError as error:
            raise DataError(f"{data.uri}: {error}") from error
        for name, column in counted.items():
            unfamiliar[name] = (
                column
                | {
                    "rows": column["rows"] + unfamiliar[name]["rows"],
                    "first": unfamiliar[name]["first"],
                }
                if name in unfamiliar
                else column
            )
        given = texts(batch.num_rows) if texts is not None else batch
        kept = {name: (given if name in given.schema.names else batch).column(name) for name in own}
        columns = kept | {name: pa.array(found[name]) for name in found.columns}
        yield pa.RecordBatch.from_pydict(columns)


def _batch_rows(model: LoadedModel) -> int:
    """Return the rows of a batch: of a model with windows, which need earlier rows, all."""
    return MOST_ROWS if model.spec.get("windows") else BATCH_ROWS


def _texts(source: SourceRef, data: DataConfig) -> Callable[[int], pa.RecordBatch]:
    """Return a function that reads the next rows of delimited files as text, in engine order."""
    connection = connect(read_ahead=READ_AHEAD)
    reader = connection.sql(f"select * from {csv_texts(source, data)}").to_arrow_reader(BATCH_ROWS)
    held = pa.Table.from_batches([], schema=reader.schema)

    def rows_of(count: int) -> pa.RecordBatch:
        nonlocal held
        while held.num_rows < count:
            held = pa.concat_tables([held, pa.Table.from_batches([reader.read_next_batch()])])
        taken, held = held.slice(0, count), held.slice(count)
        return (
            taken.combine_chunks().to_batches(max_chunksize=None)[0]
            if count
            else pa.RecordBatch.from_pylist([], schema=reader.schema)
        )

    return rows_of


@contextmanager
def _writer(file: BinaryIO, suffix: str, made: Scored) -> Iterator[Callable[[pa.RecordBatch], int]]:
    """Return a function that writes a batch and returns its rows; all batches share one schema."""
    writers: list[Any] = []
    metadata = {
        f"bulkhead.{name}": str(value)
        for name, value in made.model_dump(
            exclude={"rows", "sha256", "target", "unfamiliar"}, exclude_none=True
        ).items()
    }
    with gzip.open(file, "wb") if suffix == ".csv.gz" else nullcontext(file) as sink:

        def write(batch: pa.RecordBatch) -> int:
            if not writers:
                writers.append(
                    pq.ParquetWriter(sink, batch.schema.with_metadata(metadata))
                    if suffix == ".parquet"
                    else _csv_writer(sink, batch.schema)
                )
            writers[0].write_batch(batch)
            return int(batch.num_rows)

        yield write
        for writer in writers:
            writer.close()


def _csv_writer(file: Any, schema: pa.Schema) -> pc.CSVWriter:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        raise DataError(
            f"CSV cannot hold lists: column {first_few(map(repr, nested))}; write .parquet instead"
        )
    return pc.CSVWriter(file, schema, write_options=pc.WriteOptions(quoting_style="needed"))
