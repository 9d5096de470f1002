"""Verify a model version from the registry alone: `bulkhead verify models:/NAME@champion`.

Nothing of the model is read before its files match a signed manifest, and no code of it runs. Only
`bulkhead reproduce`, which has the rows, can verify the digests of source and splits.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from schemas.errors import IntegrityError, RegistryError
from schemas.records import CheckResult, Evidence, Verdict, Verification, digest_of
from schemas.variables import MASK
from schemas.yaml_text import parse_yaml
from training.registry import registry
from training.registry.trust import DIGEST_TAG, FILES, Trust
from training.run.provenance import masked
from training.serving.serving import MANIFEST, read_spec
from training.serving.signature import intervals_of, predicted_columns, thresholds_of

TAGGED = (
    "config_sha256",
    "source_sha256",
    "statistics_sha256",
    "arrays_sha256",
    "checkpoint_sha256",
    "model_sha256",
    "run_id",
)
DIGITS = 6  # of the metrics in the version's tags


class Proof:
    """Checks of a version: its files in a folder, next to the records of the registry and its run.

    Args:
        version: version in the registry.
        folder: its files.
        client: client of the registry's server.
    """

    def __init__(self, version: ModelVersion, folder: Path, client: MlflowClient) -> None:
        artifacts = folder / "artifacts"
        self.version, self.folder, self.client = version, folder, client
        self.spec = read_spec(artifacts / FILES["spec"])
        try:
            self.evidence = Evidence.model_validate_json(
                (artifacts / FILES["evidence"]).read_bytes()
            )
            self.manifest: dict[str, Any] = json.loads(
                (artifacts / FILES["split_manifest"]).read_text(encoding="utf-8")
            )
            self.trained_on = np.load(artifacts / FILES["trained_on"], allow_pickle=False)
        except (OSError, ValueError) as error:
            raise IntegrityError(
                f"the evidence of version {version.version} of {version.name!r} cannot be read"
                f" ({error}); register it again"
            ) from error

    def files(self) -> CheckResult:
        """Check that its files are those that were registered."""
        signed = self.folder / MANIFEST
        count = (
            len(json.loads(signed.read_bytes())["files"])
            if signed.is_file()
            else sum(key.startswith(DIGEST_TAG) for key in self.version.tags)
        )
        return _statement("files", True, f"{count} files have the SHA-256 that was registered", "")

    def signer(self, trust: Trust) -> CheckResult:
        """Check that its signer is known."""
        remedy = "" if trust.signer else "register it again through the pipeline, which signs it"
        return CheckResult(
            name="signer",
            verdict="pass" if trust.signer else "warn",
            summary=trust.summary,
            remedy=remedy,
        )

    def digests(self) -> CheckResult:
        """Check that spec, evidence and tags name the same program, data, weights and run."""
        tags, evidence, spec = self.version.tags, self.evidence, self.spec
        wrong = [
            f"tag {field}"
            for field in TAGGED
            if tags.get(f"bulkhead.{field}") != getattr(evidence, field)
        ]
        same = {
            "program": (spec["program"]["sha256"], evidence.program_sha256),
            "statistics": (spec["statistics_sha256"], evidence.statistics_sha256),
            "run id": (spec["run_id"], evidence.run_id),
            "name": (self.version.name, evidence.name),
            "git commit": (
                tags.get("bulkhead.git_sha"),
                str((evidence.provenance.get("git") or {}).get("sha") or "unknown"),
            ),
            "thresholds": (thresholds_of(spec), evidence.thresholds),
            "intervals": (intervals_of(spec), {m.label: m.served for m in evidence.margins}),
            "split manifest": (digest_of(self.manifest), digest_of(evidence.split)),
        }
        wrong += [what for what, (a, b) in same.items() if a != b]
        return _statement(
            "digests",
            not wrong,
            "spec, evidence, split manifest and tags name the same run, data, weights and program",
            _unlike(wrong),
        )

    def checks(self) -> CheckResult:
        """Check that no check of the run failed; show allowed findings with their reason."""
        failed = [c.name for c in self.evidence.checks if c.verdict == "fail"]
        allowed = [f"{c.name} ({c.reason})" for c in self.evidence.checks if c.verdict == "allowed"]
        warned = [c.name for c in self.evidence.checks if c.verdict == "warn"]
        names = {c.name for c in self.evidence.checks}
        missing = [n for n in ("row_coverage", "id_overlap") if n not in names]
        told = f"{len(self.evidence.checks)} checks, none failed" + (
            f"; warnings: {', '.join(warned)}" if warned else ""
        )
        told += f"; allowed: {'; '.join(allowed)}" if allowed else ""
        problems = ([f"failed: {', '.join(failed)}"] if failed else []) + (
            [f"not made: {', '.join(missing)}"] if missing else []
        )
        return _statement("checks", not problems, told, "; ".join(problems))

    def gate(self) -> CheckResult:
        """Check that it passed the gate."""
        gate = self.evidence.gate
        if gate is None:
            return CheckResult(
                name="gate",
                verdict="warn",
                summary="registered without a gate",
                remedy="run the pipeline, which compares with the champion",
            )
        against = (
            f" against version {gate.champion_version} on {gate.compared_rows} rows that neither"
            " has learned from"
            if gate.champion_version
            else ""
        )
        return _statement("gate", gate.passed, f"{gate.verdict}{against}", gate.verdict)

    def rows(self) -> CheckResult:
        """Check the record of rows that it learned from.

        Hashes are sorted and distinct, at least one for each row of train and validation, and
        with `train.refit: all` of test.
        """
        keys, sides = self.trained_on, self.evidence.split.get("sides", {})
        refit = self.evidence.refit
        splits = refit.splits if refit else ("train", "val")
        learned = sum(int(sides.get(side, {}).get("rows", 0)) for side in splits)
        sound = (
            keys.dtype == np.uint64
            and bool((keys[1:] > keys[:-1]).all())
            and len(keys) >= learned > 0
        )
        return _statement(
            "trained_on",
            sound,
            f"{learned:,} rows that it learned from, named by {len(keys):,} hashes of their ids and"
            " groups",
            f"{len(keys):,} keys for {learned:,} rows, or out of order",
        )

    def refit(self) -> Iterator[CheckResult]:
        """Check the record of a refit, and say whose the test metrics are; nothing without one."""
        refit, sides = self.evidence.refit, self.evidence.split.get("sides", {})
        if refit is None:
            return
        rows = sum(int(sides.get(side, {}).get("rows", 0)) for side in refit.splits)
        problem = (
            "" if rows == refit.num_rows else f"{refit.num_rows:,} rows, the split has {rows:,}"
        )
        if refit.estimate.model_sha256 == self.evidence.model_sha256:
            problem = "the refitted weights are those of the estimate"
        told = f"{refit.sentence} Metrics and gate below are the estimate's, which is not in here"
        yield _statement("refit", not problem, told, problem)

    def run(self) -> Iterator[CheckResult]:
        """Check that its MLflow run ended well and has the same records."""
        try:
            run = self.client.get_run(str(self.version.run_id))
        except Exception as error:
            yield _statement(
                "run",
                False,
                "",
                f"its MLflow run {self.version.run_id} is not there: {masked(str(error))[:200]}",
            )
            return
        state = "deleted" if run.info.lifecycle_stage == "deleted" else run.info.status
        yield _statement(
            "run",
            state == "FINISHED",
            f"MLflow run {run.info.run_id} is finished",
            f"MLflow run {run.info.run_id} is {state}",
        )
        recorded = {
            f"test/{n}": i.value for n, i in self.evidence.metrics.items() if i.value is not None
        }
        wrong = [
            n
            for n, value in recorded.items()
            if not np.isclose(run.data.metrics.get(n, np.nan), value, rtol=1e-9, atol=0.0)
        ]
        wrong += [
            f"tag of {n}"
            for n, value in recorded.items()
            if self.version.tags.get(f"bulkhead.test.{n.removeprefix('test/')}")
            != f"{value:.{DIGITS}g}"
        ]
        yield _statement(
            "metrics",
            not wrong,
            f"{len(recorded)} test metrics agree in evidence, run and tags",
            _unlike(wrong),
        )
        with tempfile.TemporaryDirectory(prefix="bulkhead-verify-") as scratch:
            yield self._artifact(scratch, "evidence.json", "evidence", self._evidence)
            yield self._artifact(scratch, "config.yaml", "config", self._config)

    def _artifact(
        self, scratch: str, name: str, what: str, judge: Callable[[bytes], CheckResult]
    ) -> CheckResult:
        try:
            content = Path(
                self.client.download_artifacts(str(self.version.run_id), name, scratch)
            ).read_bytes()
        except Exception as error:
            return _statement(
                what, False, "", f"{name} of the run is not there: {masked(str(error))[:200]}"
            )
        try:
            return judge(content)
        except (ValueError, TypeError) as error:  # not UTF-8, JSON or YAML, or another form
            return _statement(
                what,
                False,
                "",
                f"{name} of the run cannot be read: {str(error).splitlines()[0][:200]}",
            )

    def _evidence(self, content: bytes) -> CheckResult:
        same = Evidence.model_validate_json(content) == self.evidence
        return _statement(
            "evidence",
            same,
            "evidence.json of the run is that of the version",
            "evidence.json of the run differs from that of the version",
        )

    def _config(self, content: bytes) -> CheckResult:
        text = content.decode()
        # as written: today's code could add sections
        if digest_of(parse_yaml(text, "config.yaml")) == self.evidence.config_sha256:
            return _statement("config", True, "config.yaml of the run is that of the version", "")
        if MASK in text:
            told = (
                f"config.yaml of the run hides credentials as {MASK}, so its digest cannot be"
                " compared"
            )
            return CheckResult(
                name="config",
                verdict="warn",
                summary=told,
                remedy="keep credentials out of the declaration: ${NAME} stands for a variable",
            )
        return _statement(
            "config", False, "", "config.yaml of the run is another declaration than the version's"
        )

    def commit(self) -> CheckResult:
        """Check that the commit of its code is known."""
        git = self.evidence.provenance.get("git") or {}
        if not git.get("sha"):
            return CheckResult(
                name="commit",
                verdict="warn",
                summary="made by code outside of git: it cannot be reproduced from a commit",
            )
        if git.get("dirty"):
            return CheckResult(
                name="commit",
                verdict="warn",
                summary=(
                    f"made by commit {git['sha'][:12]} with uncommitted changes (dirty.diff of the"
                    " run)"
                ),
            )
        return CheckResult(
            name="commit", verdict="pass", summary=f"made by commit {git['sha'][:12]}"
        )

    def predicts(self, tracking_uri: str) -> CheckResult:
        """Check that this project's code loads it and predicts its example row for row."""
        problem = registry.problem_of(
            f"models:/{self.version.name}/{self.version.version}", tracking_uri
        )
        return _statement(
            "predicts",
            not problem,
            f"predicts {', '.join(predicted_columns(self.spec))} for its input example",
            problem,
        )


