"""Rules BH150 and BH151: averages and kept values that are the live weights themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, dotted, last_name, method, own_nodes, receiver, walk

SAME = {"detach", "view", "view_as", "reshape"}  # what shares its values with what it is called on
CHANGES = {"lerp_", "mul_", "add_", "copy_", "sub_", "div_", "addcmul_"}
WEIGHTS = {"parameters", "named_parameters", "state_dict", "buffers", "named_buffers"}


@rule(
    "BH150",
    "average-is-the-weights",
    "error",
    title="An average of the weights is the weights themselves",
    why="Without a copy each entry shares its numbers with the network: every step moves both, the average is the network of that moment, and writing to it changes what is trained.",
    remedy="`self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}`",
    bad="""
        import torch

        class EMA:
            def __init__(self, model, decay):
                self.decay = decay
                self.shadow = {name: p.detach() for name, p in model.named_parameters()}

            @torch.no_grad()
            def update(self, model):
                for name, p in model.named_parameters():
                    self.shadow[name].lerp_(p, 1 - self.decay)
        """,
    good="""
        import torch

        class EMA:
            def __init__(self, model, decay):
                self.decay = decay
                self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

            @torch.no_grad()
            def update(self, model):
                for name, p in model.named_parameters():
                    self.shadow[name].lerp_(p, 1 - self.decay)
        """,
)
def average_is_the_weights(subject: Subject) -> Iterator[Place]:
    """A dict or list over the weights of a network holds them without a copy, and its entries are changed in place, each by a weight."""
    program = subject.program
    for comprehension in (*program.nodes[ast.DictComp], *program.nodes[ast.ListComp]):
        if not isinstance(comprehension, (ast.DictComp, ast.ListComp)) or len(comprehension.generators) != 1:
            continue
        loop, value = comprehension.generators[0], comprehension.value if isinstance(comprehension, ast.DictComp) else comprehension.elt
        if not any(method(c) in WEIGHTS for c in calls(loop.iter)) or last_name(_shared(value)) not in {
            n.id for n in walk(loop.target) if isinstance(n, ast.Name)
        }:
            continue
        statement = program.statement(comprehension)
        held = {dotted(t) for t in statement.targets} - {""} if isinstance(statement, ast.Assign) and statement.value is comprehension else set()
        change = next((c for c in program.methods_of(*CHANGES) if held and _changes_entry(program, c, held, statement)), None)
        if change is not None:
            yield comprehension, f"{sorted(held)[0]} holds the weights themselves, and line {change.lineno} changes its entries: a clone is missing"


def _shared(value: ast.expr) -> ast.expr:
    """What a value shares its numbers with."""
    while True:
        if isinstance(value, ast.Call) and method(value) in SAME and (of := receiver(value)) is not None:
            value = of
        elif isinstance(value, ast.Attribute) and value.attr == "data":
            value = value.value
        else:
            return value


def _changes_entry(program: Program, call: ast.Call, held: set[str], made: ast.stmt) -> bool:
    """Whether `held[name].lerp_(…)`, or the same of a name that goes through it in a loop; names of a function within it alone."""
    of = receiver(call)
    while isinstance(of, ast.Call):  # `s.mul_(a).add_(b)`
        of = receiver(of)
    if method(call) not in CHANGES or of is None or not call.args:
        return False
    mine = {h for h in held if h.startswith("self.")} | (held if program.scope(call) is program.scope(made) else set())
    if isinstance(of, ast.Subscript):
        return dotted(of.value) in mine
    for around in program.ancestors(call) if isinstance(of, ast.Name) else ():
        if isinstance(around, ast.For) and isinstance(around.target, ast.Tuple) and isinstance(around.iter, ast.Call) and last_name(around.iter.func) == "zip":
            sides = zip(around.target.elts, around.iter.args, strict=False)
            return any(last_name(t) == last_name(of) and dotted(s) in mine for t, s in sides)
    return False


@rule(
    "BH151",
    "kept-value-overwritten",
    "error",
    title="What is kept for later is overwritten at once",
    why="`kept = p.data` is no copy: once other values are written into p, kept holds those as well, and putting it back puts nothing back. Training goes on from the averaged or loaded weights.",
    remedy="`kept = p.detach().clone()`",
    bad="""
        import torch

        @torch.no_grad()
        def swap(model, average):
            for p, a in zip(model.parameters(), average.parameters()):
                kept = p.data
                p.data.copy_(a.data)
                a.data.copy_(kept)
        """,
    good="""
        import torch

        @torch.no_grad()
        def swap(model, average):
            for p, a in zip(model.parameters(), average.parameters()):
                kept = p.data.clone()
                p.data.copy_(a.data)
                a.data.copy_(kept)
        """,
)
def kept_value_overwritten(subject: Subject) -> Iterator[Place]:
    """A name for a tensor without a copy, then the tensor is written to by `copy_`, and then the name is read to be copied elsewhere."""
    program = subject.program
    for scope in program.scopes if program.methods_of("copy_") else ():
        copies = [c for c in own_nodes(scope.node) if isinstance(c, ast.Call) and method(c) == "copy_" and c.args]
        for kept, of in _names_for(scope) if len(copies) > 1 else ():
            written = [c for c in copies if _text(receiver(c)) == of and c.lineno > kept.lineno]
            name = last_name(kept.targets[0])
            back = [c for c in copies if written and c.lineno > written[0].lineno and last_name(_shared(c.args[0])) == name and _text(receiver(c)) != of]
            if back and program.parents[kept] is program.parents[program.statement(written[0])]:
                yield kept, f"{name} is no copy of {of}: line {written[0].lineno} writes to both, and line {back[0].lineno} copies what was written"


def _names_for(scope: Scope) -> Iterator[tuple[ast.Assign, str]]:
    """Names that are given a tensor as it is: the statement, and the text of the tensor."""
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            of = _shared(node.value)
            if isinstance(of, (ast.Name, ast.Attribute, ast.Subscript)) and constant(of) is None:
                yield node, _text(of)


def _text(node: ast.expr | None) -> str:
    return ast.unparse(_shared(node)) if node is not None else ""
