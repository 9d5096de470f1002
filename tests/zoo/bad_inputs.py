"""Input of which nothing good can come: declarations, files, columns, values, addresses; each a
change to a sound case.

A case is a name, a function that spoils a folder with `run.yaml` and `x.parquet`, and words of the
refusal that name cause or remedy.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ROWS = 60
Spoil = Callable[[Path], list[str] | None]


def table() -> pd.DataFrame:
    """A sound table: id, group, time, weight, two numbers, a category, the label."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "who": [f"p{i % 20}" for i in range(ROWS)],
            "when": pd.date_range("2024-01-01", periods=ROWS, freq="D"),
            "w": np.ones(ROWS),
            "a": rng.normal(size=ROWS),
            "b": rng.normal(size=ROWS),
            "c": rng.choice(["red", "green"], ROWS),
            "y": np.arange(ROWS) % 2,
        }
    )


def declaration(**changes: Any) -> dict[str, Any]:
    """A sound declaration with some of its sections replaced."""
    columns = {
        "id": "id",
        "who": "ignore",
        "when": "ignore",
        "w": "ignore",
        "y": "label",
        "*": "feature",
    }
    tree = {
        "name": "bad",
        "data": {"uri": "x.parquet", "columns": columns},
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
    }
    return {**tree, **changes}


def write(folder: Path, tree: Any = None, frame: pd.DataFrame | None = None) -> None:
    """The two files."""
    (folder / "run.yaml").write_text(yaml.safe_dump(declaration() if tree is None else tree))
    (table() if frame is None else frame).to_parquet(folder / "x.parquet", index=False)


# --------------------------------------------------------------------------------------
# declarations


def declared(**changes: Any) -> Spoil:
    """Another declaration."""
    return lambda folder: write(folder, declaration(**changes))


def roles(**changed: Any) -> Spoil:
    """Other roles of columns; None takes a column out of the list."""

    def spoil(folder: Path) -> None:
        columns = {**declaration()["data"]["columns"], **changed}
        write(
            folder,
            declaration(
                data={
                    "uri": "x.parquet",
                    "columns": {k: v for k, v in columns.items() if v is not None},
                }
            ),
        )

    return spoil


def data(**changed: Any) -> Spoil:
    """Other settings in section data."""
    return lambda folder: write(folder, declaration(data={**declaration()["data"], **changed}))


def text(content: bytes) -> Spoil:
    """Bytes in place of the declaration."""

    def spoil(folder: Path) -> None:
        (folder / "run.yaml").write_bytes(content)

    return spoil


def call(*arguments: str) -> Spoil:
    """Another command line."""
    return lambda folder: list(arguments)


def declaration_in_a_pipe(folder: Path) -> list[str]:
    """Nobody writes to it: who opens it waits for ever."""
    os.mkfifo(folder / "pipe.yaml")
    return ["prepare", "pipe.yaml"]


def in_environment(name: str, value: str, *arguments: str) -> Spoil:
    """A variable of the environment, and a command; who calls the command puts the environment
    back.
    """

    def spoil(folder: Path) -> list[str] | None:
        os.environ[name] = value
        return list(arguments) or None

    return spoil


def bomb() -> bytes:
    """Eleven lines that mean 120 million values."""
    names = "abcdefghijk"
    lines = [f"{n}: &{n} [" + ", ".join([f"*{p}"] * 5) + "]" for p, n in pairwise(names)]
    return "\n".join(["a: &a [x, x]", *lines]).encode()


def file_for_home(folder: Path) -> None:
    """The folder of all results is a file."""
    (folder / "home").write_text("notes")


