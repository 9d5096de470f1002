"""D1, S1: sources on an S3 store and a web server, real ones on loopback: fetched whole, refused
when changed, errors within seconds, no secret shown.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from schemas.errors import SourceError
from schemas.records import SourceRef
from tests.training.data.chain import declared, split_of, validated_of
from training.data.sources.remote import AUTHORIZATION
from training.data.sources.source import fingerprint, verify_source

ROWS = {"id": list(range(60)), "y": [i % 2 for i in range(60)], "x": [float(i) for i in range(60)]}
CSV = "id,y,x\n" + "".join(f"{i},{y},{x}\n" for i, y, x in zip(*ROWS.values(), strict=True))
BUCKET = "visits"


def parquet_bytes(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({**ROWS, **columns}), sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "home"))


# ----------------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    moto = pytest.importorskip(
        "moto.server",
        reason="the S3-compatible test server comes with the dev extra: pip install -e '.[dev]'",
    )
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> pafs.FileSystem:
    """The bucket, empty, and an environment that leads to it."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key-of-tests",
        "AWS_SECRET_ACCESS_KEY": "hush-hush-secret",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    store = pafs.S3FileSystem(
        endpoint_override=endpoint.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    store.create_dir(BUCKET)
    store.delete_dir_contents(BUCKET)
    return store


def put(store: pafs.FileSystem, key: str, content: bytes) -> None:
    with store.open_output_stream(f"{BUCKET}/{key}", compression=None) as file:
        file.write(content)


def test_an_s3_object_gives_the_table_of_the_same_local_file(
    store: pafs.FileSystem, tmp_path: Path
) -> None:
    content = parquet_bytes()
    put(store, "2024/a b.parquet", content)
    (tmp_path / "a.parquet").write_bytes(content)
    there = declared(f"s3://{BUCKET}/2024/a b.parquet")
    source = fingerprint(there.data)
    assert source.files[0].sha256 == hashlib.sha256(content).hexdigest()
    assert source.remote[0].num_bytes == len(content)
    assert source.remote[0].version.strip('"') != ""
    found, sides = split_of(there, tmp_path / "there")
    expected, wanted = split_of(declared(tmp_path / "a.parquet"), tmp_path / "here")
    assert found.table.file.sha256 == expected.table.file.sha256
    assert [sides.side(s).file.sha256 for s in ("train", "val", "test")] == [
        wanted.side(s).file.sha256 for s in ("train", "val", "test")
    ]


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("s3://visits/2024", ["a.parquet", "b.parquet", "c.parquet"]),
        ("s3://visits/2024/", ["a.parquet", "b.parquet", "c.parquet"]),
        ("s3://visits/2024/*.parquet", ["a.parquet", "b.parquet"]),
        ("s3://visits/*/[b-c].parquet", ["b.parquet"]),
        ("s3://visits/**/c.parquet", ["c.parquet"]),
    ],
)
def test_folders_and_globs_of_a_bucket(store: pafs.FileSystem, uri: str, names: list[str]) -> None:
    for number, name in enumerate(["a", "b", "deep/c"]):
        put(store, f"2024/{name}.parquet", parquet_bytes(id=[100 * number + i for i in range(60)]))
    put(store, "2024/_SUCCESS", b"")
    put(store, "2024/_temporary/d.parquet", b"half written")
    assert sorted(f.file.name for f in fingerprint(declared(uri).data).files) == names


def test_a_compressed_text_is_fetched_as_it_lies_there(
    store: pafs.FileSystem, tmp_path: Path
) -> None:
    put(store, "t.csv.gz", gzip.compress(CSV.encode(), mtime=0))
    assert validated_of(declared(f"s3://{BUCKET}/t.csv.gz"), tmp_path).table.rows == 60


def test_a_fetched_copy_is_used_again_while_object_and_copy_are_the_same(
    store: pafs.FileSystem,
) -> None:
    put(store, "t.parquet", parquet_bytes())
    data = declared(f"s3://{BUCKET}/t.parquet").data
    first = fingerprint(data)
    copy, written = first.files[0].file, first.files[0].file.stat().st_mtime_ns
    assert fingerprint(data) == first and copy.stat().st_mtime_ns == written, (
        "the second run downloads nothing"
    )
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    assert fingerprint(data) == first, (
        "a damaged copy is fetched again, never taken for another source"
    )
    put(store, "t.parquet", parquet_bytes(x=[1.5] * 60))
    assert fingerprint(data).sha256 != first.sha256


