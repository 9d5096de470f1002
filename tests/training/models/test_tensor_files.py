"""Files of tensors: what other programs write is read to the bit, what is damaged is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from schemas.errors import ConfigError
from training.models.tensor_files import DTYPES, read_tensor_file

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def safetensors(path: Path, tensors: dict[str, Tensor], **changes: Any) -> Path:
    """Write the format by its description; `changes` replace parts of the first entry."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    numbers = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        entry = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = entry | {"data_offsets": [len(numbers), len(numbers) + len(raw)]}
        numbers += raw
    header[next(iter(tensors))] |= changes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)
    return path


def tensors() -> dict[str, Tensor]:
    made = {str(dtype): (torch.randn(2, 3) * 50).to(dtype) for dtype in DTYPES.values()}
    return made | {"empty": torch.zeros(0, 4), "scalar": torch.tensor(2.5)}


def test_every_type_and_shape_is_read_to_the_bit(tmp_path: Path) -> None:
    wanted = tensors()
    found = read_tensor_file(safetensors(tmp_path / "a.safetensors", wanted))
    torch.save(wanted, tmp_path / "a.pt")
    for read in (found, read_tensor_file(tmp_path / "a.pt")):
        assert read.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor), name


def test_a_state_dict_is_found_where_training_programs_put_it(tmp_path: Path) -> None:
    for key in ("state_dict", "model"):
        torch.save({key: {"a": torch.ones(1)}, "epoch": 3}, tmp_path / "a.pt")
        assert list(read_tensor_file(tmp_path / "a.pt")) == ["a"]


@pytest.mark.parametrize(
    "changes",
    [
        {"data_offsets": [0, 4]},
        {"data_offsets": [0, 10**9]},
        {"data_offsets": [-8, 0]},
        {"shape": [-1, -6]},
        {"dtype": "F8"},
        {"shape": "x"},
    ],
)
def test_a_damaged_entry_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    path = safetensors(tmp_path / "a.safetensors", {"a": torch.ones(2, 3)}, **changes)
    with pytest.raises(ConfigError, match=r"cannot be read.*save it again"):
        read_tensor_file(path)


def test_other_files_are_refused_and_no_code_of_them_runs(tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "a.pt").write_bytes(pickle.dumps({"a": Planted()}))
    torch.save({"a": Planted()}, tmp_path / "b.pt")
    torch.save([torch.ones(1)], tmp_path / "c.pt")
    torch.save({"a": torch.ones(1), "lr": 0.1}, tmp_path / "d.pt")
    torch.save({}, tmp_path / "e.pt")
    (tmp_path / "f.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "g.safetensors").write_bytes(b"")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ConfigError, match=r"model.init.from"):
            read_tensor_file(path)
    assert not (tmp_path / "ran").exists()
