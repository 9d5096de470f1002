"""Rule BH227: the network is helped by the truth while it is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.program import Program, Scope
from training.review.rules_evaluation import evaluations
from training.review.syntax import (
    constant,
    defaults,
    has_unpacking,
    identifiers,
    keyword,
    last_name,
    names_read,
    nodes_of,
    walk,
    words,
)

LIKELIHOODS = {
    "cross_entropy",
    "CrossEntropyLoss",
    "nll_loss",
    "NLLLoss",
    "perplexity",
    "ppl",
}  # of tokens, which are measured so on purpose


@rule("BH227")
def teacher_forced_evaluation(subject: Subject) -> Iterator[Place]:
    """In an evaluation a network is called with a share of teacher forcing between 0 and 1, given
    or by default, and its forward does not look at `self.training`; or with all of it, where what
    is foretold are numbers.
    """
    program = subject.program
    forced = {
        owner: found for owner in program.module_classes if (found := _forcing(program, owner))
    }
    if not forced:
        return
    seen: set[ast.AST] = set()
    calls = [(e.call, e.scope) for _, forwards, _ in evaluations(subject) for e in forwards]
    calls += [
        (c, s)
        for c in program.all_calls
        if (s := program.scope(c)) and _quiet(program, c, s) and is_model(program, c.func, s)
    ]
    for call, scope in calls:
        known = {
            program.classes[o.name]
            for o in program.origins(call.func, scope)
            if o.name in program.classes
        }
        named = (
            [o for o in forced if o in known] if known else list(forced) if len(forced) == 1 else []
        )
        if (
            call in seen
            or len(named) != 1
            or has_unpacking(call)
            or len(call.args) + len(call.keywords) < 2
        ):
            continue
        seen.add(call)
        name, position, default = forced[named[0]]
        if any(isinstance(a, ast.Constant) and a.value is None for a in call.args) and _is_put_off(
            program, named[0], name
        ):
            continue
        given = keyword(call, name, position)
        share = default if given is None else constant(given)
        whole = share == 1 and given is not None and not LIKELIHOODS & program.identifiers
        if (
            isinstance(share, (int, float))
            and not isinstance(share, bool)
            and (0 < share < 1 or whole)
        ):
            how = "by default" if given is None else "here"
            yield (
                call,
                f"{name} is {share} {how}: the network is given the truth in this evaluation",
            )


def _forcing(program: Program, owner: ast.ClassDef) -> tuple[str, int, object] | None:
    """The parameter of a class's forward that is named after teacher forcing: its name, position
    and default.
    """
    forward = program.methods[owner].get("forward")
    asks = {
        name for name, own in program.methods[owner].items() if "training" in identifiers(own.node)
    }
    if (
        forward is None
        or ({"training"} | asks) & identifiers(forward.node)
        or isinstance(forward.node, ast.Module)
    ):
        return None
    for index, name in enumerate(forward.parameters):
        spoken = words(name)
        drawn = bool(
            {"force", "forced", "teach", "teaching", "teacher"} & spoken
        ) and _drawn_against(forward.node, name)
        if (
            drawn
            or {"teacher", "forcing"} <= spoken
            or "forcing" in spoken
            or name in ("tf_ratio", "tfr", "sampling_prob")
        ):
            return name, index - 1, constant(defaults(forward.node).get(name))
    return None


def _drawn_against(forward: ast.AST, name: str) -> bool:
    """Whether a random number is compared with it: `torch.rand(n, 1) < force`."""
    tests = [n for n in nodes_of(forward, ast.Compare) if name in names_read(n)]
    return any(
        isinstance(c, ast.Call) and last_name(c.func) in ("rand", "random", "uniform", "rand_like")
        for t in tests
        for c in walk(t)
    )


def _is_put_off(program: Program, owner: ast.ClassDef, name: str) -> bool:
    """Whether forward sets the share to nothing itself, as it does where no target is given."""
    bound = program.methods[owner]["forward"].bindings.get(name, ())
    return any(constant(b.value) == 0 for b in bound)


def _quiet(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call stands in a function that switches gradients off for all of itself, or in a
    block that does.
    """
    decorators = scope.node.decorator_list if not isinstance(scope.node, ast.Module) else []
    blocks = [
        i.context_expr for a in program.ancestors(call) if isinstance(a, ast.With) for i in a.items
    ]
    return any({"no_grad", "inference_mode"} & identifiers(d) for d in (*decorators, *blocks))
