"""Sources on an S3 store or a web server, fetched once into the Bulkhead home.

They are refused if they changed since. Every step reads the fetched copy, so a slow or failing
network shows in the first step and nowhere else. A copy is kept under its address and version
(ETag, else the time of the last change, with the size). It is used again only if its SHA-256 is
still that of the fetched bytes. Credentials come from the environment and are in no message.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pyarrow.fs as pafs

from schemas.confinement import HOSTS, is_listed, require_source
from schemas.digest import replacing, sha256_file, write_atomic
from schemas.errors import SourceError, first_few, shortened
from schemas.home import home
from schemas.records import RemoteFile

AUTHORIZATION = "BULKHEAD_HTTP_AUTHORIZATION"
GLOB = frozenset("*?[")
SECRETS = re.compile(
    r"[?&]([\w-]*(?:signature|token|secret|password|passwd|credential|api_?key|sig|key)[\w-]*)=",
    re.IGNORECASE,
)
CHUNK = 1 << 20
TIMEOUT_SECONDS = 10.0
MAX_ADDRESS = 4096  # characters
ATTEMPTS = 3  # to get the rest of a file after an interrupted transfer
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Found(NamedTuple):
    """Remote file as its server describes it: address, version, size.

    The version is empty and the size absent if the server does not report them.
    """

    uri: str
    version: str
    num_bytes: int | None


def is_remote(uri: str) -> bool:
    """Return True if a URI is not a path of this machine.

    >>> is_remote("s3://visits/2024"), is_remote("data/visits.parquet")
    (True, False)
    """
    return "://" in uri


def fetch(uri: str, is_data: Callable[[Path], bool]) -> list[RemoteFile]:
    """Return the files that a remote URI names, each as a whole local copy.

    Args:
        uri: `s3://bucket/key`, `s3://bucket/folder`, `s3://bucket/folder/*.parquet`, or
            `https://host/file`.
        is_data: True if a file found in a folder counts, by its name.

    Raises:
        SourceError: the address is of another kind or holds a secret, nothing is there, or the
            server refuses or cannot be reached.
    """
    _refuse_malformed(uri)
    _refuse_secrets(uri)
    require_source(uri)
    try:
        return [_fetched(found) for found in _found(uri, is_data)]
    except (OSError, HTTPException) as error:
        raise _refused(uri, error) from error
    except UnicodeError as error:  # a host name with a label that is empty or too long
        raise SourceError(
            f"{shortened(uri, plain=True)}: is no address ({error}); check data.uri"
        ) from None


def verify_remote(files: tuple[RemoteFile, ...]) -> None:
    """Refuse remote files that differ from the fetched ones.

    Files without a version can only be compared in size.

    Raises:
        SourceError: a file is gone, or its version or size differs.
    """
    for file in files:
        require_source(file.uri)
        try:
            now = _described(file.uri)
        except (OSError, HTTPException) as error:
            raise _refused(file.uri, error) from error
        if now.version != file.version or (
            now.num_bytes is not None and now.num_bytes != file.num_bytes
        ):
            then = f"version {file.version or 'unknown'}, {file.num_bytes:,} bytes"
            raise SourceError(
                f"{file.uri}: expected what was fetched ({then}), but the source was changed since;"
                " run again"
            )


def _found(uri: str, is_data: Callable[[Path], bool]) -> Iterator[Found]:
    scheme = urlsplit(uri).scheme
    if scheme == "s3":
        yield from _listed(uri, is_data)
    elif scheme in ("http", "https"):
        if GLOB & set(urlsplit(uri).path) or uri.endswith("/"):
            raise SourceError(
                f"{uri}: a web server cannot be asked what a folder or glob holds; list its files"
                " in data.uri, each with its whole address"
            )
        yield _described(uri)
    else:
        raise SourceError(
            f"{uri}: expected a local path, s3:// or https://, got {scheme}://; mount or copy the"
            " data, or use the S3-compatible address of the store (AWS_ENDPOINT_URL)"
        )


def _described(uri: str) -> Found:
    return _s3_described(uri) if uri.startswith("s3://") else _http_described(uri)


def _fetched(found: Found) -> RemoteFile:
    """Return the local copy; reuse one that is whole and of this version."""
    name = Path(unquote(urlsplit(found.uri).path)).name or "data"
    digits = hashlib.sha256(
        f"{found.uri}\n{found.version}\n{found.num_bytes}".encode()
    ).hexdigest()[:20]
    copy, told = home() / "sources" / digits / name, home() / "sources" / digits / f".{name}.sha256"
    if not (
        found.version
        and copy.is_file()
        and told.is_file()
        and sha256_file(copy) == told.read_text()
    ):
        with replacing(copy) as file:
            (_s3_copy if found.uri.startswith("s3://") else _http_copy)(found, file)
            size = file.tell()
        if found.num_bytes is not None and size != found.num_bytes:
            copy.unlink()
            raise SourceError(
                f"{found.uri}: expected {found.num_bytes:,} bytes, got {size:,}; it is being"
                " changed or the connection breaks off; run again"
            )
        write_atomic(told, sha256_file(copy))
    return RemoteFile(
        uri=found.uri, version=found.version, num_bytes=copy.stat().st_size, path=str(copy)
    )


def _s3() -> pafs.S3FileSystem:
    """Return the store that the environment names; time-outs are short, because a person waits."""
    options: dict[str, Any] = {
        "connect_timeout": TIMEOUT_SECONDS / 2,
        "request_timeout": TIMEOUT_SECONDS,
    }
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        address = _endpoint(endpoint)
        options |= {
            "endpoint_override": address.netloc + address.path.rstrip("/"),
            "scheme": address.scheme,
        }
    region = (
        os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or ("us-east-1" if endpoint else None)
    )
    return pafs.S3FileSystem(
        region=region, retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=2), **options
    )


def _endpoint(text: str) -> SplitResult:
    """Return the parts of an address of an S3-compatible store.

    Raises:
        SourceError: it is none; credentials that it may hold are not shown.
    """
    try:
        address = urlsplit(text)
        if (
            address.scheme in ("http", "https")
            and address.hostname
            and address.port != 0
            and "@" not in address.netloc
            and text.isprintable()
        ):
            return address
    except ValueError:
        pass
    raise SourceError(
        "AWS_ENDPOINT_URL: expected the address of an S3 store without user and password, e.g."
        " https://minio.example:9000; set it right, or unset it"
    )


def _listed(uri: str, is_data: Callable[[Path], bool]) -> Iterator[Found]:
    """List the objects that an S3 URI names: one, a folder's at any depth, or a glob's."""
    path, store = uri.removeprefix("s3://").rstrip("/"), _s3()
    bucket, _, key = path.partition("/")
    if not bucket:
        raise SourceError(f"{uri}: expected s3://bucket/key; name the bucket")
    kind = (
        store.get_file_info(path).type if key and not GLOB & set(key) else pafs.FileType.Directory
    )
    if kind == pafs.FileType.File:
        yield _s3_described(uri)
        return
    parts = path.split("/")
    plain = parts[: next((i for i, part in enumerate(parts) if GLOB & set(part)), len(parts))]
    names = [
        i.path
        for i in store.get_file_info(
            pafs.FileSelector("/".join(plain), allow_not_found=True, recursive=True)
        )
        if i.is_file
    ]
    if len(plain) < len(parts):
        names = [n for n in names if _matches(n.split("/"), parts)]
    else:
        hidden = len(plain)
        names = [
            n
            for n in names
            if is_data(Path(n))
            and not any(part.startswith((".", "_")) for part in n.split("/")[hidden:])
        ]
    if not names:
        there = (
            "exists"
            if store.get_file_info(bucket).type != pafs.FileType.NotFound
            else "does not exist"
        )
        raise SourceError(
            f"{uri}: expected data files, found none; the bucket {bucket!r} {there}: check data.uri"
        )
    for name in sorted(names):
        yield _s3_described(f"s3://{name}")


def _matches(parts: list[str], patterns: list[str]) -> bool:
    """Return True if each part of a path matches that of a glob; `**` matches any number of parts.

    >>> (_matches(["b", "2024", "a.csv"], ["b", "*", "*.csv"]),
    ...     _matches(["b", "2024", "a.csv"], ["b", "*.csv"]))
    (True, False)
    """
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return _matches(parts, patterns[1:]) or (bool(parts) and _matches(parts[1:], patterns))
    return (
        bool(parts)
        and fnmatch.fnmatchcase(parts[0], patterns[0])
        and _matches(parts[1:], patterns[1:])
    )


def _s3_described(uri: str) -> Found:
    with _s3().open_input_stream(uri.removeprefix("s3://"), compression=None) as stream:
        told = {k.lower(): v.decode() for k, v in stream.metadata().items()}
    size = told.get("content-length")
    return Found(
        uri,
        told.get("etag") or told.get("last-modified", ""),
        int(size) if size is not None else None,
    )


def _s3_copy(found: Found, file: BinaryIO) -> None:
    with _s3().open_input_stream(found.uri.removeprefix("s3://"), compression=None) as stream:
        shutil.copyfileobj(stream, file, CHUNK)
    if _s3_described(found.uri) != found:
        raise SourceError(f"{found.uri}: the object was changed while it was read; run again")


def _request(uri: str, **headers: str) -> Request:
    """Return a request with the credentials of the environment.

    They are sent only over TLS or to this machine, and a redirect never passes them on.
    """
    request = Request(uri, headers=headers)  # noqa: S310 - the scheme is http or https, see _found
    credentials = os.environ.get(AUTHORIZATION)
    # the value is shown nowhere
    if credentials and not (credentials.isascii() and credentials.isprintable()):
        raise SourceError(
            f"{AUTHORIZATION}: expected one line of plain ASCII, e.g. 'Bearer …' with the token;"
            " set it again without line breaks"
        )
    if credentials and (urlsplit(uri).scheme == "https" or urlsplit(uri).hostname in LOOPBACK):
        request.add_unredirected_header("Authorization", credentials)
    return request


class _SameHost(HTTPRedirectHandler):
    """Follow a redirect only on the same host, or to one that BULKHEAD_HTTP_HOSTS lists.

    It is never followed from TLS to plain text.
    """

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the redirected request, or refuse the redirect."""
        here, there = urlsplit(req.full_url), urlsplit(newurl)
        if there.scheme not in ("http", "https") or (here.scheme, there.scheme) == (
            "https",
            "http",
        ):
            raise SourceError(
                f"{req.full_url}: the server redirects to {there.scheme}://, which is not read;"
                " give the file's own address"
            )
        if there.hostname != here.hostname and not is_listed(newurl):
            raise SourceError(
                f"{req.full_url}: the server redirects to another host, {there.hostname}; give the"
                f" file's own address there, or name the host in {HOSTS}"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opened(request: Request) -> Any:
    """Return the server's answer; credentials of the environment stay with their host."""
    return build_opener(_SameHost()).open(request, timeout=TIMEOUT_SECONDS)


def _http_described(uri: str) -> Found:
    """Return the description in the head of an answer.

    The body is left unread, because not every server knows HEAD.
    """
    with _opened(_request(uri)) as answer:
        return _told(uri, answer)


def _told(uri: str, answer: Any) -> Found:
    size = answer.headers.get("Content-Length")
    return Found(
        uri,
        answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "",
        int(size) if size is not None else None,
    )


def _http_copy(found: Found, file: BinaryIO) -> None:
    """Return the file's bytes; resume an interrupted transfer where it ended.

    This needs a server that can do it and an unchanged file.
    """
    for attempt in range(ATTEMPTS):
        have = file.tell()
        resume = {"Range": f"bytes={have}-", "If-Range": found.version} if have else {}
        try:
            with _opened(_request(found.uri, **resume)) as answer:
                if answer.status != 206:  # the whole file from its beginning
                    if _told(found.uri, answer) != found:
                        raise SourceError(
                            f"{found.uri}: the file was changed while it was read; run again"
                        )
                    file.seek(0)
                    file.truncate()
                shutil.copyfileobj(answer, file, CHUNK)
        except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
            if isinstance(error, HTTPError) or attempt == ATTEMPTS - 1:
                raise
        if (
            found.num_bytes is None
            or file.tell() >= found.num_bytes
            or not found.version
            or found.version.startswith("W/")
        ):
            return


def _refuse_malformed(uri: str) -> None:
    """Refuse malformed addresses: each library would fail on them in another way."""
    shown = shortened(uri, plain=True)
    if len(uri) > MAX_ADDRESS:
        raise SourceError(
            f"{shown}: expected an address of at most {MAX_ADDRESS:,} characters; check data.uri"
        )
    web = uri.lower().startswith("http")
    if bad := next(
        (
            c
            for c in uri
            if ord(c) < 32 or "\ud800" <= c <= "\udfff" or (web and not "!" <= c <= "~")
        ),
        None,
    ):
        raise SourceError(
            f"{shown!r}: expected an address without the character {bad!r}; {_escaped(bad)}check"
            " data.uri"
        )
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise SourceError(f"{shown}: is no address ({error}); check data.uri") from None
    if parts.scheme in ("http", "https") and (
        port == 0 or not parts.netloc.rpartition("@")[2].partition(":")[0]
    ):
        raise SourceError(
            f"{shown}: expected a host name (and a port from 1 to 65535) after {parts.scheme}://;"
            " check data.uri"
        )
    if not uri.startswith(parts.scheme):
        raise SourceError(f"{shown}: expected {parts.scheme}:// in small letters; check data.uri")


def _escaped(character: str) -> str:
    try:
        return f"write it as {quote(character)}, or "
    except UnicodeError:  # a lone surrogate
        return ""


def _refuse_secrets(uri: str) -> None:
    """Refuse addresses with a password, a token or a signature, because the run logs them."""
    if "@" in urlsplit(uri).netloc:
        name = uri.split("://", maxsplit=1)[0] + "://…@" + urlsplit(uri).netloc.rpartition("@")[2]
        raise SourceError(
            f"{name}: expected an address without user and password, which would appear in logs;"
            f" {_credentials(uri)}"
        )
    secret = SECRETS.search(uri)
    if secret:
        raise SourceError(
            f"{uri.split('?', maxsplit=1)[0]}: the parameter {secret[1]!r} is a secret that would"
            f" appear in logs; {_credentials(uri)}"
        )


def _credentials(uri: str) -> str:
    if uri.startswith("s3://"):
        return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) in the environment"
    return f"set {AUTHORIZATION} in the environment, e.g. to 'Bearer …'"


