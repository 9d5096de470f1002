"""Role of a value in training: by the call that made it, else by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Set as AbstractSet
from functools import lru_cache

from training.review.program import Origin, Program, Scope
from training.review.syntax import calls, dotted, last_name, words

OPTIMIZER = re.compile(r"^_?(.*_)?(optim|optimizer|optimiser|opt)s?(_\w+|\d+|[A-Z]\w*)?$")
SCHEDULER = re.compile(r"^_?(.*_)?(lr_?)?(sched|scheduler|lr_scheduler)s?(_\w+|\d+)?$")
MODEL = re.compile(
    r"^_?(.*_)?(model|net|network|module|classifier|encoder|decoder|backbone|generator|discriminator|critic|actor|policy|student|teacher|unet|vae|transformer)s?(_\w+|\d+|[A-Z])?$"
)
PRETRAINED = re.compile(
    r"Model|[a-z0-9]For[A-Z]"
)  # transformers.BertModel, transformers.T5ForConditionalGeneration
ACTIONS = {
    "add", "build", "compile", "create", "eval", "evaluate", "export", "fit", "freeze", "from",
    "get", "init", "load", "log", "make", "new", "prepare", "print", "register", "reset", "restore",
    "run", "sample", "save", "set", "setup", "summary", "sync", "test", "train", "unwrap", "update",
    "validate", "wrap",
}  # fmt: skip
THINGS = {
    "args", "cfg", "class", "cls", "config", "dict", "dim", "dir", "file", "id", "input", "inputs",
    "kwargs", "loss", "name", "names", "out", "output", "outputs", "params", "path", "size",
    "state", "type", "weights",
}  # fmt: skip
NO_NETWORK = ACTIONS | THINGS
NO_OPTIMIZER = {"Optimizer"}
HELD_OUT = {
    "val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev", "holdout",
    "heldout", "held", "va", "tst",
}  # fmt: skip
# words of scores that rise, of scores that fall, and words that invert a score
RISES = {
    "acc", "accuracy", "f1", "auc", "auroc", "auprc", "iou", "miou", "dice", "recall", "precision",
    "bleu", "psnr", "ssim", "ndcg", "mrr", "kappa", "r2", "top1",
}  # fmt: skip
FALLS = {"loss", "losses", "error", "err", "mse", "mae", "rmse", "perplexity", "ppl", "nll", "wer"}
TURNED = {
    "neg", "negative", "minus", "inv", "inverse", "reward", "improvement", "reduction", "drop",
    "delta", "gain",
}  # fmt: skip
LABELS = {
    "y", "ys", "label", "labels", "target", "targets", "outcome", "outcomes", "response", "truth",
}  # fmt: skip
EVALUATES = HELD_OUT | {"validate", "evaluate"}
MASKS = {"mask", "masks", "known", "seen", "padding", "censored", "exclude", "excluded"}
# libraries that give loaders their samplers
PREPARES = {
    "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "deepspeed", "composer",
}  # fmt: skip
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
FROZEN = {
    "teacher", "ema", "target", "frozen", "swa", "reference", "ref", "old", "momentum", "averaged",
    "vgg", "clip", "pretrained", "best",
}  # fmt: skip


WITHOUT_WEIGHTS = re.compile(
    r"(Log)?Soft|Hard|\w*(LU|LU6|Loss|Pad\dd)$|Mish|Tanh|(Log)?Sigmoid|Identity|Dropout|Avg|Max|Pixel"
    "|Adaptive|(Un)?(Flatten|[fF]old)|Upsampl|Cosine|Pairwise|Threshold"
)


def is_optimizer(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Return whether a node is a torch optimizer, or named like one if its call is not in sight."""
    known = program.origins(node, scope)
    if any(is_optimizer_origin(o) for o in known):
        return True
    named = (bool(OPTIMIZER.match(last_name(node))) and "steps" not in words(last_name(node))) or (
        not known
        and last_name(node) in program.optimizer_names
        and not is_model(program, node, scope)
    )
    return not any(o.name.startswith("torch.") for o in known) and named


def is_optimizer_origin(origin: Origin) -> bool:
    """Return whether the call makes an optimizer."""
    if not origin.name.startswith("torch.optim."):
        return False
    return (
        not {"lr_scheduler", "swa_utils"} & set(origin.name.split("."))
        and origin.last[:1].isupper()
        and origin.last not in NO_OPTIMIZER
    )


