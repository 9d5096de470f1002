"""Export a language model's best weights as a program on tokens, with its tokenizer's code.

The network is that of `training.serving.reference_network`, in float64, so that served losses equal
the evaluated ones.

B windows of T positions, V tokens of the vocabulary, D documents.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.digest import write_atomic
from schemas.errors import IntegrityError
from schemas.load import declare
from schemas.records import (
    ExportedModel,
    FileRef,
    RunSpec,
    TestTable,
    TokenStats,
    TrainTable,
    ValTable,
)
from training.data import serving_text
from training.data.engine.batches import arrow_batches
from training.engine.token_scoring import score_documents
from training.serving import raw_columns, serving
from training.serving.exported_program import (
    PARITY_ROWS,
    describe_run,
    require_parity,
    save_program,
)
from training.serving.reference_network import reference_network

EXAMPLE_TOKENS = 8


class TextProgram(nn.Module):
    """Map tokens int64 [B, T], one padded window per row, to logits float64 [B, T, V]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch of tokens to logits."""
        tokens = batch["tokens"]
        logits: Tensor = self.network({"tokens": tokens, "segments": torch.ones_like(tokens)})
        return logits.double()


def export_text(
    run: RunSpec, weights: Path, out_dir: Path, table: TrainTable | ValTable | TestTable
) -> ExportedModel:
    """Export `program.pt2`, `spec.json` and `expressions.zip`; verify the losses of real documents.

    Args:
        run: the trained run.
        weights: the checkpoint's weights, loaded without unpickling any code.
        out_dir: created; files of an earlier export are replaced.
        table: the table of one split; its first documents are tried as raw text.

    Returns:
        References to the files; `parity` is the largest difference of a document's loss per token.

    Raises:
        IntegrityError: program and network differ by 1e-6 nats or more, or a file of the split was
            changed.
    """
    declaration, tokens = declare(run.declaration), run.statistics.tokens
    if tokens is None:
        raise IntegrityError(
            "expected statistics of a text column; prepare the data again with this declaration"
        )
    network = reference_network(run, weights)
    out_dir.mkdir(parents=True, exist_ok=True)
    batch = {"tokens": torch.ones((2, tokens.context), dtype=torch.int64)}
    program = save_program(TextProgram(network), batch, out_dir / "program.pt2", free_axes=(0, 1))
    module, content = raw_columns.code(serving_text)
    shipped = write_atomic(out_dir / raw_columns.EXPRESSIONS, content)
    spec = text_spec(run, declaration, tokens, program, raw_columns.describe_code(shipped, module))
    found = parity(run, network, serving.load_program(program.path, spec), spec, table)
    written = write_atomic(out_dir / "spec.json", json.dumps(spec, indent=1, ensure_ascii=False))
    return ExportedModel(program=program, spec=written, parity=found, expressions=shipped)


def text_spec(
    run: RunSpec,
    declaration: Declaration,
    tokens: TokenStats,
    program: FileRef,
    code: dict[str, Any],
) -> dict[str, Any]:
    """Return the spec of serving: the column, its tokens and windows, digests, and a made-up
    example.
    """
    text = {name: getattr(tokens, name) for name in ("name", "tokenizer", "context", "stride")} | {
        "values": list(tokens.values)
    }
    frequent = np.argsort(-np.array(tokens.counts), kind="stable")[:EXAMPLE_TOKENS] + 4
    none: dict[str, Any] = {
        "numeric": [],
        "categorical": [],
        "tensor": [],
        "classes": [],
        "probability_columns": [],
        "derived": {},
        "raw": [],
    }
    return {
        **none,
        "class_dtype": "float64",
        **describe_run(run, declaration, program),
        "text": text,
        "example": serving_text.decode(frequent, text),
        "expressions": code,
    }


def parity(
    run: RunSpec,
    network: nn.Module,
    program: serving.Program,
    spec: dict[str, Any],
    table: TrainTable | ValTable | TestTable,
) -> float:
    """Return the largest difference of loss per token between the served path and the network.

    The served path starts from raw text, the network from the stored sequences. Batches of 1, 3 and
    up to 256 documents go through the program.

    Raises:
        IntegrityError: the difference reaches 1e-6 or is not a number; the message says where.
    """
    scored = score_documents(network, run.arrays.side(table.side), PARITY_ROWS)
    expected = scored.predictions[:, 0] / scored.targets[:, 0]
    frame = next(
        arrow_batches(table.file.file, PARITY_ROWS, ["__id", spec["text"]["name"]])
    ).to_pandas()
    logits = serving.logits_of(program)

    def difference(rows: int) -> np.ndarray:
        found = serving_text.predict(spec["text"], logits, frame.iloc[:rows])
        return np.asarray(np.abs(found["loss"].to_numpy() - expected[:rows]))

    return require_parity(
        difference,
        frame["__id"],
        table.side,
        " nats per token in document",
        "sequences alike for every batch and length",
    )
