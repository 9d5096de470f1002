"""The training checklist: a sound run shows each item, and each item changes when the recorded fact
is the contrary.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from schemas.digest import file_ref
from schemas.load import declare
from schemas.observed import Checklist, ChecklistItem, Passes
from schemas.records import CheckResult
from tests.training.report_inputs import build
from tests.training.runs import keep_torch_settings, make_run
from tests.training.toys import declare as toy
from tests.training.toys import write_run
from training.distributed.parallel import Parallel
from training.engine.step import Step
from training.engine.trainer import Trainer, train
from training.evaluation.evaluate import evaluate
from training.launch.stop_signal import StopSignal
from training.preflight.run import preflight
from training.report import checklist_facts, checklist_files
from training.report import checklist_section as report_checklist
from training.report.checklist import build_checklist, judge
from training.report.checklist_facts import RunFacts
from training.report.curves import Event, read_history
from training.report.page import write_report

Plant = Callable[[RunFacts, Path], RunFacts]


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with keep_torch_settings():
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFacts, Path]:
    """A sound run of four epochs, two micro-batches a step, and where it stands."""
    folder = tmp_path_factory.mktemp("checklist")
    train_section = {
        "epochs": 4,
        "batch_size": 160,
        "micro_batch_size": 80,
        "log_every": 1,
        "clip_at": 0.05,
    }
    spec = write_run(
        folder,
        toy(
            "binary",
            {"kind": "mlp", "hidden": [16]},
            train=train_section,
            evaluate={"bootstrap": 20},
        ),
    )
    checked = preflight(spec)
    run_dir = folder / "run"
    report = train(spec, run_dir, Parallel(), StopSignal())
    (run_dir / "train.log").write_text("")  # the launcher's
    test = evaluate(spec, report.best_checkpoint, "test", folder / "evaluation")
    prepared = build(folder / "report", "binary").prepared.model_copy(
        update={"arrays": spec.arrays, "statistics": spec.statistics}
    )
    files = checklist_files.read_files(run_dir, declare(spec.declaration))
    return (
        RunFacts(
            declare(spec.declaration),
            prepared,
            checked,
            report,
            test,
            read_history(run_dir / "metrics.jsonl"),
            files,
        ),
        run_dir,
    )


def items(facts: RunFacts) -> dict[str, ChecklistItem]:
    return {item.id: item for item in judge(facts)}


def test_a_sound_run_shows_what_applies_and_claims_nothing_else(
    made: tuple[RunFacts, Path],
) -> None:
    found = items(made[0])
    assert list(found) == [
        *(f"M{i}" for i in range(1, 6)),
        *(f"T{i}" for i in range(1, 17)),
        *(f"C{i}" for i in range(1, 8)),
    ]
    standing = {name: item.standing for name, item in found.items()}
    assert {n for n, s in standing.items() if s == "not applicable"} == {"M5", "T15", "T16"}
    assert {n for n, s in standing.items() if s == "not shown"} == {
        "C5",
        "C6",
    }, "it was never broken off"
    assert set(standing.values()) == {"shown", "not applicable", "not shown"}, {
        n: i.statements for n, i in found.items() if i.standing in ("warning", "contradicted")
    }


def test_figures_are_those_of_the_run(made: tuple[RunFacts, Path]) -> None:
    facts, _ = made
    found = {name: " ".join(s.text for s in item.statements) for name, item in items(facts).items()}
    assert (
        "12 updates, each begun with no gradient" in found["T2"]
        and "1.667 forward passes of at most 80 rows" in found["T3"]
    )
    assert (
        "1,600 rows worked through in 4.000 epochs of 400" in found["T13"]
        and "200 different ids in 200 predictions" in found["T9"]
    )
    passes = facts.passes
    assert passes is not None and (passes.train, passes.updates, passes.measured) == (20, 12, 4)
    assert passes.largest_norm is not None and passes.largest_norm <= 0.05 * 1.0001, (
        "the optimizer got clipped gradients"
    )
    assert passes.scored == passes.scored_in_eval_mode > 0


def seen(**changed: Any) -> Plant:
    return lambda facts, _: replace(
        facts,
        train=facts.train.model_copy(
            update={"observed": facts.train.observed.model_copy(update=changed)}
        ),
    )  # type: ignore[union-attr]


def passes(**changed: int | float) -> Plant:
    return lambda facts, path: seen(passes=facts.passes.model_copy(update=changed))(facts, path)  # type: ignore[union-attr]


def train_says(**changed: Any) -> Plant:
    return lambda facts, _: replace(facts, train=facts.train.model_copy(update=changed))


def files_say(**changed: Any) -> Plant:
    return lambda facts, _: replace(facts, files=replace(facts.files, **changed))


def preflight_says(name: str, verdict: str, summary: str) -> Plant:
    def plant(facts: RunFacts, _: Path) -> RunFacts:
        other = [r for r in facts.preflight.checks.results if r.name != name]
        checks = facts.preflight.checks.model_copy(
            update={"results": (*other, CheckResult(name=name, verdict=verdict, summary=summary))}
        )  # type: ignore[arg-type]
        return replace(facts, preflight=facts.preflight.model_copy(update={"checks": checks}))

    return plant


def declared(**sections: Any) -> Plant:
    def plant(facts: RunFacts, _: Path) -> RunFacts:
        tree = facts.declaration.model_dump(mode="json", by_alias=True)
        changed = {
            name: values if name == "model" else {**tree[name], **values}
            for name, values in sections.items()
        }
        return replace(facts, declaration=declare({**tree, **changed}))

    return plant


def event(message: str) -> Plant:
    return lambda facts, _: replace(
        facts, history=replace(facts.history, events=(*facts.history.events, Event(3, message)))
    )


def doubled_row(facts: RunFacts, path: Path) -> RunFacts:
    scored = pq.read_table(facts.test.predictions.path)
    pq.write_table(scored.take([0, *range(len(scored) - 1)]), path / "twice.parquet")
    return replace(
        facts, test=facts.test.model_copy(update={"predictions": file_ref(path / "twice.parquet")})
    )


def no_step_lines(facts: RunFacts, _: Path) -> RunFacts:
    return replace(facts, history=replace(facts.history, steps=()))


def lost_norm(facts: RunFacts, _: Path) -> RunFacts:
    first = facts.history.steps[0]
    broken = replace(first, values={k: v for k, v in first.values.items() if k != "grad_norm"})
    return replace(facts, history=replace(facts.history, steps=(broken, *facts.history.steps[1:])))


def other_weights(facts: RunFacts, path: Path) -> RunFacts:
    rank = facts.train.observed.ranks[0]  # type: ignore[union-attr]
    ranks = (rank, rank.model_copy(update={"rank": 1, "weights_sha256": "f" * 64}))
    both = declared(train={"ranks": 2})(train_says(world_size=2)(facts, path), path)
    return seen(
        ranks=ranks, wrapper="DistributedDataParallel", layout="replicated", backend="gloo"
    )(both, path)


CONTRARY: list[tuple[str, Plant, str, str]] = [
    ("M1", train_says(num_parameters=7), "contradicted", "training 7: not the same network"),
    (
        "M2",
        preflight_says("forward", "fail", "expected scores [32, 1], got [32]."),
        "contradicted",
        r"got \[32\]",
    ),
    (
        "M3",
        lambda f, _: replace(f, preflight=f.preflight.model_copy(update={"initial_loss": 0.0})),
        "contradicted",
        "nothing was learned",
    ),
    (
        "M4",
        preflight_says("gradients", "warn", "one layer is dead"),
        "warning",
        "one layer is dead",
    ),
    (
        "M5",
        declared(model={"kind": "custom", "path": "tests.training.networks:Scripted"}),
        "not shown",
        "did not look at 'review'",
    ),
    ("T1", other_weights, "contradicted", "2 different weights"),
    ("T1", declared(train={"ranks": 2}), "contradicted", "of 2 declared"),
    ("T2", passes(begun_clean=8), "contradicted", "only 8 of 12 updates began"),
    (
        "T2",
        passes(with_all_gradients=5),
        "contradicted",
        "at 7 of 12 updates a parameter had no gradient",
    ),
    (
        "T2",
        passes(updates=18, begun_clean=18, with_all_gradients=18),
        "contradicted",
        "12 steps, 18 of them updates",
    ),
    (
        "T3",
        lambda f, p: seen(
            layout="replicated", passes=f.passes.model_copy(update={"exchanging": 18})
        )(f, p),
        "contradicted",
        "18 times in 12 steps",
    ),  # type: ignore[union-attr]
    (
        "T4",
        passes(train_half=20),
        "contradicted",
        "20 of 20 training passes in half precision; declared fp32",
    ),
    ("T4", seen(matmul_precision="medium"), "contradicted", "precision medium, declared highest"),
    ("T5", passes(largest_norm=0.4), "contradicted", "norm of at most 0.4000 .* bound 0.0500"),
    (
        "T5",
        train_says(instabilities=("step 3: vanishing gradient in body",)),
        "warning",
        "vanishing gradient in body",
    ),
    ("T6", seen(grouped_once=3), "contradicted", "3 of 9 trainable tensors"),
    ("T7", passes(at_declared_rate=1), "contradicted", "1 of 12 updates had the scheduled rate"),
    ("T8", passes(scored_in_eval_mode=0), "contradicted", "0 of 24 scoring passes in eval mode"),
    ("T8", passes(train_in_train_mode=2), "contradicted", "2 of 20 training passes in train mode"),
    ("T9", doubled_row, "contradicted", "199 different ids in 200 predictions"),
    ("T10", train_says(best_step=3), "contradicted", "weights kept: step 3"),
    ("T11", lost_norm, "contradicted", "1 logged step is not finite"),
    ("T11", event("stopped: the loss is nan"), "warning", "the loss is nan"),
    ("T12", seen(deterministic_algorithms=False), "contradicted", "deterministic algorithms off"),
    ("T12", declared(train={"mode": "fast"}), "shown", "mode fast promises no equal bits"),
    ("T13", seen(rows=1599), "contradicted", "1,599 rows .* expected 1,600"),
    ("T14", no_step_lines, "not shown", "no memory was logged"),
    ("T15", lambda f, p: train_says(world_size=2)(f, p), "contradicted", "1 of 2 ranks"),
    ("T16", declared(tracking={"tensorboard": True}), "contradicted", "no event file was written"),
    ("C1", files_say(names=frozenset({"train.log"})), "contradicted", "missing: config.yaml"),
    ("C2", files_say(state=("state", "schedule")), "contradicted", "lacks scaler, rng"),
    ("C2", files_say(streams=4), "contradicted", "random streams of 4 ranks, of 1"),
    ("C3", files_say(set_aside=("step-00000003.damaged",)), "warning", "step-00000003.damaged"),
    ("C3", files_say(unfinished=(".step-00000003.draft",)), "contradicted", "did not end"),
    ("C4", declared(train={"keep": 2}), "contradicted", "3 full checkpoints kept of at most 2"),
    (
        "C5",
        event("resumed from step-00000003"),
        "shown",
        "broken off once and resumed from step-00000003",
    ),
    ("C6", event("interrupted by SIGTERM at step 3"), "shown", "interrupted by SIGTERM at step 3"),
    ("C7", files_say(generation=None), "not shown", "no lease.json"),
    ("C7", event("resumed from step-00000003"), "contradicted", "2 starts, but the lease counts 1"),
]


@pytest.mark.parametrize(
    ("name", "plant", "standing", "text"),
    CONTRARY,
    ids=[f"{name}-{text[:24]}" for name, _, _, text in CONTRARY],
)
def test_a_contrary_fact_changes_its_line(
    made: tuple[RunFacts, Path], tmp_path: Path, name: str, plant: Plant, standing: str, text: str
) -> None:
    before, after = items(made[0])[name], items(plant(made[0], tmp_path))[name]
    assert after.standing == standing and after != before
    assert re.search(text, " ".join(s.text for s in after.statements))
    assert not re.search(text, " ".join(s.text for s in before.statements))


def test_every_item_has_a_planted_contrary_fact() -> None:
    assert {name for name, *_ in CONTRARY} == {
        *(f"M{i}" for i in range(1, 6)),
        *(f"T{i}" for i in range(1, 17)),
        *(f"C{i}" for i in range(1, 8)),
    }


def test_a_run_that_recorded_nothing_is_told_so(made: tuple[RunFacts, Path]) -> None:
    found = items(train_says(observed=None)(made[0], Path()))
    assert {n for n, i in found.items() if i.standing == "not shown"} >= {
        "T1",
        "T2",
        "T3",
        "T4",
        "T6",
        "T7",
        "T8",
        "T12",
        "T13",
        "T15",
    }


def test_a_damaged_checkpoint_is_found_for_the_page(
    made: tuple[RunFacts, Path], tmp_path: Path
) -> None:
    facts, run_dir = made
    path = max((run_dir / "checkpoints").glob("step-*")) / "model.pt"
    sound = path.read_bytes()
    try:
        path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
        checklist = build_checklist(
            run_dir, facts.declaration, facts.prepared, facts.preflight, facts.train, facts.test
        )
    finally:
        path.write_bytes(sound)
    item = next(i for i in checklist.items if i.id == "C3")
    assert (
        item.standing == "contradicted"
        and "1 of" in item.statements[0].text
        and "model.pt: SHA-256 is" in item.statements[0].text
    )
    again = build_checklist(
        run_dir, facts.declaration, facts.prepared, facts.preflight, facts.train, facts.test
    )
    assert (
        tuple(judge(facts)) == again.items
        and Checklist.model_validate_json(again.model_dump_json()) == again
    )


# ------------------------------------------------------------------------- faults planted in the
# loop


def observed(tmp_path: Path, ruin: Callable[[Trainer], None]) -> Passes:
    spec = make_run(tmp_path, rows=(64, 32), train={"epochs": 1, "batch_size": 16})
    trainer = Trainer(spec, tmp_path / "run", Parallel(), StopSignal())
    ruin(trainer)
    report = trainer.run().observed
    assert report is not None and report.passes is not None
    return report.passes


def test_the_witness_sees_gradients_that_are_not_cleared(tmp_path: Path) -> None:
    found = observed(
        tmp_path, lambda t: setattr(t.optimizer, "zero_grad", lambda set_to_none: None)
    )
    assert (found.updates, found.begun_clean) == (4, 1)


def test_the_witness_sees_a_schedule_that_is_not_applied(tmp_path: Path) -> None:
    found = observed(
        tmp_path,
        lambda t: t.optimizer.register_step_post_hook(
            lambda optimizer, *_: optimizer.param_groups[0].update(lr=1.0)
        ),
    )
    assert found.at_declared_rate == 4, "applied again before each update"
    found = observed(tmp_path / "frozen", lambda t: setattr(t.schedule, "apply", lambda *_: None))
    assert (found.updates, found.at_declared_rate) == (4, 1)


def test_the_witness_sees_evaluation_in_train_mode(tmp_path: Path) -> None:
    found = observed(tmp_path, lambda t: setattr(t.model, "eval", lambda: t.model.train()))
    assert (
        found.scored > 0
        and found.scored_in_eval_mode == 0
        and found.scored_in_inference_mode == found.scored
    )


def test_the_witness_sees_gradients_that_are_not_clipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Step.clip

    def unclipped(step: Step) -> torch.Tensor:
        norm = plain(step)
        torch._foreach_mul_(list(step.trace.gradients.values()), 100.0)
        return norm

    monkeypatch.setattr(Step, "clip", unclipped)
    found = observed(tmp_path, lambda t: None)
    assert found.largest_norm is not None and found.largest_norm > 1.5


# ------------------------------------------------------------------------------------------ page


@pytest.mark.req("P8")
def test_the_page_folds_what_holds_and_opens_what_does_not(
    made: tuple[RunFacts, Path], tmp_path: Path
) -> None:
    facts, _ = made
    inputs = build(tmp_path, "binary")
    sound = Checklist(run_id="r", items=tuple(judge(facts)))
    bad = Checklist(run_id="r", items=tuple(judge(passes(scored_in_eval_mode=0)(facts, tmp_path))))
    texts = []
    for checklist in (sound, bad):
        write_report(inputs.model_copy(update={"checklist": checklist}), tmp_path / "report.html")
        texts.append((tmp_path / "report.html").read_text())
    assert all(text.count('<details class="item') == 28 for text in texts)
    assert " open>" not in texts[0].split('id="checklist"')[1].split("</section>")[0]
    assert (
        texts[1].count('<details class="item bad" open>') == 1
        and "1 contradicted" in texts[1]
        and "contradicted" not in texts[0].split('id="checklist"')[1]
    )
    assert report_checklist.TONES.keys() == set(
        checklist_facts.Statement.model_fields["standing"].annotation.__args__
    )  # type: ignore[union-attr]
