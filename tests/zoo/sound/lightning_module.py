"""A Lightning module and its trainer, which calls zero_grad, backward, step, eval and set_epoch itself."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class LitModel(L.LightningModule):
    def __init__(self, width, classes, lr=1e-3, epochs=10):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, classes))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.hparams.epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main(train_set, val_set):
    sampler = DistributedSampler(train_set)
    trainer = L.Trainer(max_epochs=10, accelerator="auto", devices=2, strategy="ddp")
    trainer.fit(LitModel(32, 10), DataLoader(train_set, batch_size=64, sampler=sampler), DataLoader(val_set, batch_size=64))
