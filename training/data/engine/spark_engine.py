"""Data engine on Spark: a session that takes the SQL of the embedded engine.

It returns tables as files that its executors write. The SQL of this package is one text for both
engines; `spark_sql` changes the few words that differ. Rows leave Spark only through files in the
Bulkhead home, which driver and executors must share: executors write the parts of a table in its
order, the driver joins them. See docs/decisions/0026-spark.md.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import shutil
import socket
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import SparkConfig
from schemas.confinement import require_spark
from schemas.errors import ConfigError, DataError, first_few
from schemas.home import home

WORDS = {
    r"\bvarchar\b": "string",
    r"\bhugeint\b": "decimal(38, 0)",
    r"\butinyint\b": "smallint",
    r"\* exclude \(": "* except (",
    r"\bfavg\(": "avg(",
    r"\bisinf\(": "array_contains(array(double('infinity'), double('-infinity')), ",
}
PARQUET = re.compile(
    r"read_parquet\(\[?((?:'(?:[^']|'')*'(?:, )?)+)\]?, hive_partitioning = false\)"
)
AGGREGATE_ORDER = re.compile(r", ',' order by (\w+)\)")
TOKENS = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")""")
CREATE = re.compile(r"create (?:or replace )?(?:temp )?(table|view) (\w+) as (.*)", re.DOTALL)
PACKAGES = ("bulkhead", "duckdb", "pyarrow", "numpy", "pandera")
PROBES = 4
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
OWN_SETTINGS = {  # of a session of this process; a server has its own
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.executorEnv.PYTHONWARNINGS": "ignore::FutureWarning",  # pyspark's, of pandas 3
}


def spark_sql(text: str, view: Callable[[list[str]], str] = ", ".join) -> str:
    r"""Convert our SQL to Spark's: quoted names and texts, and the words that differ.

    Args:
        text: SQL for the embedded engine.
        view: makes a name from the paths of Parquet files.

    >>> spark_sql('''select cast("a`b" as varchar), 'it''s \\ "so"' from t''')
    'select cast(`a``b` as string), \'it\\\'s \\\\ "so"\' from t'
    """
    text = PARQUET.sub(
        lambda found: view([_text(part) for part in re.findall(r"'(?:[^']|'')*'", found[1])]), text
    )
    text = AGGREGATE_ORDER.sub(r", ',') within group (order by \1)", text)
    return "".join(
        _token(part) if number % 2 else _words(part)
        for number, part in enumerate(TOKENS.split(text))
    )


def _text(literal: str) -> str:
    return literal[1:-1].replace("''", "'")


def _token(token: str) -> str:
    if token.startswith('"'):
        return "`" + token[1:-1].replace('""', '"').replace("`", "``") + "`"
    return "'" + _text(token).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _words(text: str) -> str:
    for word, other in WORDS.items():
        text = re.sub(word, other, text)
    return text


