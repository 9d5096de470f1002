"""A Lightning module and its trainer, which calls zero_grad, backward, step, eval and set_epoch itself."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchmetrics.regression import MeanAbsoluteError


class Solubility(lightning.LightningModule):
    """How well a molecule dissolves, from its fingerprint."""

    def __init__(self, bits=2048, rate=5e-4, rounds=25):
        super().__init__()
        self.rate, self.rounds = rate, rounds
        self.layers = nn.Sequential(nn.Linear(bits, 200), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(200, 1), nn.Flatten(0))
        self.off_by = MeanAbsoluteError()

    def forward(self, fingerprint):
        return self.layers(fingerprint)

    def training_step(self, pair, _number):
        fingerprint, measured = pair
        cost = nn.functional.smooth_l1_loss(self(fingerprint), measured)
        self.log("cost", cost, prog_bar=True)
        return cost

    def validation_step(self, pair, _number):
        fingerprint, measured = pair
        self.off_by(self(fingerprint), measured)
        self.log("off_by", self.off_by, on_epoch=True)

    def configure_optimizers(self):
        steps = torch.optim.NAdam(self.parameters(), lr=self.rate)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(steps, T_max=self.rounds)
        return [steps], [falling]


def fit(molecules, val_molecules, rounds=25):
    share = DistributedSampler(molecules)
    trainer = lightning.Trainer(max_epochs=rounds, strategy="ddp", devices=4, gradient_clip_val=1.0)
    model = Solubility(rounds=rounds)
    trainer.fit(model, DataLoader(molecules, batch_size=48, sampler=share), DataLoader(val_molecules, batch_size=512))
    return model
