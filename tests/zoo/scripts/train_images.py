"""Tell plants by photographs of their leaves: a folder a species, a process a device, the best network kept."""

import argparse
import math
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, SPREAD = (0.46, 0.51, 0.38), (0.21, 0.20, 0.22)


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photographs", type=Path, help="holds train/ and val/, in each a folder a species")
    parser.add_argument("--network", default="resnet34", choices=models.list_models(module=models))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--rows", type=int, default=192, help="photographs a step, over all devices")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--readers", type=int, default=6)
    parser.add_argument("--go-on-from", type=Path)
    parser.add_argument("--only-score", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep-in", type=Path, default=Path("leaves"))
    return parser.parse_args()


class Mean:
    """A mean over rows that several processes may add to; and the time since it was made."""

    def __init__(self, label, form=".3f"):
        self.label, self.form = label, form
        self.total, self.rows = 0.0, 0
        self.born = time.monotonic()

    def add(self, value, rows):
        self.total += value * rows
        self.rows += rows

    def join_ranks(self, device):
        both = torch.tensor([self.total, self.rows], dtype=torch.float64, device=device)
        dist.all_reduce(both)
        self.total, self.rows = both.tolist()

    @property
    def value(self):
        return self.total / self.rows if self.rows else math.nan

    def __str__(self):
        return f"{self.label} {self.value:{self.form}}"


@torch.no_grad()
def share_within(scores, species, *places):
    """How often the right species is among the first 1, 3, ... of the scores, a number for each of `places`."""
    ranked = scores.topk(max(places), dim=1).indices
    hit = ranked == species[:, None]
    return [hit[:, :place].any(dim=1).float().mean().item() for place in places]


def folders(args):
    pixels = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, SPREAD)]
    turned = v2.Compose([v2.RandomRotation(180), v2.RandomResizedCrop(192, scale=(0.3, 1.0)), v2.RandomVerticalFlip(), *pixels])
    plain = v2.Compose([v2.Resize(224), v2.CenterCrop(192), *pixels])
    return ImageFolder(args.photographs / "train", turned), ImageFolder(args.photographs / "val", plain)


def work(place, places, args):
    apart = places > 1
    device = torch.device("cuda", place) if torch.cuda.is_available() else torch.device("cpu")
    if apart:
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", world_size=places, rank=place)
    if args.seed is not None:
        torch.manual_seed(args.seed)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False

    train_photographs, val_photographs = folders(args)
    model = models.get_model(args.network, num_classes=len(train_photographs.classes)).to(device)
    if apart:
        model = DistributedDataParallel(model, device_ids=[place])
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9, nesterov=True, weight_decay=5e-5)
    scheduler = MultiStepLR(optimizer, milestones=[args.epochs // 2, args.epochs * 4 // 5], gamma=0.2)
    first, highest = 0, 0.0
    if args.go_on_from:
        kept = torch.load(args.go_on_from, map_location=device, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        scheduler.load_state_dict(kept["scheduler"])
        first, highest = kept["epochs"], kept["highest"]

    train_share = DistributedSampler(train_photographs) if apart else None
    val_share = DistributedSampler(val_photographs, shuffle=False, drop_last=True) if apart else None
    reading = {"batch_size": args.rows // places, "num_workers": args.readers, "pin_memory": True}
    train_loader = DataLoader(train_photographs, shuffle=train_share is None, sampler=train_share, **reading)
    val_loader = DataLoader(val_photographs, sampler=val_share, **reading)
    # what drop_last leaves out of the shares: every rank scores it, after the shares are joined
    rest = Subset(val_photographs, range(len(val_photographs) - len(val_photographs) % places, len(val_photographs)))
    rest_loader = DataLoader(rest, **reading)

    if args.only_score:
        score(model, val_loader, rest_loader, criterion, device, apart)
        return
    for epoch in range(first, args.epochs):
        if apart:
            train_share.set_epoch(epoch)
        learn(model, train_loader, criterion, optimizer, device, f"epoch {epoch + 1}")
        right = score(model, val_loader, rest_loader, criterion, device, apart)
        scheduler.step()
        better = right > highest
        highest = max(right, highest)
        if place == 0:
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            keep({"epochs": epoch + 1, "highest": highest} | {name: part.state_dict() for name, part in parts.items()}, args.keep_in, better)


def learn(model, train_loader, criterion, optimizer, device, title):
    costs, firsts, thirds = Mean("loss"), Mean("first", ".1%"), Mean("first three", ".1%")
    model.train()
    for number, (photographs, species) in enumerate(train_loader, start=1):
        photographs = photographs.to(device, non_blocking=True)
        species = species.to(device, non_blocking=True)
        scores = model(photographs)
        cost = criterion(scores, species)
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        costs.add(cost.item(), len(species))
        for mean, share in zip((firsts, thirds), share_within(scores, species, 1, 3), strict=True):
            mean.add(share, len(species))
        if number % 25 == 0:
            pace = costs.rows / (time.monotonic() - costs.born)
            print(f"{title}, {number}/{len(train_loader)}:", costs, firsts, thirds, f"{pace:.0f} photographs a second", sep="  ")


def score(model, val_loader, rest_loader, criterion, device, apart):
    costs, firsts = Mean("val loss"), Mean("val first", ".1%")

    def go_through(batches):
        with torch.inference_mode():
            for photographs, species in batches:
                species = species.to(device, non_blocking=True)
                scores = model(photographs.to(device, non_blocking=True))
                costs.add(criterion(scores, species).item(), len(species))
                firsts.add(share_within(scores, species, 1)[0], len(species))

    model.eval()
    go_through(val_loader)
    if apart:
        costs.join_ranks(device)
        firsts.join_ranks(device)
    go_through(rest_loader)
    print(costs, firsts, sep="  ")
    return firsts.value


def keep(state, folder, better):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "last.pt")
    if better:
        shutil.copy2(folder / "last.pt", folder / "best.pt")


def main():
    args = options()
    places = max(torch.cuda.device_count(), 1)
    if places == 1:
        work(0, 1, args)
    else:
        mp.spawn(work, args=(places, args), nprocs=places)


if __name__ == "__main__":
    main()