class SparkRelation:
    """Result of a query: rows for a message, or a table in its order through files."""

    def __init__(self, connection: SparkConnection, frame: Any) -> None:
        self.connection, self.frame = connection, frame

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows; for results that fit a message or a summary."""
        return [tuple(row) for row in self.frame.collect()]

    def to_arrow_reader(self, rows: int = 65_536) -> pa.RecordBatchReader:
        """Return the rows in their order; executors write them to files, which are read one by one.

        Args:
            rows: most rows of a batch.
        """
        folder = self.connection.scratch / uuid.uuid4().hex
        folder.mkdir()
        names = self.frame.columns
        # pyspark reads dots and backticks in a name as syntax
        plain = self.frame.toDF(*(f"c{place}" for place in range(len(names))))
        written = {
            int(r[0]): r[1]
            for r in plain.mapInArrow(_part_writer(str(folder)), "part int, file string").collect()
        }
        files = [folder / written[part] for part in sorted(written)]
        kinds = [f.type for f in pq.read_schema(files[0])] if files else [pa.null()] * len(names)

        def batches() -> Iterator[pa.RecordBatch]:
            """Yield the rows of each file, then delete it."""
            for file in files:
                with pq.ParquetFile(file) as part:
                    yield from (
                        pa.RecordBatch.from_arrays(batch.columns, names=names)
                        for batch in part.iter_batches(batch_size=rows)
                    )
                file.unlink()

        return pa.RecordBatchReader.from_batches(
            pa.schema(list(zip(names, kinds, strict=True))), batches()
        )

    def to_arrow_table(self) -> pa.Table:
        """Return the rows as a table; for small results."""
        return self.frame.toArrow()


def _part_writer(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function with which an executor writes its part of a table to a unique file.

    It yields the part's index and the file's name.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the batches of one part."""
        from pyspark import TaskContext

        context = TaskContext.get()
        place, name = (
            context.partitionId(),
            f"part-{context.partitionId():06d}-{context.taskAttemptId()}.parquet",
        )
        writer = None
        for batch in batches:
            writer = writer or pq.ParquetWriter(
                f"{folder}/{name}", batch.schema, compression="zstd"
            )
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
            yield pa.RecordBatch.from_pydict(
                {"part": pa.array([place], pa.int32()), "file": [name]}
            )

    return write


class SparkConnection:
    """Session with the methods of the embedded engine's connection that this package uses."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.scratch = home() / "spark" / uuid.uuid4().hex
        self.scratch.mkdir(parents=True)
        self._names: set[str] = set()
        self._cached: list[Any] = []

    def execute(self, sql: str) -> SparkRelation:
        """Run a statement; a table is kept on the executors, a view is a name."""
        created = CREATE.fullmatch(sql.strip())
        if created is None:
            return self.sql(sql)
        kind, name, query = created.groups()
        relation = self.sql(query)
        if kind == "table":
            self._cached.append(relation.frame.cache())
        self._named(name, relation.frame)
        return relation

    def sql(self, sql: str) -> SparkRelation:
        """Return a query that has not run yet."""
        return SparkRelation(self, self.session.sql(spark_sql(sql, self._view)))

    def register(self, name: str, table: pa.Table) -> None:
        """Register a small Arrow table under a name."""
        self._named(name, self.session.createDataFrame(table))

    def on_executors(
        self, parts: int, work: Callable[[int], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the results of `work` for each number below `parts`, each computed on an executor.

        Args:
            parts: number of parts; each is a separate task up to 10,000.
            work: pure except for files that it writes; may be called again for the same number.
                Returns data that JSON can hold.
        """

        def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """Yield the result of each number as JSON."""
            for batch in batches:
                yield pa.RecordBatch.from_pydict(
                    {"told": [json.dumps(work(number)) for number in batch.column(0).to_pylist()]}
                )

        frame = self.session.range(0, parts, 1, max(1, min(parts, 10_000))).mapInArrow(
            each, "told string"
        )
        return [json.loads(row[0]) for row in frame.collect()]

    def close(self) -> None:
        """Forget tables and scratch files; the session stays for the next step."""
        # before any name goes: a server resolves plans by name, again and again
        for frame in self._cached:
            frame.unpersist()
        for name in self._names:
            self.session.catalog.dropTempView(name)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _view(self, paths: list[str]) -> str:
        name = f"files_{uuid.uuid4().hex}"
        self._named(name, self.session.read.parquet(*(f"file://{path}" for path in paths)))
        return name

    def _named(self, name: str, frame: Any) -> None:
        frame.createOrReplaceTempView(name)
        self._names.add(name)


@contextmanager
def opened_spark(config: SparkConfig) -> Iterator[SparkConnection]:
    """Open `connect_spark` for a block and close it at its end.

    Raises:
        DataError: a job of Spark failed; with its cause in one line.
    """
    connection = connect_spark(config)
    from pyspark.errors import PySparkException

    try:
        yield connection
    except PySparkException as error:
        raise DataError(
            f"data.engine: spark: a job failed: {_cause(error)}; look into the logs of driver and"
            " executors, or use data.engine: duckdb"
        ) from error
    finally:
        connection.close()


