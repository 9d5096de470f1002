"""RDKit, which is optional: `pip install 'bulkhead[chem]'`."""

from __future__ import annotations

from schemas.errors import ConfigError


def require_rdkit(where: str) -> str:
    """Return RDKit's version.

    Raises:
        ConfigError: RDKit is not installed; names the key that asked for it.
    """
    try:
        from rdkit import __version__
    except ImportError:
        raise ConfigError(
            f"{where} needs RDKit, which is not installed; install it with: pip install"
            " 'bulkhead[chem]'"
        ) from None
    return str(__version__)