def test_an_object_that_changes_during_the_run_is_refused(
    store: pafs.FileSystem, tmp_path: Path
) -> None:
    put(store, "t.parquet", parquet_bytes())
    source = fingerprint(declared(f"s3://{BUCKET}/t.parquet").data)
    verify_source(source)
    put(store, "t.parquet", parquet_bytes(x=[2.5] * 60))
    with pytest.raises(
        SourceError,
        match=(
            r"s3://visits/t\.parquet: expected what was fetched .* but the source was changed"
            r" since; run again"
        ),
    ):
        verify_source(source)
    store.delete_file(f"{BUCKET}/t.parquet")
    with pytest.raises(SourceError, match=r"s3://visits/t\.parquet: no such file \(404\)"):
        verify_source(source)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://no-such-bucket/t.parquet", r"no such bucket|bucket 'no-such-bucket' does not exist"),
        (
            "s3://no-such-bucket/*.parquet",
            r"no such bucket; check data\.uri|bucket 'no-such-bucket' does not exist",
        ),
        (
            "s3://visits/none.parquet",
            r"expected data files, found none; the bucket 'visits' exists: check data\.uri",
        ),
        ("s3://visits/*.csv", r"expected data files, found none"),
        ("s3:///t.parquet", r"name the bucket"),
        (
            "s3://key:hush-hush-secret@visits/t.parquet",
            r"s3://…@visits: expected an address without user and password.*AWS_ACCESS_KEY_ID",
        ),
        (
            "gs://visits/t.parquet",
            r"expected a local path, s3:// or https://, got gs://; mount or copy the data",
        ),
    ],
)
def test_what_is_not_there_is_refused_within_seconds(
    store: pafs.FileSystem, uri: str, message: str
) -> None:
    refused(uri, message)


def refused(uri: str, message: str, seconds: float = 10) -> str:
    begun = time.monotonic()
    with pytest.raises(SourceError, match=message) as caught:
        fingerprint(declared(uri).data)
    assert time.monotonic() - begun < seconds
    assert "hush" not in str(caught.value), "a secret stands in the message"
    return str(caught.value)


