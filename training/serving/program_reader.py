"""Read an exported program (`program.pt2`) without unpickling anything, and run its graph.

`torch.export.load` unpickles parts of the file and evaluates text in it. This reader takes a closed
list of entries, weights as raw bytes, and the graph as JSON of ATen operators; it refuses
everything else by name. It is shipped with the model next to `serving.py`. It therefore imports
only torch's public names and the standard library.

The graph's operators are called in order with their arguments, like the module that
`torch.export.load` would build: the numbers are equal bit for bit.
"""

from __future__ import annotations

import json
import math
import operator
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Json = dict[str, Any]
Values = dict[str, Any]  # values of a running graph, by name

MODEL, EXAMPLES = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS, CONSTANTS = (
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
)
FIXED = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": sys.byteorder.encode()}
ENTRY = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|\.data/(version|serialization_id)"
)

# enum numbers of the archive's schema
DTYPES = {
    **dict(enumerate((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), start=1)),
    **dict(enumerate((torch.float16, torch.float32, torch.float64), start=6)),
    **dict(enumerate((torch.complex32, torch.complex64, torch.complex128), start=9)),
    12: torch.bool,
    13: torch.bfloat16,
}
LAYOUTS = {7: torch.strided}
MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
PLAIN = {"as_int": int, "as_float": float, "as_bool": bool, "as_string": str}
PLAIN_LISTS = {"as_ints": int, "as_floats": float, "as_bools": bool, "as_strings": str}
# on sizes, which are plain numbers here
ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pow")
COMPARISON = ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_")
ON_SIZES: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in ARITHMETIC + COMPARISON},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    **{
        f"torch.sym_{n}": getattr(torch, f"sym_{n}")
        for n in ("max", "min", "int", "float", "not", "ite")
    },
}
OPERATOR = type(torch.ops.aten.add.Tensor)
WITH_GRADIENTS = (  # of a part under torch.no_grad
    "torch.ops.higher_order.wrap_with_set_grad_enabled"
)


def read_program(path: str | Path) -> Callable[[dict[str, Tensor]], Tensor]:
    """Return the function of one batch in the file.

    Args:
        path: a file that `torch.export.save` wrote without example inputs.

    Raises:
        ValueError: the file is damaged, or contains an entry, object or operator that is not
            allowed.
    """
    try:
        entries = _entries(path)
        program = json.loads(entries[MODEL])["graph_module"]
        tensors = _tensors(entries, WEIGHTS) | _tensors(entries, CONSTANTS)
        return _Program(program, tensors)
    except _Refused as error:
        raise ValueError(f"{path}: {error}; nothing of it was run") from None
    except Exception as error:  # any error of a damaged archive or graph
        found = f"{type(error).__name__}: {str(error)[:200]}"
        raise ValueError(
            f"{path}: expected an exported program, it cannot be read ({found}); fetch the model"
            " again, or register it again"
        ) from error


class _Refused(Exception):
    """An object that is not allowed in a program."""


# ------------------------------------------------------------------------------------------ archive


def _entries(path: str | Path) -> dict[str, bytes]:
    """Return the content of each entry of the archive by its name, without the archive's folder."""
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        folder = infos[0].filename.partition("/")[0] + "/"
        names = [info.filename.removeprefix(folder) for info in infos]
        if len(set(names)) < len(names):
            raise _Refused("an entry is there twice")
        for info, name in zip(infos, names, strict=True):
            if not info.filename.startswith(folder) or info.compress_type != zipfile.ZIP_STORED:
                raise _Refused(f"entry {info.filename!r} is not stored as torch stores it")
            if name not in (MODEL, EXAMPLES, WEIGHTS, CONSTANTS, *FIXED) and not ENTRY.fullmatch(
                name
            ):
                raise _Refused(f"entry {info.filename!r} is none of a program's, or is a pickle")
        entries = {name: archive.read(info) for info, name in zip(infos, names, strict=True)}
    for name, expected in FIXED.items():
        if entries[name] != expected:
            raise _Refused(f"{name} is {entries[name][:20]!r}, expected {expected!r}")
    if entries[EXAMPLES]:
        raise _Refused(f"entry {EXAMPLES!r} holds pickled example inputs")
    return entries


