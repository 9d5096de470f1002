"""The job of a warm run as people write it: a script with MLflow, by hand or with Lightning.

    python -m benchmarks.warm_peers bare|lightning TABLE OUT

It reads a Parquet table of numbers and categories (`made_up.write_table`), splits it at random,
fits scales and codes on train, trains a perceptron with the best epoch on validation rows, scores
the test rows, and logs parameters, metrics and the model to MLflow. It makes none of the checks,
intervals, baselines, comparisons and pages of `bulkhead run`. The seconds of its training go to
OUT/seconds.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, HIDDEN, LR = 5, 256, 64, 1e-3
Sides = dict[str, TensorDataset]


def prepared(table: Path) -> Sides:
    """Return the sides as tensors: numbers scaled and categories as 0 and 1, fitted on train."""
    frame = pd.read_parquet(table).drop(columns="row")
    side = np.random.default_rng(0).choice(3, len(frame), p=(0.7, 0.15, 0.15))
    label = frame.pop("y").to_numpy(np.float32)
    texts = frame.select_dtypes(exclude="number")
    numbers = frame.drop(columns=texts.columns)
    train = numbers[side == 0]
    numbers = (numbers - train.mean()) / train.std()
    codes = pd.get_dummies(texts, dtype="float32")
    inputs = np.hstack([numbers.to_numpy(np.float32), codes.to_numpy(np.float32)])
    return {
        name: TensorDataset(torch.from_numpy(inputs[side == i]), torch.from_numpy(label[side == i]))
        for i, name in enumerate(("train", "val", "test"))
    }


def network(width: int) -> nn.Module:
    """Return a perceptron with one score per row."""
    return nn.Sequential(
        nn.Linear(width, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 1),
    )


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Return the mean loss of a batch."""
    scores = model(batch[0]).squeeze(1)
    return nn.functional.binary_cross_entropy_with_logits(scores, batch[1])


def train_by_hand(sides: Sides, model: nn.Module) -> None:
    """Train with a loop of its own; keep the best epoch on validation rows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    best, weights = float("inf"), copy.deepcopy(model.state_dict())
    for epoch in range(EPOCHS):
        for batch in DataLoader(sides["train"], BATCH, shuffle=True):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(loss_of(model, list(sides["val"].tensors)))
        mlflow.log_metric("val_loss", loss, step=epoch)
        if loss < best:
            best, weights = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)


def train_with_lightning(sides: Sides, model: nn.Module) -> None:
    """Train with a Lightning Trainer, its MLflow logger and its checkpoint of the best epoch."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import MLFlowLogger

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return loss_of(self.model, batch)

        def validation_step(self, batch: list[Tensor], _: int) -> None:
            self.log("val_loss", loss_of(self.model, batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=LR)

    run = mlflow.active_run()
    logger = MLFlowLogger(
        tracking_uri=mlflow.get_tracking_uri(), run_id=run.info.run_id if run else None
    )
    kept = ModelCheckpoint(dirpath=Path("checkpoints"), monitor="val_loss")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        logger=logger,
        callbacks=[kept],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    loaders = (DataLoader(sides[n], BATCH, shuffle=n == "train") for n in ("train", "val"))
    trainer.fit(module, *loaders)
    module.load_state_dict(torch.load(kept.best_model_path, weights_only=True)["state_dict"])


WAYS: dict[str, Callable[[Sides, nn.Module], None]] = {
    "bare": train_by_hand,
    "lightning": train_with_lightning,
}


def main(way: str, table: Path, out: Path) -> None:
    """Run the job."""
    mlflow.set_tracking_uri(f"sqlite:///{out / 'mlflow.db'}")
    mlflow.set_experiment("warm")
    sides = prepared(table)
    model = network(sides["train"].tensors[0].shape[1])
    with mlflow.start_run():
        mlflow.log_params({"epochs": EPOCHS, "batch": BATCH, "hidden": HIDDEN, "lr": LR})
        began = time.monotonic()
        WAYS[way](sides, model)
        (out / "seconds").write_text(str(time.monotonic() - began))
        inputs, label = sides["test"].tensors
        with torch.no_grad():
            scores = model(inputs).squeeze(1).numpy()
        mlflow.log_metric("test_auroc", float(roc_auc_score(label.numpy(), scores)))
        example = inputs[:5].numpy()
        mlflow.pytorch.log_model(model, name="model", input_example=example)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
