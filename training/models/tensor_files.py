"""Read tensors from files of other programs: safetensors, and state dicts that torch.save wrote.

Neither runs code of the file. A safetensors file is 8 bytes for the length of a header, the header
as JSON (`name: {dtype, shape, data_offsets}`), and the raw numbers, little-endian.

Source: https://github.com/huggingface/safetensors, section Format.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.errors import ConfigError, first_few

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MOST_HEADER = 100_000_000  # bytes; the format's own limit


def read_tensor_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name.

    Raises:
        ConfigError: it is damaged, or holds something else than tensors by name.
    """
    try:
        found = _safetensors(path) if path.suffix == ".safetensors" else _state_dict(path)
    except ConfigError:
        raise
    except Exception as error:  # a damaged file may raise any error
        raise ConfigError(
            f"model.init.from {path}: expected a file of tensors, it cannot be read"
            f" ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}); save it"
            " again with safetensors, or with torch.save(model.state_dict(), path)"
        ) from error
    if not found:
        raise ConfigError(f"model.init.from {path}: the file holds no tensor")
    return found


def _state_dict(path: Path) -> dict[str, Tensor]:
    loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):  # where training programs put it
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"model.init.from {path}: expected a state dict, got {type(loaded).__name__}; save"
            " model.state_dict()"
        )
    others = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        raise ConfigError(
            f"model.init.from {path}: expected tensors by name, {first_few(others)} are none; save"
            " model.state_dict() alone"
        )
    return {str(name): value.detach() for name, value in loaded.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    if sys.byteorder != "little":
        raise ConfigError(f"model.init.from {path}: safetensors are read on little-endian machines")
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(MOST_HEADER, len(content) - 8):
        raise ValueError(f"a header of {length} bytes in a file of {len(content)}")
    header, start = json.loads(content[8 : 8 + length]), 8 + length
    header.pop("__metadata__", None)
    return {
        str(name): _tensor(str(name), entry, memoryview(content)[start:])
        for name, entry in header.items()
    }


def _tensor(name: str, entry: dict[str, Any], numbers: memoryview) -> Tensor:
    dtype, shape = DTYPES.get(entry["dtype"]), [int(size) for size in entry["shape"]]
    if dtype is None:
        raise ValueError(f"{name} is {entry['dtype']}, which is not one of {', '.join(DTYPES)}")
    begin, end = entry["data_offsets"]
    expected = math.prod(shape) * dtype.itemsize
    inside = 0 <= begin <= end <= len(numbers) and min(shape, default=0) >= 0
    if not inside or end - begin != expected:
        raise ValueError(f"{name} has bytes {begin} to {end}, and {shape} needs {expected}")
    if expected == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(numbers[begin:end]), dtype=dtype).reshape(shape)
