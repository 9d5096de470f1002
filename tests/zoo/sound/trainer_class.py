"""A class that owns a run under torchrun: float16 with a scaler, shares of the rows, a state saved by one rank, and an end when nothing improves."""

import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Forecasting:
    """Learns tomorrow's temperature of weather stations from their last two weeks."""

    def __init__(self, network, days, val_days, folder):
        self.rank, self.place = dist.get_rank(), int(os.environ["LOCAL_RANK"])
        self.days = DataLoader(days, batch_size=128, sampler=DistributedSampler(days, seed=5), pin_memory=True)
        self.val_days = DataLoader(val_days, batch_size=512, sampler=DistributedSampler(val_days, shuffle=False))
        self.network = DistributedDataParallel(network.to(self.place), device_ids=[self.place])
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3, weight_decay=1e-6)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.9)
        self.scaler = torch.amp.GradScaler("cuda")
        self.cost = nn.HuberLoss(delta=2.0)
        self.file = Path(folder) / "stations.pt"
        self.lowest, self.without_gain = math.inf, 0

    def one_step(self, weeks, tomorrow):
        with torch.autocast("cuda", dtype=torch.float16):
            cost = self.cost(self.network(weeks), tomorrow)
        self.optimizer.zero_grad()
        self.scaler.scale(cost).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.network.parameters(), 2.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def one_round(self, number):
        self.network.train()
        self.days.sampler.set_epoch(number)
        for weeks, tomorrow in self.days:
            self.one_step(weeks.to(self.place, non_blocking=True), tomorrow.to(self.place, non_blocking=True))

    @torch.inference_mode()
    def held_out_error(self):
        """Mean absolute error in degrees over the rows of all ranks."""
        self.network.eval()
        degrees_and_rows = torch.zeros(2, dtype=torch.float64, device=self.place)
        for weeks, tomorrow in self.val_days:
            forecast = self.network(weeks.to(self.place))
            degrees_and_rows[0] += (forecast - tomorrow.to(self.place)).abs().sum()
            degrees_and_rows[1] += len(tomorrow)
        dist.all_reduce(degrees_and_rows)
        degrees, rows = degrees_and_rows.tolist()
        return degrees / rows

    def write(self, number):
        parts = {"network": self.network.module, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        torch.save({"rounds": number + 1, **{name: part.state_dict() for name, part in parts.items()}}, self.file)

    def go(self, rounds, patience=6):
        for number in range(rounds):
            self.one_round(number)
            self.schedule.step()
            error = self.held_out_error()
            if error < self.lowest:
                self.lowest, self.without_gain = error, 0
                if self.rank == 0:
                    self.write(number)
            else:
                self.without_gain += 1
            if self.without_gain == patience:
                break
            dist.barrier()
        return self.lowest


def main(network, days, val_days, folder):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    lowest = Forecasting(network, days, val_days, folder).go(rounds=50)
    dist.destroy_process_group()
    return lowest
