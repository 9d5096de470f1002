"""Variables of the environment in a declaration: `${NAME}` and `${NAME:-default}`, for allowed
names.
"""

from __future__ import annotations

import os
import re

from schemas.errors import ConfigError, shortened

LISTED = "BULKHEAD_EXPAND"
OURS = "BULKHEAD_"
KNOWN = ("HOME", "TMPDIR")
MASK = "***"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SECRET = re.compile(
    r"SECRET|TOKEN|PASS|PWD|CREDENTIAL|AUTH|SIGNATURE|PRIVATE|COOKIE|SALT|(^|_)(PW|PAT|DSN|POSTGRES|CERT|JWT|SAS)(_|$)"
    r"|(^|_)KEYS?(_?ID)?(_|$)|CONNECTION_?(URL|STRING)|DATABASE_?UR[IL]|(API|ACCESS|ACCOUNT|SHARED|SSH|SIGNING|ENCRYPTION)_?KEY",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return True if a variable's name means a secret.

    >>> (is_secret("AWS_SECRET_ACCESS_KEY"), is_secret("BULKHEAD_HTTP_AUTHORIZATION"),
    ...     is_secret("BULKHEAD_DATA"))
    (True, True, False)
    """
    return _SECRET.search(name) is not None


def listed_names() -> tuple[str, ...]:
    """Return the names that the operator allows besides Bulkhead's."""
    return tuple(name.strip() for name in os.environ.get(LISTED, "").split(",") if name.strip())


def expand(text: str, secrets: bool = False) -> str:
    """Replace `${NAME}` and `${NAME:-default}` from the environment.

    Allowed are names that begin with BULKHEAD_, HOME, TMPDIR and those in BULKHEAD_EXPAND. A name
    that means a secret needs both: `secrets` is true and BULKHEAD_EXPAND lists it.

    Args:
        text: text of the declaration.
        secrets: the result is masked wherever it is shown (see `without_secrets`).

    Raises:
        ConfigError: a name is not allowed, or is not set and has no default.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        _require_allowed(name, secrets)
        found = os.environ.get(name, match[2])
        if found is None:
            raise ConfigError(
                f"{shortened(text, plain=True)}: environment variable {name} is not set; set it, or"
                f" write ${{{name}:-default}}"
            )
        return found

    return _VARIABLE.sub(value, text)


def _require_allowed(name: str, secrets: bool) -> None:
    listed = name in listed_names()
    if is_secret(name) and not (secrets and listed):
        instead = f"name it in {LISTED}, or set" if secrets else "set"
        raise ConfigError(
            f"${{{name}}}: the variable's name says that it is a secret, which would be sent and"
            f" logged with the address; {instead} the credentials that the server's client reads"
            " itself (docs/data-sources.md)"
        )
    if not (listed or name.startswith(OURS) or name in KNOWN):
        raise ConfigError(
            f"${{{shortened(name, plain=True)}}}: only variables named {OURS}…, {', '.join(KNOWN)}"
            f" and those in {LISTED} are expanded in a declaration; call it"
            f" {OURS}{shortened(name, plain=True)}, or set {LISTED}={shortened(name, plain=True)}"
            " where the run is started"
        )


def without_secrets(text: str) -> str:
    """Replace the values of the secrets that BULKHEAD_EXPAND allows with `***`."""
    values = (os.environ.get(name, "") for name in listed_names() if is_secret(name))
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK) if len(value) > 3 else text
    return text