DECLARATIONS: dict[str, tuple[Spoil, str]] = {
    "declaration in a pipe": (declaration_in_a_pipe, "save the declaration first"),
    "home that is a file": (file_for_home, "let BULKHEAD_HOME name one that you may write to"),
    "unknown section": (declared(trian={}), "did you mean 'train'"),
    "unknown key": (declared(train={"epoch": 3}), "did you mean 'epochs'"),
    "text for a number": (declared(train={"epochs": "ten"}), "train.epochs"),
    "no epochs": (declared(train={"epochs": 0}), "train.epochs"),
    "unknown task": (declared(task={"kind": "clasification"}), "task.kind"),
    "no label": (roles(y="feature"), "label"),
    "two labels": (roles(a="label"), "label"),
    "unknown role": (roles(y="lable"), "label"),
    "time split without a time": (declared(split={"kind": "time"}), "time"),
    "group split without a group": (
        lambda f: write(
            f,
            declaration(
                split={"kind": "group"},
                data={"uri": "x.parquet", "columns": {"y": "label", "*": "feature"}},
            ),
        ),
        "group",
    ),
    "shares above one": (declared(split={"kind": "random", "test": 0.8, "val": 0.4}), "split"),
    "not YAML": (text(b"name: [unclosed\n"), "run.yaml"),
    "empty file": (text(b""), "run.yaml"),
    "a list": (text(b"- name: x\n"), "run.yaml"),
    "a key twice": (text(b"name: a\nname: b\n"), "name"),
    "a Python object": (text(b"name: !!python/object/apply:os.system ['true']\n"), "run.yaml"),
    "not text": (text(bytes(range(256))), "run.yaml"),
    "Latin-1": (text("name: caf\xe9\n".encode("latin-1")), "UTF-8"),
    "a bomb of aliases": (text(bomb()), "write the value out"),
    "nesting without end": (text(b"[" * 5000), "nested more than 32 levels"),
    "a declaration of megabytes": (
        text(b"name: " + b"x" * 2_000_000),
        "expected at most 1,000,000",
    ),
    "a date that is none": (text(b"name: 2024-13-45\n"), "put text in quotes"),
    "a number of 5,000 digits": (text(b"name: " + b"9" * 5000), "put text in quotes"),
    "NUL in a text": (text(b'name: "a\\0b"\n'), "NUL"),
    "half a surrogate pair": (text(b'name: "\\ud800"\n'), "surrogate"),
    "a thousand mistakes": (
        text("\n".join(f"k{i}: 1" for i in range(1000)).encode()),
        "more like these",
    ),
    "an override of 5,000 digits": (
        call("prepare", "run.yaml", "train.epochs=" + "9" * 5000),
        "train.epochs",
    ),
    "an override through a hundred sections": (
        call("prepare", "run.yaml", ".".join("a" * 100) + "=1"),
        "expected path=value",
    ),
    "a split without a kind": (
        declared(split={"embargo": "7d"}),
        "split.kind: required, but not given; one of random, group",
    ),
    "a derived column without a name": (
        data(derive={"": "a"}),
        "expected a name for each derived column",
    ),
    "no source": (data(uri=[]), "expected a file, a folder"),
    "a variable that is a secret": (
        data(uri="http://host/${AWS_SECRET_ACCESS_KEY}/x.csv"),
        "says that it is a secret",
    ),
    "a variable that is not listed": (data(uri="${HOSTNAME}/x.csv"), "BULKHEAD_EXPAND=HOSTNAME"),
    "a worker's run elsewhere": (
        in_environment("PREFECT__FLOW_RUN_ID", "0a1b", "prepare", "/etc/passwd"),
        "BULKHEAD_DATA_ROOTS",
    ),
    "Prefect at no address": (
        in_environment("PREFECT_API_URL", "nonsense", "prepare", "run.yaml"),
        "PREFECT_API_URL: expected an address",
    ),
    "Prefect in broken brackets": (
        in_environment("PREFECT_API_URL", "http://[::1", "prepare", "run.yaml"),
        "PREFECT_API_URL: expected an address",
    ),
    "a report where nothing can be written": (
        call("audit", "run.yaml", "--html", "/proc/x.html"),
        "--html: '/proc/x.html' cannot be written",
    ),
    "a report with too long a name": (
        call("audit", "run.yaml", "--html", "x" * 300 + ".html"),
        "cannot be written",
    ),
    "a report on a device": (
        call("audit", "run.yaml", "--html", "/dev/null"),
        "is a device, pipe or socket",
    ),
    "a report that is a folder": (call("audit", "run.yaml", "--html", "."), "is a folder"),
    "a draft where nothing can be written": (
        call("init", "x.parquet", "-o", "/proc/x.yaml"),
        "--output: '/proc/x.yaml' cannot be written",
    ),
    "predictions where none can be written": (
        call("predict", "models:/x/1", "x.parquet", "/proc/out.parquet"),
        "OUT: '/proc/out.parquet' cannot be written",
    ),
    "a folder that is no model": (call("sample", "/etc"), "a folder with a model"),
    "the whole machine as a model": (
        call("predict", "/", "x.parquet", "out.parquet"),
        "a folder with a model",
    ),
    "a run of 5,000 letters": (call("resume", "x" * 5000), "5,000 characters"),
    "a draft of no CSV": (
        lambda f: (f / "x.csv").write_bytes(bytes(range(256))) and ["init", "x.csv"],
        "x.csv",
    ),
    "a draft of a line without end": (
        lambda f: (
            (f / "x.csv").write_bytes(b"id," + b"x" * 200_000 + b",y\n1,2,0\n")
            and ["init", "x.csv"]
        ),
        "x.csv",
    ),
    "a path as name": (declared(name="../../etc"), "name"),
    "no name": (declared(name=""), "name"),
    "no such declaration": (call("prepare", "absent.yaml"), "absent.yaml"),
    "a folder as declaration": (call("prepare", "."), "."),
    "override without a value": (call("prepare", "run.yaml", "train.epochs"), "train.epochs"),
    "override of nothing": (call("prepare", "run.yaml", "train.epoch=3"), "epochs"),
    "override of another type": (call("prepare", "run.yaml", "train.epochs=many"), "train.epochs"),
    "loss for another task": (declared(loss={"kind": "huber"}), "loss"),
    "key of another section": (
        declared(evaluate={"metrics": ["accurracy"]}),
        "evaluate.metrics: unknown key",
    ),
    "negative warm-up": (declared(schedule={"kind": "warmup_cosine", "warmup": -1}), "warmup"),
    "one fold": (declared(cv={"folds": 1}), "folds must be 0"),
    "address from a variable that is not set": (
        data(uri="${BULKHEAD_NO_SUCH_FOLDER}/x.parquet"),
        "BULKHEAD_NO_SUCH_FOLDER",
    ),
    "embargo that is no length of time": (
        declared(split={"kind": "time", "embargo": "soon"}),
        "embargo",
    ),
    "resume of nothing": (call("resume", "20200101-000000-000000"), "20200101"),
    "replay of nothing": (call("replay", "nowhere"), "nowhere"),
    "evaluation of nothing": (call("evaluate", "nowhere"), "nowhere"),
    "audit of one side": (call("audit", "--train", "x.parquet"), "--test"),
    "audit of neither": (call("audit"), "--train"),
    "draft of nothing": (call("init", "nothing.csv"), "nothing.csv"),
    "verification of no address": (call("verify", "clinic"), "models:/"),
    "prediction with no address": (call("predict", "clinic", "x.parquet", "out.parquet"), "clinic"),
}


