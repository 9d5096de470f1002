"""A trainer class under torchrun: snapshot, one method a batch, one an epoch, fp16 with a scaler, early stop."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def ddp_setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Trainer:
    def __init__(self, model, train_data, val_data, optimizer, scheduler, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.model = DDP(model.to(self.local_rank), device_ids=[self.local_rank])
        self.train_data = train_data
        self.val_data = val_data
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = torch.amp.GradScaler("cuda")
        self.snapshot_path = snapshot_path
        self.best_loss = float("inf")
        self.patience = 0

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = self.model(source)
            loss = F.cross_entropy(output, targets)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def _run_epoch(self, epoch):
        self.model.train()
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source.to(self.local_rank), targets.to(self.local_rank))

    @torch.no_grad()
    def _validate(self):
        self.model.eval()
        total = torch.zeros(2, device=self.local_rank)
        for source, targets in self.val_data:
            output = self.model(source.to(self.local_rank))
            total[0] += F.cross_entropy(output, targets.to(self.local_rank), reduction="sum")
            total[1] += len(targets)
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def _save_snapshot(self, epoch):
        snapshot = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": epoch}
        torch.save(snapshot, self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            val_loss = self._validate()
            self.scheduler.step()
            if val_loss < self.best_loss:
                self.best_loss = val_loss
                self.patience = 0
                if self.global_rank == 0:
                    self._save_snapshot(epoch)
            else:
                self.patience += 1
            if self.patience > 5:
                break
            dist.barrier()


def main(train_set, val_set, model, epochs):
    ddp_setup()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    train_data = DataLoader(train_set, batch_size=32, pin_memory=True, shuffle=False, sampler=DistributedSampler(train_set))
    val_data = DataLoader(val_set, batch_size=32, sampler=DistributedSampler(val_set, shuffle=False))
    Trainer(model, train_data, val_data, optimizer, scheduler, "snapshot.pt").train(epochs)
    dist.destroy_process_group()