def is_scheduler_origin(origin: Origin) -> bool:
    """Return whether the call makes a learning-rate schedule."""
    return (
        ".lr_scheduler." in origin.name
        or origin.last == "SWALR"
        or (
            origin.name.startswith("transformers.")
            and origin.last.startswith("get_")
            and "schedule" in origin.last
        )
    )


def is_scheduler(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Return whether a node is a learning-rate schedule."""
    known = program.origins(node, scope)
    if any(is_scheduler_origin(o) for o in known):
        return True
    return not any(o.name.startswith("torch.") for o in known) and bool(
        SCHEDULER.match(last_name(node))
    )


def is_scaler(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Return whether a node is a gradient scaler."""
    known = program.origins(node, scope)
    if known:
        return any(o.last in ("GradScaler", "ShardedGradScaler") for o in known)
    return "scaler" in words(last_name(node))


def is_model_origin(program: Program, origin: Origin) -> bool:
    """Return whether the call makes a network."""
    owner = program.classes.get(origin.name)
    if owner is not None:
        return program.is_module(owner)
    name = origin.name
    if name.startswith("torch.nn."):
        return (
            origin.last[:1].isupper()
            and not origin.last.endswith(("Loss", "Parameter", "Similarity", "Distance"))
            and "utils" not in name.split(".")
        )
    return name.startswith(("torchvision.models.", "timm.create_model")) or (
        name.startswith("transformers.") and bool(PRETRAINED.search(name))
    )


def is_model(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Return whether a node is a network."""
    known = program.origins(node, scope)
    if any(is_model_origin(program, o) for o in known):
        return True
    name = last_name(node)
    if (
        name in program.classes
        or NO_NETWORK & words(name)
        or any(o.name.startswith("torch.") for o in known)
    ):
        return False
    used = not known and name in program.network_names
    named = (
        used
        or _sounds_like_a_network(name)
        or (not known and program.module_named(name) is not None)
    )
    return (
        named
        and program.local_function(name, scope) is None
        and not (isinstance(node, ast.Attribute) and name in program.method_names)
    )


@lru_cache(maxsize=1 << 14)
def _sounds_like_a_network(name: str) -> bool:
    return bool(MODEL.match(name))


def is_network_with_state(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Return whether `state_dict()` of a node is a network's.

    It is for `self.trainModel`, but not for a function `train_model`.
    """
    if is_model(program, node, scope):
        return True
    last = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last_name(node)).lower()
    return (
        isinstance(node, ast.Attribute)
        and _sounds_like_a_network(last)
        and node.attr not in program.method_names
    )


def is_frozen_name(key: str) -> bool:
    """Return whether a name says that the network does not learn."""
    return bool(FROZEN & words(key))


def looks_trained_on(name: str) -> bool:
    """Return whether an identifier names train rows."""
    return bool({"train", "training", "tr"} & words(name))


@lru_cache(maxsize=1 << 14)
def looks_held_out(name: str) -> bool:
    """Return whether an identifier names validation or test rows.

    >>> (looks_held_out("val_loader"), looks_held_out("latest"), looks_held_out("x_test"),
    ...     looks_held_out("held_out_rows"))
    (True, False, True, True)
    """
    found = words(name)
    return (
        bool(HELD_OUT & found)
        or {"held", "out"} <= found
        or any(
            w.startswith(("val", "test"))
            and w[3:].lstrip("s") in ("loader", "set", "ds", "dl", "data", "tloader")
            for w in found
        )
    )


def direction(said: AbstractSet[str]) -> str:
    """Return `max` or `min`: whether the named score is better when greater or smaller; else empty.

    >>> direction({"val", "loss"}), direction({"acc"}), direction({"neg", "loss"})
    ('min', 'max', '')
    """
    if said & TURNED or bool(said & RISES) == bool(said & FALLS):
        return ""
    return "max" if said & RISES else "min"


def makes_layer(program: Program, node: ast.AST | None) -> bool:
    """Check whether an expression makes a layer or network that has its own weights."""
    if not isinstance(node, ast.Call):
        return False
    name, owner = program.resolve(node.func), program.classes.get(dotted(node.func))
    if name.startswith("torch.nn."):
        last = name.rpartition(".")[2]
        helper = ".utils." in name or ".attention." in name or not last[:1].isupper()
        return not helper and not WITHOUT_WEIGHTS.match(last)
    inner = [c for known in program.bases(owner) for c in calls(known)] if owner else []
    return program.is_module(owner) and any(
        program.resolve(c.func) and makes_layer(program, c) for c in inner
    )
