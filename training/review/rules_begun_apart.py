"""Rules BH624 and BH566: replicas that begin with weights of their own, held-out rows that are scaled otherwise than those of train."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.kinds import is_model_origin
from training.review.lookups import calls_to
from training.review.program import Program, Scope
from training.review.rules_distributed import RANKS
from training.review.syntax import calls, identifiers, last_name, names_read, own_nodes, words

TOLD = {"broadcast", "broadcast_object_list", "all_gather", "load_state_dict", "scatter", "_sync_module_states", "vector_to_parameters"}
WRAPPERS = {
    "DistributedDataParallel",
    "DDP",
    "FullyShardedDataParallel",
    "FSDP",
    "fully_shard",
    "prepare",
    "DeepSpeedEngine",
    "initialize",
    "distribute_module",
}
NETWORKS = {"net", "network", "model"}
SCALES = {"normalize", "normalise", "standardize", "standardise", "standardscale", "whiten", "rescale"}
CHAINS = {"compose", "sequential", "pipeline"}
OF_TRAIN, OF_OTHERS = {"train", "training", "fit", "tr"}, {"val", "valid", "validation", "test", "eval", "evaluation", "dev", "heldout", "te", "va"}


@rule(
    "BH624",
    "replicas-seeded-apart",
    "error",
    title="Replicas begin with weights of their own",
    why="Ranks that are seeded apart draw different networks. Averaging gradients by hand keeps their differences: each rank moves another network by a gradient that is right for none.",
    remedy="seed all ranks alike until the network is made, broadcast the weights of rank 0, or wrap it in DistributedDataParallel, which does so",
    bad="""
        import torch
        import torch.distributed as dist

        def work(rank, world, make_net, loader, loss_fn, seed):
            torch.manual_seed(seed + rank)
            net = make_net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(net(x), y).backward()
                for p in net.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= world
                optimizer.step()
        """,
    good="""
        import torch
        import torch.distributed as dist

        def work(rank, world, make_net, loader, loss_fn, seed):
            torch.manual_seed(seed)
            net = make_net()
            torch.manual_seed(seed + rank)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(net(x), y).backward()
                for p in net.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= world
                optimizer.step()
        """,
)
def replicas_seeded_apart(subject: Subject) -> Iterator[Place]:
    """Gradients are summed over ranks by hand, nothing wraps the network or sends weights, and the last seed before it is made depends on the rank."""
    program = subject.program
    summed = [c for c in calls_to(program, "torch.distributed.all_reduce") if "grad" in identifiers(c)]
    if not summed or (TOLD | WRAPPERS) & (program.called_names | program.identifiers):
        return
    seeds = [(c, program.scope(c), _by_rank(program.scope(c), c)) for c in calls_to(program, "torch.manual_seed")]
    seeds += [(site, caller, apart) for _, scope, apart in seeds for site, caller in program.call_sites[scope] if scope.name not in ("", "__init__")]
    for scope in dict.fromkeys(scope for _, scope, _ in seeds):
        bound = [b for bs in scope.bindings.values() for b in bs]
        bound += [b for bs in (program.attributes[scope.owner] if scope.owner is not None else {}).values() for b in bs if b.scope is scope]
        for made in (b.value for b in bound if b.index is None and b.how == "assign" and isinstance(b.value, ast.Call)):
            if not any(is_model_origin(program, o) for o in program.origins(made, scope)) and not NETWORKS & set(words(last_name(made.func))):
                continue
            before = [(c, apart) for c, where, apart in seeds if where is scope and c.lineno < made.lineno]
            last, apart = max(before, key=lambda s: s[0].lineno, default=(None, False))
            if last is not None and apart:
                yield last, f"ranks are seeded apart before a network is made in line {made.lineno}, and nothing sends them the same weights"
                return


def _by_rank(scope: Scope, seed: ast.Call) -> bool:
    """Whether a seed is computed from what is named after ranks, one step back too."""
    read = {n for a in seed.args for n in identifiers(a)}
    behind = {i for n in read for b in scope.bindings.get(n, ()) for i in identifiers(b.value)}
    return any(RANKS & set(words(n)) for n in read | behind)


@rule(
    "BH566",
    "scaled-on-one-side",
    "error",
    title="Train rows are scaled, and held-out rows are not",
    why="The chain of changes of the held-out rows leaves out the scaling of the train rows: the network is scored on values in another unit than those that it learned from.",
    remedy="leave out of the held-out chain what is random, and nothing else",
    bad="""
        import torch
        from torchvision import transforms

        def chains(mean, std):
            train_changes = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(mean, std)])
            test_changes = transforms.Compose([transforms.ToTensor()])
            return train_changes, test_changes
        """,
    good="""
        import torch
        from torchvision import transforms

        def chains(mean, std):
            train_changes = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(mean, std)])
            test_changes = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
            return train_changes, test_changes
        """,
)
def scaled_on_one_side(subject: Subject) -> Iterator[Place]:
    """Of two chains of one function, named after train and after held-out rows, that of train alone has a step which scales, and nothing else in the file scales."""
    program = subject.program
    if not any(words(n) & CHAINS for n in program.called_names) or not any(words(n) & SCALES for n in program.called_names):
        return
    for scope in program.scopes:
        chains = [(n, c) for n, c in _chains(program, scope) if words(n) & (OF_TRAIN | OF_OTHERS)]
        of_train = [(n, c) for n, c in chains if words(n) & OF_TRAIN and _scaling(c)]
        for name, chain in chains:
            if not words(name) & OF_OTHERS or words(name) & OF_TRAIN or _scaling(chain):
                continue
            for other, scaled in of_train:
                steps = _scaling(scaled)
                elsewhere = [c for c in program.all_calls if words(last_name(c.func)) & SCALES and not any(c in calls(t) for _, t in of_train)]
                if not elsewhere and not names_read(chain) & {n for n, _ in chains}:
                    yield chain, f"{other} has {steps[0]}, and {name} has not: held-out rows keep another unit", scaled
                    return


def _chains(program: Program, scope: Scope) -> Iterator[tuple[str, ast.Call]]:
    """The chains of changes that a function names, `Compose([…])` of whatever library."""
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and words(last_name(node.value.func)) & CHAINS:
            name = last_name(node.targets[0])
            if name and all(isinstance(a, (ast.List, ast.Tuple, ast.Call)) for a in node.value.args) and node.value.args:
                yield name, node.value


def _scaling(chain: ast.Call) -> list[str]:
    """The steps of a chain that scale."""
    return [last_name(c.func) for c in calls(chain) if words(last_name(c.func)) & SCALES]
