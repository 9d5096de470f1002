"""Checklist items on the training loop: ranks, the step, evaluation, determinism, the data path."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.observed import Observed, Statement
from training.engine.sampling import epoch_order
from training.formatting import count, number, plain, plural, share
from training.report.checklist_facts import (
    HOOKS,
    LOG,
    RESULT,
    Items,
    RunFacts,
    fact,
    from_check,
    not_applicable,
    not_shown,
    warning,
)

BY_SETTINGS = "settings read back from torch"
CLIP_SLACK = 1e-4  # rounding of the norm of many float32 values
ORDER_ROWS = 1_000_000  # with more rows the order is not drawn again for this page


def ranks(facts: RunFacts) -> Iterator[Statement]:
    """Check processes, their devices, and that they ended with the same weights."""
    seen = facts.seen
    if seen is None:
        yield not_shown()
        return
    places = [f"rank {r.rank} on {r.device}" for r in seen.ranks[:8]] + (
        ["…"] if len(seen.ranks) > 8 else []
    )
    yield fact(
        len(seen.ranks) == facts.train.world_size == facts.declaration.train.ranks,
        f"{', '.join(places)}, of {facts.declaration.train.ranks} declared",
        RESULT,
    )
    if len(seen.ranks) == 1:
        yield not_applicable("one process: nothing to keep in step", RESULT)
        return
    yield fact(
        seen.wrapper != "DataParallel",
        f"the network is {seen.layout} over the ranks ({seen.wrapper}), which talk by"
        f" {seen.backend}",
        RESULT,
    )
    on_gpu = [r for r in seen.ranks if r.device.startswith("cuda")]
    own = all(r.device == f"cuda:{r.local_rank}" for r in on_gpu)
    yield fact(
        own,
        "each rank has the device of its LOCAL_RANK" if on_gpu else "no rank was on a GPU",
        RESULT,
        "ranks share a GPU, or have that of another",
    )
    yield _same_weights(seen)


def _same_weights(seen: Observed) -> Statement:
    digests = {r.weights_sha256 for r in seen.ranks}
    if None in digests:
        return not_applicable(
            "every rank holds slices of the weights: there is nothing to compare", RESULT
        )
    first = seen.ranks[0].weights_sha256 or ""
    told = f"all {len(seen.ranks)} ranks ended with the same weights (SHA-256 {first[:12]}…)"
    return fact(
        len(digests) == 1, told, RESULT, f"ranks ended with {len(digests)} different weights"
    )


def order_of_a_step(facts: RunFacts) -> Iterator[Statement]:
    """Check clean gradients, every parameter, and one update per step."""
    if facts.seen is None or facts.passes is None:
        yield _no_hooks(facts)
        return
    p, steps = facts.passes, facts.train.steps - facts.seen.begun_at
    skipped = facts.train.skipped_steps
    since = f" since step {facts.seen.begun_at}" if facts.seen.begun_at else ""
    updates = plural(p.updates, "update")
    yield fact(
        p.begun_clean == p.updates,
        f"{updates}{since}, each begun with no gradient left from before",
        HOOKS,
        f"only {p.begun_clean} of {updates} began with no gradient left from before",
    )
    yield fact(
        p.with_all_gradients == p.updates,
        "every parameter had a gradient at each",
        HOOKS,
        f"at {p.updates - p.with_all_gradients} of {updates} a parameter had no gradient",
    )
    low = steps - skipped
    yield fact(
        low <= p.updates <= steps,
        f"{plural(steps, 'step')}, {count(p.updates)} of them updates, {count(skipped)} left out",
        f"{HOOKS}, {RESULT}",
    )


def accumulation(facts: RunFacts) -> Iterator[Statement]:
    """Check the forward passes of an update, and when gradients were exchanged."""
    p, train = facts.passes, facts.declaration.train
    if facts.seen is None or p is None:
        yield _no_hooks(facts)
        return
    steps = facts.train.steps - facts.seen.begun_at
    if p.train <= steps:
        yield not_applicable(
            "each update came from a single forward pass of a rank: nothing was accumulated", HOOKS
        )
    else:
        size = train.micro_batch_size or -(-train.batch_size // facts.train.world_size)
        yield fact(
            True,
            f"{number(p.train / max(steps, 1))} forward passes of at most {size} rows for each step"
            " on rank 0",
            HOOKS,
        )
    if p.exchanging is None:
        yield not_applicable(
            f"gradients are not exchanged by DDP here: the network is {facts.seen.layout}", RESULT
        )
        return
    yield fact(
        p.exchanging == steps,
        f"gradients were exchanged {count(p.exchanging)} times in {plural(steps, 'step')}: in the"
        " last pass of each only",
        HOOKS,
    )


def precision(facts: RunFacts) -> Iterator[Statement]:
    """Check weights, forward passes and loss scale."""
    seen, p, declared = facts.seen, facts.passes, facts.declaration.train
    if seen is None:
        yield not_shown()
        return
    yield fact(
        seen.weight_dtypes == ("float32",), f"weights are {', '.join(seen.weight_dtypes)}", RESULT
    )
    yield fact(
        seen.matmul_precision == declared.matmul_precision,
        f"float32 matrix products at precision {seen.matmul_precision}, declared"
        f" {declared.matmul_precision}",
        BY_SETTINGS,
    )
    if p is None:
        yield _no_hooks(facts)
    else:
        expected = p.train if declared.precision in ("bf16", "fp16") else 0
        yield fact(
            p.train_half == expected,
            f"{count(p.train_half)} of {count(p.train)} training passes in half precision; declared"
            f" {declared.precision}",
            HOOKS,
        )
    if declared.precision == "fp16":
        scaled = seen.loss_scale is not None
        yield fact(
            scaled,
            f"the loss was scaled, at the end by {number(seen.loss_scale)};"
            f" {plural(facts.train.skipped_steps, 'step')} left out because of overflow",
            RESULT,
            "fp16 without a loss scale",
        )


def clipping(facts: RunFacts) -> Iterator[Statement]:
    """Check the gradient norms of the logged steps against the bound."""
    train, (_, norms) = facts.declaration.train, facts.history.series("steps", "grad_norm")
    if not norms:
        yield not_shown("no gradient norm was logged; lower train.log_every", LOG)
        return
    spread = (
        f"gradient norm {number(min(norms))} to {number(max(norms))} over"
        f" {plural(len(norms), 'logged step')}"
    )
    above = (
        f"; {count(sum(n > train.clip_at for n in norms))} of them above {number(train.clip_at)}"
        if train.clip == "norm"
        else ""
    )
    yield fact(all(map(math.isfinite, norms)), spread + above, LOG)
    yield _clipped(facts)
    layers = {
        name
        for point in facts.history.steps
        for name in point.values
        if name.startswith("grad_norm/")
    }
    yield fact(
        bool(layers),
        f"norms of {plural(len(layers), 'layer')} were logged",
        LOG,
        "no norms of layers were logged",
    )
    for note in facts.train.instabilities[:5]:
        yield warning(plain(note, 300), RESULT)
    if not facts.train.instabilities:
        yield fact(True, "no vanishing or exploding gradient was noted", RESULT)


def _clipped(facts: RunFacts) -> Statement:
    """Check the optimizer's gradient against the declared bound."""
    train, p = facts.declaration.train, facts.passes
    if train.clip == "none":
        return not_applicable("clipping is switched off")
    found = (p.largest_norm if train.clip == "norm" else p.largest_value) if p else None
    if p is None or found is None:
        return not_shown("what the optimizer got was not measured")
    told = (
        f"{train.clip} of at most {number(found)} in the gradients that the optimizer got, at"
        f" {plural(p.measured, 'update')} looked at; bound {number(train.clip_at)}"
    )
    return fact(found <= train.clip_at * (1 + CLIP_SLACK), told, HOOKS)


