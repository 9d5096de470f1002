"""Rules BH459, BH460 and BH468: what is taken of a recurrent layer that runs both ways, that has several layers, or that gets packed sequences."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_to, keywords_of
from training.review.program import Origin, Program, Scope
from training.review.syntax import constant, identifiers, is_true, keyword, last_name, own_nodes, words
from training.review.values import number, reaching_elements

RECURRENT = {"LSTM", "GRU", "RNN"}


@rule(
    "BH459",
    "last-step-of-both-ways",
    "warning",
    title="The last step of a layer that runs both ways",
    why="The backward half of a bidirectional layer begins at the end: of its output at the last step it has seen one token, the one that stands there. Half of the features know nothing of the sequence.",
    remedy="take the last states of both ways: `torch.cat([h[-2], h[-1]], dim=1)`, or a mean or maximum over steps",
    bad="""
        from torch import nn

        class Net(nn.Module):
            def __init__(self, width, classes):
                super().__init__()
                self.rnn = nn.LSTM(width, width, batch_first=True, bidirectional=True)
                self.head = nn.Linear(2 * width, classes)

            def forward(self, x):
                out, _ = self.rnn(x)
                return self.head(out[:, -1])
        """,
    good="""
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self, width, classes):
                super().__init__()
                self.rnn = nn.LSTM(width, width, batch_first=True, bidirectional=True)
                self.head = nn.Linear(2 * width, classes)

            def forward(self, x):
                _, (h, _) = self.rnn(x)
                return self.head(torch.cat([h[-2], h[-1]], dim=1))
        """,
)
def last_step_of_both_ways(subject: Subject) -> Iterator[Place]:
    """`out[:, -1]` of a bidirectional layer with rows in front, or `out[-1]` of one with time in front, and the first step is taken nowhere beside it."""
    program = subject.program
    for owner in program.module_classes:
        for scope in program.methods[owner].values():
            places = [(n, _step_of(n)) for n in own_nodes(scope.node)]
            for node, taken in places:
                made = _output_of(program, taken[0], scope) if taken is not None and isinstance(node, ast.Subscript) else None
                if made is None or taken is None or not is_true(keyword(made.call, "bidirectional")):
                    continue
                first = is_true(keyword(made.call, "batch_first"))
                both = any(other is not None and other[1:] == (taken[1], 0) and ast.dump(other[0]) == ast.dump(taken[0]) for _, other in places)
                if taken[1:] == (first, -1) and not both:
                    yield node, f"{ast.unparse(node)} holds what the backward half of {made.last} has seen of one step"


@rule(
    "BH468",
    "last-place-is-padding",
    "error",
    title="The last place of padded sequences is padding",
    why="Sequences that are filled up to the length of the longest end in padding, all but that one. At the last place `pad_packed_sequence` leaves a row of zeros; and a recurrent layer that is given them unpacked has run on over the padding, so that what it remembers of a sequence depends on its neighbours in the batch.",
    remedy="pack the sequences and take the last state, `h[-1]`, or take each row's own last step: `out[torch.arange(len(out)), lengths - 1]`",
    bad="""
        from torch import nn
        from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

        class Net(nn.Module):
            def __init__(self, width, classes):
                super().__init__()
                self.rnn = nn.GRU(width, width, batch_first=True)
                self.head = nn.Linear(width, classes)

            def forward(self, x, lengths):
                packed, _ = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
                out, _ = pad_packed_sequence(packed, batch_first=True)
                return self.head(out[:, -1])
        """,
    good="""
        from torch import nn
        from torch.nn.utils.rnn import pack_padded_sequence

        class Net(nn.Module):
            def __init__(self, width, classes):
                super().__init__()
                self.rnn = nn.GRU(width, width, batch_first=True)
                self.head = nn.Linear(width, classes)

            def forward(self, x, lengths):
                _, h = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
                return self.head(h[-1])
        """,
)
def last_place_is_padding(subject: Subject) -> Iterator[Place]:
    """`out[:, -1]`, or `out[-1]` with time in front, of what `pad_packed_sequence` gave in the same function, its own last steps taken nowhere beside it; or
    of a layer that gets what a file's `collate_fn` pads, where nothing knows how long each is.
    """
    program = subject.program
    yield from _runs_on(program)
    for scope in program.scopes if "pad_packed_sequence" in program.called_names else ():
        for node in own_nodes(scope.node):
            taken = _step_of(node)
            if taken is None or taken[2] != -1 or not isinstance(taken[0], ast.Name):
                continue
            made = [v for v, index in reaching_elements(program, taken[0], scope) if index == 0 and isinstance(v, ast.Call)]
            unpacked = [c for c in made if last_name(c.func) == "pad_packed_sequence" and is_true(keyword(c, "batch_first", 1)) == taken[1]]
            if unpacked and len(unpacked) == len(made):
                yield node, f"{ast.unparse(node)} is a row of zeros for all sequences but the longest", scope.node


KNOWS_ENDS = {"length", "lengths", "len", "lens", "seqlen", "mask", "masks", "ends", "valid", "padding", "sizes"}


def _runs_on(program: Program) -> Iterator[Place]:
    """The last step or state of a layer of one direction whose network is given `pad_sequence`'s rows alone, padded behind."""
    padded = calls_to(program, "torch.nn.utils.rnn.pad_sequence")
    if not padded:
        return
    left = any(keyword(c, "padding_side", 3) is not None for c in padded) or {"flip", "flipud", "pack_sequence", "pack_padded_sequence"} & program.called_names
    collates = [k.value for k in keywords_of(program, "collate_fn")]
    makers = {program.scope(c).name for c in padded} & {last_name(v) for v in collates}
    if left or not makers or "batch_sampler" in program.identifiers:  # which may put equal lengths together
        return
    for owner in program.module_classes:
        scope = program.methods[owner].get("forward")
        inputs = [p for p in scope.parameters if p != "self"] if scope is not None else []
        if scope is None or len(inputs) != 1 or KNOWS_ENDS & {w for n in identifiers(scope.node) for w in words(n)}:
            continue
        for node in own_nodes(scope.node):
            taken = _step_of(node)
            value = taken[0] if taken is not None and taken[2] == -1 else None
            if not isinstance(value, ast.Name):
                continue
            made, state = _output_of(program, value, scope), _state_of(program, value, scope)
            layer = made if made is not None and taken is not None and taken[1] else state
            if layer is not None and is_true(keyword(layer.call, "batch_first")) and not is_true(keyword(layer.call, "bidirectional")):
                told = f"{ast.unparse(node)} was reached over the padding behind each sequence but the longest: {owner.name} is told no lengths"
                yield node, told, scope.node


