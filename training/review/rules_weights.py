"""Rules BH447, BH142, BH538 and BH539: a slow copy that is quick or grows, weights of classes in the order of their frequencies, words with the codes of padding."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import constant, defaults, dotted, identifiers, keyword, last_name, method, names_read, receiver, walk, words
from training.review.values import number

SLOW = {"target", "tgt", "ema", "teacher", "shadow", "average", "averaged", "avg", "slow", "polyak", "soft", "momentum", "t"}
SHARE = {"tau", "decay", "alpha", "beta", "momentum", "m", "rate", "polyak", "ema", "rho", "share", "keep", "smoothing"}
HALF, NEAR = 0.5, 1e-6
BY_CLASS = {"sort_index", "reindex", "loc", "to_dict", "items", "index", "get", "map", "iteritems"}
AS_ARRAY = {"values", "to_numpy", "tolist", "to_list"}


@rule(
    "BH447",
    "slow-copy-is-quick",
    "error",
    title="A slow copy takes nearly all of the new weights at each step",
    why="A target network or an average keeps most of what it was: tau 0.005 is the share of the new weights. With the shares exchanged it is the trained network itself but for half a percent, and steadies nothing.",
    remedy="`target.mul_(1 - tau).add_(online, alpha=tau)` with a tau of 0.005; with a decay of 0.999 `average.mul_(decay).add_(online, alpha=1 - decay)`",
    bad="""
        import torch

        TAU = 0.005

        @torch.no_grad()
        def soft_update(target, online):
            for t, o in zip(target.parameters(), online.parameters()):
                t.mul_(TAU).add_(o, alpha=1 - TAU)
        """,
    good="""
        import torch

        TAU = 0.005

        @torch.no_grad()
        def soft_update(target, online):
            for t, o in zip(target.parameters(), online.parameters()):
                t.mul_(1 - TAU).add_(o, alpha=TAU)
        """,
)
def slow_copy_is_quick(subject: Subject) -> Iterator[Place]:
    """In a loop over the weights of two networks what stays of the one that is written, called a target or an average, is a known share below a half."""
    program = subject.program
    for loop in (n for n in program.nodes[ast.For] if isinstance(n, ast.For) and isinstance(n.target, ast.Tuple)):
        scope = program.scope(loop)
        if not _over_weights(loop) or words(scope.name) & {"reset", "perturb", "shrink", "reinit", "reinitialize"}:
            continue
        for node in (n for s in loop.body for n in walk(s) if isinstance(n, ast.Assign)):
            if SLOW & _written(loop, node.targets[0], scope) and (told := _exchanged_in_sum(program, node, scope)):
                yield node, told
        for call in (n for s in loop.body for n in walk(s) if isinstance(n, ast.Call)):
            if not SLOW & _written(loop, call, scope):
                continue
            if method(call) == "copy_" and (told := _exchanged_in_sum(program, call, scope)):
                yield call, told
                continue
            stays = _stays(program, call, scope)
            share = call.args[1] if method(call) == "lerp_" and len(call.args) == 2 else None
            if stays is None and isinstance(share, (ast.Name, ast.Attribute)) and _stays_by_name(program, share):
                yield call, f"lerp_ takes the share that is new, and {ast.unparse(share)} is called after the share that stays"
            if (exchanged := _exchanged(program, call)) is not None:
                yield call, f"{ast.unparse(exchanged)} is called after the share that stays, and is the share that is new"
            if stays is not None and 0 < stays < HALF:
                yield call, f"{stays:g} of the slow weights stays at each step, and {1 - stays:g} is new"


@rule(
    "BH142",
    "shares-do-not-sum-to-one",
    "error",
    title="The shares of a moving average do not sum to one",
    why="At each step the average is multiplied by that sum: above one it grows without end, below one it shrinks to a part of the weights. The network that is tested is none that was trained.",
    remedy="`average.mul_(decay).add_(weights, alpha=1 - decay)`, or `average.lerp_(weights, 1 - decay)`",
    bad="""
        import torch

        @torch.no_grad()
        def follow(ema, model):
            for slow, quick in zip(ema.parameters(), model.parameters()):
                slow.mul_(0.99).add_(quick, alpha=0.1)
        """,
    good="""
        import torch

        @torch.no_grad()
        def follow(ema, model):
            for slow, quick in zip(ema.parameters(), model.parameters()):
                slow.mul_(0.99).add_(quick, alpha=0.01)
        """,
)
def shares_do_not_sum_to_one(subject: Subject) -> Iterator[Place]:
    """In a loop over the weights of two networks, or of one and their average, both shares of an update are in sight, as numbers or by one name, and do not sum to one."""
    program = subject.program
    for loop in (n for n in program.nodes[ast.For] if isinstance(n, ast.For) and isinstance(n.target, ast.Tuple)):
        scope = program.scope(loop)
        if not _over_weights(loop):
            continue
        inner = [n for s in loop.body for n in walk(s)]
        for node, own, terms in (found for n in inner if (found := _terms(program, n)) is not None):
            named = {w for n in (*names_read(loop.iter), *own, scope.name) for w in words(n)}
            if not (SLOW - {"t", "soft", "momentum"}) & named:
                continue
            total = _total([_linear(program, t, scope) for t in terms])
            if total is not None and (total[1] or abs(total[0] - 1) > 1e-6):
                told = " and ".join(ast.unparse(t) for t in terms)
                yield node, f"the shares {told} do not sum to one" + (f", but to {total[0]:g}" if not total[1] else ""), loop


def _terms(program: Program, node: ast.AST) -> tuple[ast.AST, frozenset[str], list[ast.expr]] | None:
    """Of `a.mul_(x).add_(b, alpha=y)`, `a.mul_(x).add_(y * b)`, `a.copy_(x * a + y * b)`, `a = x * a + y * b`: the node, the names in a, and the two shares."""
    scope = program.scope(node)
    if isinstance(node, ast.Call) and method(node) == "add_" and isinstance(of := receiver(node), ast.Call) and method(of) == "mul_" and of.args and node.args:
        new, given = keyword(node, "alpha"), node.args[0]
        if new is None and isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mult):
            new = next((s for s in (given.left, given.right) if _linear(program, s, scope) is not None), None)
        return (node, identifiers(receiver(of)), [of.args[0], new]) if new is not None else None
    value = node.args[0] if isinstance(node, ast.Call) and method(node) == "copy_" and node.args else node.value if isinstance(node, ast.Assign) else None
    target = receiver(node) if isinstance(node, ast.Call) else node.targets[0] if isinstance(node, ast.Assign) else None
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)) or target is None:
        return None
    sides = [s for s in (value.left, value.right) if isinstance(s, ast.BinOp) and isinstance(s.op, ast.Mult)]
    held = ast.unparse(target).removesuffix(".data")
    shares = [next((a for a, b in ((s.left, s.right), (s.right, s.left)) if _linear(program, a, scope) is not None), None) for s in sides]
    own = [any(ast.unparse(p).removesuffix(".data") == held for p in (s.left, s.right)) for s in sides]
    known = [s for s in shares if s is not None]
    return (node, identifiers(target), known) if len(known) == 2 and sum(own) == 1 else None


def _linear(program: Program, node: ast.expr, scope: Scope) -> tuple[float, float, str] | None:
    """A number, a name, or one minus a name as constant, factor and name; None for anything else."""
    value = number(program, node, scope)
    if value is not None:
        return (value, 0.0, "") if value > 0 else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and constant(node.left) in (1, 1.0) and SHARE & words(last_name(node.right)):
        return 1.0, -1.0, dotted(node.right)
    return (0.0, 1.0, dotted(node)) if isinstance(node, (ast.Name, ast.Attribute)) and SHARE & words(last_name(node)) else None


def _total(terms: list[tuple[float, float, str] | None]) -> tuple[float, float] | None:
    """The sum of two shares as constant and factor of the one name in them; None where a share is out of sight, or names differ."""
    known = [t for t in terms if t is not None]
    names = [name for _, _, name in known if name]
    if len(known) != 2 or len(names) == 1 or len(set(names)) > 1:
        return None
    return known[0][0] + known[1][0], known[0][1] + known[1][1]


def _written(loop: ast.For, call: ast.expr, scope: Scope) -> set[str]:
    """The words of the weights that a call writes, of the network that they are gone through of, and of the function where that is all that is known."""
    root: ast.AST | None = call
    held: set[str] = set()  # as `shadow` of `self.shadow[name]`
    while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        held |= words(root.attr) if isinstance(root, ast.Attribute) and root.attr != "data" and dotted(root).startswith("self.") else set()
        root = receiver(root) if isinstance(root, ast.Call) else root.value
    elements = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
    at = next((i for i, e in enumerate(elements) if isinstance(root, ast.Name) and last_name(e) == root.id), None)
    networks = loop.iter.args if isinstance(loop.iter, ast.Call) and len(loop.iter.args) == len(elements) else []
    if at is None or not networks:
        return held | {w for n in (*names_read(loop.iter), *map(last_name, elements), scope.name) for w in words(n)} - {"t"}
    others = {w for i, e in enumerate(elements) if i != at for n in (last_name(e), *identifiers(networks[i])) for w in words(n)}
    own = {w for n in (last_name(elements[at]), *identifiers(networks[at])) for w in words(n)}
    return own | (set() if others & (SLOW - {"t"}) else set(words(scope.name)))


def _stays_by_name(program: Program, share: ast.expr) -> bool:
    """Whether a setting is called after the share that stays: a decay is; a momentum, unless its default says that it is the share that is new, as in batch norm."""
    name = last_name(share)
    given = [constant(d) for s in program.scopes if name in s.parameters for d in (defaults(s.node).get(name),)]
    return bool({"decay", "momentum", "ema"} & words(name)) and not any(isinstance(g, float) and g < HALF for g in given)


def _exchanged(program: Program, call: ast.Call) -> ast.expr | None:
    """`decay` of `slow.mul_(1 - decay).add_(quick, alpha=decay)`."""
    of, new = receiver(call), keyword(call, "alpha")
    if not (method(call) == "add_" and isinstance(of, ast.Call) and method(of) == "mul_" and of.args and isinstance(new, (ast.Name, ast.Attribute))):
        return None
    kept = of.args[0]
    rest = isinstance(kept, ast.BinOp) and isinstance(kept.op, ast.Sub) and constant(kept.left) in (1, 1.0) and ast.dump(kept.right) == ast.dump(new)
    return new if rest and _stays_by_name(program, new) else None


def _exchanged_in_sum(program: Program, node: ast.Assign | ast.Call, scope: Scope) -> str:
    """What is wrong with the shares of `slow = a * slow + b * quick`, or of the same in `slow.copy_(…)`; empty where nothing is."""
    target, value = (node.targets[0], node.value) if isinstance(node, ast.Assign) else (receiver(node), node.args[0] if node.args else None)
    if target is None or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return ""
    held = ast.unparse(target).removesuffix(".data")
    kept, new = None, None
    for side in (value.left, value.right):
        if not isinstance(side, ast.BinOp) or not isinstance(side.op, ast.Mult):
            return ""
        own = next((share for share, of in ((side.left, side.right), (side.right, side.left)) if ast.unparse(of).removesuffix(".data") == held), None)
        if own is not None:
            kept = own
        else:
            new = next((s for s in (side.left, side.right) if _linear(program, s, scope) is not None), None)
    if kept is None or new is None:
        return ""
    stays, comes = number(program, kept, scope), number(program, new, scope)
    if stays is not None and comes is not None and abs(stays + comes - 1) < NEAR and 0 < stays < HALF:
        return f"{stays:g} of the slow weights stays at each step, and {comes:g} is new"
    rest = isinstance(kept, ast.BinOp) and isinstance(kept.op, ast.Sub) and constant(kept.left) in (1, 1.0) and ast.dump(kept.right) == ast.dump(new)
    named = _stays_by_name(program, new)
    return f"{ast.unparse(new)} is called after the share that stays, and is the share that is new" if rest and named else ""


def _stays(program: Program, call: ast.Call, scope: Scope) -> float | None:
    """The share of what is written that an update keeps: of `t.mul_(a).add_(o, alpha=1 - a)`, `t.lerp_(o, b)`, `t.copy_(a * t + b * o)`; None for anything else."""
    name, of = method(call), receiver(call)
    if name == "add_" and isinstance(of, ast.Call) and method(of) == "mul_" and of.args:
        kept, new = number(program, of.args[0], scope), number(program, keyword(call, "alpha"), scope)
        if new is None and call.args and isinstance(call.args[0], ast.BinOp) and isinstance(call.args[0].op, ast.Mult):
            sides = [number(program, side, scope) for side in (call.args[0].left, call.args[0].right)]
            new = next((s for s in sides if s is not None), None)
        return kept if kept is not None and new is not None and abs(kept + new - 1) < 1e-6 else None
    if name == "lerp_" and len(call.args) == 2:
        new = number(program, call.args[1], scope)
        return 1 - new if new is not None else None
    if name == "copy_" and call.args and isinstance(call.args[0], ast.BinOp) and isinstance(call.args[0].op, ast.Add):
        shares = [_share(program, side, scope) for side in (call.args[0].left, call.args[0].right)]
        own = _bare(of)
        kept = next((s for who, s in shares if who == own and own), None)
        return kept if kept is not None and all(s is not None for _, s in shares) and abs(sum(s or 0 for _, s in shares) - 1) < 1e-6 else None
    return None


def _share(program: Program, node: ast.expr, scope: Scope) -> tuple[str, float | None]:
    """Of `a * t`: t and a."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for share, what in ((node.left, node.right), (node.right, node.left)):
            value = number(program, share, scope)
            if value is not None:
                return _bare(what), value
    return "", None


