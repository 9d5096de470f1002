"""Rule BH563: a cache of rows that all data sets of a class share, by the number of the row alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope, argument
from training.review.sides import side_of_names, targets_of
from training.review.syntax import FUNCTIONS, constant, defaults, dotted, has_unpacking, last_name, method, names_read, own_nodes, receiver, walk, words

CONTAINERS = {"dict", "list", "OrderedDict", "defaultdict", "WeakValueDictionary", "LRUCache", "TTLCache"}
PLAIN = {"int", "str", "len", "hash", "abs", "tuple", "repr", "divmod"}  # functions that make a key of a number, and tell nothing of the data set
REMEMBER = {"lru_cache", "cache", "memoize", "memoized"}
READS = {"get", "pop", "__getitem__"}
DEPTH = 3  # functions that a row goes through, one calling the next


@dataclass(frozen=True, eq=False)
class Reached:
    """A function that runs for a row: its parameters that hold the row's number, and the attributes of the data set that the others hold."""

    scope: Scope
    numbers: frozenset[str]
    given: dict[str, set[str]]


@rule(
    "BH563",
    "cache-shared-by-data-sets",
    "error",
    title="All data sets of a class share one cache of rows",
    why="What stands in the body of a class belongs to all its objects. Filled by the number of the row alone, it gives validation the rows that train has read before: the score is one of train rows.",
    remedy="make the cache in `__init__`, or let the key name the row itself, as its path does",
    bad="""
        import torch
        from torch.utils.data import Dataset

        class Scans(Dataset):
            memo = {}

            def __init__(self, paths):
                self.paths = paths

            def __len__(self):
                return len(self.paths)

            def __getitem__(self, i):
                if i not in self.memo:
                    self.memo[i] = torch.load(self.paths[i], weights_only=True)
                return self.memo[i]

        def load(train_paths, val_paths):
            return Scans(train_paths), Scans(val_paths)
        """,
    good="""
        import torch
        from torch.utils.data import Dataset

        class Scans(Dataset):
            def __init__(self, paths):
                self.paths, self.memo = paths, {}

            def __len__(self):
                return len(self.paths)

            def __getitem__(self, i):
                if i not in self.memo:
                    self.memo[i] = torch.load(self.paths[i], weights_only=True)
                return self.memo[i]

        def load(train_paths, val_paths):
            return Scans(train_paths), Scans(val_paths)
        """,
)
def cache_shared_by_data_sets(subject: Subject) -> Iterator[Place]:
    """`__getitem__`, or what it calls, fills and reads a container of the class body, of the file or of a default by its own number alone, and the class is made of different rows."""
    program = subject.program
    for owner, own in program.methods.items():
        getter = own.get("__getitem__")
        if getter is None or len(getter.parameters) < 2 or not _is_data_set(program, owner):
            continue
        reached = _reached(program, owner, getter)
        for name, statement, attributes in _filled(program, owner, reached):
            if _made_of_different(program, owner, name, attributes):
                yield (
                    statement,
                    f"{name} is one for all data sets of {owner.name}, and filled by the number of the row alone: the second gives the rows of the first",
                    owner,
                )
                break
        else:
            for call, function in _remembered(program, owner, reached):
                if _sides_differ(program, owner, function):
                    yield call, f"{function.name} remembers what it gave by the number of the row alone, for all data sets of {owner.name}", function.node
                    break


def _is_data_set(program: Program, owner: ast.ClassDef) -> bool:
    """Whether a class gives rows by number: a Dataset by its base, or anything with a length that a loader may be given."""
    if program.is_module(owner) or any("ampler" in last_name(b) for b in owner.bases):
        return False
    named = any(last_name(b.value if isinstance(b, ast.Subscript) else b).endswith("Dataset") for known in program.bases(owner) for b in known.bases)
    return named or (program.find_method(owner, "__len__") is not None and "DataLoader" in program.called_names)


