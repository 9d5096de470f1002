"""The reader of exported programs: the numbers of torch's own loader to the bit, and nothing of a
hostile file runs.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.faults.watch import watched
from training.serving.exported_program import save_program
from training.serving.program_reader import read_program

Entries = dict[str, bytes]
Batch = dict[str, Tensor]


class Mixed(nn.Module):
    """Layers of many kinds, operators with several outputs, sizes in arithmetic, a part without
    gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.memory = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(10, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        )
        self.norm, self.image = nn.BatchNorm1d(10), nn.Conv1d(10, 4, 3, padding="same")
        self.words = nn.Embedding(7, 2)
        self.register_buffer("order", torch.tensor([1, 0]), persistent=False)
        # a view with strides and an offset
        self.register_buffer("window", torch.arange(12.0).reshape(3, 4).t()[1:])

    def forward(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            x = self.scale(batch["x"]) * 2
        h, _ = self.memory(x)
        h = self.norm(self.blocks(h).transpose(1, 2))
        first, second = self.image(h).transpose(1, 2).chunk(2, dim=-1)
        best = first.reshape(x.shape[0], -1).topk(3, dim=1)
        out = (
            second.sum(1)[:, self.order]
            + best.values.sum(1, keepdim=True)
            + self.window.sum() * x.shape[0]
        )
        return (out + self.words(batch["z"]).sum(1)).float().double()


class Doubled(nn.Module):
    """The smallest program."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, batch: Batch) -> Tensor:
        return batch["x"] * self.weight * 2


def rows(count: int) -> Batch:
    return {
        "x": torch.randn(count, 6, 4, dtype=torch.float64),
        "z": torch.randint(0, 7, (count, 5)),
    }


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "program.pt2"
    save_program(Doubled(), {"x": torch.ones(2, 3)}, path)
    return path


@pytest.mark.req("R1")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of attributes that recurrent layers set
def test_a_program_gives_the_bits_of_the_one_that_torch_loads(tmp_path: Path) -> None:
    torch.manual_seed(3)
    save_program(Mixed().double().eval(), rows(2), tmp_path / "program.pt2")
    ours, torchs = (
        read_program(tmp_path / "program.pt2"),
        torch.export.load(tmp_path / "program.pt2").module(),
    )
    for count in (2, 3, 1, 50):
        batch = rows(count)
        with torch.inference_mode():
            assert torch.equal(ours(batch), torchs(batch))
    with pytest.raises(ValueError, match="expected the inputs x, z, got x"):
        ours({"x": rows(2)["x"]})


# ------------------------------------------------------------------------------------------ hostile


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def as_torch(payload: object) -> bytes:
    file = io.BytesIO()
    torch.save(payload, file)
    return file.getvalue()


def change(entries: Entries, name: str, edit: Callable[[Any], object]) -> None:
    tree = json.loads(entries[name])
    edit(tree)
    entries[name] = json.dumps(tree).encode()


WEIGHTS, CONSTANTS, MODEL = (
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
    "models/model.json",
)


def pickled_weight(entries: Entries, bomb: Bomb) -> None:
    entries["data/weights/weight_0"] = as_torch(bomb)
    change(entries, WEIGHTS, lambda tree: tree["config"]["weight"].update(use_pickle=True))


def constant(kind: str) -> Callable[[Entries, Bomb], None]:
    def plant(entries: Entries, bomb: Bomb) -> None:
        entries[f"data/constants/{kind}_0"] = pickle.dumps(bomb)
        found = {
            "path_name": f"{kind}_0",
            "is_param": False,
            "use_pickle": True,
            "tensor_meta": None,
        }
        change(entries, CONSTANTS, lambda tree: tree["config"].update(planted=found))

    return plant


def entry(name: str) -> Callable[[Entries, Bomb], None]:
    return lambda entries, bomb: entries.update({name: as_torch(bomb)})


def graph(edit: Callable[[Any], object]) -> Callable[[Entries, Bomb], None]:
    return lambda entries, bomb: change(entries, MODEL, lambda tree: edit(tree["graph_module"]))


def target(name: str) -> Callable[[Entries, Bomb], None]:
    return graph(lambda g: g["graph"]["nodes"][0].update(target=name))


def argument(found: dict[str, Any]) -> Callable[[Entries, Bomb], None]:
    return graph(lambda g: g["graph"]["nodes"][0]["inputs"][0].update(arg=found))


def set_input(kind: str) -> Callable[[Entries, Bomb], None]:
    return graph(
        lambda g: g["signature"]["input_specs"].insert(
            0, {kind: {"arg": {"name": "p_weight"}, "custom_obj_name": "planted"}}
        )
    )


HOSTILE: dict[str, tuple[Callable[[Entries, Bomb], None], str]] = {
    "example inputs": (entry("data/sample_inputs/model.pt"), "holds pickled example inputs"),
    "a pickled weight": (
        pickled_weight,
        "'weight' is the pickle 'data/weights/weight_0', expected raw numbers",
    ),
    "weights of the old form": (
        entry("data/weights/model.pt"),
        "entry 'program/data/weights/model.pt' is none of a program's, or is a pickle",
    ),
    "constants of the old form": (
        entry("data/constants/model.pt"),
        "entry 'program/data/constants/model.pt' is none of",
    ),
    "a script object": (
        constant("custom_obj"),
        "entry 'program/data/constants/custom_obj_0' is none of",
    ),
    "an opaque object": (
        constant("opaque_obj"),
        "entry 'program/data/constants/opaque_obj_0' is none of",
    ),
    "a pickled constant": (
        constant("tensor"),
        "'planted' is the pickle 'data/constants/tensor_0', expected raw numbers",
    ),
    "compiled code": (entry("data/aotinductor/model/model.so"), "is none of a program's"),
    "a second model": (entry("models/other.json"), "is none of a program's"),
    "extra files": (entry("extra/readme"), "is none of a program's"),
    "an operator that writes": (
        target("torch.ops.aten.save.default"),
        "operator 'torch.ops.aten.save.default' is none that a program may use",
    ),
    "an operator that reads": (
        target("torch.ops.aten.from_file.default"),
        "expected torch.ops.aten operators that touch no file",
    ),
    "a function of torch": (target("torch.load"), "operator 'torch.load' is none"),
    "a way out of the operators": (
        target("torch.ops.aten.mul.__class__"),
        "is none that a program may use",
    ),
    "a loader of libraries": (target("torch.ops.load_library"), "is none that a program may use"),
    "a function of Python": (target("_operator.call"), "operator '_operator.call' is none"),
    "an extension": (target("#os:system"), "operator '#os:system' is none"),
    "a sub-program": (
        target("torch.ops.higher_order.cond"),
        "operator 'torch.ops.higher_order.cond' is none",
    ),
    "an object as argument": (
        argument({"as_custom_obj": {"name": "planted"}}),
        "an operator takes as_custom_obj",
    ),
    "a function as argument": (
        argument({"as_operator": "torch.load"}),
        "an operator takes as_operator 'torch.load'",
    ),
    "text to evaluate": (
        argument({"as_sym_int": {"as_expr": {"expr_str": "__import__('os').getpid()"}}}),
        "an operator takes as_expr",
    ),
    "another device": (
        argument({"as_device": {"type": "cuda", "index": 0}}),
        "an operator takes as_device",
    ),
    "an object as input": (set_input("custom_obj"), "an input of the graph is a custom_obj"),
    "another output": (
        graph(lambda g: g["signature"]["output_specs"].insert(0, {"buffer_mutation": {}})),
        "an output of the graph is a buffer_mutation",
    ),
    "another byte order": (
        lambda entries, bomb: entries.update(byteorder=b"big"),
        "byteorder is b'big', expected b'little'",
    ),
    "a deep graph": (
        lambda entries, bomb: entries.update({MODEL: b"[" * 100_000}),
        "cannot be read",
    ),
    "no graph": (
        lambda entries, bomb: entries.update({MODEL: b"{}"}),
        r"cannot be read \(KeyError: 'graph_module'",
    ),
    "a weight too short": (
        lambda entries, bomb: entries.update({"data/weights/weight_0": b"1234"}),
        "cannot be read",
    ),
}


def write(entries: Entries, path: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(f"program/{name}", content)
    return path


def entries_of(path: Path) -> Entries:
    with zipfile.ZipFile(path) as archive:
        return {name.removeprefix("program/"): archive.read(name) for name in archive.namelist()}


@pytest.mark.req("S1")
@pytest.mark.parametrize("fault", HOSTILE)
def test_what_no_program_of_ours_holds_is_refused_by_name_and_not_run(
    small: Path, tmp_path: Path, fault: str
) -> None:
    plant, message = HOSTILE[fault]
    mark, entries = tmp_path / "executed", entries_of(small)
    plant(entries, Bomb(mark))
    path = write(entries, tmp_path / "program.pt2")
    # Python imports the encoding of names in archives at the first one
    zipfile.ZipFile(path).close()
    with watched() as seen, pytest.raises(ValueError, match=message):
        read_program(path)
    assert seen.events == [] and not mark.exists()


@pytest.mark.req("S1")
def test_the_unchanged_entries_are_read(small: Path, tmp_path: Path) -> None:
    batch = {"x": torch.arange(6.0).reshape(2, 3)}
    assert torch.equal(
        read_program(write(entries_of(small), tmp_path / "program.pt2"))(batch), batch["x"] * 2
    )


@pytest.mark.req("S1")
def test_the_same_pickles_run_in_the_loader_of_torch(small: Path, tmp_path: Path) -> None:
    """Or the tests above prove nothing."""
    for fault in ("a pickled weight", "an opaque object"):
        mark, entries = tmp_path / fault, entries_of(small)
        HOSTILE[fault][0](entries, Bomb(mark))
        with suppress(Exception):  # whatever torch says of it afterwards
            torch.export.load(write(entries, tmp_path / "program.pt2"))
        assert mark.is_dir(), fault


@pytest.mark.req("S1")
def test_damaged_and_compressed_archives_are_refused(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    with pytest.raises(ValueError, match="is not stored as torch stores it"):
        read_program(write(entries_of(small), path, zipfile.ZIP_DEFLATED))
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(write(entries_of(small), path), "a") as archive,
    ):
        archive.writestr("program/models/model.json", "{}")
    with pytest.raises(ValueError, match="an entry is there twice"):
        read_program(path)
    path.write_bytes(small.read_bytes()[:500])
    with pytest.raises(
        ValueError,
        match=r"program.pt2: expected an exported program, it cannot be read \(BadZipFile",
    ):
        read_program(path)
    with pytest.raises(ValueError, match=r"cannot be read \(FileNotFoundError"):
        read_program(tmp_path / "absent.pt2")
