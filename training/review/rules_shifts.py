"""Rules BH328, BH545 and BH546: tokens shifted the wrong way, labels that are blended, and a label that is the last value of its window."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, identifiers, keyword, last_name, method, names_read, own_nodes, receiver, walk, words
from training.review.values import loss_calls, reaching

MASKS = {"mask", "masks", "label", "labels", "seg", "segmentation", "annotation", "annotations", "classes"}
BLENDS = {"bilinear", "bicubic", "linear", "trilinear"}
THRESHOLDS = {"gt", "ge", "lt", "le", "gt_", "ge_", "lt_", "le_"}
WHOLE = {"long", "int", "short", "byte"}
RESIZE = "torchvision.transforms.functional.resize"
RESHAPES = {"flatten", "reshape", "view", "contiguous", "transpose", "permute", "to", "clone", "long"}


@rule(
    "BH328",
    "shifted-the-wrong-way",
    "error",
    title="The network foretells the token before",
    why="It is given tokens from the second on and learns those up to the last but one: each target is the token before, which a causal network has in its input.",
    remedy="`cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())`",
    bad="""
        import torch.nn.functional as F

        def train(net, loader, optimizer):
            for ids in loader:
                loss = F.cross_entropy(net(ids[:, 1:]).flatten(0, 1), ids[:, :-1].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch.nn.functional as F

        def train(net, loader, optimizer):
            for ids in loader:
                loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
)
def shifted_the_wrong_way(subject: Subject) -> Iterator[Place]:
    """The scores of a cross-entropy are those of `ids[:, 1:]`, its labels `ids[:, :-1]` of the same name, in no file that speaks of running backwards."""
    program = subject.program
    for loss in loss_calls(program):
        if loss.kind not in ("cross_entropy", "nll") or loss.target is None:
            continue
        target = _behind(program, loss.target, loss.scope)
        if _cut(target) != "last" or any(words(n) & {"backwards", "reverse", "reversed", "bidirectional"} for n in program.identifiers):
            continue
        scores = _behind(program, loss.scores, loss.scope)
        given = (
            _behind(program, scores.args[0], loss.scope)
            if isinstance(scores, ast.Call) and scores.args and is_model(program, scores.func, loss.scope)
            else None
        )
        if given is not None and _cut(given) == "first" and ast.dump(_table(given)) == ast.dump(_table(target)):
            yield loss.call, f"{ast.unparse(given)} goes in, and {ast.unparse(target)}, the token before each, is to come out"


def _behind(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> ast.expr:
    """What a value is without reshapes, one name after the other."""
    while isinstance(node, ast.Call) and method(node) in RESHAPES and (inner := receiver(node)) is not None and not program.resolve(node.func):
        node = inner
    found = reaching(program, node, scope) if isinstance(node, ast.Name) and depth < 4 else []
    return _behind(program, found[0], scope, depth + 1) if len(found) == 1 else node


def _cut(node: ast.expr) -> str:
    """Which token is left out along the second axis: the first, of `x[:, 1:]`, or the last, of `x[:, :-1]`."""
    parts = node.slice.elts if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) else []
    if len(parts) != 2 or not all(isinstance(p, ast.Slice) for p in parts) or ast.unparse(parts[0]) != ":":
        return ""
    return {"1:": "first", ":-1": "last"}.get(ast.unparse(parts[1]), "")


