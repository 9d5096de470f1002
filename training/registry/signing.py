"""Signing key of a home for the versions that it registers, and the keys that it trusts.

`keys/signing.pem` in the home (Ed25519, mode 0600) is created when the first version is registered
and never leaves the home. `BULKHEAD_TRUSTED_KEYS` contains public keys of a team's other homes, as
`bulkhead doctor` prints them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.errors import ConfigError
from schemas.home import home

TRUSTED = "BULKHEAD_TRUSTED_KEYS"
KIND = "ed25519:"
CONTEXT = (  # a signature by this key of other content is not one of a manifest
    b"bulkhead model manifest 1\n"
)


def key_folder() -> Path:
    """Return `keys` of the home, readable by its owner only; create it when absent."""
    folder = home() / "keys"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def own_key() -> str | None:
    """Return the public key of this home; None if it has registered nothing yet."""
    path = home() / "keys" / "signing.pem"
    return _public(_private(path)) if path.exists() else None


def create_key() -> str:
    """Return the public key of this home; one of two processes at once creates it."""
    path = key_folder() / "signing.pem"
    if not path.exists():
        kind, form, plain = (
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        pem = Ed25519PrivateKey.generate().private_bytes(kind, form, plain)
        handle, name = tempfile.mkstemp(prefix=".signing.", dir=path.parent)  # mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(name, path)  # fails if another process was first
        except FileExistsError:
            pass
        finally:
            Path(name).unlink()
    return _public(_private(path))


def sign(content: bytes) -> tuple[str, str]:
    """Sign with the home's key, created when absent.

    Returns:
        The public key and the signature, as text.
    """
    create_key()
    key = _private(key_folder() / "signing.pem")
    return _public(key), base64.b64encode(key.sign(CONTEXT + content)).decode()


def is_signed(content: bytes, key: str, signature: str) -> bool:
    """Return True if the signature of the content is valid for the public key."""
    try:
        _public_key(key).verify(base64.b64decode(signature, validate=True), CONTEXT + content)
    except (InvalidSignature, ValueError):
        return False
    return True


def trusted_keys() -> dict[str, str]:
    """Return the public keys that this home trusts, with their owners.

    Raises:
        ConfigError: `BULKHEAD_TRUSTED_KEYS` contains something other than public keys.
    """
    keys = {}
    for text in os.environ.get(TRUSTED, "").replace(",", " ").split():
        try:
            _public_key(text)
        except ValueError as error:
            raise ConfigError(
                f"{TRUSTED}: expected public keys such as ed25519:…= with commas between them, got"
                f" {text[:60]!r} ({error}); bulkhead doctor prints the key of a home"
            ) from None
        keys[text] = f"a key of {TRUSTED}"
    own = own_key()
    return keys if own is None else keys | {own: "this home's key"}


def fingerprint(key: str) -> str:
    """Return the short name of a public key, for people."""
    return "SHA256:" + hashlib.sha256(key.encode()).hexdigest()[:16]


def _private(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path}: expected the home's Ed25519 key, it cannot be read"
            f" ({str(error).splitlines()[0]}); restore it, or move it away: the next registration"
            " makes another, and versions of the old one need it in BULKHEAD_TRUSTED_KEYS"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path}: expected an Ed25519 key, got {type(key).__name__}; restore it from a copy"
        )
    return key


def _public(key: Ed25519PrivateKey) -> str:
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return KIND + base64.b64encode(raw).decode()


def _public_key(text: str) -> Ed25519PublicKey:
    """Return the key in a text.

    Raises:
        ValueError: the text is not a key.
    """
    if not text.startswith(KIND):
        raise ValueError(f"it does not begin with {KIND}")
    return Ed25519PublicKey.from_public_bytes(
        base64.b64decode(text.removeprefix(KIND), validate=True)
    )