def connect_spark(config: SparkConfig) -> SparkConnection:
    """Connect to the declared Spark; check that its executors share our folders and versions.

    Raises:
        ConfigError: pyspark or Java is missing, the server cannot be reached, or an executor does
            not see the Bulkhead home.
    """
    session = _session(config)
    connection = SparkConnection(session)
    try:
        _require_shared(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _session(config: SparkConfig) -> Any:
    require_spark(config.master, config.remote, config.conf)
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(
            "data.engine: spark needs the package pyspark; install it with: pip install"
            " 'bulkhead[spark]'"
        )
    if config.remote is None and shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise ConfigError(
            "data.spark.master: a Spark session of this process needs Java 17 or newer, and none"
            " was found; install it, or set data.spark.remote"
        )
    warnings.filterwarnings(
        "ignore", message="PySpark does not yet fully support pandas", category=FutureWarning
    )  # pandas is not used on Spark
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # the whole Java trace of an error that is raised anyway
    logging.getLogger("SQLQueryContextLogger").disabled = True
    if config.remote is None and config.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("bulkhead")
    builder = builder.remote(config.remote) if config.remote else builder.master(config.master)
    for key, value in {
        **SETTINGS,
        **({} if config.remote else OWN_SETTINGS),
        **config.conf,
    }.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else str(value))
    try:
        session = builder.getOrCreate()
        session.sql("select 1").collect()
    except (PySparkException, OSError, RuntimeError) as error:
        where = (
            f"data.spark.remote {config.remote}"
            if config.remote
            else f"data.spark.master {config.master}"
        )
        raise ConfigError(
            f"{where}: no Spark session could be made: {str(error).splitlines()[0][:300]}; check"
            " address, Java and data.spark.conf"
        ) from error
    return session


def _require_shared(connection: SparkConnection) -> None:
    """Refuse executors that do not see our files, or run other versions of our libraries.

    Raises:
        ConfigError: naming the hosts, and what they lack.
    """
    from pyspark.errors import PySparkException

    sign, wanted = uuid.uuid4().hex, _versions()
    probe = connection.scratch / "probe"
    probe.write_text(sign)
    try:
        found = connection.on_executors(PROBES, _look(str(probe)))
    except PySparkException as error:
        raise ConfigError(
            "data.engine: spark: executors cannot run Python as this process does:"
            f" {_cause(error)}; install Bulkhead on them too"
        ) from error
    blind = sorted({f["host"] for f in found if f["sign"] != sign})
    if blind:
        raise ConfigError(
            f"data.engine: spark needs a folder that driver and executors share: {first_few(blind)}"
            f" did not see {probe.parent.parent}; set BULKHEAD_HOME to a shared folder (NFS, Lustre"
            " …), or use data.engine: duckdb"
        )
    other = [
        f"{f['host']} has {name} {f['versions'][name]}, not {wanted[name]}"
        for f in found
        for name in wanted
        if f["versions"][name] != wanted[name]
    ]
    if other:
        raise ConfigError(
            "data.engine: spark needs the same packages on driver and executors:"
            f" {first_few(dict.fromkeys(other))}; install them alike"
        )


def _cause(error: Exception) -> str:
    """Return the line of a Java or Python trace that names the error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next(
        (line.strip() for line in lines if re.match(r"\s*\w*(Error|Exception)\b", line)), lines[0]
    )[:300]


def _look(path: str) -> Callable[[int], dict[str, Any]]:
    def look(_: int) -> dict[str, Any]:
        """Return the host, the shared file's text and the versions."""
        file = Path(path)
        return {
            "host": socket.gethostname(),
            "sign": file.read_text() if file.is_file() else "",
            "versions": _versions(),
        }

    return look


def _versions() -> dict[str, str]:
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found
