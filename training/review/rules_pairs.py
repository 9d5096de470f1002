"""Rule BH533: an image and what goes with its pixels, not moved together."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import spoken_words
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, dotted, identifiers, last_name, method, names_read, own_nodes, receiver, walk, words

IMAGES = {"image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "scan", "scans", "tile", "tiles", "x"}
MAPS = {
    "mask", "masks", "seg", "segmentation", "boxes", "bboxes", "bbox", "heatmap", "depth", "annotation", "labelmap",
    "landmark", "landmarks", "keypoint", "keypoints", "kp", "kpts", "joints", "pt", "pts", "point", "points",
}  # fmt: skip
DRAWS = {"random", "rand", "randint", "uniform", "integers", "randrange", "choice"}
MOVES = {"flip", "hflip", "vflip", "fliplr", "flipud", "rot90", "rotate", "roll", "crop", "affine", "transpose", "resized_crop"}
TURNS = {"rot90", "rotate", "roll", "affine"}
EXACT = {"flip", "rot90", "roll"}  # of whole pixels: what they are given is how far, and nothing else
WRAPS = {"from_numpy", "as_tensor", "tensor", "asarray", "array", "ascontiguousarray", "to_tensor"}
RETYPES = {"float", "long", "int", "bool", "double", "to", "astype", "copy", "clone", "unsqueeze", "contiguous"}
TRANSFORMS = {"RandomHorizontalFlip", "RandomVerticalFlip", "RandomCrop", "RandomResizedCrop", "RandomRotation", "RandomAffine", "RandomPerspective"}
REPEATS_DRAW = {"manual_seed", "seed", "set_state", "setstate", "set_rng_state", "fork_rng", "get_params", "get_state", "getstate"}


@rule(
    "BH533",
    "mask-moved-on-its-own",
    "error",
    title="An image and its mask are not moved together",
    why="Each is flipped, turned or cropped by a draw of its own, or the image alone is: in half of all pairs the mask lies elsewhere than what it marks.",
    remedy="draw once, and move both by what was drawn",
    bad="""
        import torch
        from torch.utils.data import Dataset

        class Cells(Dataset):
            def __init__(self, images, masks):
                self.images, self.masks = images, masks

            def __getitem__(self, i):
                image, mask = self.images[i], self.masks[i]
                if torch.rand(()) < 0.5:
                    image = image.flip(-1)
                if torch.rand(()) < 0.5:
                    mask = mask.flip(-1)
                return image, mask
        """,
    good="""
        import torch
        from torch.utils.data import Dataset

        class Cells(Dataset):
            def __init__(self, images, masks):
                self.images, self.masks = images, masks

            def __getitem__(self, i):
                image, mask = self.images[i], self.masks[i]
                if torch.rand(()) < 0.5:
                    image, mask = image.flip(-1), mask.flip(-1)
                return image, mask
        """,
)
def mask_moved_on_its_own(subject: Subject) -> Iterator[Place]:
    """In one function an image and its mask are each given to the same random movement, or moved each under a draw of its own, or the image alone is; no draw is repeated."""
    program = subject.program
    if not MAPS & spoken_words(program):
        return
    for scope in program.scopes:
        called = {last_name(n.func) for n in own_nodes(scope.node) if isinstance(n, ast.Call)}
        if not scope.name or REPEATS_DRAW & called:
            continue
        alone: dict[str, tuple[str, str, ast.AST]] = {}
        for node, name, how in _moved(program, scope):
            kind = "image" if IMAGES & words(name) else "mask"
            if not (IMAGES & words(name) and MAPS & words(name)):
                alone.setdefault(kind + how, (name, how, node))
        for kind, (name, how, node) in alone.items():
            if kind.startswith("mask") and (image := alone.get("image" + how)) is not None and image[2] is not node:
                yield node, f"{image[0]} and {name} are each moved by a draw of their own ({how})"
                break
        left = _left_behind(program, scope) or _moved_elsewhere(scope) if alone and all(kind.startswith("image") for kind in alone) else ""
        if left:
            moved, how, node = next(iter(alone.values()))
            yield node, f"{moved} is moved by a draw ({how}), and {left} stays where it was"
        yield from _moved_apart(scope) if EXACT & called else ()
        yield from _turned_alone(scope) if TURNS & called else ()


def _turned_alone(scope: Scope) -> Iterator[Place]:
    """`image = np.rot90(image, turns)` with turns that are drawn, in a function that gives image and mask back and turns the mask nowhere."""
    pairs = [n.value.elts for n in own_nodes(scope.node) if isinstance(n, ast.Return) and isinstance(n.value, ast.Tuple)]
    names = {n for elements in pairs for e in elements[:2] for n in names_read(e)}
    masks = {n for n in names if MAPS & words(n) and not IMAGES & words(n)}
    moves = [c for c in own_nodes(scope.node) if isinstance(c, ast.Call) and last_name(c.func) in MOVES]
    of = {id(c): last_name(c.args[0] if dotted(receiver(c)) in ("np", "numpy", "torch", "TF", "F") and c.args else receiver(c)) for c in moves}
    if (
        not masks
        or any(of[id(c)] in masks and last_name(c.func) in TURNS | {"transpose"} for c in moves)
        or {"swapaxes", "permute", "T"} & identifiers(scope.node)
    ):
        return
    drawn = {
        name for name, bound in scope.bindings.items() if any(isinstance(c, ast.Call) and last_name(c.func) in DRAWS for b in bound for c in walk(b.value))
    }
    for call in moves:
        given = {n for a in (*call.args, *(k.value for k in call.keywords)) for n in names_read(a)}
        together = any(isinstance(c, ast.Call) and c is not call and masks & names_read(c) and drawn & names_read(c) for c in own_nodes(scope.node))
        if last_name(call.func) in TURNS and of[id(call)] in names and IMAGES & words(of[id(call)]) and given & drawn and not together:
            yield call, f"{of[id(call)]} is turned by a draw ({last_name(call.func)}), and {sorted(masks)[0]} is not"


def _left_behind(program: Program, scope: Scope) -> str:
    """The mask that a function looks up beside an image and gives back with it, without another use of it."""
    for node in (n for n in own_nodes(scope.node) if isinstance(n, (ast.Return, ast.Yield)) and isinstance(n.value, ast.Tuple)):
        given = [e.id for e in node.value.elts if isinstance(e, ast.Name)] if isinstance(node.value, ast.Tuple) else []
        masks = [n for n in given if MAPS & words(n) and not IMAGES & words(n)]
        if len(masks) != 1 or not any(IMAGES & words(n) and n not in masks for n in given):
            continue
        bound = scope.bindings.get(masks[0], [])
        made = [b for b in bound if not _only_wraps(b.value, masks[0])]
        looked_up = len(made) == 1 and any(isinstance(n, ast.Subscript) for n in walk(made[0].value)) and not any(_is_draw(n) for n in walk(made[0].value))
        read = [n for n in own_nodes(scope.node) if isinstance(n, ast.Name) and n.id == masks[0] and isinstance(n.ctx, ast.Load)]
        if looked_up and len(read) == 1 + len(bound) - len(made):
            return masks[0]
    return ""


def _only_wraps(value: ast.expr, name: str) -> bool:
    """Whether a value is the same pixels in another type or with a channel in front: `torch.from_numpy(mask)[None].float()`."""
    if isinstance(value, ast.Name):
        return value.id == name
    if isinstance(value, ast.Subscript):
        return constant(value.slice) is None and isinstance(value.slice, ast.Constant) and _only_wraps(value.value, name)
    if not isinstance(value, ast.Call):
        return False
    if last_name(value.func) in WRAPS and value.args:
        return _only_wraps(value.args[0], name)
    inner = receiver(value)
    return method(value) in RETYPES and inner is not None and _only_wraps(inner, name)


def _moved_elsewhere(scope: Scope) -> str:
    """A mask that the function moves at another place, so that it lies in pixels as its image does."""
    moved = [last_name(receiver(c)) for c in own_nodes(scope.node) if isinstance(c, ast.Call) and method(c) in MOVES]
    return next((n for n in moved if MAPS & words(n) and not IMAGES & words(n)), "")


def _moved_apart(scope: Scope) -> Iterator[Place]:
    """`image, mask = image.rot90(k), mask.rot90(-k)`: one movement, by another amount or along another axis."""
    for node in own_nodes(scope.node):
        values = node.value.elts if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) else []
        moves = [v for v in values if isinstance(v, ast.Call) and method(v) in EXACT and not v.keywords]
        image = next((v for v in moves if IMAGES & words(last_name(receiver(v)))), None)
        for mask in (v for v in moves if image is not None and MAPS & words(last_name(receiver(v))) and not IMAGES & words(last_name(receiver(v)))):
            if image is not None and method(mask) == method(image) and _otherwise(image, mask):
                yield node, f"{ast.unparse(image)} and {ast.unparse(mask)}: each is moved in its own way"


def _otherwise(image: ast.Call, mask: ast.Call) -> bool:
    """Whether two moves are by other amounts, or along axes that no channel in front of the mask's accounts for."""
    first = 0 if method(image) == "flip" else 1
    if [ast.dump(a) for a in image.args[:first]] != [ast.dump(a) for a in mask.args[:first]]:
        return True
    one, other = (_axes(call.args[first:]) for call in (image, mask))
    if one is None or other is None:
        return False
    if len(one) != len(other):
        return True
    if any((a < 0) != (b < 0) for a, b in zip(one, other, strict=True)):
        return False  # how many axes there are is not known here
    return one != other and (min(one) < 0 or {a - b for a, b in zip(one, other, strict=True)} != {1})