def _statement(name: str, holds: bool, told: str, problem: str) -> CheckResult:
    verdict: Verdict = "pass" if holds else "fail"
    remedy = (
        ""
        if holds
        else (
            "do not use this version: point the alias to another, or register it again through the"
            " pipeline"
        )
    )
    return CheckResult(
        name=name, verdict=verdict, summary=told if holds else problem, remedy=remedy
    )


def _unlike(wrong: list[str]) -> str:
    return f"do not agree: {', '.join(wrong)}"


def verify_version(model_uri: str, tracking_uri: str) -> Verification:
    """Run every check of a version that needs the registry alone.

    Args:
        model_uri: `models:/NAME@ALIAS` or `models:/NAME/VERSION`.
        tracking_uri: address of the registry.

    Raises:
        RegistryError: there is no such version, this project did not make it, or it cannot be
            fetched.
    """
    version = registry.version_of(model_uri, tracking_uri)
    if version is None:
        raise RegistryError(
            f"expected models:/NAME@ALIAS or models:/NAME/VERSION, got {model_uri!r}"
        )
    client = MlflowClient(tracking_uri, tracking_uri)
    results: list[CheckResult] = []
    with tempfile.TemporaryDirectory(prefix="bulkhead-verify-") as scratch:
        folder = registry.fetched(version, model_uri, tracking_uri, Path(scratch))
        try:
            trust = registry.prove_version(folder, version)
            proof = Proof(version, folder, client)
        except IntegrityError as error:  # of a changed or forged version nothing is read or run
            results.append(_statement("files", False, "", str(error)))
        else:
            results += [proof.files(), proof.signer(trust)]
            results += [
                proof.digests(),
                proof.checks(),
                proof.gate(),
                proof.rows(),
                *proof.refit(),
                *proof.run(),
                proof.commit(),
                proof.predicts(tracking_uri),
            ]
    tags = version.tags
    return Verification(
        uri=model_uri,
        name=version.name,
        version=str(version.version),
        aliases=tuple(version.aliases),
        run_id=tags.get("bulkhead.run_id", ""),
        git_sha=tags.get("bulkhead.git_sha", ""),
        results=tuple(results),
    )
