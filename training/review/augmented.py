"""Data sets that draw at random when they are told to, and held-out ones that are told to."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.lookups import spoken_words
from training.review.program import Binding, Program, Scope, argument
from training.review.sides import side_of_names, targets_of
from training.review.syntax import (
    calls,
    constant,
    defaults,
    identifiers,
    keyword,
    last_name,
    own_nodes,
    words,
)

DRAWS = {
    "random", "randint", "randrange", "uniform", "rand", "randn", "randn_like", "rand_like",
    "normal", "choice", "shuffle", "integers", "gauss", "sample",
}  # fmt: skip
AUGMENTS = ("Random", "RandAugment", "AutoAugment", "TrivialAugment", "AugMix", "ColorJitter")
SEVERAL_VIEWS = {"tta", "views", "augmentations", "robust", "robustness", "corruption", "corrupted"}


def augmented_held_out(program: Program) -> Iterator[tuple[ast.Call, str, ast.expr | None]]:
    """Data sets of the file that are bound to held-out names and told to draw at random: the call,
    the parameter, what it is given.
    """
    if SEVERAL_VIEWS & spoken_words(program) or any(
        SEVERAL_VIEWS & words(n) for n in program.classes
    ):
        return
    for owner, own in program.methods.items():
        init, getter = own.get("__init__"), own.get("__getitem__")
        if init is None or getter is None or program.is_module(owner):
            continue
        for name in init.parameters[1:]:
            kept = [
                a
                for a, bound in program.attributes[owner].items()
                if any(_is_kept(b, name) for b in bound)
            ]
            for attribute in kept:
                said = _says(program, own, getter, attribute)
                if said is None:
                    continue
                for call, _ in program.call_sites[init]:
                    given = argument(call, init, name)
                    value = constant(given if given is not None else defaults(init.node).get(name))
                    held = side_of_names(targets_of(program, call)) in ("val", "test") or bool(
                        held_out_in_loop(program, call)
                    )
                    if held and value == said and isinstance(program.statement(call), ast.Assign):
                        yield call, name, given


def held_out_in_loop(program: Program, call: ast.Call) -> list[str]:
    """The held-out sides that a call in a list of such calls is given."""
    above = program.parents[call]
    if isinstance(above, (ast.List, ast.Tuple)) and all(
        isinstance(e, ast.Call) and ast.dump(e.func) == ast.dump(call.func) for e in above.elts
    ):
        return [
            a.id
            for a in call.args[:1]
            if isinstance(a, ast.Name) and side_of_names((a.id,)) in ("val", "test")
        ]
    return []


def _is_kept(binding: Binding, name: str) -> bool:
    return (
        isinstance(binding.value, ast.Name) and binding.value.id == name and binding.index is None
    )


def _says(program: Program, own: dict[str, Scope], getter: Scope, attribute: str) -> object:
    """The value of an attribute for which rows are changed at random: True of `if self.augment:`,
    'train' of `if self.mode == "train":`; else None.
    """
    for node in own_nodes(getter.node):
        if not isinstance(node, (ast.If, ast.IfExp)):
            continue
        body = node.body if isinstance(node.body, list) else [node.body]
        if not any(_draws(program, own, part) for part in body):
            continue
        for test in (
            node.test.values
            if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
            else [node.test]
        ):
            if isinstance(test, ast.Attribute) and test.attr == attribute:
                return True
            if (
                isinstance(test, ast.Compare)
                and isinstance(test.ops[0], ast.Eq)
                and isinstance(test.left, ast.Attribute)
                and test.left.attr == attribute
            ):
                return constant(test.comparators[0])
    return None


def _draws(program: Program, own: dict[str, Scope], part: ast.AST, depth: int = 0) -> bool:
    """Whether something is drawn at random there, in the class's other methods and the file's
    functions too.
    """
    for call in calls(part):
        name = last_name(call.func)
        if name in DRAWS or name.startswith("Random"):
            return True
        known = own.get(name) or program.local_function(name, program.top)
        if known is not None and depth < 2 and _draws(program, own, known.node, depth + 1):
            return True
    return False


def train_transform_held_out(program: Program) -> Iterator[tuple[ast.Call, str, str]]:
    """Held-out data sets that are given the random transform of train: the call, the transform's
    name and what it draws.
    """
    for call in program.all_calls:
        of_images = (
            program.resolve(call.func).startswith("torchvision.datasets.")
            and len(call.args) > 1
            and isinstance(call.args[1], ast.Name)
        )
        given = (
            keyword(call, "transform")
            or (call.args[1] if of_images else None)
            or next(
                (a for a in call.args if isinstance(a, ast.Name) and "transform" in a.id.lower()),
                None,
            )
        )
        if not isinstance(given, ast.Name):
            continue
        scope, statement = program.scope(call), program.statement(call)
        if not isinstance(statement, ast.Assign) or side_of_names(
            targets_of(program, call)
        ) not in ("val", "test"):
            continue
        if SEVERAL_VIEWS & {w for n in identifiers(statement) for w in words(n)}:
            continue
        for made in program.origins(given, scope):
            drawn = [
                c
                for c in calls(made.call)
                if last_name(c.func).startswith(AUGMENTS)
                and "transforms" in program.resolve(c.func)
            ]
            if drawn:
                yield call, given.id, last_name(drawn[0].func)
                break