def _axes(given: list[ast.expr]) -> list[int] | None:
    """The axes that are written there, in order; None where something else than a number is."""
    parts = [e for g in given for e in (g.elts if isinstance(g, (ast.Tuple, ast.List)) else [g])]
    axes = [a for p in parts if isinstance(a := constant(p), int)]
    return sorted(axes) if len(axes) == len(parts) else None


def _moved(program: Program, scope: Scope) -> Iterator[tuple[ast.AST, str, str]]:
    """What is moved by a draw of its own: where, its name, and by what."""
    for call in (n for n in own_nodes(scope.node) if isinstance(n, ast.Call) and len(n.args) == 1 and not n.keywords):
        name = last_name(call.args[0])
        if not {*IMAGES, *MAPS} & words(name):
            continue
        function = program.callees_by_name(call, scope) or _called_object(program, call, scope) or _own_method(program, call, scope)
        moves = _draws_and_moves(function) or _composed(program, call, scope) if function is not None else _is_random_transform(program, call, scope)
        if moves:
            yield call, name, ast.unparse(call.func)
    for node in own_nodes(scope.node):
        if not isinstance(node, ast.If) or node.orelse or not any(isinstance(c, ast.Call) and last_name(c.func) in DRAWS for c in walk(node.test)):
            continue
        for name in _moved_in(node):
            yield node, name, "if"