def _table(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


@rule(
    "BH545",
    "labels-blended",
    "error",
    title="Labels are interpolated",
    why="Between the classes 1 and 3 lies no class 2. Resized bilinearly, the border of a mask gets labels of classes that are not there, and where they are whole again they are wrong.",
    remedy='`mode="nearest"`, or `interpolation=InterpolationMode.NEAREST`',
    bad="""
        import torch.nn.functional as F

        def shrink(mask):
            return F.interpolate(mask[None, None].float(), scale_factor=0.5, mode="bilinear")[0, 0].long()
        """,
    good="""
        import torch.nn.functional as F

        def shrink(mask):
            return F.interpolate(mask[None, None].float(), scale_factor=0.5, mode="nearest")[0, 0].long()
        """,
)
def labels_blended(subject: Subject) -> Iterator[Place]:
    """Something called a mask or labels is resized by a mode that blends, and made whole numbers again, with no comparison between; or by torchvision's default beside an image."""
    program = subject.program
    names = {"interpolate", "resize", *(n for n, of in program.aliases.items() if of == RESIZE)}
    for call in program.calls_of(*names):
        last, scope = last_name(call.func), program.scope(call)
        plain = program.resolve(call.func) == RESIZE and keyword(call, "interpolation", 2) is None
        if last != "interpolate" and not plain:
            continue
        of = {w for n in identifiers(call.args[0]) for w in words(n)} if call.args else set()
        if not of & MASKS or of & {"scores", "logits", "score", "probs", "probabilities", "alpha", "matte", "soft"}:
            continue
        if last == "interpolate" and constant(keyword(call, "mode", 3)) in BLENDS and _made_whole(program, call, scope):
            yield call, f"{ast.unparse(call.args[0])} is blended, and made whole numbers again"
        image = plain and any(
            program.resolve(c.func) == program.resolve(call.func) and c is not call and not {w for n in identifiers(c.args[0]) for w in words(n)} & MASKS
            for c in calls(scope.node)
            if c.args
        )
        if image and not _compared(program, call, scope):
            yield call, f"{ast.unparse(call.args[0])} is resized bilinearly, as the image is: by default"


def _made_whole(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether what an interpolation gives is cast to whole numbers."""
    node: ast.AST = call
    while isinstance(above := program.parents[node], (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(above, ast.Attribute) and above.attr in WHOLE:
            return True
        if isinstance(above, ast.Attribute) and above.attr not in RESHAPES | {"squeeze", "unsqueeze"}:
            return False
        node = above
    name = last_name(above.targets[0]) if isinstance(above, ast.Assign) else ""
    cast = [c for c in calls(scope.node) if method(c) in WHOLE and names_read(receiver(c) or c) == {name}]
    cut = any(method(c) in THRESHOLDS and name in names_read(c) for c in calls(scope.node))
    return bool(name) and bool(cast) and not cut and not any(isinstance(n, ast.Compare) and name in names_read(n) for n in walk(scope.node))


def _compared(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether what is resized is cut at a threshold afterwards, at once or by its name."""
    if any(isinstance(a, ast.Compare) for a in program.ancestors(call)):
        return True
    names = {last_name(t) for t in getattr(program.statement(call), "targets", ())} - {""}
    return any(isinstance(n, ast.Compare) and names_read(n) & names and n.lineno >= call.lineno for n in walk(scope.node))


@rule(
    "BH546",
    "label-in-its-window",
    "error",
    title="The label is the last value of its own window",
    why="`series[i : i + w]` ends with `series[i + w - 1]`. Taken as the label it stands among the inputs: the network copies its last input, and its error is near 0.",
    remedy="take the value behind the window, `series[i + w]`, and one window less",
    bad="""
        import torch

        def windows(series, w):
            x = torch.stack([series[i : i + w] for i in range(len(series) - w)])
            y = torch.stack([series[i + w - 1] for i in range(len(series) - w)])
            return x, y
        """,
    good="""
        import torch

        def windows(series, w):
            x = torch.stack([series[i : i + w] for i in range(len(series) - w)])
            y = torch.stack([series[i + w] for i in range(len(series) - w)])
            return x, y
        """,
)
def label_in_its_window(subject: Subject) -> Iterator[Place]:
    """In one function a series is cut from i to i + w, and its value at i + w - 1 taken by itself; of one column of it, where the window leaves that column in."""
    program = subject.program
    if not any(isinstance(n, ast.Subscript) and isinstance(n.slice, ast.BinOp) and constant(n.slice.right) == 1 for n in program.nodes[ast.Subscript]):
        return
    for scope in program.scopes:
        taken = [n for n in own_nodes(scope.node) if isinstance(n, ast.Subscript)]
        windows = {
            (ast.dump(n.value), ast.dump(n.slice.upper))
            for n in taken
            if isinstance(n.slice, ast.Slice) and n.slice.lower and isinstance(n.slice.upper, ast.BinOp)
        }
        for node in taken if windows else ():
            last = node.slice
            if (
                isinstance(last, ast.BinOp)
                and isinstance(last.op, ast.Sub)
                and constant(last.right) == 1
                and (ast.dump(node.value), ast.dump(last.left)) in windows
                and _is_label(program, node)
            ):
                yield node, f"{ast.unparse(node)} is the last value of the window that ends at {ast.unparse(last.left)}"


def _is_label(program: Program, node: ast.Subscript) -> bool:
    """Whether a value goes under the name of a label, into a list of them, or out of an item: not a last value that is subtracted, or scored beside the network."""
    statement, above = program.statement(node), program.parents[node]
    if isinstance(above, ast.BinOp) and above.right is node:
        return False
    if isinstance(statement, ast.Return):
        return True
    targets = {w for t in getattr(statement, "targets", ()) for n in identifiers(t) for w in words(n)}
    listed = {w for c in calls(statement) if method(c) == "append" for n in identifiers(receiver(c) or c) for w in words(n)}
    return bool((targets | listed) & {"y", "ys", "target", "targets", "label", "labels", "truth", "out", "outputs", "future", "next"})
