"""Check that an output can be written before long work begins."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from schemas.errors import ConfigError, shortened


def require_room(path: str | Path, key: str) -> None:
    """Refuse a path where no file can be written; leave nothing behind.

    Args:
        path: path of the file; missing folders would be created.
        key: option or parameter that names it, for the message.

    Raises:
        ConfigError: the path is a folder or invalid, its name is too long, or its folder is not
            writable.
    """
    target, shown = Path(path).absolute(), shortened(str(path), plain=True)
    try:
        if target.is_dir():
            raise ConfigError(f"{key}: {shown} is a folder; name a file in it")
        if target.exists() and not target.is_file():  # not a regular file: it must not be replaced
            raise ConfigError(f"{key}: {shown} is a device, pipe or socket; name a file")
        folder = next(p for p in target.parents if p.exists())
        handle, probe = tempfile.mkstemp(prefix=f".{target.name}.", dir=folder)
        os.close(handle)
        Path(probe).unlink()
    except (OSError, UnicodeError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "its name is no text"
        )
        raise ConfigError(
            f"{key}: {shown!r} cannot be written ({reason}); name a file in a folder that you may"
            " write to"
        ) from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{key}: {shown!r} is no path ({error})") from None
