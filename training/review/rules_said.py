"""Rules BH237, BH238, BH242, BH256 and BH541: scores, loaders, loops and parts of a split that are called after another side than they are of, and test rows that nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.sides import all_names, elements_of, side_of, targets_of
from training.review.syntax import calls, dotted, keyword, last_name, method, names_read, receiver, walk, words
from training.review.trace import Event
from training.review.values import loss_calls

MEASURES = {
    "evaluate",
    "evaluation",
    "eval",
    "accuracy",
    "acc",
    "score",
    "scores",
    "metrics",
    "metric",
    "test",
    "validate",
    "loss",
    "error",
    "auc",
    "auroc",
    "f1",
    "r2",
}
MEASURES |= {"rmse", "mae", "mse", "report", "measure", "assess", "perplexity", "iou", "dice", "concordance", "deviance"}
FEW_WORDS = 4
LOADERS = {"loader", "loaders", "dl", "dataloader", "iter", "iterator", "batches", "data", "set", "ds", "dataset", "it", "generator", "gen"}


@rule(
    "BH237",
    "score-under-another-name",
    "error",
    title="A score is called after other rows than it is of",
    why="What is printed or kept as the test score was computed on validation or train rows: the number that is believed in the end is that of rows which were learned, or which chose the model.",
    remedy="evaluate on the rows that the name speaks of, or name the score after the rows",
    bad="""
        import torch

        def report(model, evaluate, train_loader, val_loader, test_loader):
            val_acc = evaluate(model, val_loader)
            test_acc = evaluate(model, val_loader)
            return val_acc, test_acc
        """,
    good="""
        import torch

        def report(model, evaluate, train_loader, val_loader, test_loader):
            val_acc = evaluate(model, val_loader)
            test_acc = evaluate(model, test_loader)
            return val_acc, test_acc
        """,
)
def score_under_another_name(subject: Subject) -> Iterator[Place]:
    """A measure of arguments of one side is kept or printed under the name of another, whose rows the file has too; test rows may be called held-out."""
    program = subject.program
    for call in program.all_calls:
        spoken = words(last_name(call.func))
        if not MEASURES & spoken or "split" in spoken:
            continue
        given = {side_of(last_name(a)) for a in call.args if isinstance(a, (ast.Name, ast.Attribute, ast.Starred))} - {""}
        given |= {side_of(str(a.slice.value)) for a in call.args if isinstance(a, ast.Subscript) and isinstance(a.slice, ast.Constant)} - {""}
        if len(given) != 1 or any("evaluation" in words(last_name(a)) for a in call.args):
            continue  # which rows are for evaluation is not said
        of, (called, name) = next(iter(given)), _called(program, call)
        if (
            called
            and called != of
            and (called, of) != ("val", "test")
            and side_of(last_name(call.func)) != of
            and any(side_of(n) == called and _names_rows(n) for n in all_names(program) - set(targets_of(program, call)))
        ):
            yield call, f"{name} is measured on {'validation' if of == 'val' else of} rows: {ast.unparse(call)}"


def _names_rows(name: str) -> bool:
    """Whether a name may be that of rows: it says so, or is no more than the name of a side."""
    return bool(LOADERS & words(name)) or len(words(name)) == 1


def _called(program: Program, call: ast.Call) -> tuple[str, str]:
    """The side that a result's name, its key or the words printed beside it speak of, and these; empty where they speak of none or several."""
    above = program.parents[call]
    while isinstance(above, ast.Starred) or (isinstance(above, ast.Call) and last_name(above.func) in ("exp", "sqrt", "float", "round", "abs")):
        above = program.parents[above]  # `math.exp(evaluate(model, test))`
    if isinstance(above, ast.Dict):
        key = next((k for k, v in zip(above.keys, above.values, strict=True) if v is call), None)
        return (side_of(str(key.value)), repr(key.value)) if isinstance(key, ast.Constant) else ("", "")
    if isinstance(above, ast.Assign) and len(above.targets) == 1:
        names = [last_name(e) for e in elements_of(above.targets[0])]
        sides = {side_of(n) for n in names} - {""}
        return (sides.pop(), next(n for n in names if side_of(n))) if len(sides) == 1 else ("", "")
    if isinstance(above, ast.FormattedValue):
        above = program.parents[program.parents[above]]
    if isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and above.func.id == "print":
        said = [n.value for a in above.args for n in walk(a) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        said_words = "".join(c if c.isalnum() else " " for text in said for c in f"{text} ").split()
        said_words = [w for before, w in zip(["", *said_words], said_words, strict=False) if before.lower() not in ("before", "after")]  # training
        spoken = {side_of(w) for w in said_words} - {""} if len(said_words) <= FEW_WORDS else set()  # a sentence speaks of other things, too
        measured = [c for a in above.args for c in walk(a) if isinstance(c, ast.Call) and MEASURES & words(last_name(c.func))]
        return (spoken.pop(), f"what is printed as {' '.join(said).strip()!r}") if len(spoken) == 1 and len(measured) == 1 else ("", "")
    return "", ""


@rule(
    "BH256",
    "rows-under-another-name",
    "error",
    title="A loader is called after other rows than it is given",
    why="What is called `train` is made of rows that are held out, or `val` of the test rows: the network learns what is to judge it, or is chosen by what should be asked once, at the end.",
    remedy="give each loader its own rows: `val_loader = DataLoader(val_rows, ...)`",
    bad="""
        from torch.utils.data import DataLoader

        def loaders(train_rows, val_rows, test_rows):
            train_loader = DataLoader(train_rows, batch_size=64, shuffle=True)
            val_loader = DataLoader(test_rows, batch_size=256)
            return train_loader, val_loader, len(val_rows)
        """,
    good="""
        from torch.utils.data import DataLoader

        def loaders(train_rows, val_rows, test_rows):
            train_loader = DataLoader(train_rows, batch_size=64, shuffle=True)
            val_loader = DataLoader(val_rows, batch_size=256)
            return train_loader, val_loader, len(test_rows)
        """,
)
def rows_under_another_name(subject: Subject) -> Iterator[Place]:
    """A name of one side is bound to a loader or data set of rows that are named after another, while those of its own side have a name, too."""
    program = subject.program
    for node in program.nodes[ast.Assign]:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        targets = elements_of(node.targets[0])
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for target, value in zip(targets, values, strict=False) if len(targets) == len(values) else ():
            name = last_name(target)
            if not isinstance(value, ast.Call) or not MAKES_LOADERS & words(last_name(value.func)) or not side_of(name):
                continue
            given = [a.id for a in value.args if isinstance(a, ast.Name)]
            sides = {side_of(g) for g in given} - {""}
            others = all_names(program) - set(map(last_name, targets))
            own = [g for g in given if side_of(g) and _of_side(g, side_of(name)) & others]
            if "from" not in words(last_name(value.func)) and len(sides) == 1 and (side_of(name), *sides) in TAKEN and own:
                yield value, f"{name} is made of {own[0]}"


TAKEN = {("train", "val"), ("train", "test"), ("val", "test")}  # BH211 tells of the others
MAKES_LOADERS = {"loader", "loaders", "dataloader", "dataset", "subset", "batches"}
SPELLED = {"train": ("train", "tr", "training"), "val": ("val", "valid", "validation", "va", "dev"), "test": ("test", "te", "testing")}


def _of_side(name: str, side: str) -> set[str]:
    """The same name for another side: `train_rows` of `val_rows`."""
    parts = name.split("_")
    return {"_".join(other if side_of(p) else p for p in parts) for other in SPELLED.get(side, ())}


@rule(
    "BH238",
    "trained-on-held-out",
    "error",
    title="Nothing trains on the train rows, and the held-out ones are trained on",
    why="The loop that steps the optimizer goes over the validation or test rows. The score that is computed on them afterwards is of rows that were learned.",
    remedy="go over the train loader where the optimizer steps",
    bad="""
        import torch

        def fit(model, optimizer, loss_fn, train_loader, val_loader, epochs):
            for epoch in range(epochs):
                for x, y in val_loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
        """,
    good="""
        import torch

        def fit(model, optimizer, loss_fn, train_loader, val_loader, epochs):
            for epoch in range(epochs):
                for x, y in train_loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
        """,
)
def trained_on_held_out(subject: Subject) -> Iterator[Place]:
    """Every loop with a backward pass goes over something named after held-out rows, and a name of the same kind of the train rows is there."""
    program = subject.program
    yield from _tuned_on_test(program)
    found: list[tuple[Event, str]] = []
    for trace in subject.traces:
        stepped = {loop.node for e in trace if e.kind == "step" for loop in e.loops}
        for event in (e for e in trace if e.kind == "backward"):
            names = {n for loop in event.loops if loop.node in stepped for n in _gone_over(event, loop.node, loop.scope)}
            if any(side_of(n) == "train" for n in names):
                return
            found += [(event, n) for n in names if side_of(n) in ("val", "test") and _names_rows(n)]
    train = {n for n in all_names(program) if side_of(n) == "train"} if found else set()
    for event, name in found[:1]:
        kind = LOADERS & words(name)
        if any((kind & words(n)) if kind else len(words(n)) == 1 for n in train):
            yield event.node, f"the optimizer learns from {name}, and nothing learns from the train rows"


def _tuned_on_test(program: Program) -> Iterator[Place]:
    """A loss of labels that are named after test rows alone goes backward into an optimizer: a temperature that is chosen by what it is to be measured on."""
    if "step" not in program.called_names or not any(side_of(n) == "test" for n in program.identifiers):
        return
    if {"inner", "outer", "meta", "support", "query", "episode", "maml"} & {w for n in program.identifiers for w in words(n)}:
        return  # a test set within each task is learned from
    for found in loss_calls(program):
        target = last_name(found.target) if isinstance(found.target, (ast.Name, ast.Attribute)) else ""
        if side_of(target) != "test" or {"train", "time"} & words(target) or target in found.scope.parameters:
            continue
        names = {last_name(t) for t in getattr(program.statement(found.call), "targets", ())}
        backward = [c for c in program.methods_of("backward") if program.scope(c) is found.scope and last_name(receiver(c)) in names]
        if backward:
            yield found.call, f"the optimizer learns from {target}, the labels that are to test it"


def _gone_over(event: Event, node: ast.AST, scope: object) -> Iterator[str]:
    """What a loop goes over, by its name in the outermost caller that passes it."""
    frame = event.frame
    while frame.scope is not scope and frame.caller is not None:
        frame = frame.caller
    for part in walk(getattr(node, "iter", ast.Pass())):
        if isinstance(part, (ast.Name, ast.Attribute)):
            key = frame.key(part)
            yield key.rpartition(":")[2].rpartition(".")[2] if dotted(part) else ""


@rule(
    "BH242",
    "test-rows-unread",
    "warning",
    title="Test rows are there and read by nothing, and the last score is of validation rows",
    why="The validation rows chose the weights: a last score of them is the best of several draws, and too good. The rows that were kept for it are there and are not used.",
    remedy="compute the last score over the test loader",
    bad="""
        import torch
        from torch.utils.data import DataLoader

        def fit(model, train_epoch, evaluate, train, val, test, epochs):
            train_loader, val_loader, test_loader = DataLoader(train, 32, shuffle=True), DataLoader(val, 256), DataLoader(test, 256)
            best, kept = 0.0, None
            for epoch in range(epochs):
                train_epoch(model, train_loader)
                score = evaluate(model, val_loader)
                if score > best:
                    best, kept = score, {k: v.clone() for k, v in model.state_dict().items()}
            model.load_state_dict(kept)
            return evaluate(model, val_loader)
        """,
    good="""
        import torch
        from torch.utils.data import DataLoader

        def fit(model, train_epoch, evaluate, train, val, test, epochs):
            train_loader, val_loader, test_loader = DataLoader(train, 32, shuffle=True), DataLoader(val, 256), DataLoader(test, 256)
            best, kept = 0.0, None
            for epoch in range(epochs):
                train_epoch(model, train_loader)
                score = evaluate(model, val_loader)
                if score > best:
                    best, kept = score, {k: v.clone() for k, v in model.state_dict().items()}
            model.load_state_dict(kept)
            return evaluate(model, test_loader)
        """,
)
def rows_unread(subject: Subject) -> Iterator[Place]:
    """In one function test rows are bound and never read, and the validation rows are given to a call in a loop and to another after it."""
    program = subject.program
    for scope in program.scopes:
        if not {"val", "test"} <= {side_of(n) for n in scope.bindings}:
            continue
        loaders = {n for n in scope.bindings if {"loader", "dl", "dataloader", "iter", "batches"} & words(n) or _is_table(scope, n)}
        held = {n for n in loaders if side_of(n) == "val"}
        if not held or not any(side_of(n) == "test" for n in loaders):
            continue
        read = {n.id for n in walk(scope.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        given = [(c, a.id) for c in calls(scope.node) for a in c.args if isinstance(a, ast.Name) and a.id in held]
        looped = {c: n for c, n in given if any(isinstance(a, (ast.For, ast.While)) for a in program.ancestors(c))}
        last = next((c for c, n in reversed(given) if c not in looped and any(m == n and d.lineno < c.lineno for d, m in looped.items())), None)
        unread = sorted(n for n in loaders if side_of(n) == "test" and n not in read)
        if last is not None and unread:
            yield last, f"{unread[0]} is made and read by nothing: the last score is of the validation rows again"


def _is_table(scope: Scope, name: str) -> bool:
    """Whether a name is that of a side and no more, `test` or `val_rows`, and a call gave it beside those of other sides."""
    bound = scope.bindings[name]
    plain = bool(side_of(name)) and len(words(name) - {"set", "ds", "data", "rows", "df", "frame", "part", "split"}) == 1
    return plain and len(bound) == 1 and bound[0].index is not None and isinstance(bound[0].value, ast.Call)


@rule(
    "BH541",
    "sides-exchanged",
    "error",
    title="Train and held-out part are exchanged",
    why="A splitter gives the train part first, and of several arrays both parts of the first one before those of the second. Under exchanged names the small part is trained on and the large one measured, or rows meet labels of the other part.",
    remedy="`X_train, X_test, y_train, y_test = train_test_split(X, y)`, `for train, test in folds.split(X)`",
    bad="""
        from sklearn.model_selection import train_test_split

        def sides(X, y):
            X_test, X_train, y_test, y_train = train_test_split(X, y, test_size=0.2, random_state=0)
            return X_train, y_train, X_test, y_test
        """,
    good="""
        from sklearn.model_selection import train_test_split

        def sides(X, y):
            X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
            return X_train, y_train, X_test, y_test
        """,
)
def sides_exchanged(subject: Subject) -> Iterator[Place]:
    """Names of an unpacked split speak of the other side than their place, or than the mask they are taken by; or a function is given the parts of a fold under parameters of the other side."""
    program = subject.program
    yield from _masked_otherwise(program)
    yield from _given_as_train(program)
    for node in program.nodes[ast.Assign]:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Tuple):
            call, names = node.value, [last_name(e) for e in node.targets[0].elts]
            split = program.resolve(call.func) == "sklearn.model_selection.train_test_split" and keyword(call, "train_size") is None
            if split and len(names) == 2 * len(call.args) and (wrong := _misplaced(names)):
                yield call, f"{wrong[0]} is the {wrong[1]} part here: a split gives the train part of an array first, and then its held-out part"
    for node in (*program.nodes[ast.For], *program.nodes[ast.comprehension], *program.nodes[ast.Assign]):
        pair = _fold(program, node)
        if pair is None:
            continue
        first, second = pair
        if (side_of(first), side_of(second)) in (("test", "train"), ("val", "train")):
            place = node.iter if isinstance(node, ast.comprehension) else node
            yield place, f"{first} are the train rows of the fold, which come first, {second} the held-out ones"
        else:
            yield from _passed_exchanged(program, node, first, second)


MEASURED = {"metric", "metrics", "result", "results", "score", "scores", "loss", "losses", "stats"}  # what is reported of a side


def _given_as_train(program: Program) -> Iterator[Place]:
    """`probe(encoder, test, test)` of a function whose parameters are called train and test: it learns from held-out rows."""
    for function, sites in program.call_sites.items():
        sides = {p: side_of(p) for p in function.parameters if not MEASURED & words(p)}
        if "train" not in sides.values() or not {"val", "test"} & set(sides.values()):
            continue
        for call, scope in sites:
            given = {p: argument(call, function, p) for p, side in sides.items() if side}
            spoken = {p: {side_of(n) for n in names_read(a)} - {""} for p, a in given.items() if a is not None}
            if any(p for p, found in spoken.items() if sides[p] != "train" and found == {"train"}):
                continue  # a fold, or a swap, of both
            for name, found in spoken.items():
                if sides[name] == "train" and len(found) == 1 and not found & {"train"}:
                    yield call, f"{ast.unparse(given[name] or call)} is given as {name}", scope.node if scope.name else call


def _masked_otherwise(program: Program) -> Iterator[Place]:
    """`fit, val = rows[in_val], rows[~in_val]`: both sides are taken by one mask, whose name speaks of the other one in each."""
    found: dict[tuple[object, str], list[tuple[ast.Subscript, str, bool]]] = {}
    for node in program.nodes[ast.Subscript]:
        if not isinstance(node, ast.Subscript):
            continue
        turned = isinstance(node.slice, ast.UnaryOp) and isinstance(node.slice.op, ast.Invert)
        mask = node.slice.operand if isinstance(node.slice, ast.UnaryOp) else node.slice
        if not isinstance(mask, ast.Name) or not side_of(mask.id):
            continue
        sides = {side_of(t) for t in targets_of(program, node)} - {""}
        if len(sides) == 1:
            found.setdefault((program.scope(node), mask.id), []).append((node, sides.pop(), turned))
    for (_, name), taken in found.items():
        trains = side_of(name) == "train"
        if {t for _, _, t in taken} == {True, False} and all((side == "train") == (trains == turned) for _, side, turned in taken):
            first, side, turned = taken[0]
            yield first, f"{side} rows are those that {name} {'leaves out' if turned else 'marks'}"


def _misplaced(names: list[str]) -> tuple[str, str] | None:
    """A name that speaks of the other side than its place, and the side of the place; None where any speaks of none."""
    sides = [side_of(n) for n in names]
    if not all(sides) or len({s == "train" for s in sides}) == 1:
        return None
    for at, (name, side) in enumerate(zip(names, sides, strict=True)):
        if (side == "train") != (at % 2 == 0):
            return name, "held-out" if at % 2 else "train"
    return None


def _fold(program: Program, node: ast.AST) -> tuple[str, str] | None:
    """The names of train and held-out positions that a splitter of scikit-learn gives: of a loop over its `split`, also numbered, or of the `next` of it."""
    target, made = (
        (node.targets[0], node.value)
        if isinstance(node, ast.Assign)
        else (node.target, node.iter)
        if isinstance(node, (ast.For, ast.comprehension))
        else (None, None)
    )
    if isinstance(made, ast.Call) and last_name(made.func) in ("enumerate", "next") and made.args:
        target = target.elts[1] if last_name(made.func) == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
        made = made.args[0]
    elif isinstance(node, ast.Assign):
        return None
    if not (isinstance(made, ast.Call) and method(made) == "split" and isinstance(made.func, ast.Attribute) and isinstance(target, ast.Tuple)):
        return None
    scope = program.scope(made)
    folds = any(o.name.startswith("sklearn.model_selection.") for o in program.origins(made.func.value, scope))
    names = [last_name(e) for e in target.elts]
    return (names[0], names[1]) if folds and len(names) == 2 and all(names) else None


def _passed_exchanged(program: Program, node: ast.AST, first: str, second: str) -> Iterator[Place]:
    """Calls in a fold that pass rows taken by the second positions for a train parameter, and by the first for a held-out one."""
    body = node.body if isinstance(node, ast.For) else []
    for call in (n for s in body for n in walk(s) if isinstance(n, ast.Call)):
        for function in program.callees(call, program.scope(call)):
            given = {p: names_read(a) & {first, second} for p, a in zip(function.parameters, call.args, strict=False)}
            train = [g for p, g in given.items() if side_of(p) == "train"]
            held = [g for p, g in given.items() if side_of(p) in ("val", "test")]
            if train and held and all(g == {second} for g in train) and all(g == {first} for g in held):
                yield call, f"{first} are the train rows of the fold, and are passed as held-out ones; {second} the other way about"
