"""Rule BH211: a held-out loader reads the rows of another side."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import looks_held_out, looks_trained_on
from training.review.program import Program
from training.review.sides import all_names, side_of, side_of_names, targets_of
from training.review.syntax import (
    calls,
    constant,
    has_unpacking,
    identifiers,
    is_true,
    keyword,
    last_name,
    names_read,
    nodes_of,
    own_nodes_of,
    walk,
    words,
)

FOLDERS = {"torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder"}
PUBLISHED = {"torchvision", "torchaudio", "torchtext", "datasets"}
SAMPLERS = ("sampler", "batch_sampler")
COUNTS = {"n", "num", "len", "size", "count", "start", "end", "cut"}


@rule("BH211")
def validation_of_train_rows(subject: Subject) -> Iterator[Place]:
    """A loader or data set that is named after held-out rows is made of something named after train
    rows alone; one named after test rows, of validation rows.
    """
    program = subject.program
    yield from _published_train_part(program)
    yield from _same_folder_twice(program)
    yield from _same_set_twice(program)
    yield from _same_rows_twice(program)
    yield from _never_read(program)
    yield from _evaluated_on_train(program)
    yield from _trained_on_held_out(program)
    held = {n for n in all_names(program) if looks_held_out(n) and "train" not in words(n)}
    attributes = {name: made for own in program.attributes.values() for name, made in own.items()}
    for name, bindings in (
        *((n, b) for s in program.scopes for n, b in s.bindings.items()),
        *attributes.items(),
    ):
        if not looks_held_out(name) or "train" in words(name):
            continue
        for binding in bindings:
            call = binding.value
            if (
                binding.how != "assign"
                or not isinstance(call, ast.Call)
                or last_name(call.func) not in ("DataLoader", "TensorDataset", "Subset")
            ):
                continue
            if not side_of(name.replace("eval", "")) and any(
                {"val", "valid", "validation", "test", "query", "queries"} & words(n)
                for n in held - {name}
            ):
                continue  # beside validation rows an `eval_loader` may go over train rows in order
            if (
                not program.resolve(call.func).startswith("torch.utils.data.")
                or any(keyword(call, s) is not None for s in SAMPLERS)
                or has_unpacking(call)
            ):
                continue
            of = {n for a in call.args for n in _read_whole(program, a) | {last_name(a)}} - {""}
            used = {n for c in calls(call) if c is not call for n in identifiers(c.func)}
            tests = (
                "test" in words(name)
                and any("test" in words(n) for n in held - {name} - of)
                and not any("test" in words(n) for n in of)
            )
            if tests and (
                chosen := sorted(
                    n
                    for n in of - used
                    if {"val", "valid", "validation", "dev"} & words(n) and not COUNTS & words(n)
                )
            ):
                yield call, f"{name} is made of {chosen[0]}, whose rows chose the model"
            elif (
                of
                and any(_of_train(n) for n in of - used)
                and not any(looks_held_out(n) for n in of)
                and held - {name}
            ):
                yield (
                    call,
                    f"{name} is made of {', '.join(sorted(n for n in of - used if _of_train(n)))}",
                )


def _same_set_twice(program: Program) -> Iterator[Place]:
    """`val = DataLoader(sets[2])` and `test = DataLoader(sets[2])` beside a train loader of another
    set: what chooses and what is reported are one.
    """
    made: dict[tuple[object, str], dict[str, ast.Call]] = {}
    for call in program.calls_of("DataLoader"):
        side = side_of_names(targets_of(program, call)) if call.args else ""
        if (
            side
            and isinstance(call.args[0], (ast.Name, ast.Subscript, ast.Attribute))
            and not any(keyword(call, s) is not None for s in SAMPLERS)
        ):
            made.setdefault((program.scope(call), ast.dump(call.args[0])), {})[side] = call
    trains = {scope for (scope, _), sides in made.items() if "train" in sides}
    for (scope, _), sides in made.items():
        if {"val", "test"} <= sides.keys() and "train" not in sides and scope in trains:
            yield (
                sides["test"],
                (
                    "the validation and the test loader are both of"
                    f" {ast.unparse(sides['test'].args[0])}"
                ),
            )


def _same_rows_twice(program: Program) -> Iterator[Place]:
    """`train, val, test = part(train_rows), part(val_rows), part(val_rows)`, though there are test
    rows.
    """
    tests = any(side_of(n) == "test" for n in program.identifiers)
    for node in program.nodes[ast.Tuple] if tests else ():
        for value in node.elts if isinstance(node.ctx, ast.Load) else ():
            if {side_of(n) for n in names_read(value)} - {""} != {"val"}:
                continue
            twice = any(
                ast.dump(other) == ast.dump(value)
                for other in getattr(node, "elts", ())
                if other is not value
            )
            if twice and side_of_names(targets_of(program, value)) == "test":
                yield value, f"the test rows are {ast.unparse(value)}, as the validation rows are"


def _trained_on_held_out(program: Program) -> Iterator[Place]:
    """`train_loader = DataLoader(val_set)` beside a loader of `val_set` for the validation."""
    for scope in program.scopes if program.calls_of("DataLoader") else ():
        made: dict[str, list[tuple[str, ast.Call]]] = {}
        for name, bindings in scope.bindings.items():
            for b in bindings:
                if (
                    b.how == "assign"
                    and b.index is None
                    and isinstance(b.value, ast.Call)
                    and last_name(b.value.func) == "DataLoader"
                    and b.value.args
                ):
                    made.setdefault(ast.unparse(b.value.args[0]), []).append((name, b.value))
        for rows, loaders in made.items():
            of = side_of_names(tuple(sorted(names_read(loaders[0][1].args[0]))))
            trains = [c for name, c in loaders if side_of(name) == "train"]
            if of in ("val", "test") and trains and any(side_of(name) == of for name, _ in loaders):
                yield (
                    trains[0],
                    (
                        f"the train loader is of {rows}, as that of the"
                        f" {'validation' if of == 'val' else 'test'} is"
                    ),
                )


def _evaluated_on_train(program: Program) -> Iterator[Place]:
    """`def fit(self, train_loader, val_loader)` that trains and evaluates on `train_loader`, and
    reads `val_loader` nowhere.
    """
    for scope in program.scopes:
        held = [p for p in scope.parameters if side_of(p) == "val"]
        trains = [p for p in scope.parameters if side_of(p) == "train"]
        if (
            not held
            or len(trains) != 1
            or any(n.id in held for n in nodes_of(scope.node, ast.Name))
        ):
            continue
        gone_through = any(
            trains[0] in names_read(n.iter) for n in own_nodes_of(scope.node, ast.For)
        )
        for call in calls(scope.node) if gone_through else ():
            given = any(isinstance(a, ast.Name) and a.id == trains[0] for a in call.args)
            if given and words(last_name(call.func)) & {
                "evaluate",
                "eval",
                "validate",
                "validation",
                "evaluation",
                "valid",
                "val",
                "test",
                "score",
            }:
                yield (
                    call,
                    (
                        f"{last_name(call.func)} is given {trains[0]}, which is trained on, and"
                        f" nothing reads {held[0]}"
                    ),
                )
                break


def _never_read(program: Program) -> Iterator[Place]:
    """`(train, val, test) = …` where nothing reads `val`, beside two loaders of `train`."""
    loaders = [
        c
        for c in program.calls_of("DataLoader")
        if c.args and isinstance(c.args[0], ast.Name) and side_of(c.args[0].id) == "train"
    ]
    for scope in program.scopes if len(loaders) > 1 else ():
        trains = [c for c in loaders if program.scope(c) is scope]
        if len(trains) < 2 or len({ast.unparse(c.args[0]) for c in trains}) > 1:
            continue
        read = {n.id for n in nodes_of(scope.node, ast.Name) if isinstance(n.ctx, ast.Load)}
        unread = sorted(
            n
            for n, made in scope.bindings.items()
            if side_of(n) == "val" and n not in read and all(b.index is not None for b in made)
        )
        plain = [c for c in trains if not is_true(keyword(c, "shuffle"))]
        if unread and len(plain) == 1:
            yield (
                plain[0],
                (
                    f"this loader is of {ast.unparse(plain[0].args[0])} as another one is, and"
                    f" nothing reads {unread[0]}"
                ),
            )


def _published_train_part(program: Program) -> Iterator[Place]:
    """`test_set = MNIST(root, train=True)` beside a train set of the same part, where nothing is
    taken out of either.
    """
    if (
        not PUBLISHED & program.modules_imported
        or {"random_split", "Subset", "SubsetRandomSampler"} & program.called_names
    ):
        return
    made: list[tuple[str, str, ast.Call, ast.AST]] = []
    for call in program.all_calls:
        if not is_true(keyword(call, "train")) and constant(keyword(call, "split")) != "train":
            continue
        name = program.resolve(call.func)
        if name.startswith(
            (
                "torchvision.datasets.",
                "torchaudio.datasets.",
                "torchtext.datasets.",
                "datasets.load_dataset",
            )
        ):
            name += (
                f":{constant(call.args[0])}"
                if call.args and name == "datasets.load_dataset"
                else ""
            )
            made.append(
                (name, side_of_names(targets_of(program, call)), call, program.scope(call).node)
            )
    for name, side, call, scope in made:
        if side == "test" and any(n == name and s == "train" and w is scope for n, s, _, w in made):
            yield (
                call,
                (
                    f"the test rows are the published train part of {name.rpartition('.')[2]}, and"
                    " so are the train rows"
                ),
            )


def _same_folder_twice(program: Program) -> Iterator[Place]:
    """`val = ImageFolder(root / "train")` beside a train set of the same folder, where nothing is
    taken out of either.
    """
    if (
        "torchvision" not in program.modules_imported
        or {"random_split", "Subset", "SubsetRandomSampler"} & program.called_names
    ):
        return
    if any(k.arg in SAMPLERS for c in program.all_calls for k in c.keywords):
        return
    made: dict[tuple[object, str], dict[str, ast.Call]] = {}
    for call in program.all_calls:
        if (
            program.resolve(call.func) in FOLDERS
            and call.args
            and (side := side_of_names(targets_of(program, call)))
        ):
            made.setdefault((program.scope(call), ast.dump(call.args[0])), {})[side] = call
    for sides in made.values():
        for side in ("val", "test") if "train" in sides else ():
            if side in sides:
                yield sides[side], f"the train rows are of {ast.unparse(sides[side].args[0])} too"


def _read_whole(program: Program, node: ast.expr) -> set[str]:
    """Names that are read as they are: not `train_set` of `train_set.mean` among the arguments of a
    call, nor `n_train` of `rows[n_train:]`.
    """
    begins = {
        id(n) for s in nodes_of(node, ast.Slice) if s.lower is not None for n in walk(s.lower)
    }
    names = [n for n in nodes_of(node, ast.Name) if id(n) not in begins]
    within = [
        n
        for n in names
        if isinstance(program.parents[n], ast.Attribute)
        and any(isinstance(a, ast.Call) for a in _between(program, n, node))
    ]
    return {n.id for n in names if n not in within}


def _between(program: Program, inner: ast.AST, outer: ast.AST) -> Iterator[ast.AST]:
    """What stands around a node, up to another one, that one included."""
    while inner is not outer:
        inner = program.parents[inner]
        yield inner


def _of_train(name: str) -> bool:
    return looks_trained_on(name) and not looks_held_out(name)