def groups(facts: RunFacts) -> Iterator[Statement]:
    """Check that every parameter is in one optimizer group."""
    seen = facts.seen
    if seen is None:
        yield not_shown()
        return
    told = (
        f"{count(seen.grouped_once)} of {plural(seen.trainable, 'trainable tensor')} are in exactly"
        f" one group of {'fused ' if seen.fused else ''}{seen.optimizer}"
    )
    yield fact(seen.grouped_once == seen.trainable, told, RESULT)
    for g in seen.groups[:12]:
        decay = f"decay {number(g.weight_decay)}" if g.weight_decay else "no decay"
        yield fact(
            g.tensors > 0,
            f"group {g.name}: {plural(g.parameters, 'parameter')} in {plural(g.tensors, 'tensor')},"
            f" peak rate {number(g.peak)}, {decay}",
            RESULT,
        )


def rates(facts: RunFacts) -> Iterator[Statement]:
    """Check the optimizer's learning rate at each update."""
    kind = facts.declaration.schedule.kind
    _, logged = facts.history.series("steps", "lr")
    spread = (
        f"{number(logged[0])} at first, {number(max(logged))} at most, {number(logged[-1])} at last"
        if logged
        else "no rate was logged"
    )
    if facts.passes is None:
        yield _no_hooks(facts)
        return
    p = facts.passes
    told = (
        f"{kind.replace('_', ' ')}: {count(p.at_declared_rate)} of {plural(p.updates, 'update')}"
        f" had the scheduled rate in every group; {spread}"
    )
    yield fact(p.at_declared_rate == p.updates, told, HOOKS)


