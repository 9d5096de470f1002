"""Pretrain a decoder on molecules written as text, a byte a token. Several devices: `torchrun --nproc-per-node N pretrain_decoder.py`."""

import contextlib
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ.get("MOLECULES", "molecules"))
LAST = FOLDER / "decoder.pt"
STEPS, RAMP, EVALUATE_EVERY, TELL_EVERY = 40_000, 500, 1_000, 50
PEAK, FLOOR = 1e-3, 2e-5
ROWS, HELD_OUT_BATCHES = 64, 40
LARGEST_NORM = 0.5
PADDING = 0
HALF = torch.bfloat16 if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else torch.float16


@dataclass(frozen=True)
class Shape:
    tokens: int = 128
    length: int = 192
    width: int = 320
    heads: int = 5
    layers: int = 8
    drop: float = 0.05


class LookBack(nn.Module):
    """Every token gathers what it needs from those before it."""

    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.drop = shape.drop
        self.asks = nn.Linear(shape.width, shape.width, bias=False)
        self.offers = nn.Linear(shape.width, 2 * shape.width, bias=False)
        self.join = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x):
        rows, length, width = x.shape
        per_head = (rows, length, self.heads, width // self.heads)
        asked = self.asks(x).view(per_head).transpose(1, 2)
        keys, values = (part.reshape(per_head).transpose(1, 2) for part in self.offers(x).chunk(2, dim=-1))
        found = F.scaled_dot_product_attention(asked, keys, values, is_causal=True, dropout_p=self.drop if self.training else 0.0)
        return self.join(found.transpose(1, 2).reshape(rows, length, width))


class Widen(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.up = nn.Linear(shape.width, 3 * shape.width)
        self.down = nn.Linear(3 * shape.width, shape.width)
        self.drop = nn.Dropout(shape.drop)

    def forward(self, x):
        wide = self.up(x)
        wide = F.silu(wide)
        return self.drop(self.down(wide))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.before = nn.ModuleList(nn.RMSNorm(shape.width) for _ in range(2))
        self.parts = nn.ModuleList([LookBack(shape), Widen(shape)])

    def forward(self, x):
        for norm, part in zip(self.before, self.parts, strict=True):
            x = x + part(norm(x))
        return x


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.symbols = nn.Embedding(shape.tokens, shape.width)
        self.places = nn.Parameter(torch.randn(shape.length, shape.width) / 50)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.last = nn.RMSNorm(shape.width)
        self.scores = nn.Linear(shape.width, shape.tokens, bias=False)
        self.scores.weight = self.symbols.weight
        nn.init.trunc_normal_(self.symbols.weight, std=shape.width**-0.5)

    def forward(self, tokens):
        x = self.symbols(tokens) + self.places[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.scores(self.last(x))

    @torch.inference_mode()
    def invent(self, start, temperature=0.8, kept=20):
        """Continue rows of tokens [B, T] to the longest that the network has places for."""
        while start.shape[1] < len(self.places):
            scores = self(start)[:, -1] / temperature
            weakest = scores.topk(kept).values[:, -1:]
            chances = F.softmax(scores.masked_fill(scores < weakest, -math.inf), dim=-1)
            start = torch.cat([start, chances.multinomial(1)], dim=1)
        return start


parallel = "WORLD_SIZE" in os.environ
rank, world, place = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
chief = rank == 0
if parallel:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
if torch.cuda.is_available():
    torch.cuda.set_device(place)
    torch.set_float32_matmul_precision("high")
kind = "cuda" if torch.cuda.is_available() else "cpu"
device = torch.device(kind, place if kind == "cuda" else 0)
micro_batches = max(16 // world, 1)
torch.manual_seed(20 + rank)  # each rank draws other molecules
lower_precision = torch.autocast(kind, HALF) if kind == "cuda" else contextlib.nullcontext()


def molecules(part):
    """Tokens and the tokens that follow them, [ROWS, length] each, drawn from the file of one part."""
    table = np.load(FOLDER / f"{part}.npy", mmap_mode="r")
    rows = table[np.sort(torch.randint(len(table), (ROWS,)).numpy())]
    tokens = torch.from_numpy(rows.astype(np.int64)).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def rate_at(step):
    if step < RAMP:
        return PEAK * (step + 1) / RAMP
    done = min((step - RAMP) / (STEPS - RAMP), 1.0)
    return FLOOR + (PEAK - FLOOR) * (1 + math.cos(done * math.pi)) / 2


@torch.no_grad()
def held_out_loss(network):
    network.eval()
    losses = []
    for _ in range(HELD_OUT_BATCHES):
        tokens, following = molecules("val")
        with lower_precision:
            losses.append(F.cross_entropy(network(tokens).flatten(0, 1), following.flatten(), ignore_index=PADDING).item())
    network.train()
    return sum(losses) / len(losses)


saved = torch.load(LAST, map_location=device) if LAST.exists() else None
shape = Shape(**saved["shape"]) if saved else Shape()
network = Decoder(shape).to(device)
matrices = [p for p in network.parameters() if p.ndim > 1]
vectors = [p for p in network.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}], lr=PEAK, betas=(0.9, 0.98))
scaler = torch.amp.GradScaler(kind, enabled=HALF is torch.float16)
step, lowest = 0, math.inf
if saved:
    network.load_state_dict(saved["network"])
    optimizer.load_state_dict(saved["optimizer"])
    step, lowest = saved["step"], saved["lowest"]
del saved
model = torch.compile(network)
if parallel:
    model = DistributedDataParallel(model, device_ids=[place] if kind == "cuda" else None)

tokens, following = molecules("train")
since = time.perf_counter()
while step < STEPS:
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step)

    for part in range(micro_batches):
        hold = model.no_sync() if parallel and part + 1 < micro_batches else contextlib.nullcontext()
        with hold:
            with lower_precision:
                scores = model(tokens)
                loss = F.cross_entropy(scores.flatten(0, 1), following.flatten(), ignore_index=PADDING) / micro_batches
            tokens, following = molecules("train")  # read while the device works
            scaler.scale(loss).backward()
    if LARGEST_NORM:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    step += 1

    if chief and step % TELL_EVERY == 0:
        now = time.perf_counter()
        print(f"{step:>6} of {STEPS}: {loss.item() * micro_batches:.3f} nats a token, {TELL_EVERY / (now - since):.1f} steps a second")
        since = now
    if chief and step % EVALUATE_EVERY == 0:
        held_out = held_out_loss(network)
        print(f"{step:>6} held out: {held_out:.3f} nats a token")
        if held_out < lowest:
            lowest = held_out
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "shape": asdict(shape), "step": step, "lowest": lowest}
            torch.save(state, LAST)

if chief:
    network.eval()
    for molecule in network.invent(torch.full((5, 1), ord("C"), device=device)).tolist():
        print(bytes(molecule).partition(b"\n")[0].decode("ascii", "replace"))
if parallel:
    dist.destroy_process_group()