def test_a_store_that_cannot_be_reached(
    store: pafs.FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    refused(
        "s3://visits/t.parquet",
        r"cannot be reached .*connection failed.*check the address, the network and"
        r" AWS_ENDPOINT_URL",
    )


def test_credentials_that_the_store_does_not_know(store: pafs.FileSystem, endpoint: str) -> None:
    put(store, "t.parquet", parquet_bytes())

    def unauthenticated_calls(number: bytes) -> None:
        request = urllib.request.Request(
            f"{endpoint}/moto-api/reset-auth", data=number, headers={"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(request).close()

    unauthenticated_calls(b"0")  # from now on the server asks who calls
    try:
        refused(
            "s3://visits/t.parquet",
            r"refuses access \(403\); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
        refused("s3://visits/*.parquet", r"refuses access \(403\)")
    finally:
        unauthenticated_calls(b"1000000000")


# --------------------------------------------------------------------------------------------- HTTP


class Files(BaseHTTPRequestHandler):
    """A server of `content` that knows ETag and Range, asks for `password`, and breaks off after
    `cut` bytes of each answer.
    """

    content, etag, password, cut = b"", '"1"', "", 1 << 40
    asked: list[str] = []

    def do_GET(self) -> None:
        of = type(self)
        of.asked.append(self.headers.get("Range") or "whole")
        if self.path == "/moved.csv":
            self.send_response(302)
            self.send_header("Location", "/t.csv")
            self.end_headers()
            return
        if self.path == "/teapot.csv" or (
            of.password and self.headers.get("Authorization") != of.password
        ):
            self.send_error(503 if self.path == "/teapot.csv" else 401)
            return
        begin = (
            int(self.headers["Range"][6:-1])
            if "Range" in self.headers and self.headers["If-Range"] == of.etag
            else 0
        )
        self.send_response(206 if begin else 200)
        self.send_header("ETag", of.etag)
        self.send_header("Content-Length", str(len(of.content) - begin))
        self.end_headers()
        self.wfile.write(of.content[begin : begin + of.cut])

    def log_message(self, *_: Any) -> None:
        pass


def serving(handler: Any) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def files() -> Iterator[tuple[str, type[Files]]]:
    handler = type("Handler", (Files,), {"content": CSV.encode(), "asked": []})
    for address in serving(handler):
        yield address, handler


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Python's own web server: no ETag, no ranges, the time of the last change alone."""
    (tmp_path / "www").mkdir()
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    for address in serving(partial(handler, directory=str(tmp_path / "www"))):
        yield address, tmp_path / "www"


def test_a_file_of_a_plain_web_server(plain: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = plain
    (folder / "t.parquet").write_bytes(parquet_bytes())
    declaration = declared(f"{address}/t.parquet")
    source = fingerprint(declaration.data)
    assert source.files[0].sha256 == hashlib.sha256(parquet_bytes()).hexdigest() and source.remote[
        0
    ].version.endswith("GMT")
    assert validated_of(declaration, tmp_path / "out").table.rows == 60
    (folder / "t.parquet").write_bytes(parquet_bytes(x=[None] * 60))
    with pytest.raises(
        SourceError, match=r"t\.parquet: expected what was fetched .* changed since; run again"
    ):
        verify_source(source)


def test_a_transfer_that_breaks_off_is_taken_up_where_it_ended(
    files: tuple[str, type[Files]],
) -> None:
    address, handler = files
    handler.cut = len(CSV) // 2 + 1
    source = fingerprint(declared(f"{address}/t.csv").data)
    assert source.files[0].sha256 == hashlib.sha256(CSV.encode()).hexdigest()
    assert handler.asked[1:] == ["whole", f"bytes={handler.cut}-"]


def test_a_transfer_that_breaks_off_again_and_again_is_refused(
    files: tuple[str, type[Files]], tmp_path: Path
) -> None:
    address, handler = files
    handler.cut = 10
    refused(
        f"{address}/t.csv",
        r"t\.csv: expected \d+ bytes, got 30; it is being changed or the connection breaks off; run"
        r" again",
    )
    assert not [p for p in (tmp_path / "home").rglob("*") if p.is_file()], (
        "nothing half-fetched stays"
    )


def test_credentials_for_a_web_server(
    files: tuple[str, type[Files]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, handler = files
    handler.password = "Bearer hush-hush"
    refused(
        f"{address}/t.csv",
        r"t\.csv: the server refuses access \(401\); set BULKHEAD_HTTP_AUTHORIZATION in the"
        r" environment",
    )
    monkeypatch.setenv(AUTHORIZATION, handler.password)
    source = fingerprint(declared(f"{address}/t.csv").data)
    assert "hush" not in SourceRef.model_dump_json(source)
    # a redirect is not given the credentials
    refused(f"{address}/moved.csv", r"moved\.csv: the server refuses access \(401\)")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/teapot.csv", r"the server answered 503; try again later"),
        (
            "/",
            (
                r"a web server cannot be asked what a folder or glob holds; list its files in"
                r" data\.uri"
            ),
        ),
        ("/*.csv", r"a web server cannot be asked"),
        ("/t.csv?X-Amz-Signature=hush", r"/t\.csv: the parameter 'X-Amz-Signature' is a secret"),
        (
            "/t.csv?token=hush&v=1",
            (
                r"the parameter 'token' is a secret that would appear in logs; set"
                r" BULKHEAD_HTTP_AUTHORIZATION"
            ),
        ),
    ],
)
def test_what_a_web_server_cannot_give(
    files: tuple[str, type[Files]], path: str, message: str
) -> None:
    refused(files[0] + path, message)


def test_what_is_not_on_a_web_server(plain: tuple[str, Path]) -> None:
    refused(f"{plain[0]}/none.csv", r"none\.csv: no such file \(404\); check data\.uri")
    refused(
        "http://127.0.0.1:1/t.csv", r"cannot be reached or the connection broke off \(.*refused\)"
    )
    refused("https://bulkhead.invalid/t.csv", r"cannot be reached")
    refused(
        "http://ann:hush@127.0.0.1/t.csv",
        r"http://…@127\.0\.0\.1: expected an address without user and password",
    )