def modes(facts: RunFacts) -> Iterator[Statement]:
    """Check train mode in training, eval and inference mode in scoring."""
    p = facts.passes
    if p is None:
        yield _no_hooks(facts)
        return
    yield fact(
        p.train_in_train_mode == p.train > 0,
        f"{count(p.train_in_train_mode)} of {count(p.train)} training passes in train mode",
        HOOKS,
    )
    eval_mode = (
        f"{count(p.scored_in_eval_mode)} of {count(p.scored)} scoring passes in eval mode,"
        f" {count(p.scored_in_inference_mode)} in inference mode"
    )
    yield fact(
        p.scored_in_eval_mode == p.scored_in_inference_mode == p.scored > 0, eval_mode, HOOKS
    )


def counted_once(facts: RunFacts) -> Iterator[Statement]:
    """Check by id that each test row was scored once."""
    arrays = facts.prepared.arrays.test
    expected = pq.read_metadata(arrays.documents.path).num_rows if arrays.documents else arrays.rows
    what = "document" if arrays.documents else "row"
    yield fact(
        facts.test.rows == expected,
        f"{plural(expected, f'test {what}')} prepared, {count(facts.test.rows)} scored",
        "predictions.parquet",
    )
    ids = pq.read_table(facts.test.predictions.path, columns=["__id"]).column(0)
    different = pc.count_distinct(ids).as_py()
    yield fact(
        different == len(ids) == facts.test.rows,
        f"{count(different)} different ids in {plural(len(ids), 'prediction')}",
        "predictions.parquet",
    )


def best_weights(facts: RunFacts) -> Iterator[Statement]:
    """Check that the kept step is the best evaluation in the log."""
    name, train = f"val/{facts.declaration.metric}", facts.train
    steps, values = facts.history.series("evaluations", name)
    if not values:
        yield not_shown("no evaluation was logged", LOG)
        return
    top = (max if facts.declaration.greater_is_better else min)(values)
    at = steps[values.index(top)]
    told = (
        f"of {plural(len(values), 'evaluation')} the best {name} is {number(top)} at step"
        f" {count(at)}; weights kept: step {count(train.best_step)}"
    )
    yield fact(at == train.best_step, told, f"{LOG}, {RESULT}")
    waited, config = len([s for s in steps if s > train.best_step]), facts.declaration.train
    patience = config.patience + int((config.patience_factor - 1) * (len(steps) - waited))
    if train.status == "stopped_early":
        yield fact(
            waited >= patience or config.min_delta > 0,
            f"stopped after {plural(waited, 'evaluation')} without a better one, patience"
            f" {patience}",
            LOG,
        )
    else:
        yield fact(
            True,
            f"{train.status}; {plural(waited, 'evaluation')} after the best one, patience"
            f" {patience}",
            RESULT,
        )


def finite(facts: RunFacts) -> Iterator[Statement]:
    """Check losses and norms of the log, and if the gate stopped the run."""
    stops = [e.message for e in facts.history.events if e.message.startswith("stopped: ")]
    if stops:
        yield warning(
            "a step was not finite and nothing was updated by it; the run went on later:"
            f" {plain(stops[-1], 300)}",
            LOG,
        )
    points = facts.history.steps
    if not points:
        yield not_shown("no step was logged; lower train.log_every", LOG)
        return
    bad = [p.step for p in points if not {"train/loss", "grad_norm"} <= p.values.keys()]
    told = f"loss and gradient norm of all {plural(len(points), 'logged step')} are finite"
    yield fact(
        not bad,
        told,
        LOG,
        f"loss or gradient norm of {plural(len(bad), 'logged step')} is not finite, first step"
        f" {bad[0] if bad else 0}",
    )


def determinism(facts: RunFacts) -> Iterator[Statement]:
    """Check the actual settings against the promise of the mode."""
    seen, mode = facts.seen, facts.declaration.train.mode
    if seen is None:
        yield not_shown()
        return
    state = (
        f"deterministic algorithms {_on(seen.deterministic_algorithms)}, cuDNN deterministic"
        f" {_on(seen.cudnn_deterministic)} and autotuning {_on(seen.cudnn_benchmark)}"
    )
    workspace = f", CUBLAS_WORKSPACE_CONFIG {seen.cublas_workspace or 'unset'}"
    if mode == "fast":
        yield not_applicable(f"mode fast promises no equal bits: {state}", BY_SETTINGS)
    else:
        kept = (
            seen.deterministic_algorithms
            and seen.cudnn_deterministic
            and not seen.cudnn_benchmark
            and seen.cublas_workspace is not None
        )
        yield fact(kept, f"mode {mode}: {state}{workspace}", BY_SETTINGS)
    yield fact(
        True,
        f"seed {facts.declaration.train.seed} for order and noise; promise:"
        f" {facts.train.promise or 'none'}",
        RESULT,
    )