def _tensors(entries: Mapping[str, bytes], config: str) -> dict[str, Tensor]:
    """Read weights or constants by name from raw bytes; tensors that share bytes in the file also
    share memory.
    """
    folder, stored, tensors = config.rpartition("/")[0], dict[str, Tensor](), dict[str, Tensor]()
    for name, entry in json.loads(entries[config])["config"].items():
        path, meta = f"{folder}/{entry['path_name']}", entry["tensor_meta"]
        if entry["use_pickle"] or meta is None or not ENTRY.fullmatch(path):
            raise _Refused(f"{name!r} is the pickle {path!r}, expected raw numbers")
        dtype = DTYPES[meta["dtype"]]
        if path not in stored:  # align the copy like torch's own memory
            content = bytearray(entries[path])
            stored[path] = (
                torch.frombuffer(content, dtype=dtype).clone()
                if content
                else torch.empty(0, dtype=dtype)
            )
        sizes, strides = ([s["as_int"] for s in meta[key]] for key in ("sizes", "strides"))
        tensors[name] = torch.as_strided(
            stored[path], sizes, strides, meta["storage_offset"]["as_int"]
        )
    return tensors


# -------------------------------------------------------------------------------------------- graph


class _Program:
    """A graph with its weights, as a function of one batch."""

    def __init__(self, program: Json, tensors: Mapping[str, Tensor]) -> None:
        self.graph = _Graph(program["graph"])
        self.state, names = dict[str, Tensor](), []
        for spec in program["signature"]["input_specs"]:
            ((kind, found),) = spec.items()
            if kind == "user_input":
                names.append(found["arg"]["as_tensor"]["name"])
            elif kind in ("parameter", "buffer", "tensor_constant"):
                self.state[found["arg"]["name"]] = tensors[found[f"{kind}_name"]]
            else:
                raise _Refused(f"an input of the graph is a {kind}")
        for spec in program["signature"]["output_specs"]:
            if [*spec] != ["user_output"]:
                raise _Refused(f"an output of the graph is a {next(iter(spec))}")
        self.keys = dict(
            zip(_keys(program["module_call_graph"][0]["signature"]["in_spec"]), names, strict=True)
        )

    def __call__(self, batch: dict[str, Tensor]) -> Tensor:
        if batch.keys() != self.keys.keys():
            raise ValueError(
                f"expected the inputs {', '.join(sorted(self.keys))}, got"
                f" {', '.join(sorted(batch))}"
            )
        (found,) = self.graph.run(
            self.state | {self.keys[key]: tensor for key, tensor in batch.items()}
        )
        return found


def _keys(in_spec: str) -> list[str]:
    """Return the keys of the program's single dict of tensors."""
    arguments = json.loads(in_spec)[1]["children_spec"]
    (batch,) = arguments[0]["children_spec"]
    if batch["type"] != "builtins.dict" or arguments[1]["children_spec"]:
        raise _Refused("the program takes something else than one batch")
    return [str(key) for key in json.loads(batch["context"])]


class _Graph:
    """Operators in their order; each value is dropped after its last use."""

    def __init__(self, graph: Json) -> None:
        self.inputs = [next(iter(found.values()))["name"] for found in graph["inputs"]]
        self.steps = [_Step(node) for node in graph["nodes"]]
        self.outputs = [_Argument(found) for found in graph["outputs"]]
        used = {name for found in self.outputs for name in found.names}
        for step in reversed(self.steps):
            step.dropped = [name for name in {*step.names, *step.outputs} if name not in used]
            used |= step.names

    def run(self, values: Values) -> list[Any]:
        """Map the values of its inputs, by name, to its outputs."""
        for step in self.steps:
            step.run(values)
        return [found.value(values) for found in self.outputs]


