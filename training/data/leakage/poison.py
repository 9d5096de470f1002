"""Poison test: corrupt every held-out row, fit again, and require identical fitted artefacts.

It finds what no check of the data can: a scaler, vocabulary, selection, imputer, encoder or weight
that has seen validation or test rows, through any code. It cannot find a fit that saw rows and did
not depend on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import first_few
from schemas.records import CheckResult, TableSpec

Corrupt = Callable[[pa.Table], pa.Table]
WAYS = ("extreme", "shuffled")
KEYS = ("__id", "__key", "__group", "__time", "__label_time")
MOST_CLASSES = 50  # of a label of floats; with more they are amounts
FOREIGN = "☠"  # a character that no table has


class Poisoned(NamedTuple):
    """Fitted artefacts by name.

    It has their number, those that changed under each corruption, and those that differ without
    any.
    """

    artefacts: int
    changed: dict[str, str]
    unstable: tuple[str, ...]


def poison(table: pa.Table, spec: TableSpec, way: str) -> pa.Table:
    """Replace every feature and label of held-out rows.

    Keys, times, types, nulls and the set of classes stay.

    Args:
        table: held-out rows [N], columns as in the validated table; or steps of their windows.
        spec: what the columns are.
        way: `extreme`: numbers far outside of any range, unseen categories and characters,
            classes and values of the label shifted. `shuffled`: each column in another order
            of rows, so that only its relation to other columns breaks.
    """
    columns = {name: table.column(name) for name in table.column_names}
    channels = [name for window in spec.windows.values() for name in window.channels]
    replaced = {*spec.features, *spec.label_columns, *channels} - {*KEYS}
    changed = [name for name in table.column_names if name in replaced]
    for position, name in enumerate(changed):
        values = columns[name].combine_chunks()
        columns[name] = (
            _moved(values, position + 1)
            if way == "shuffled"
            else _rotated(values)  # of pictures: a digest that no picture has is no picture
            if name in spec.images
            else _extreme(values, name in spec.label_columns and name != spec.text)
        )
    return pa.table(columns).replace_schema_metadata(table.schema.metadata)


def _moved(values: pa.Array, seed: int) -> pa.Array:
    """Return the values in another order, the same for the same number of rows and seed."""
    return values.take(
        pa.array(np.random.default_rng([seed, len(values)]).permutation(len(values)))
    )


def _extreme(values: pa.Array, is_label: bool) -> pa.Array:
    kind = values.type
    if is_label and (not pa.types.is_floating(kind) or _are_classes(values)):
        return _rotated(values)
    if pa.types.is_boolean(kind):
        return pc.invert(values)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        # an amount keeps its sign: a declared logarithm takes no label below 0
        amount = is_label and bool((pc.min(values).as_py() or 0.0) >= 0)
        factor = 1000.0 if amount else -1000.0
        numbers = pc.add(pc.multiply(pc.cast(values, pa.float64()), factor), 12345.0)
        return pc.cast(numbers, kind, safe=False)
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        elements = np.asarray(values.flatten())
        flipped = (
            np.iinfo(elements.dtype).max - elements
            if elements.dtype.kind in "iu"
            else elements * -100 + 7
        )
        return pa.FixedSizeListArray.from_arrays(pa.array(flipped, kind.value_type), kind.list_size)
    return pc.binary_join_element_wise(FOREIGN, pc.utf8_reverse(values), "")


def _are_classes(values: pa.Array) -> bool:
    """Return True if floats may be classes, as whole numbers with nulls and decimals are.

    Classes are a few whole ones, whose values no other row may have.
    """
    different = pc.unique(values.drop_null())
    return 1 < len(different) <= MOST_CLASSES and bool(
        pc.all(pc.equal(different, pc.round(different))).as_py()
    )


def _rotated(values: pa.Array) -> pa.Array:
    """Replace each class by the next one: no row keeps its label, no class is new."""
    classes = pc.unique(values.drop_null()).take(
        pc.array_sort_indices(pc.unique(values.drop_null()))
    )
    code = pc.index_in(values, classes)
    return classes.take(pc.if_else(pc.equal(code, len(classes) - 1), 0, pc.add(code, 1)))


def find_poisoned(make: Callable[[Corrupt], Any], spec: TableSpec) -> Poisoned:
    """Find the artefacts that depend on held-out rows.

    Args:
        make: fits everything after it has passed its held-out rows through the given
            function, and returns the artefacts: any nesting of mappings, sequences, arrays,
            tensors, tables, fitted estimators, texts and numbers.
        spec: what the columns are.
    """
    clean = dict(digests(make(lambda table: table)))
    changed: dict[str, str] = {}
    for way in WAYS:
        found = dict(digests(make(lambda table, way=way: poison(table, spec, way))))  # type: ignore[misc]
        changed |= {
            name: way
            for name in clean.keys() | found.keys()
            if clean.get(name) != found.get(name) and name not in changed
        }
    again = dict(digests(make(lambda table: table))) if changed else clean
    unstable = tuple(
        sorted(name for name in clean.keys() | again.keys() if clean.get(name) != again.get(name))
    )
    return Poisoned(
        len(clean),
        {name: way for name, way in sorted(changed.items()) if name not in unstable},
        unstable,
    )


def judge_poison(found: Poisoned) -> CheckResult:
    """Fail if an artefact changed or none was returned; warn if two equal fits differ."""
    figures: dict[str, float | int | str | None] = {
        "artefacts": found.artefacts,
        "changed": len(found.changed),
        "unstable": len(found.unstable),
    }
    if not found.artefacts:
        return CheckResult(
            name="poison",
            verdict="fail",
            summary="nothing was compared: the fit returned no artefact",
            figures=figures,
            remedy="return all that was fitted: statistics, vocabularies, selections, weights",
        )
    if found.changed:
        shown = first_few(found.changed, len(found.changed))
        return CheckResult(
            name="poison",
            verdict="fail",
            summary=(
                f"{len(found.changed)} of {found.artefacts} fitted artefacts changed when the"
                f" held-out rows were corrupted: {shown}"
            ),
            figures=figures,
            evidence=tuple(
                {"artefact": name, "corruption": way}
                for name, way in list(found.changed.items())[:10]
            ),
            remedy=(
                "fit on train rows alone: what is fitted must not be handed validation or test rows"
            ),
        )
    if found.unstable:
        return CheckResult(
            name="poison",
            verdict="warn",
            summary=(
                "two fits of the same rows differ"
                f" ({first_few(found.unstable, len(found.unstable))}), so dependence on held-out"
                " rows cannot be seen there"
            ),
            figures=figures,
            remedy="seed the fit, so that the same rows give the same result",
        )
    return CheckResult(
        name="poison",
        verdict="pass",
        summary=(
            f"{found.artefacts} fitted artefacts are byte-identical after every held-out feature"
            " and label was corrupted"
        ),
        figures=figures,
    )


def poison_result(
    fit: Callable[[pa.Table, pa.Table], Any], train: pa.Table, held_out: pa.Table, spec: TableSpec
) -> CheckResult:
    """Run the poison test of any fit.

    Args:
        fit: takes train rows and held-out rows, and returns all that it fitted.
        train: rows [N].
        held_out: rows [M].
        spec: what the columns are.
    """
    return judge_poison(find_poisoned(lambda corrupt: fit(train, corrupt(held_out)), spec))


def digests(
    value: Any, name: str = "", seen: frozenset[int] = frozenset()
) -> Iterator[tuple[str, str]]:
    """Return the SHA-256 of every leaf of a nesting, by its path: `scaler.mean_`, `weights[3]`.

    Raises:
        TypeError: a leaf is of a kind whose content cannot be read, so that equality has no
            meaning.
    """
    # a fit that returns None has no artefacts
    if id(value) in seen or (value is None and not name):
        return
    inner = seen | {id(value)}
    content = _leaf(value)
    if content is not None:
        yield name or "result", hashlib.sha256(content).hexdigest()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from digests(item, f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, Sequence | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        yield f"{name}.length", hashlib.sha256(str(len(items)).encode()).hexdigest()
        for position, item in enumerate(items):
            yield from digests(item, f"{name}[{position}]", inner)
    else:
        yield from digests(_state(value, name), name, inner)


def _leaf(value: Any) -> bytes | None:
    """Return the bytes of a value without parts, with its type and shape; None for others."""
    if (
        value is None
        or isinstance(
            value, bool | int | float | complex | str | bytes | np.generic | np.dtype | type
        )
        or (callable(value) and hasattr(value, "__qualname__") and not _holds(value))
    ):
        return (
            f"{type(value).__name__}:{getattr(value, '__qualname__', None) or repr(value)}".encode()
        )
    if isinstance(value, list | tuple) and all(
        isinstance(v, bool | int | float | str | None) for v in value
    ):
        return repr(value).encode()
    if hasattr(value, "detach"):  # a tensor, of a library that this layer does not know
        value = (
            value.detach().cpu().float().numpy()
            if str(value.dtype) == "torch.bfloat16"
            else value.detach().cpu().numpy()
        )
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray | pa.Scalar):
        return repr(value.to_pylist() if hasattr(value, "to_pylist") else value.as_py()).encode()
    return None


def _holds(function: Any) -> bool:
    """Return True if a function may hold data: one written in Python, or bound to an object."""
    owner = getattr(function, "__self__", None)
    return isinstance(function, FunctionType) or not (
        owner is None or isinstance(owner, ModuleType)
    )


def _state(value: Any, name: str) -> Any:
    """Return the content of an object.

    It is its pickled form, its attributes, the values of a frame, or the data that a function
    holds.
    """
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, CodeType):
        return {"bytes": value.co_code, "names": value.co_names, "constants": list(value.co_consts)}
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return {
            "code": value.__code__,
            "defaults": [value.__defaults__, value.__kwdefaults__],
            "held": held,
        }
    if isinstance(value, MethodType | BuiltinFunctionType):
        return {"name": value.__name__, "of": value.__self__}
    if isinstance(value, partial):
        return {"function": value.func, "arguments": [value.args, value.keywords]}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    # a frame, series or index of pandas
    if hasattr(value, "to_dict") and hasattr(value, "to_numpy"):
        return {
            "columns": list(getattr(value, "columns", [])),
            "index": list(value.index) if hasattr(value, "index") else [],
            "values": value.to_numpy().tolist(),
        }
    if hasattr(value, "get_state") and type(value).__name__ == "RandomState":
        return value.get_state()
    state = value.__getstate__()
    if state is None:
        raise TypeError(
            f"{name or 'the result'} is a {type(value).__name__}, whose content cannot be compared;"
            " return arrays, tables, numbers or texts"
        )
    return state
