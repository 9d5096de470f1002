"""What a replay memory keeps beside a reward: the end of the episode, in a tuple or under a name, and whether a function reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.bootstraps import REWARDS
from training.review.program import Program, Scope
from training.review.syntax import FUNCTIONS, calls, identifiers, last_name, method, own_nodes, walk, words

CERTAIN = {"done", "dones", "terminal", "terminals", "terminated", "ended", "finished"}
MASKS = {"mask", "masks", "alive", "continues", "cont", "nonterminal", "not", "non", "undone"}
STORES = {"append", "push", "add", "store", "remember", "put", "save", "insert", "appendleft", "cache", "record", "add_experience", "add_transition"}
LEAST = 4  # values of a transition
TRANSFORMS = {"zip", "map", "sample"}


class Kept(NamedTuple):
    """A transition: where the reward and the end stand in it, whether it has fields, and the function that returns it where it is the result of one."""

    node: ast.expr | ast.stmt
    reward: str
    end: str
    reward_at: int
    position: int
    size: int
    fields: bool
    source: str = ""

    def of_end(self, program: Program, scope: Scope) -> str | None:
        """How a function that reads the rewards of this memory leaves out the ends; None where it reads them, or where that is not certain."""
        if self.fields:
            again = self._made_again(program)
            loads = {n.attr for n in program.nodes[ast.Attribute] if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and id(n) not in again}
            loads |= {str(n.slice.value) for n in program.nodes[ast.Subscript] if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)}
            here = {n.attr for n in own_nodes(scope.node) if isinstance(n, ast.Attribute)}
            if any(isinstance(n, ast.Tuple) and isinstance(n.ctx, ast.Store) and len(n.elts) == self.size for n in walk(program.tree)):
                return None
            return f"{self.end} is never read" if self.reward in here and self.end not in loads else None
        unpacked = self._unpacked(program, scope)
        if unpacked:
            names = {last_name(n.elts[self.position]) for n in unpacked}
            rewards = {w for n in unpacked for w in words(last_name(n.elts[self.reward_at]))}
            return f"{min(names)} of line {unpacked[0].lineno} is never read" if rewards & REWARDS and not names & _loads(scope) else None
        if self.source:
            return None
        read = dict[int, set[str]]()
        for statement in (n for n in own_nodes(scope.node) if isinstance(n, ast.stmt)):
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            name = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""
            for at in columns(statement) if not hasattr(statement, "body") else ():
                read.setdefault(at, set()).add(name)
        named = any(REWARDS & words(n) for n in read.get(self.reward_at, ()))
        if not named or len(set(read) & set(range(self.size)) - {self.position}) < LEAST - 1 or min(read) < 0:
            return None
        if self.position not in read:
            return f"[{self.position}] is never read"
        names = read[self.position]
        return f"{min(names)}, which holds it, is never read" if "" not in names and not names & _loads(scope) else None

    def _made_again(self, program: Program) -> set[int]:
        """The nodes by which one such transition is made of others, as a batch of them: what they read goes where the rest goes."""
        bound = program.parents[self.node]
        name = self.node.name if isinstance(self.node, ast.ClassDef) else last_name(bound.targets[0]) if isinstance(bound, ast.Assign) else ""
        return {id(n) for call in program.calls_of(name) for n in walk(call)} if name else set()

    def _unpacked(self, program: Program, scope: Scope) -> list[ast.Tuple]:
        """Where a function takes such a transition, or a batch of them, apart."""
        found = []
        for node in own_nodes(scope.node):
            if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store) and len(node.elts) == self.size:
                above = program.parents[node]
                value = above.value if isinstance(above, ast.Assign) else None
                if not self.source or (value is not None and self.source in {last_name(c.func) for c in calls(value)}):
                    found.append(node)
        return found

    def holds_end(self, name: str, scope: Scope) -> bool:
        """Whether a name is given the end where a transition is unpacked, or its column alone."""
        bound = scope.bindings.get(name, [])
        if len(bound) != 1:
            return False
        if bound[0].index is None:
            return not self.fields and not self.source and columns(bound[0].value) == {self.position}
        beside = [n for n in scope.bindings if any(b.statement is bound[0].statement for b in scope.bindings[n])]
        called = {last_name(c.func) for c in calls(bound[0].value)}
        return bound[0].index == self.position and len(beside) == self.size and (bool(called & (TRANSFORMS | {self.source})) or bound[0].how == "loop")


def kept_ends(program: Program) -> list[Kept]:
    """Every transition that the file puts somewhere, or declares, with a reward and an end."""
    found: list[Kept] = []
    for node in program.nodes[ast.Tuple]:
        above = program.parents[node]
        if isinstance(node, ast.Tuple) and isinstance(above, ast.Call) and last_name(above.func) in STORES and not any(map(is_turned_round, walk(node))):
            found += _of(node, [ast.unparse(e) for e in node.elts], fields=False)
    for node in program.nodes[ast.Return]:
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and not any(map(is_turned_round, walk(node.value))):
            source = program.scope(node).name
            if not {"step", "reset"} & words(source):
                found += (k._replace(source=source) for k in _of(node.value, [ast.unparse(e) for e in node.value.elts], fields=False))
    for call in program.all_calls:
        if method(call) in STORES and not call.keywords and len(call.args) >= LEAST and not any(map(is_turned_round, walk(call))):
            found += _of(call, [ast.unparse(a) for a in call.args], fields=False)
        if last_name(call.func) == "namedtuple" and len(call.args) == 2:
            listed = [n.value for n in walk(call.args[1]) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            found += _of(call, listed[0].replace(",", " ").split() if len(listed) == 1 else listed, fields=True)
    for owner in program.classes.values():
        named = [s.target.id for s in owner.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
        if "NamedTuple" in map(last_name, owner.bases) or any("dataclass" in identifiers(d) for d in owner.decorator_list):
            found += _of(owner, named, fields=True)
    return found


def _of(node: ast.expr | ast.stmt, names: list[str], *, fields: bool) -> Iterator[Kept]:
    rewards = [i for i, n in enumerate(names) if REWARDS & _said(n)]
    ends = [i for i, n in enumerate(names) if CERTAIN & _said(n) and not MASKS & _said(n)]
    if len(names) >= LEAST and len(rewards) == len(ends) == 1 and rewards != ends:
        yield Kept(node, names[rewards[0]], names[ends[0]], rewards[0], ends[0], len(names), fields)


def _said(text: str) -> set[str]:
    return {w for part in "".join(c if c.isalnum() or c == "_" else " " for c in text).split() for w in words(part)}


def columns(node: ast.AST) -> set[int]:
    """The numbers that something within is subscripted with.

    >>> columns(ast.parse("[float(row[4]) for row in batch]"))
    {4}
    """
    found = set()
    for n in walk(node):
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load):
            at = n.slice.operand if isinstance(n.slice, ast.UnaryOp) else n.slice
            if isinstance(at, ast.Constant) and isinstance(at.value, int):
                found.add(at.value if at is n.slice else -at.value)
    return found


def _loads(scope: Scope) -> set[str]:
    return {n.id for n in walk(scope.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def is_turned_round(node: ast.AST) -> bool:
    """Whether it makes of an end what goes on: `not`, `~`, `1 - …`, a comparison or a choice."""
    turned = isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert, ast.USub))
    chosen = isinstance(node, (ast.IfExp, ast.Compare)) or (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.BitXor)))
    called = isinstance(node, ast.Call) and last_name(node.func) in ("logical_not", "where", "sub", "rsub", "neg", "bitwise_not", "eq", "ne")
    return turned or chosen or called


def stores_the_opposite(program: Program) -> bool:
    """Whether the file puts the opposite of an end under the name of an end, into a memory or at the place of a parameter of that name."""

    def opposite(value: ast.AST | None) -> bool:
        return value is not None and any(is_turned_round(n) and CERTAIN & {w for i in identifiers(n) for w in words(i)} for n in walk(value))

    for kind in (ast.Assign, ast.AnnAssign):
        for node in program.nodes[kind]:
            bound = getattr(node, "targets", None) or [getattr(node, "target", None)]
            if any(CERTAIN & words(i) for t in bound for i in identifiers(t)) and opposite(getattr(node, "value", None)):
                return True
    own = {s.name for s in program.scopes if isinstance(s.node, FUNCTIONS) and any(CERTAIN & words(p) for p in s.parameters)}
    for call in program.all_calls:
        if last_name(call.func) in STORES | own and any(opposite(a) for a in (*call.args, *(k.value for k in call.keywords))):
            return True
        if any(k.arg and CERTAIN & words(k.arg) and opposite(k.value) for k in call.keywords):
            return True
    return False