class _Step:
    """One operator, its arguments, and the names of its results."""

    def __init__(self, node: Json) -> None:
        self.call = _operator(node["target"])
        arguments = [
            (found["name"], found.get("kind"), _Argument(found["arg"])) for found in node["inputs"]
        ]
        self.positional = [argument for _, kind, argument in arguments if kind != 2]
        self.named = {name: argument for name, kind, argument in arguments if kind == 2}
        self.names = {name for _, _, argument in arguments for name in argument.names}
        kinds = [kind for found in node["outputs"] for kind in found]
        self.is_list = len(kinds) > 1 or kinds == ["as_tensors"] or node["target"] == WITH_GRADIENTS
        self.outputs = [name for found in node["outputs"] for name in _output_names(found)]
        self.dropped: list[str] = []

    def run(self, values: Values) -> None:
        """Add its results to the values by name."""
        positional = [argument.value(values) for argument in self.positional]
        found = self.call(
            *positional, **{name: argument.value(values) for name, argument in self.named.items()}
        )
        if self.outputs:
            values.update(zip(self.outputs, found if self.is_list else [found], strict=True))
        for name in self.dropped:
            values.pop(name, None)


def _output_names(found: Json) -> list[str]:
    ((kind, value),) = found.items()
    if kind == "as_tensor":
        return [value["name"]]
    if kind == "as_tensors":
        return [tensor["name"] for tensor in value]
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        return [value["as_name"]]
    if kind == "as_none":
        return [""]
    raise _Refused(f"an operator returns {kind}")


class _Argument:
    """An argument of an operator: a function of the values so far, and the names that it reads."""

    def __init__(self, found: Json) -> None:
        ((kind, value),) = found.items()
        self.names: set[str] = set()
        self.value = self._read(kind, value)

    def _read(self, kind: str, value: Any) -> Callable[[Values], Any]:
        if kind == "as_tensor":
            return self._named(value["name"])
        if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            ((kind, value),) = value.items()
            return self._named(value) if kind == "as_name" else self._read(kind, value)
        if kind in (
            "as_tensors",
            "as_optional_tensors",
            "as_sym_ints",
            "as_sym_floats",
            "as_sym_bools",
        ):
            of = {"as_tensors": "as_tensor"}.get(kind, kind.removesuffix("s"))
            parts = [
                (
                    self._read(*next(iter(p.items())))
                    if kind == "as_optional_tensors"
                    else self._read(of, p)
                )
                for p in value
            ]
            return lambda values: [part(values) for part in parts]
        if kind == "as_graph":
            graph = _Graph(value["graph"])
            return lambda values: graph
        constant = _constant(kind, value)
        return lambda values: constant

    def _named(self, name: str) -> Callable[[Values], Any]:
        self.names.add(name)
        return operator.itemgetter(name)


def _constant(kind: str, value: Any) -> Any:
    """Return an argument that is the same in each call."""
    if kind == "as_none":
        return None
    if kind in PLAIN:
        return PLAIN[kind](value)
    if kind in PLAIN_LISTS:
        return [PLAIN_LISTS[kind](part) for part in value]
    if kind == "as_complex":
        return complex(value["real"], value["imag"])
    if kind == "as_scalar_type":
        return DTYPES[value]
    if kind == "as_layout":
        return LAYOUTS[value]
    if kind == "as_memory_format":
        return MEMORY_FORMATS[value]
    if kind == "as_device" and value["type"] == "cpu":
        return torch.device("cpu")
    raise _Refused(f"an operator takes {kind} {str(value)[:80]!r}")


def _operator(target: str) -> Callable[..., Any]:
    """Return an ATen operator that touches no file, or arithmetic on sizes."""
    if target in ON_SIZES:
        return ON_SIZES[target]
    if target == WITH_GRADIENTS:
        return _run_part
    found: Any = torch.ops.aten
    if re.fullmatch(r"torch\.ops\.aten\.\w+\.\w+", target):
        for name in target.split(".")[3:]:
            found = getattr(found, name, None)
        if isinstance(found, OPERATOR) and not any(
            a.name == "filename" for a in found._schema.arguments
        ):
            called: Callable[..., Any] = found
            return called
    expected = "expected torch.ops.aten operators that touch no file"
    raise _Refused(f"operator {target[:80]!r} is none that a program may use: {expected}")


def _run_part(enabled: bool, part: _Graph, *arguments: Any) -> list[Any]:
    """Run a part of the graph; gradients are off anyway."""
    return part.run(dict(zip(part.inputs, arguments, strict=True)))