def _step_of(node: ast.AST) -> tuple[ast.expr, bool, int] | None:
    """Of which tensor one step is taken, whether along dimension 1, and which: the first, 0, or the last."""
    if not isinstance(node, ast.Subscript):
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    along = len(parts) > 1 and isinstance(parts[0], ast.Slice) and parts[0].lower is None and parts[0].upper is None
    at = constant(parts[1] if along else parts[0])
    # a part of the width behind it, as `out[:, -1, :half]`, is the forward half alone
    cut = any(isinstance(p, ast.Slice) and (p.lower or p.upper) for p in parts[1:])
    return (node.value, along, at) if at in (0, -1) and isinstance(at, int) and not isinstance(at, bool) and not cut else None


def _output_of(program: Program, node: ast.expr, scope: Scope, index: int = 0) -> Origin | None:
    """The recurrent layer of which a name is the output, or, with index 1, the state."""
    found = reaching_elements(program, node, scope) if isinstance(node, ast.Name) else []
    if len(found) != 1 or found[0][1] != index or not isinstance(found[0][0], ast.Call):
        return None
    made = [o for o in program.origins(found[0][0].func, scope) if o.name.startswith("torch.nn.") and o.last in RECURRENT]
    return made[0] if len(made) == 1 else None


@rule(
    "BH460",
    "state-of-first-layer",
    "warning",
    title="The last state of the first layer is used, and not that of the last",
    why="The state of a recurrent layer is [layers, rows, width]: `h[0]` comes from the lowest one. What the layers above it compute is thrown away, and they never learn.",
    remedy="take the top layer: `h[-1]`, both ways `torch.cat([h[-2], h[-1]], dim=1)`",
    bad="""
        from torch import nn

        class Net(nn.Module):
            def __init__(self, width, classes):
                super().__init__()
                self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
                self.head = nn.Linear(width, classes)

            def forward(self, x):
                _, h = self.rnn(x)
                return self.head(h[0])
        """,
    good="""
        from torch import nn

        class Net(nn.Module):
            def __init__(self, width, classes):
                super().__init__()
                self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
                self.head = nn.Linear(width, classes)

            def forward(self, x):
                _, h = self.rnn(x)
                return self.head(h[-1])
        """,
)
def state_of_first_layer(subject: Subject) -> Iterator[Place]:
    """`h[0]` of the state of a layer made with two layers and more, nothing else of which is read, nor of its output."""
    program = subject.program
    for owner in program.module_classes:
        for scope in program.methods[owner].values():
            for node in own_nodes(scope.node):
                if not (
                    isinstance(node, ast.Subscript)
                    and isinstance(node.value, ast.Name)
                    and constant(node.slice) == 0
                    and not isinstance(constant(node.slice), bool)
                ):
                    continue
                made = _state_of(program, node.value, scope)
                layers = number(program, keyword(made.call, "num_layers", 2), made.scope) if made is not None else None
                if made is None or layers is None or layers < 2 or is_true(keyword(made.call, "bidirectional")):
                    continue
                reads = [n for n in own_nodes(scope.node) if isinstance(n, ast.Name) and n.id == node.value.id and isinstance(n.ctx, ast.Load)]
                if len(reads) == 1:
                    yield node, f"{ast.unparse(node)} is the state of the first of {layers:g} layers"


def _state_of(program: Program, node: ast.Name, scope: Scope) -> Origin | None:
    """The layer whose last state a name is: of `_, h = rnn(x)` and `_, (h, _) = rnn(x)`."""
    if (made := _output_of(program, node, scope, 1)) is not None:
        return made if made.last != "LSTM" else None
    for statement in own_nodes(scope.node):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        pair = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) > 1 else None
        if (
            isinstance(statement, ast.Assign)
            and isinstance(pair, ast.Tuple)
            and isinstance(pair.elts[0], ast.Name)
            and pair.elts[0].id == node.id
            and isinstance(statement.value, ast.Call)
        ):
            found = [
                o for o in program.origins(statement.value.func, scope) if o.name == "torch.nn.LSTM" or (o.name.startswith("torch.nn.") and o.last == "LSTM")
            ]
            return found[0] if len(found) == 1 else None
    return None
