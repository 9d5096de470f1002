"""Rules BH227 and BH228: evaluations in which the network is given the truth as it goes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model
from training.review.program import Program, Scope
from training.review.provenance import sources
from training.review.rules_evaluation import evaluations
from training.review.syntax import constant, defaults, has_unpacking, identifiers, keyword, last_name, names_read, walk, words

LIKELIHOODS = {"cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "perplexity", "ppl"}  # of tokens, which are measured so on purpose


@rule(
    "BH227",
    "teacher-forced-evaluation",
    "error",
    title="The network is helped by the truth while it is evaluated",
    why="With a share of teacher forcing the true value is given as the next input now and then: the score is too good, differs from run to run, and says nothing about use, where there is no truth.",
    remedy="pass 0 where the network is evaluated: `model(source, target, teacher_forcing_ratio=0.0)`",
    bad="""
        import random
        import torch
        from torch import nn

        class Decoder(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.cell = nn.GRUCell(1, width)
                self.out = nn.Linear(width, 1)

            def forward(self, state, target, teacher_forcing=0.5):
                value, found = target[:, :1], []
                for t in range(target.shape[1]):
                    state = self.cell(value, state)
                    guess = self.out(state)
                    value = target[:, t : t + 1] if random.random() < teacher_forcing else guess
                    found.append(guess)
                return torch.cat(found, dim=1)

        @torch.no_grad()
        def evaluate(width, val_loader, loss_fn):
            model = Decoder(width)
            model.eval()
            return sum(loss_fn(model(state, target), target).item() for state, target in val_loader)
        """,
    good="""
        import random
        import torch
        from torch import nn

        class Decoder(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.cell = nn.GRUCell(1, width)
                self.out = nn.Linear(width, 1)

            def forward(self, state, target, teacher_forcing=0.5):
                value, found = target[:, :1], []
                for t in range(target.shape[1]):
                    state = self.cell(value, state)
                    guess = self.out(state)
                    value = target[:, t : t + 1] if random.random() < teacher_forcing else guess
                    found.append(guess)
                return torch.cat(found, dim=1)

        @torch.no_grad()
        def evaluate(width, val_loader, loss_fn):
            model = Decoder(width)
            model.eval()
            return sum(loss_fn(model(state, target, teacher_forcing=0.0), target).item() for state, target in val_loader)
        """,
)
def teacher_forced_evaluation(subject: Subject) -> Iterator[Place]:
    """In an evaluation a network is called with a share of teacher forcing between 0 and 1, given or by default, and its forward does not look at `self.training`;
    or with all of it, where what is foretold are numbers.
    """
    program = subject.program
    forced = {owner: found for owner in program.module_classes if (found := _forcing(program, owner))}
    if not forced:
        return
    seen: set[ast.AST] = set()
    calls = [(e.call, e.scope) for _, forwards, _ in evaluations(subject) for e in forwards]
    calls += [(c, s) for c in program.all_calls if (s := program.scope(c)) and _quiet(program, c, s) and is_model(program, c.func, s)]
    for call, scope in calls:
        known = {program.classes[o.name] for o in program.origins(call.func, scope) if o.name in program.classes}
        named = [o for o in forced if o in known] if known else list(forced) if len(forced) == 1 else []
        if call in seen or len(named) != 1 or has_unpacking(call) or len(call.args) + len(call.keywords) < 2:
            continue
        seen.add(call)
        name, position, default = forced[named[0]]
        if any(isinstance(a, ast.Constant) and a.value is None for a in call.args) and _is_put_off(program, named[0], name):
            continue
        given = keyword(call, name, position)
        share = default if given is None else constant(given)
        whole = share == 1 and given is not None and not LIKELIHOODS & program.identifiers
        if isinstance(share, (int, float)) and not isinstance(share, bool) and (0 < share < 1 or whole):
            how = "by default" if given is None else "here"
            yield call, f"{name} is {share} {how}: the network is given the truth in this evaluation"


def _forcing(program: Program, owner: ast.ClassDef) -> tuple[str, int, object] | None:
    """The parameter of a class's forward that is named after teacher forcing: its name, position and default."""
    forward = program.methods[owner].get("forward")
    asks = {name for name, own in program.methods[owner].items() if "training" in identifiers(own.node)}
    if forward is None or ({"training"} | asks) & identifiers(forward.node) or isinstance(forward.node, ast.Module):
        return None
    for index, name in enumerate(forward.parameters):
        spoken = words(name)
        drawn = bool({"force", "forced", "teach", "teaching", "teacher"} & spoken) and _drawn_against(forward.node, name)
        if drawn or {"teacher", "forcing"} <= spoken or "forcing" in spoken or name in ("tf_ratio", "tfr", "sampling_prob"):
            return name, index - 1, constant(defaults(forward.node).get(name))
    return None


def _drawn_against(forward: ast.AST, name: str) -> bool:
    """Whether a random number is compared with it: `torch.rand(n, 1) < force`."""
    tests = [n for n in walk(forward) if isinstance(n, ast.Compare) and name in names_read(n)]
    return any(isinstance(c, ast.Call) and last_name(c.func) in ("rand", "random", "uniform", "rand_like") for t in tests for c in walk(t))


def _is_put_off(program: Program, owner: ast.ClassDef, name: str) -> bool:
    """Whether forward sets the share to nothing itself, as it does where no target is given."""
    bound = program.methods[owner]["forward"].bindings.get(name, ())
    return any(constant(b.value) == 0 for b in bound)


def _quiet(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call stands in a function that switches gradients off for all of itself, or in a block that does."""
    decorators = scope.node.decorator_list if not isinstance(scope.node, ast.Module) else []
    blocks = [i.context_expr for a in program.ancestors(call) if isinstance(a, ast.With) for i in a.items]
    return any({"no_grad", "inference_mode"} & identifiers(d) for d in (*decorators, *blocks))


GENERATES = {"generate", "decode", "sample", "translate", "greedy", "infer", "beam", "complete", "transcribe"}


@rule(
    "BH228",
    "accuracy-of-forced-decoding",
    "warning",
    title="Accuracy is measured with the truth as input",
    why="Each place is predicted from the true ones before it: one mistake does not lead to the next, as it does in use. The accuracy says how well the next token is guessed, not how well sequences are generated.",
    remedy="generate without the target, and compare what comes out: `model.generate(source) == target`",
    bad="""
        import torch
        from torch import nn

        class Translator(nn.Module):
            def __init__(self, encoder, decoder):
                super().__init__()
                self.encoder, self.decoder = encoder, decoder

            def forward(self, source, target):
                return self.decoder(self.encoder(source), target[:, :-1])

            def generate(self, source):
                return self.decoder.greedy(self.encoder(source))

        @torch.no_grad()
        def accuracy(model, source, target):
            model.eval()
            guess = model(source, target).argmax(dim=-1)
            return (guess == target[:, 1:]).float().mean()
        """,
    good="""
        import torch
        from torch import nn

        class Translator(nn.Module):
            def __init__(self, encoder, decoder):
                super().__init__()
                self.encoder, self.decoder = encoder, decoder

            def forward(self, source, target):
                return self.decoder(self.encoder(source), target[:, :-1])

            def generate(self, source):
                return self.decoder.greedy(self.encoder(source))

        @torch.no_grad()
        def accuracy(model, source, target):
            model.eval()
            guess = model.generate(source)
            return (guess == target[:, 1:]).float().mean()
        """,
)
def accuracy_of_forced_decoding(subject: Subject) -> Iterator[Place]:
    """In an evaluation the decisions of a network that is given a target are compared with that target, its class can generate, and nothing compares what it generates.

    Whole sequences are another thing: all places are right under forcing exactly where greedy decoding gives the sequence.
    """
    program = subject.program
    makers = {name: owner for owner in program.module_classes for name in program.methods[owner] if words(name) & GENERATES and _takes_target(program, owner)}
    if not makers or _generated_compared(program, set(makers)):
        return
    for test in (n for n in program.nodes[ast.Compare] if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq) and len(n.ops) == 1):
        scope = program.scope(test)
        for guess, truth in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            for source in sources(program, guess, scope):
                call = source.node
                if source.kind != "network" or "decided" not in source.done or not isinstance(call, ast.Call) or not _quiet(program, call, program.scope(call)):
                    continue
                given = [_root(a) for a in (*call.args, *(k.value for k in call.keywords))]
                if len(given) > 1 and _root(truth) in given[1:] and _root(truth):
                    yield test, f"{ast.unparse(call)} is given {_root(truth)}, with which its decisions are compared"


def _takes_target(program: Program, owner: ast.ClassDef) -> bool:
    """Whether a class's forward takes a second tensor, and shifts it by one place."""
    forward = program.methods[owner].get("forward")
    if forward is None or len(forward.parameters) < 3:
        return False
    cut = [n for n in walk(forward.node) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id in forward.parameters[2:]]
    return any(isinstance(s, ast.Slice) and constant(s.upper) == -1 for n in cut for s in walk(n.slice))


def _generated_compared(program: Program, names: set[str]) -> bool:
    """Whether what is generated is compared or measured anywhere: it is given a name that is, or stands within a comparison or a call other than `print`."""
    for call in program.methods_of(*names):
        around = program.ancestors(call)
        if any(isinstance(a, ast.Compare) or (isinstance(a, ast.Call) and last_name(a.func) not in ("print", "zip", "enumerate", "list")) for a in around):
            return True
        statement = program.statement(call)
        made = {n.id for n in walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} if not isinstance(statement, ast.For) else set()
        if isinstance(statement, ast.Return) or any(isinstance(n, ast.Compare) and names_read(n) & made for n in walk(program.scope(call).node)):
            return True
        inner = [c for c in walk(program.scope(call).node) if isinstance(c, ast.Call) and last_name(c.func) not in ("print", "zip", "enumerate", "len")]
        if any(names_read(a) & made for c in inner for a in c.args):
            return True
    return False


def _root(node: ast.expr) -> str:
    """The name of which something is a part."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