def _refused(uri: str, error: Exception) -> SourceError:
    """Return the error of a server or the network in one sentence, with what to do."""
    text = str(error)
    status = (
        error.code
        if isinstance(error, HTTPError)
        else next((int(n) for n in re.findall(r"HTTP status (\d{3})", text)), 0)
    )
    if "NO_SUCH_BUCKET" in text:
        return SourceError(
            f"{uri}: no such bucket; check data.uri, and AWS_REGION or AWS_ENDPOINT_URL"
        )
    if status in (401, 403) or re.search(
        "ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|TOKEN_REFRESH|INVALID_CLIENT_TOKEN",
        text,
    ):
        return SourceError(
            f"{uri}: the server refuses access ({status or 403}); {_credentials(uri)}"
        )
    if status == 404 or isinstance(error, FileNotFoundError):
        return SourceError(f"{uri}: no such file (404); check data.uri")
    if status:
        return SourceError(
            f"{uri}: the server answered {status}; try again later, or copy the file and give its"
            " path"
        )
    reason = (
        "connection failed"
        if "NETWORK_CONNECTION" in text
        else first_few([getattr(error, "reason", None) or error])
    )
    return SourceError(
        f"{uri}: the server cannot be reached or the connection broke off ({reason}); check the"
        " address, the network and AWS_ENDPOINT_URL or proxies"
    )