def data_path(facts: RunFacts) -> Iterator[Statement]:
    """Check the trained rows, and a new order in each epoch."""
    seen, declared, rows = facts.seen, facts.declaration.train, facts.prepared.arrays.train.rows
    if seen is None:
        yield not_shown()
        return
    epochs, rest = divmod(
        facts.train.steps,
        max(
            1,
            rows // declared.batch_size if declared.drop_last else -(-rows // declared.batch_size),
        ),
    )
    expected = (
        epochs * (rows - rows % declared.batch_size if declared.drop_last else rows)
        + rest * declared.batch_size
    )
    told = (
        f"{plural(seen.rows, 'row')} worked through in"
        f" {number(seen.rows / max(1, seen.rows_per_epoch))} epochs of"
        f" {count(seen.rows_per_epoch)}; expected {count(expected)}"
    )
    yield fact(seen.rows == expected, told, RESULT)
    if rows <= ORDER_ROWS:
        first, again, second = (epoch_order(declared.seed, epoch, rows) for epoch in (0, 0, 1))
        alike = float((first == second).double().mean())
        same = bool((first == again).all())
        yield fact(
            same and (alike < 0.5 or rows < 5),
            f"drawn again from seed {declared.seed}: the same first epoch, and a second one with"
            f" {share(alike)} of rows in the same place",
            "seed and epoch",
        )
    place = (
        "the whole train table lay on the device"
        if seen.table_on_device
        else "batches were gathered from memory-mapped arrays"
    )
    yield fact(True, place, RESULT)


def memory(facts: RunFacts) -> Iterator[Statement]:
    """Report the memory settings, and the used memory."""
    train = facts.declaration.train
    on = [
        name
        for name, used in (
            ("torch.compile", train.compile),
            ("activations recomputed", train.recompute_activations),
        )
        if used
    ]
    if on:
        yield fact(True, f"declared: {', '.join(on)}", "declaration")
    else:
        yield not_applicable("neither torch.compile nor recomputed activations were asked for")
    if train.profile:
        yield fact(
            facts.files.profiled > 0,
            f"{plural(facts.files.profiled, 'file')} of the profiler",
            "the run directory",
            "a profile was asked for, and none was written",
        )
    _, used = facts.history.series("steps", "memory_mb")
    if used:
        yield fact(
            math.isfinite(max(used)),
            f"peak memory {number(max(used))} MiB, {number(facts.train.rows_per_second)} rows a"
            " second",
            LOG,
        )
    else:
        yield not_shown("no memory was logged; lower train.log_every", LOG)
    yield from_check(facts, "cost")


def collectives(facts: RunFacts) -> Iterator[Statement]:
    """Check that every rank took part to the end."""
    seen = facts.seen
    if seen is None:
        yield not_shown()
    elif facts.train.world_size == 1:
        yield not_applicable("one process: there are no collectives", RESULT)
    else:
        numbers = sorted(r.rank for r in seen.ranks)
        complete = numbers == list(range(facts.train.world_size))
        yield fact(
            complete,
            f"{len(numbers)} of {facts.train.world_size} ranks took part in the last collective of"
            " the run",
            RESULT,
        )


def boards(facts: RunFacts) -> Iterator[Statement]:
    """Check the files of TensorBoard, if requested."""
    if not facts.declaration.tracking.tensorboard:
        yield not_applicable("tracking.tensorboard is not set")
        return
    yield fact(
        facts.files.boards > 0,
        f"{plural(facts.files.boards, 'event file')} written",
        "the run directory",
        "TensorBoard was asked for, and no event file was written",
    )


def _no_hooks(facts: RunFacts) -> Statement:
    return (
        not_shown("the network was compiled: hooks would have been compiled with it", "declaration")
        if facts.declaration.train.compile
        else not_shown()
    )


def _on(flag: bool) -> str:
    return "on" if flag else "off"


ITEMS: Items = {
    "T1": ("One process for each device, all with the same weights", ranks),
    "T2": ("Each step begins with clean gradients and ends with one update", order_of_a_step),
    "T3": ("Micro-batches add up to the gradient of the whole batch", accumulation),
    "T4": ("Computed in the declared precision", precision),
    "T5": ("Gradients are clipped, logged and watched by layer", clipping),
    "T6": ("Every parameter is in exactly one optimizer group", groups),
    "T7": ("The learning rate follows its schedule", rates),
    "T8": ("Train mode to train, eval mode to score", modes),
    "T9": ("Every test row counts exactly once", counted_once),
    "T10": ("The best weights by validation are kept", best_weights),
    "T11": ("Nothing that is not finite reached the weights", finite),
    "T12": ("The run can be repeated as its mode promises", determinism),
    "T13": ("All train rows, in a new order each epoch", data_path),
    "T14": ("Memory and speed are known", memory),
    "T15": ("Work of rank 0 alone never holds up the others", collectives),
    "T16": ("TensorBoard, where asked for", boards),
}
