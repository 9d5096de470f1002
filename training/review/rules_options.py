"""Rule BH224: a setting that can be given and that nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import (
    FUNCTIONS,
    constant,
    identifiers,
    keyword,
    last_name,
    method,
    names_read,
    walk,
    words,
)

SETTINGS = {
    "lr", "learning_rate", "base_lr", "max_lr", "epochs", "num_epochs", "n_epochs", "max_epochs",
    "batch_size", "weight_decay", "wd", "dropout", "drop_rate", "momentum", "seed", "hidden",
    "hidden_size", "hidden_dim", "width", "depth", "num_layers", "n_layers", "layers", "patience",
    "warmup", "warmup_steps", "warmup_epochs", "clip", "grad_clip", "clip_grad", "max_grad_norm",
    "steps", "num_steps", "max_steps", "label_smoothing", "gamma", "accum", "accumulation_steps",
    "grad_accum", "temperature",
}  # fmt: skip
LOGS = {
    "print", "pprint", "pformat", "info", "debug", "warning", "dump", "dumps", "log_params",
    "log_hyperparams", "log_dict", "add_hparams", "add_text", "str", "repr", "items", "sorted",
    "save", "write", "format", "type", "isinstance", "asdict", "vars",
}  # fmt: skip
PARSES = {"parse_args", "parse_known_args", "parse_intermixed_args"}
UNUSED = {"deprecated", "unused", "ignored", "obsolete", "legacy", "compatibility", "reserved"}


@rule("BH224")
def option_never_read(subject: Subject) -> Iterator[Place]:
    """An option, field or entry with the name of a hyperparameter is read nowhere in a file that
    trains, and what holds it goes to no code that is out of sight.
    """
    program = subject.program
    if not subject.trains or any(
        len(c.args) > 1 and constant(c.args[1]) is None for c in program.calls_of("getattr")
    ):
        return  # nothing is learned, or fields are read by names that are computed
    read = {n.attr for n in program.nodes[ast.Attribute] if isinstance(n.ctx, ast.Load)}
    told: list[tuple[ast.AST, str, str]] = []
    if (options := list(_options(program))) and _all_in_sight(program, program.methods_of(*PARSES)):
        told += [(call, name, "option") for call, name in options]
    for owner in program.classes.values():
        fields = list(_fields(owner)) if not program.is_module(owner) else []
        if (
            fields
            and _all_in_sight(program, program.calls_of(owner.name))
            and not _used_as_class(program, owner)
        ):
            told += [(node, name, f"field of {owner.name}") for node, name in fields]
    told += [(node, name, "entry") for node, name in _entries(program)]
    for node, name, what in told:
        if name in SETTINGS and name not in read and not _spelled(program, name, node):
            yield (
                node,
                (
                    f"{name} is {'a' if what.startswith('field') else 'an'} {what}, and nothing"
                    " reads it"
                ),
            )
    for function, names in _commands(program):
        for name in names & SETTINGS:
            if name not in names_read(function) and not {
                "locals",
                "kwargs",
                "params",
            } & identifiers(function):
                yield function, f"{name} is an option of {function.name}, and nothing reads it"


def _options(program: Program) -> Iterator[tuple[ast.Call, str]]:
    """Every `add_argument`, and the name of what it gives; without those that say that they do
    nothing.
    """
    for call in program.methods_of("add_argument"):
        flags = [str(constant(a)) for a in call.args if isinstance(constant(a), str)]
        help_text = constant(keyword(call, "help"))
        silent = (
            bool(UNUSED & words(str(help_text).replace(".", " ").replace(",", " ")))
            or last_name(keyword(call, "help")) == "SUPPRESS"
        )
        if flags and not silent and constant(keyword(call, "action")) not in ("version", "help"):
            long = next((f for f in flags if f.startswith("--")), flags[0])
            yield call, str(constant(keyword(call, "dest")) or long.lstrip("-").replace("-", "_"))


def _fields(owner: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """The fields of a dataclass or named tuple with a default value."""
    kinds = {last_name(d.func if isinstance(d, ast.Call) else d) for d in owner.decorator_list} | {
        last_name(b) for b in owner.bases
    }
    if kinds & {"dataclass", "NamedTuple", "BaseModel", "BaseSettings"}:
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node, node.target.id


def _entries(program: Program) -> Iterator[tuple[ast.AST, str]]:
    """The entries of a dict of settings that is written at the top, and only read key by key, or
    printed.
    """
    for name, bindings in program.top.bindings.items():
        value = bindings[0].value
        if len(bindings) != 1 or not isinstance(value, ast.Dict):
            continue
        uses = [n for n in program.nodes[ast.Name] if n.id == name and isinstance(n.ctx, ast.Load)]
        if uses and all(_by_key(program, n) for n in uses):
            yield from (
                (k, str(k.value))
                for k in value.keys
                if isinstance(k, ast.Constant) and len(value.keys) > 1
            )


def _by_key(program: Program, name: ast.Name) -> bool:
    """Whether a dict is read by a literal key there, or printed."""
    parent = program.parents[name]
    if isinstance(parent, ast.Subscript):
        return (
            parent.value is name
            and isinstance(constant(parent.slice), str)
            and isinstance(parent.ctx, ast.Load)
        )
    if isinstance(parent, ast.Attribute):
        call = program.parents[parent]
        return (
            parent.attr == "get"
            and isinstance(call, ast.Call)
            and bool(call.args)
            and isinstance(constant(call.args[0]), str)
        )
    return isinstance(parent, ast.FormattedValue) or (
        isinstance(parent, ast.Call) and last_name(parent.func) in LOGS and parent.func is not name
    )


def _used_as_class(program: Program, owner: ast.ClassDef) -> bool:
    """Whether a class is given to something, inherited, or never called here: others may read its
    fields.
    """
    named = [n for n in program.nodes[ast.Name] if n.id == owner.name]
    called = [n for n in named if isinstance(p := program.parents[n], ast.Call) and p.func is n]
    annotations = [
        n for n in named if isinstance(program.parents[n], (ast.arg, ast.AnnAssign, FUNCTIONS))
    ]
    return (
        not called
        or len(called) + len(annotations) < len(named)
        or any(c for c in called if any(k.arg is None for k in _call_of(program, c).keywords))
    )


def _call_of(program: Program, name: ast.Name) -> ast.Call:
    parent = program.parents[name]
    if not isinstance(parent, ast.Call):
        raise TypeError("a name that is called has a call around it")
    return parent


def _all_in_sight(program: Program, made: list[ast.Call]) -> bool:
    """Whether what holds settings is made here, and only read by attribute, printed, or given to
    functions of this file.
    """
    held: set[str] = set()
    pending: list[ast.expr] = list(made)
    while pending:
        value = pending.pop()
        names = _goes_to(program, value)
        if names is None:
            return False
        for name in names - held:
            held.add(name)
            loads = [
                n
                for n in (*program.nodes[ast.Name], *program.nodes[ast.Attribute])
                if isinstance(n, (ast.Name, ast.Attribute))
            ]
            pending += [n for n in loads if last_name(n) == name and isinstance(n.ctx, ast.Load)]
    return bool(made) and bool(held)


def _goes_to(program: Program, value: ast.expr) -> set[str] | None:
    """The names that hold a value next; None where it goes out of sight."""
    parent = program.parents[value]
    match parent:
        case ast.Attribute() | ast.FormattedValue() | ast.Expr() | ast.Compare() | ast.arg():
            return set()
        case ast.Assign():
            return {
                last_name(t.elts[0] if isinstance(t, ast.Tuple) and t.elts else t)
                for t in parent.targets
            } - {""}
        case ast.AnnAssign() | ast.NamedExpr():
            return {last_name(parent.target)}
        case ast.Return():
            scope = program.scope(parent)
            sites = [s for s, _ in program.call_sites[scope]]
            return {n for s in sites for n in _goes_to(program, s) or {"?"}} if sites else None
        case ast.keyword() | ast.Call():
            return _passed(program, value, parent)
    return None


def _passed(program: Program, value: ast.expr, parent: ast.AST) -> set[str] | None:
    """The parameters by which functions of this file get a value; nothing of what only
    prints it.
    """
    call = program.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or call.func is value:
        return set()
    if last_name(call.func) in ("vars", "asdict") and call.args[:1] == [value]:
        above = program.parents[call]
        logged = isinstance(above, ast.Call) and last_name(above.func) in LOGS
        config = isinstance(above, ast.keyword) and above.arg in ("config", "hparams", "params")
        return set() if logged or config or isinstance(above, ast.FormattedValue) else None
    if last_name(call.func) in LOGS or (
        isinstance(parent, ast.keyword) and parent.arg == "config" and method(call) == "init"
    ):
        return set()
    found = program.callees(call, program.scope(call))
    if not found or (isinstance(parent, ast.keyword) and parent.arg is None):
        return None
    names: set[str] = set()
    for function in found:
        names |= _parameter(call, function, value, parent)
    return names or None


def _parameter(call: ast.Call, function: Scope, value: ast.expr, parent: ast.AST) -> set[str]:
    if isinstance(parent, ast.keyword):
        return {str(parent.arg)} & set(function.parameters)
    at = call.args.index(value) + bool(
        function.owner and function.parameters[:1] in (["self"], ["cls"])
    )
    return {function.parameters[at]} if at < len(function.parameters) else set()


def _spelled(program: Program, name: str, where: ast.AST) -> bool:
    """Whether a name stands anywhere as text, as in `getattr(args, "lr")`."""
    own = set(walk(where))
    return any(n.value == name and n not in own for n in program.nodes[ast.Constant])


def _commands(program: Program) -> Iterator[tuple[ast.FunctionDef, set[str]]]:
    """Functions that click or typer makes commands of, and the parameters that are options."""
    for scope in program.scopes if {"click", "typer"} & program.modules_imported else ():
        function = scope.node
        if not isinstance(function, ast.FunctionDef):
            continue
        made = [d for d in function.decorator_list if isinstance(d, ast.Call)]
        named = {
            str(constant(a)).lstrip("-").replace("-", "_")
            for d in made
            if last_name(d.func) == "option"
            for a in d.args
        }
        if any(method(d) == "command" and "typer" in program.modules_imported for d in made):
            named |= set(scope.parameters)
        if named & set(scope.parameters):
            yield function, named & set(scope.parameters)