def _moved_in(node: ast.If) -> list[str]:
    """The one name that a branch moves, which reads and gives a value to nothing else: `mask = mask.flip(-1)`."""
    stored = {n.id for s in node.body for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if len(stored) != 1 or not all(isinstance(s, ast.Assign) for s in node.body):
        return []
    name = stored.pop()
    moves = any(isinstance(c, ast.Call) and last_name(c.func) in MOVES for s in node.body for c in walk(s))
    known = {*IMAGES, *MAPS} & words(name)
    return [name] if moves and known and all(name in names_read(s) for s in node.body) else []


def _draws_and_moves(function: Scope) -> bool:
    """Whether a function of one image draws a number and flips, turns, rolls or crops by it."""
    called = {last_name(c.func) for c in walk(function.node) if isinstance(c, ast.Call)}
    arguments = function.node.args if isinstance(function.node, ast.FunctionDef) else None
    last = len(function.parameters) - (len(arguments.defaults) if arguments is not None else 0)
    whole = [p for p in function.parameters[:last] if p not in ("self", "cls")]
    draws = any(_is_draw(c) for c in walk(function.node))
    return len(whole) == 1 and draws and bool(called & MOVES)


def _is_draw(node: ast.AST) -> bool:
    """Whether it is a draw of a library's generator, not of one that was made for this image."""
    return isinstance(node, ast.Call) and last_name(node.func) in DRAWS and dotted(node.func).partition(".")[0] in ("random", "torch", "np", "numpy")


def _own_method(program: Program, call: ast.Call, scope: Scope) -> Scope | None:
    """The method of the class itself that is called: `self.random_flip(image)`."""
    return next(iter(program.callees(call, scope)), None) if dotted(receiver(call)) == "self" else None


def _called_object(program: Program, call: ast.Call, scope: Scope) -> Scope | None:
    """The `__call__` of the class of this file whose object is called."""
    owners = [program.classes[o.name] for o in program.origins(call.func, scope) if o.name in program.classes]
    return program.find_method(owners[0], "__call__") if len(owners) == 1 else None


def _composed(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether an object is called that was made with one of a class of this file which moves by a draw: `Compose([RandomFlip(), Gain()])`."""
    made = [c for o in program.origins(call.func, scope) for a in (*o.call.args, *(k.value for k in o.call.keywords)) for c in calls(a)]
    within = (program.find_method(program.classes[last_name(c.func)], "__call__") for c in made if last_name(c.func) in program.classes)
    return any(function is not None and _draws_and_moves(function) for function in within)


def _is_random_transform(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether what is called is a transform of torchvision that moves by a draw, or a composition with one."""
    for origin in program.origins(call.func, scope):
        inside = [c for c in walk(origin.call) if isinstance(c, ast.Call) and "torchvision.transforms" in program.resolve(c.func)]
        certain = [c for c in inside if constant(next((k.value for k in c.keywords if k.arg == "p"), None)) not in (0, 1, 0.0, 1.0)]
        if any(last_name(c.func) in TRANSFORMS for c in certain):
            return not {"Mask", "wrap_dataset_for_transforms_v2", "tv_tensors"} & program.identifiers
    return False