def _reached(program: Program, owner: ast.ClassDef, getter: Scope) -> list[Reached]:
    """`__getitem__` and the functions of the file that it hands its number on to; a decorator of it that keeps what it gave."""
    found = [Reached(getter, frozenset(getter.parameters[1:2]), {})]
    for decorator in getter.node.decorator_list if isinstance(getter.node, FUNCTIONS) else ():
        made = program.local_function(last_name(decorator), program.top)
        for inner in made.functions.values() if made is not None else ():
            if len(inner.parameters) == 2 and made is not None:
                found.append(Reached(inner, frozenset(inner.parameters[1:]), {p: _attributes(program, getter, [getter.node]) for p in made.parameters[:1]}))
    for _ in range(DEPTH):
        known = {r.scope for r in found}
        for at in tuple(found):
            numbers = _numbers(at)
            for call in (n for n in own_nodes(at.scope.node) if isinstance(n, ast.Call)):
                callee = _callee(program, owner, call, at.scope)
                if callee is None or callee in known or callee.name == "__init__":
                    continue
                values = {p: v for p in callee.parameters if (v := argument(call, callee, p)) is not None}
                handed = frozenset(p for p, v in values.items() if _is_number(v, numbers))
                if handed:
                    found.append(Reached(callee, handed, {p: _attributes(program, at.scope, [v]) for p, v in values.items() if p not in handed}))
                    known.add(callee)
    return found


def _callee(program: Program, owner: ast.ClassDef, call: ast.Call, scope: Scope) -> Scope | None:
    """The function of the file that is called by its name, by `self` or by the class."""
    if dotted(receiver(call)) in (owner.name, "cls", "self.__class__") or ast.unparse(receiver(call) or call.func) == "type(self)":
        return program.find_method(owner, method(call))
    return program.callees_by_name(call, scope)


def _numbers(at: Reached) -> set[str]:
    """The names that hold the number of the row, or what is made of it alone."""
    names = set(at.numbers) | {n for n, bound in at.scope.bindings.items() if bound and n not in at.scope.parameters}
    while True:
        other = {n for n in names if not all(b.how == "assign" and _is_number(b.value, names) for b in at.scope.bindings.get(n, ()))}
        if not other:
            return names
        names -= other