def _bare(node: ast.expr | None) -> str:
    """A name without `.data`."""
    return dotted(node).removesuffix(".data")


@rule(
    "BH538",
    "counts-in-order-of-frequency",
    "error",
    title="Weights of classes come in the order of the frequencies",
    why="`value_counts` puts the most frequent value first, not class 0: as an array its numbers no longer say whose they are, and each class gets the weight of another.",
    remedy="`labels.value_counts().sort_index()`, or `np.bincount(labels, minlength=classes)`",
    bad="""
        import torch
        from torch import nn

        def loss_for(labels):
            counts = labels.value_counts()
            weights = len(labels) / (len(counts) * counts.to_numpy())
            return nn.CrossEntropyLoss(weight=torch.tensor(weights, dtype=torch.float32))
        """,
    good="""
        import torch
        from torch import nn

        def loss_for(labels):
            counts = labels.value_counts().sort_index()
            weights = len(labels) / (len(counts) * counts.to_numpy())
            return nn.CrossEntropyLoss(weight=torch.tensor(weights, dtype=torch.float32))
        """,
)
def counts_in_order_of_frequency(subject: Subject) -> Iterator[Place]:
    """What `value_counts` gives is made an array, its index never asked for, in a function that speaks of weights."""
    program = subject.program
    for call in program.methods_of("value_counts"):
        if constant(keyword(call, "sort", 1)) is False:
            continue
        scope, statement = program.scope(call), program.statement(call)
        names = {t.id for t in getattr(statement, "targets", ()) if isinstance(t, ast.Name)}
        above = program.parents[call]
        if isinstance(above, ast.Attribute):
            uses: list[ast.AST] = [above]
        else:
            uses = [program.parents[n] for n in walk(scope.node) if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)]
        attributes = {u.attr for u in uses if isinstance(u, ast.Attribute)}
        spoken = {w for n in {scope.name, *names, *_stored_from(scope, names), *_targets(statement)} for w in words(n)}
        if attributes & AS_ARRAY and not attributes & BY_CLASS and {"weight", "weights"} & spoken and not any(isinstance(u, ast.Subscript) for u in uses):
            yield call, "the numbers stand in the order of the frequencies, the most frequent class first, and are taken by class"


