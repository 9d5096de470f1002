"""Rule BH708: states that are saved and never read again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_optimizer
from training.review.program import Program
from training.review.syntax import constant, method, receiver


@rule(
    "BH708",
    "saved-state-not-loaded",
    "error",
    title="A state is saved and not loaded again",
    why="The resumed run has its weights and its optimizer, and a schedule, a scaler or an averaged network that starts anew: a warm-up in the middle of the run, a rate that never ends low.",
    remedy="load every state that is saved: `scheduler.load_state_dict(state['scheduler'])`",
    bad="""
        import torch

        def save(path, model, optimizer, scheduler):
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, path)

        def resume(path, model, optimizer, scheduler):
            state = torch.load(path, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        """,
    good="""
        import torch

        def save(path, model, optimizer, scheduler):
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, path)

        def resume(path, model, optimizer, scheduler):
            state = torch.load(path, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scheduler.load_state_dict(state["scheduler"])
        """,
)
def saved_state_not_loaded(subject: Subject) -> Iterator[Place]:
    """Of the states in a saved dict that of an optimizer is loaded again by its key, and another one's key is read nowhere in the file."""
    program = subject.program
    loads = [(receiver(c), c.args[0]) for c in program.all_calls if method(c) == "load_state_dict" and c.args]
    if any(isinstance(given, ast.Subscript) and not isinstance(constant(given.slice), str) for _, given in loads):
        return  # keys that come out of a loop
    resumed = {_key(given) for into, given in loads if into is not None and is_optimizer(program, into, program.scope(into))} - {None}
    read = _keys_read(program)
    for saved in program.nodes[ast.Dict]:
        if not isinstance(saved, ast.Dict):
            continue
        states = {
            constant(k): k for k, v in zip(saved.keys, saved.values, strict=True) if isinstance(v, ast.Call) and method(v) == "state_dict" and k is not None
        }
        if resumed & states.keys():
            for name in sorted(str(n) for n in states.keys() - read if isinstance(n, str)):
                yield states[name], f"the state under {name!r} is saved, and nothing here reads it again"


def _key(node: ast.expr) -> object:
    if isinstance(node, ast.Subscript):
        return constant(node.slice)
    return constant(node.args[0]) if isinstance(node, ast.Call) and method(node) in ("get", "pop") and node.args else None


def _keys_read(program: Program) -> set[object]:
    """The constants by which anything is taken out of a dict, or asked for in one, or listed."""
    found = {constant(n.slice) for n in program.nodes[ast.Subscript] if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)}
    found |= {constant(a) for c in program.all_calls for a in c.args}
    found |= {constant(n.left) for n in program.nodes[ast.Compare] if isinstance(n, ast.Compare)}
    listed = [n for kind in (ast.Tuple, ast.List, ast.Set) for n in program.nodes[kind]]
    return found | {constant(e) for n in listed for e in getattr(n, "elts", ())}