def _is_number(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is made of these names alone: `i`, `int(i)`, `f"{i}"`, `(i, 0)`, `i % len(self)`; `self.paths[i]` is not."""
    lengths = {id(n) for c in walk(node) if isinstance(c, ast.Call) and last_name(c.func) == "len" for a in c.args for n in walk(a)}
    read = [n for n in walk(node) if isinstance(n, ast.Name) and id(n) not in lengths]
    return any(n.id in names for n in read) and all(n.id in names or n.id in PLAIN for n in read)


def _filled(program: Program, owner: ast.ClassDef, reached: list[Reached]) -> Iterator[tuple[str, ast.stmt, set[str]]]:
    """The shared containers that are filled and read by the number alone: the name, the statement that fills it, and the attributes of which its values are made."""
    fills: dict[str, list[tuple[ast.stmt, bool, set[str]]]] = {}
    read: set[str] = set()
    for at in reached:
        numbers = _numbers(at)
        for node in own_nodes(at.scope.node):
            of, key, value = _access(program, node)
            name = _shared(program, owner, of, at.scope) if of is not None else ""
            if not name:
                continue
            by_number = key is not None and _is_number(key, numbers)
            if value is not None:
                fills.setdefault(name, []).append((program.statement(node), by_number or method(node) == "append", _of(program, at, value)))
            if by_number and (value is None or method(node) == "setdefault"):
                read.add(name)
    inside = {r.scope for r in reached}
    for name, made in fills.items():
        if name in read and all(by_number for _, by_number, _ in made) and not _is_renewed(program, name, inside):
            yield name, made[0][0], {a for _, _, attributes in made for a in attributes} - {name.rpartition(".")[2]}


def _access(program: Program, node: ast.AST) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    """A container, the key by which something is put in or taken out, and what is put in."""
    if isinstance(node, ast.Subscript):
        statement = program.parents.get(node)
        stored = isinstance(node.ctx, ast.Store) and isinstance(statement, (ast.Assign, ast.AnnAssign))
        value = getattr(statement, "value", None) if stored else None
        return node.value, node.slice, value
    if isinstance(node, ast.Call) and method(node) in READS and node.args:
        return receiver(node), node.args[0], None
    if isinstance(node, ast.Call) and method(node) in ("setdefault", "__setitem__") and len(node.args) > 1:
        return receiver(node), node.args[0], node.args[1]
    if isinstance(node, ast.Call) and method(node) == "append" and node.args:
        return receiver(node), None, node.args[0]
    return None, None, None


def _shared(program: Program, owner: ast.ClassDef, node: ast.expr, scope: Scope, depth: int = 0) -> str:
    """The name of a container that all objects of the class share; empty of any other."""
    if isinstance(node, ast.Attribute):
        of = "cls" if isinstance(node.value, ast.Call) and ast.unparse(node.value) == "type(self)" else dotted(node.value)
        if of not in ("self", "cls", "self.__class__", *(o.name for o in program.bases(owner))):
            return ""
        bound = [b for known in program.bases(owner) for b in program.attributes[known].get(node.attr, ())]
        in_body = [b for b in bound if isinstance(program.parents.get(b.statement), ast.ClassDef)]
        if len(bound) == 1 and in_body and _is_empty(in_body[0].value):
            return f"{owner.name}.{node.attr}"
        init = program.find_method(owner, "__init__")
        kept = bound[0].value if len(bound) == 1 and init is not None and bound[0].scope is init else None
        if isinstance(kept, ast.Name) and init is not None and _is_empty(defaults(init.node).get(kept.id)) and kept.id not in init.bindings:
            given = any(argument(c, init, kept.id) is not None or has_unpacking(c) for c, _ in program.call_sites[init])
            return "" if given else f"{owner.name}.{node.attr}"
        return ""
    if not isinstance(node, ast.Name):
        return ""
    if node.id in scope.parameters:
        return node.id if _is_empty(defaults(scope.node).get(node.id)) and node.id not in scope.bindings else ""
    if node.id in scope.bindings:
        bound = scope.bindings[node.id]
        alias = len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None and depth < DEPTH
        return _shared(program, owner, bound[0].value, scope, depth + 1) if alias and isinstance(bound[0].value, (ast.Name, ast.Attribute)) else ""
    around = scope.parent
    while around is not None and node.id not in around.bindings:
        around = around.parent
    lasting = around is program.top or (around is scope.parent and scope.owner is None)  # of the file, or of a decorator
    outer = around.bindings[node.id] if around is not None and lasting else []
    return node.id if len(outer) == 1 and outer[0].how == "assign" and _is_empty(outer[0].value) else ""


def _is_empty(node: ast.expr | None) -> bool:
    """Whether an expression makes a container with nothing in it: `{}`, `[]`, `dict()`, `defaultdict(list)`, `[None] * n`."""
    match node:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call():
            of = last_name(node.func)
            return of in CONTAINERS and (not node.args or of in ("defaultdict", "LRUCache", "TTLCache"))
        case ast.BinOp(left=ast.List(elts=[first]), op=ast.Mult()):
            return isinstance(first, ast.Constant) and first.value is None
    return False


def _is_renewed(program: Program, name: str, inside: set[Scope]) -> bool:
    """Whether a container is emptied or set anew somewhere, `clear` where rows are read left out: that keeps it small."""
    attribute = name.rpartition(".")[2]
    for node in (*program.nodes[ast.Assign], *program.nodes[ast.AnnAssign]):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if "." in name and any(isinstance(n, ast.Attribute) and n.attr == attribute and isinstance(n.ctx, ast.Store) for t in targets for n in walk(t)):
            return not any(isinstance(b, ast.Name) and _is_empty(defaults(program.scope(node).node).get(b.id)) for b in walk(node))
    if any(attribute in n.names for n in program.nodes[ast.Global] if isinstance(n, ast.Global)):
        return True
    return any(last_name(receiver(c)) == attribute and program.scope(c) not in inside for c in program.methods_of("clear"))


def _of(program: Program, at: Reached, value: ast.expr) -> set[str]:
    """The attributes of the data set of which a value is made, those that the function was given among them."""
    behind = _behind(at.scope, [value])
    return _attributes(program, at.scope, [value]) | {a for p in names_read(value) | behind for a in at.given.get(p, ())}


def _behind(scope: Scope, values: list[ast.expr]) -> set[str]:
    """The names of which values are made, through other names of the function."""
    found, pending = set[str](), [n for v in values for n in names_read(v)]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [n for b in scope.bindings.get(name, ()) for n in names_read(b.value)]
    return found


def _attributes(program: Program, scope: Scope, nodes: Sequence[ast.AST], depth: int = 0) -> set[str]:
    """The attributes of `self` of which values are made: through names of the function, and methods of the class."""
    exprs = [n for n in nodes if isinstance(n, ast.expr)]
    parts: list[ast.AST] = [*nodes, *(b.value for name in _behind(scope, exprs) for b in scope.bindings.get(name, ()))]
    read = {n.attr for part in parts for n in walk(part) if isinstance(n, ast.Attribute) and dotted(n.value) == "self" and isinstance(n.ctx, ast.Load)}
    owner, found = scope.owner, set[str]()
    for name in read:
        known = program.find_method(owner, name) if owner is not None else None
        if known is None:
            found.add(name)
        elif depth < DEPTH and known is not scope:
            found |= _attributes(program, known, [known.node], depth + 1)
    return found


def _fed(program: Program, owner: ast.ClassDef, attributes: set[str]) -> set[str]:
    """The parameters of `__init__` of which attributes are made; all of them where another function sets an attribute."""
    init = program.find_method(owner, "__init__")
    if init is None:
        return attributes  # of a dataclass
    found, pending, seen = set[str](), sorted(attributes), set[str]()
    while pending:
        name = pending.pop()
        bound = [b for known in program.bases(owner) for b in program.attributes[known].get(name, ())]
        if name in seen or any(isinstance(program.parents.get(b.statement), ast.ClassDef) for b in bound):
            continue
        seen.add(name)
        if not bound or any(b.scope is not init for b in bound):
            return set(init.parameters[1:])
        tests = [a.test for b in bound for a in program.ancestors(b.statement) if isinstance(a, ast.If)]
        values = [*(b.value for b in bound), *tests]
        found |= _behind(init, values) & set(init.parameters[1:])
        pending += _attributes(program, init, values)
    return found


def _makings(program: Program, owner: ast.ClassDef, cache: str) -> list[ast.Call]:
    """Where objects of the class are made, or of its subclasses that have no such container of their own."""
    attribute = cache.rpartition(".")[2]
    kinds = {c.name for c in program.classes.values() if owner in program.bases(c) and (c is owner or attribute not in program.attributes[c])}
    return program.calls_of(*kinds)


def _made_of_different(program: Program, owner: ast.ClassDef, cache: str, attributes: set[str]) -> bool:
    """Whether the rows of two objects are made of different things."""
    made, init = _makings(program, owner, cache), program.find_method(owner, "__init__")
    for name in _fed(program, owner, attributes):
        texts: set[str] = set()
        for call in made:
            callee = program.classes.get(last_name(call.func))
            start = program.find_method(callee, "__init__") if callee is not None else None
            if start is not init:
                continue  # a subclass that is given something else
            given = argument(call, init, name) if init is not None else _field(program, owner, call, name)
            if given is None:
                given = next((a.value for a in call.args if isinstance(a, ast.Starred)), None)
            if given is None and any(k.arg is None for k in call.keywords):
                continue  # it may be in there
            default = defaults(init.node).get(name) if init is not None else None
            texts |= _texts(program, call, given) if given is not None else {ast.unparse(default) if default is not None else ""}
        if len(texts) > 1:
            return True
    return False


def _field(program: Program, owner: ast.ClassDef, call: ast.Call, name: str) -> ast.expr | None:
    """What a dataclass is given as a field."""
    fields = [
        s.target.id for s in owner.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and "ClassVar" not in ast.unparse(s.annotation)
    ]
    named = next((k.value for k in call.keywords if k.arg == name), None)
    at = fields.index(name) if name in fields else len(call.args)
    return named if named is not None or at >= len(call.args) else call.args[at]


def _texts(program: Program, call: ast.Call, value: ast.expr, depth: int = 0) -> set[str]:
    """What an argument is, as text: one for each caller that gives something else, two where a loop gives one after the other."""
    scope, text = program.scope(call), ast.unparse(value)
    names = _behind(scope, [value])
    for around in program.ancestors(call):
        targets: list[ast.expr] = []
        if isinstance(around, ast.For):
            targets = [around.target]
        elif isinstance(around, (ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            targets = [g.target for g in around.generators]
        if names & {n for t in targets for n in names_read(t)}:
            return {text + " (first)", text + " (second)"}
    asked = sorted(names & set(scope.parameters) - {"self", "cls"})
    sites = [c for c, _ in program.call_sites[scope]] if asked and depth < DEPTH else []
    for name in asked:
        given = [(site, argument(site, scope, name)) for site in sites]
        told = {t for site, v in given if v is not None for t in _texts(program, site, v, depth + 1)}
        if len(told) > 1:
            return {f"{text} for {t}" for t in told}
    return {text}


def _remembered(program: Program, owner: ast.ClassDef, reached: list[Reached]) -> Iterator[tuple[ast.Call, Scope]]:
    """Calls of functions under `lru_cache` that are given the number of the row and nothing else, `self` least of all."""
    for at in reached:
        numbers = _numbers(at)
        for call in (n for n in own_nodes(at.scope.node) if isinstance(n, ast.Call)):
            callee = _callee(program, owner, call, at.scope)
            if callee is None or not isinstance(callee.node, FUNCTIONS) or callee.parameters[:1] in (["self"], []):
                continue
            decorated = {last_name(d.func if isinstance(d, ast.Call) else d) for d in callee.node.decorator_list}
            asked = [p for p in callee.parameters if p != "cls"]
            given = [argument(call, callee, p) for p in asked]
            if decorated & REMEMBER and callee.parent is program.top and given and all(v is not None and _is_number(v, numbers) for v in given):
                yield call, callee


def _sides_differ(program: Program, owner: ast.ClassDef, function: Scope) -> bool:
    """Whether the class is made of other rows for train than for what is held out, or the function reads what each object sets for all."""
    made = [c for c in _makings(program, owner, "") if c.args or c.keywords]
    differ = len({t for c in made for v in (*c.args[:1], *(k.value for k in c.keywords[:1])) for t in _texts(program, c, v)}) > 1
    rows = [a for c in made for a in (*c.args[:1], *(k.value for k in c.keywords[:1])) if not isinstance(constant(a), bool)]
    of = (owner.name, "cls", "self.__class__")
    stored = {n.attr for n in program.nodes[ast.Attribute] if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and dotted(n.value) in of}
    stored |= {name for n in program.nodes[ast.Global] if isinstance(n, ast.Global) and program.scope(n).owner is owner for name in n.names}
    if differ and rows and any(last_name(n) in stored for n in own_nodes(function.node) if isinstance(n, (ast.Name, ast.Attribute))):
        return True
    sides = {side_of_names(tuple(names_read(a) | {str(constant(a))})) for a in rows} | {side_of_names(targets_of(program, c)) for c in made}
    flags = any({"transform", "transforms", "augment", "aug"} & words(n) for a in rows for n in names_read(a))
    return differ and not flags and "train" in sides and bool(sides & {"val", "test"})