def _targets(statement: ast.AST) -> set[str]:
    return {last_name(t) for t in getattr(statement, "targets", ())}


def _stored_from(scope: Scope, names: set[str]) -> set[str]:
    """The names that get a value computed from others."""
    return {name for name, bound in scope.bindings.items() if any(names & names_read(b.value) for b in bound)}


@rule(
    "BH539",
    "first-words-are-padding",
    "error",
    title="Codes of words begin at those of padding and unknown words",
    why="The most frequent words get the codes that stand for padding and for unknown words: the network cannot tell them apart, and what is left out as padding takes real words with it.",
    remedy="begin behind them: `{word: i + 2 for i, word in enumerate(words)}`, or put them first in the list",
    bad="""
        from collections import Counter

        from torch import nn

        PAD, UNK = 0, 1

        def vocabulary(texts):
            counts = Counter(w for t in texts for w in t.split())
            return {w: i for i, (w, _) in enumerate(counts.most_common(5000))}

        def encoded(text, vocab):
            return [vocab.get(w, UNK) for w in text.split()]

        def table(width):
            return nn.Embedding(5002, width, padding_idx=PAD)
        """,
    good="""
        from collections import Counter

        from torch import nn

        PAD, UNK = 0, 1

        def vocabulary(texts):
            counts = Counter(w for t in texts for w in t.split())
            return {w: i + 2 for i, (w, _) in enumerate(counts.most_common(5000))}

        def encoded(text, vocab):
            return [vocab.get(w, UNK) for w in text.split()]

        def table(width):
            return nn.Embedding(5002, width, padding_idx=PAD)
        """,
)
def first_words_are_padding(subject: Subject) -> Iterator[Place]:
    """A dict numbers what a `Counter` found from a number that `padding_idx`, `padding_value` or the default of `get` is, or one below it."""
    program = subject.program
    if "Counter" not in program.called_names:
        return
    reserved: dict[float, str] = {}
    for call in program.all_calls:
        for name in ("padding_idx", "padding_value"):
            value = number(program, keyword(call, name), program.scope(call))
            if value is not None and value >= 0:
                reserved[value] = name
        if method(call) == "get" and len(call.args) == 2 and (value := number(program, call.args[1], program.scope(call))) is not None:
            reserved.setdefault(value, "the code of unknown words")
    for node in (n for n in program.nodes[ast.DictComp] if isinstance(n, ast.DictComp)):
        over, target = node.generators[0].iter, node.generators[0].target
        counted = isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and "most_common" in ast.unparse(over) and isinstance(target, ast.Tuple)
        if not counted or not isinstance(over, ast.Call) or not isinstance(target, ast.Tuple) or not isinstance(target.elts[0], ast.Name):
            continue
        begins = number(program, keyword(over, "start", 1), program.scope(node)) or 0.0
        if isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add) and last_name(node.value.left) == target.elts[0].id:
            begins += number(program, node.value.right, program.scope(node)) or 100.0
        elif last_name(node.value) != target.elts[0].id:
            continue
        taken = [f"{value:g} ({name})" for value, name in sorted(reserved.items()) if value >= begins]
        if taken and max(reserved) < begins + 2:
            yield node, f"codes begin at {begins:g}, and {' and '.join(taken)} stands for something else"


def _over_weights(loop: ast.For) -> bool:
    """Whether a loop goes over parameters or states, by any name or key in its head."""
    keys = [n.value for n in walk(loop.iter) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return any("parameters" in n or "state_dict" in n for n in (*identifiers(loop.iter), *keys))