# ----------------------------------------------------------------------------------------------
# data


def frame(change: Callable[[pd.DataFrame], Any], **sections: Any) -> Spoil:
    """A table in which something is changed, in place or by what is returned."""

    def spoil(folder: Path) -> None:
        rows = table()
        changed = change(rows)
        write(
            folder, declaration(**sections), changed if isinstance(changed, pd.DataFrame) else rows
        )

    return spoil


def put(column: str, value: Any, rows: Any = slice(0, 3)) -> Callable[[pd.DataFrame], None]:
    """A value in some rows of a column."""

    def change(rows_: pd.DataFrame) -> None:
        rows_[column] = rows_[column].astype(object)
        rows_.loc[rows_.index[rows], column] = value

    return change


def file(content: bytes, name: str = "x.csv", **sections: Any) -> Spoil:
    """Bytes in place of the table."""

    def spoil(folder: Path) -> None:
        write(
            folder,
            declaration(
                data={"uri": name, "columns": declaration()["data"]["columns"]}, **sections
            ),
        )
        (folder / name).write_bytes(content)

    return spoil


def csv(change: Callable[[str], str]) -> Spoil:
    """The table as CSV, its text changed."""
    return file(change(table().to_csv(index=False)).encode())


def _truncated(folder: Path) -> None:
    write(folder)
    content = (folder / "x.parquet").read_bytes()
    (folder / "x.parquet").write_bytes(content[: len(content) // 2])


def _two_schemas(folder: Path) -> None:
    write(
        folder,
        declaration(data={"uri": "parts/*.parquet", "columns": declaration()["data"]["columns"]}),
    )
    (folder / "parts").mkdir()
    table().to_parquet(folder / "parts" / "1.parquet")
    table().drop(columns="a").to_parquet(folder / "parts" / "2.parquet")


def _nested(folder: Path) -> None:
    write(folder)
    rows = pa.Table.from_pandas(table(), preserve_index=False)
    pq.write_table(rows.append_column("deep", pa.array([{"k": 1}] * ROWS)), folder / "x.parquet")


def _empty_folder(folder: Path) -> None:
    write(folder, declaration(data={"uri": "parts", "columns": declaration()["data"]["columns"]}))
    (folder / "parts").mkdir()


def _own_model(folder: Path) -> list[str]:
    write(
        folder,
        declaration(
            model={"kind": "custom", "path": "os:system"},
            data={"uri": "x.parquet", "columns": declaration()["data"]["columns"]},
        ),
    )
    return ["train", "run.yaml"]


SPLIT_ROLE = {
    "id": "id",
    "who": "split",
    "when": "ignore",
    "w": "ignore",
    "y": "label",
    "*": "feature",
}
TIME_ROLE = {
    "id": "id",
    "who": "ignore",
    "when": "time",
    "w": "ignore",
    "y": "label",
    "*": "feature",
}
WEIGHT_ROLE = {
    "id": "id",
    "who": "ignore",
    "when": "ignore",
    "w": "weight",
    "y": "label",
    "*": "feature",
}
GROUP_ROLE = {**declaration()["data"]["columns"], "who": "group"}
BY_GROUP = {"data": {"uri": "x.parquet", "columns": GROUP_ROLE}, "split": {"kind": "group"}}
BY_TIME = {"data": {"uri": "x.parquet", "columns": TIME_ROLE}, "split": {"kind": "time"}}
DATA: dict[str, tuple[Spoil, str]] = {
    "no such file": (data(uri="nothing.parquet"), "nothing.parquet"),
    "no file matches": (data(uri="nothing/*.parquet"), "nothing/*.parquet"),
    "a folder without files": (_empty_folder, "parts"),
    "an unknown kind of file": (data(uri="x.xlsx"), "x.xlsx"),
    "an empty CSV": (file(b""), "x.csv"),
    "a header alone": (csv(lambda t: t.splitlines()[0] + "\n"), "row"),
    "an empty Parquet": (file(b"", "x.parquet"), "x.parquet"),
    "a truncated Parquet": (_truncated, "x.parquet"),
    "text under the name of Parquet": (file(b"id,y\n1,0\n", "x.parquet"), "x.parquet"),
    "a damaged gzip": (
        file(gzip.compress(table().to_csv(index=False).encode())[:-40], "x.csv.gz"),
        "x.csv.gz",
    ),
    "a CSV in Latin-1": (
        file(table().to_csv(index=False).replace("red", "r\xe9d").encode("latin-1")),
        "UTF-8",
    ),
    "rows of different lengths": (csv(lambda t: t.replace("\n5,", "\n5,5,5,")), "x.csv"),
    "a column name twice": (csv(lambda t: t.replace("a,b,c", "a,a,c", 1)), "'a'"),
    "files with different columns": (_two_schemas, "2.parquet"),
    "a column that is not there": (
        roles(d="numeric"),
        "data.columns.d: the source has no such column",
    ),
    "no label column": (
        frame(lambda t: t.drop(columns="y")),
        "data.columns.y: the source has no such column",
    ),
    "a nested column": (_nested, "deep"),
    "an id twice": (frame(put("id", 7)), "each value once"),
    "a missing id": (frame(lambda t: t.assign(id=t["id"].where(t["id"] > 2))), "id"),
    "a missing label": (frame(lambda t: t.assign(y=t["y"].where(t["id"] > 2))), "y"),
    "labels missing everywhere": (frame(lambda t: t.assign(y=np.nan)), "y"),
    "one class": (frame(lambda t: t.assign(y=1)), "class"),
    "three classes": (frame(lambda t: t.assign(y=np.arange(ROWS) % 3)), "binary"),
    "text as a regression's label": (
        frame(lambda t: t.assign(y="high"), task={"kind": "regression"}),
        "y",
    ),
    "an infinite label": (
        frame(
            lambda t: t.assign(y=np.where(t["id"] > 2, t["a"], np.inf)), task={"kind": "regression"}
        ),
        "y",
    ),
    "a feature without values": (frame(lambda t: t.assign(a=np.nan)), "a"),
    "an infinite feature": (frame(lambda t: t.assign(a=t["a"].where(t["id"] > 2, np.inf))), "a"),
    "text in a column of numbers": (
        frame(
            lambda t: t.assign(a=t["a"].astype(str).where(t["id"] > 2, "n/k")),
            data={
                "uri": "x.parquet",
                "columns": {**declaration()["data"]["columns"], "a": "numeric"},
            },
        ),
        "a",
    ),
    "no feature": (roles(**{"*": "ignore"}), "feature"),
    "features that never vary": (frame(lambda t: t.assign(a=1.0, b=2.0, c="red")), "constant"),
    "times that are none": (frame(lambda t: t.assign(when="soon"), **BY_TIME), "when"),
    "a missing time": (
        frame(lambda t: t.assign(when=t["when"].where(t["id"] > 2)), **BY_TIME),
        "when",
    ),
    "one moment for all": (
        frame(lambda t: t.assign(when=pd.Timestamp("2024-01-01")), **BY_TIME),
        "time",
    ),
    "an embargo that leaves nothing": (
        declared(
            data={"uri": "x.parquet", "columns": TIME_ROLE},
            split={"kind": "time", "embargo": "900d"},
        ),
        "embargo",
    ),
    "a missing group": (
        frame(lambda t: t.assign(who=t["who"].where(t["id"] > 2)), **BY_GROUP),
        "who",
    ),
    "one group": (frame(lambda t: t.assign(who="p"), **BY_GROUP), "group"),
    "a negative weight": (
        frame(
            lambda t: t.assign(w=np.where(t["id"] > 2, 1.0, -1.0)),
            data={"uri": "x.parquet", "columns": WEIGHT_ROLE},
        ),
        "w",
    ),
    "weights of nothing": (
        frame(lambda t: t.assign(w=0.0), data={"uri": "x.parquet", "columns": WEIGHT_ROLE}),
        "w",
    ),
    "a side that does not exist": (
        frame(
            lambda t: t.assign(who="trian"),
            data={"uri": "x.parquet", "columns": SPLIT_ROLE},
            split={"kind": "predefined"},
        ),
        "trian",
    ),
    "no test side": (
        frame(
            lambda t: t.assign(who="train"),
            data={"uri": "x.parquet", "columns": SPLIT_ROLE},
            split={"kind": "predefined"},
        ),
        "test",
    ),
    "three rows": (frame(lambda t: t.head(3)), "row"),
    "a filter that is no SQL": (data(filter="a >>> 3 and"), "filter"),
    "a filter on a column that is not there": (data(filter="nothing > 3"), "nothing"),
    "a filter that leaves nothing": (data(filter="a > 1e9"), "filter"),
    "an own model of a package that is not allowed": (_own_model, "BULKHEAD_ALLOW_IMPORTS"),
    "an address that does not answer": (data(uri="http://127.0.0.1:9/x.parquet"), "127.0.0.1:9"),
    "an address in broken brackets": (data(uri="http://[::1"), "is no address"),
    "an address with a space": (data(uri="http://127.0.0.1:9/a b.csv"), "write it as %20"),
    "an address without end": (
        data(uri="http://127.0.0.1:9/" + "x" * 9000),
        "at most 4,096 characters",
    ),
    "an address without a host": (data(uri="http:///x.csv"), "expected a host name"),
    "a host of 70 letters": (data(uri=f"http://{'x' * 70}.com/x.csv"), "is no address"),
    "a path without end": (data(uri="x" * 5000 + ".csv"), "cannot be opened"),
    "a file:// address": (data(uri="file:///etc/passwd"), "expected a local path"),
    "an S3 endpoint that is none": (
        lambda f: (data(uri="s3://b/k.parquet")(f), os.environ.update(AWS_ENDPOINT_URL="nonsense"))[
            1
        ],
        "AWS_ENDPOINT_URL: expected the address",
    ),
    "credentials of two lines": (
        lambda f: (
            data(uri="http://127.0.0.1:9/x.csv")(f),
            os.environ.update(BULKHEAD_HTTP_AUTHORIZATION="hush\nhush"),
        )[1],
        "expected one line of plain ASCII",
    ),
    "NUL in a CSV header": (file(b"id,a\0b,y\n1,2,0\n"), "contains NUL"),
    "an expression of megabytes": (
        data(derive={"z": "+".join(["a"] * 100_000)}),
        "at most 100,000 characters",
    ),
    "an unknown kind of address": (data(uri="gopher://host/x.parquet"), "gopher"),
}
