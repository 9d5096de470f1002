"""Rules BH453 and BH454: a bootstrapped target that asks about the same states, or that moves with what is learned."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.bootstraps import Regression, is_cut, network_calls, regressions
from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import dotted, names_read, walk, words


@rule(
    "BH453",
    "target-of-the-same-states",
    "error",
    title="A bootstrapped target asks about the states whose values are learned",
    why="What follows a reward is the value of the next state: with the state itself in its place the values lead nowhere, and next states are never looked at.",
    remedy="`target = reward + gamma * network(next_states).max(1).values * (1 - done)`",
    bad="""
        import torch
        from torch.nn import functional as F

        def td_loss(q, frozen, states, actions, rewards, successors, ends, gamma):
            with torch.no_grad():
                goal = rewards + gamma * (1 - ends) * frozen(states).max(1).values
            return F.smooth_l1_loss(q(states).gather(1, actions).squeeze(1), goal)
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def td_loss(q, frozen, states, actions, rewards, successors, ends, gamma):
            with torch.no_grad():
                goal = rewards + gamma * (1 - ends) * frozen(successors).max(1).values
            return F.smooth_l1_loss(q(states).gather(1, actions).squeeze(1), goal)
        """,
)
def target_of_the_same_states(subject: Subject) -> Iterator[Place]:
    """All networks in `reward + gamma * …` are called on what the prediction, whose squared distance from it is the loss, is made from.

    Told where that is a name of one value in the function.
    """
    program = subject.program
    for found in regressions(program):
        asked = [c for part in found.target.later for c in network_calls(program, part, found.scope)]
        predicted = {ast.dump(c.args[0]) for c in network_calls(program, found.prediction, found.scope)}
        if asked and all(ast.dump(c.args[0]) in predicted and _of_one_value(c.args[0], found.scope) for c in asked):
            state = ast.unparse(asked[0].args[0])
            yield asked[0], f"{ast.unparse(asked[0])} stands for the value after the reward, and what is learned is the value of {state} too", found.target.node


@rule(
    "BH454",
    "target-with-gradient",
    "error",
    title="A bootstrapped target carries the gradient of the network that learns",
    why="The loss is made small from both sides: the value of the next state is pulled to that of this one, against what the rewards say.",
    remedy="compute the target under `torch.no_grad()`, by a target network, or `.detach()` it",
    bad="""
        from torch.nn import functional as F

        def td_loss(q, states, actions, rewards, successors, ends, gamma):
            goal = rewards + gamma * (1 - ends) * q(successors).max(1).values
            return F.smooth_l1_loss(q(states).gather(1, actions).squeeze(1), goal)
        """,
    good="""
        from torch.nn import functional as F

        def td_loss(q, states, actions, rewards, successors, ends, gamma):
            goal = rewards + gamma * (1 - ends) * q(successors).max(1).values
            return F.smooth_l1_loss(q(states).gather(1, actions).squeeze(1), goal.detach())
        """,
)
def target_with_gradient(subject: Subject) -> Iterator[Place]:
    """The network of the prediction gives the next value as well, and nothing cuts its gradient there; residual gradients that are called so are meant."""
    program = subject.program
    if any({"residual", "residuals", "baird"} & words(s.name) for s in program.scopes):
        return
    for found in regressions(program):
        ours = {dotted(c.func) for c in network_calls(program, found.prediction, found.scope)}
        asked = [c for part in found.target.later for c in network_calls(program, part, found.scope) if dotted(c.func) in ours]
        if asked and _learns(program, found) and not any(is_cut(program, part, found.scope) for part in (found.goal, *found.target.later)):
            told = f"{ast.unparse(asked[0])} is part of the goal, with its gradient, and {dotted(asked[0].func)} is what learns"
            yield found.target.node, told, program.statement(found.target.node)


def _learns(program: Program, found: Regression) -> bool:
    """Whether the prediction keeps its gradient, and the function is not run without one."""
    decorators = getattr(found.scope.node, "decorator_list", [])
    return not is_cut(program, found.prediction, found.scope) and not any("no_grad" in ast.unparse(d) or "inference_mode" in ast.unparse(d) for d in decorators)


def _of_one_value(node: ast.expr, scope: Scope) -> bool:
    """Whether all its names have one value, so that the same words are the same thing."""
    return all(len(scope.bindings.get(name, ())) <= (name not in scope.parameters) for name in names_read(node)) and not any(
        isinstance(n, ast.Call) for n in walk(node)
    )
