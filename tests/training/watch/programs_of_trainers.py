"""Programs under watch as they are built in the large: a small trainer with modules of its own, and
a translator by steps with averaged weights.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

TRANSLATE = """
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

PAD, BOS, EOS, VOCAB = 0, 1, 2, 16


def make_pairs(n, rng):
    pairs, known = [], set()
    while len(pairs) < n:
        src = tuple(rng.integers(3, VOCAB, rng.integers(3, 9)).tolist())
        if src not in known:
            known.add(src)
            pairs.append((list(src), list(src[::-1])))
    return pairs


def pad(rows):
    out = torch.full((len(rows), max(map(len, rows))), PAD, dtype=torch.long)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row)
    return out


def to_batch(pairs):
    src = pad([s + [EOS] for s, _ in pairs])
    dec_in = pad([[BOS] + t for _, t in pairs])
    dec_out = pad([t + [EOS] for _, t in pairs])
    return src, dec_in, dec_out


def endless(pairs, size):
    g = torch.Generator().manual_seed(5)
    while True:
        order = torch.randperm(len(pairs), generator=g).tolist()
        for i in range(0, len(order) - size + 1, size):
            yield to_batch([pairs[j] for j in order[i : i + size]])


class Seq2Seq(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(16, dim) * 0.02)
        self.core = nn.Transformer(dim, 2, 1, 1, 2 * dim, 0.1, batch_first=True)
        self.out = nn.Linear(dim, VOCAB, bias=False)

    def embed(self, ids):
        return self.tok(ids) + self.pos[: ids.size(1)]

    def forward(self, src, dec_in):
        causal = nn.Transformer.generate_square_subsequent_mask(dec_in.size(1)) < 0
        h = self.core(
            self.embed(src), self.embed(dec_in), tgt_mask=causal,
            src_key_padding_mask=src == PAD, tgt_key_padding_mask=dec_in == PAD, memory_key_padding_mask=src == PAD,
        )
        return self.out(h)


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.named_parameters():
            self.shadow[k].lerp_(v, 1 - self.decay)

    @torch.no_grad()
    def swap(self, model):
        for k, v in model.named_parameters():
            kept = v.clone()
            v.copy_(self.shadow[k])
            self.shadow[k].copy_(kept)


def lr_at(step):
    if step < 10:
        return 2e-3 * (step + 1) / 10
    t = (step - 10) / 50
    return 1e-4 + 0.5 * (2e-3 - 1e-4) * (1 + math.cos(math.pi * t))


@torch.no_grad()
def evaluate(model, pairs):
    model.eval()
    nll, tokens = 0.0, 0
    for i in range(0, len(pairs), 100):
        src, dec_in, dec_out = to_batch(pairs[i : i + 100])
        nll += F.cross_entropy(model(src, dec_in).transpose(1, 2), dec_out, ignore_index=PAD, reduction="sum").item()
        tokens += (dec_out != PAD).sum().item()
    model.train()
    return nll / tokens


def main():
    torch.manual_seed(11)
    pairs = make_pairs(500, np.random.default_rng(11))
    train, val = pairs[:400], pairs[400:]
    model = Seq2Seq()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ema = EMA(model, 0.9)
    stream = endless(train, 32)
    for step in range(60):
        for group in opt.param_groups:
            group["lr"] = lr_at(step)
        src, dec_in, dec_out = next(stream)
        opt.zero_grad()
        F.cross_entropy(model(src, dec_in).transpose(1, 2), dec_out, ignore_index=PAD).backward()
        opt.step()
        ema.update(model)
        if step % 15 == 14:
            ema.swap(model)
            print(evaluate(model, val))
            ema.swap(model)


main()
"""

READMIT = """
import math

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Module(nn.Module):
    def __init__(self, total):
        super().__init__()
        self.total = total
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.body(x).squeeze(1)

    def training_step(self, batch):
        x, y = batch
        return F.binary_cross_entropy_with_logits(self(x), y)

    def validation_step(self, batch):
        x, y = batch
        return torch.sigmoid(self(x)), y

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3)
        total_steps = self.total

        def factor(step):
            if step < 10:
                return (step + 1) / 10
            return 0.5 * (1 + math.cos(math.pi * (step - 10) / (total_steps - 10)))

        return opt, torch.optim.lr_scheduler.LambdaLR(opt, factor)


@torch.no_grad()
def evaluate(module, loader):
    module.eval()
    scores, labels = [], []
    for batch in loader:
        p, y = module.validation_step(batch)
        scores.append(p)
        labels.append(y)
    return roc_auc_score(torch.cat(labels).numpy(), torch.cat(scores).numpy())


torch.manual_seed(0)
x = torch.randn(600, 4)
y = (x[:, 0] + x[:, 1] + 0.5 * torch.randn(600) > 0).float()
train = DataLoader(TensorDataset(x[:400], y[:400]), batch_size=32, shuffle=True)
val = DataLoader(TensorDataset(x[400:], y[400:]), batch_size=100)
module = Module(6 * len(train))
opt, sched = module.configure_optimizers()
for epoch in range(6):
    module.train()
    for batch in train:
        loss = module.training_step(batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    print(evaluate(module, val))
"""

DEMAND = """
import numpy as np
import torch
from sklearn.metrics import mean_absolute_error
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
temp, rain, size = rng.normal(15, 8, 600), rng.gamma(0.5, 2.0, 600), rng.lognormal(0, 0.5, 600)
count = np.exp(3 + 0.03 * temp - 0.1 * rain + 0.4 * np.log(size) + 0.1 * rng.normal(size=600))
numbers = np.stack([temp, rain, size], axis=1)
mean, spread = numbers[:400].mean(0), numbers[:400].std(0)
level, width = np.log(count[:400]).mean(), np.log(count[:400]).std()
x = torch.tensor((numbers - mean) / spread, dtype=torch.float32)
y = torch.tensor((np.log(count) - level) / width, dtype=torch.float32)
net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(12):
    net.train()
    for rows in torch.randperm(400).split(40):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[rows])[:, 0], y[rows]).backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    found = net(x[400:])[:, 0].numpy()
print(mean_absolute_error(count[400:], np.exp(found * width + level)))
"""

TEXTURES = """
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def textures(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    angle, phase = y * math.pi / 3 + 0.1 * torch.randn(n, generator=g), 6 * torch.rand(n, generator=g)
    v, u = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    waves = torch.sin((u * angle.cos()[:, None, None] + v * angle.sin()[:, None, None]) + phase[:, None, None])
    return (waves + 0.5 * torch.randn(n, 12, 12, generator=g)).unsqueeze(1), y


class Excite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Linear(channels, channels // 2), nn.Linear(channels // 2, channels)

    def forward(self, x):
        s = x.mean(dim=(2, 3))
        return x * torch.sigmoid(self.up(torch.relu(self.down(s)))).view(-1, x.shape[1], 1, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), Excite(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(torch.relu(x + self.body(x)).mean(dim=(2, 3)))


torch.manual_seed(0)
train = DataLoader(TensorDataset(*textures(256, 0)), 32, shuffle=True)
images, labels = textures(100, 1)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    net.train()
    for x, y in train:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        print((net(images).argmax(1) == labels).float().mean())
"""
SHIFTS = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(0)
hours = np.arange(1200)
at_work = ((hours % 24 > 7) & (hours % 24 < 19)).astype(float)
load = 20 + 6 * at_work + rng.normal(0, 0.8, len(hours))
series = np.stack([load, rng.normal(size=len(hours)), at_work], axis=1).astype("float32")
series = (series - series[:900].mean(0)) / series[:900].std(0)


class Windows(Dataset):
    def __init__(self, series):
        self.x = torch.from_numpy(series)

    def __len__(self):
        return len(self.x) - 24

    def __getitem__(self, i):
        return self.x[i : i + 24], self.x[i + 24, 2].gt(0).float()


class Staffing(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[1][-1]).squeeze(1)


torch.manual_seed(0)
net = Staffing()
opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
val = DataLoader(Windows(series[900:]), 256)
for epoch in range(3):
    net.train()
    for x, y in DataLoader(Windows(series[:900]), 32, shuffle=True):
        loss = nn.functional.binary_cross_entropy_with_logits(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        print(sum(((net(x) > 0) == (y > 0)).sum().item() for x, y in val))
"""

BASES_OF_TRAINERS = {
    "translate": TRANSLATE,
    "readmit": READMIT,
    "demand": DEMAND,
    "textures": TEXTURES,
}
SOUND_OF_TRAINERS = {
    "shifts": SHIFTS,
    "translate_alone": (
        TRANSLATE.replace("ids.size(1)]", "ids.size(1)] * 1.0").replace("ema.swap(model)", "pass")
    ),
    "translate_shifted_inside": (
        TRANSLATE.replace("model(src, dec_in)", "model(src, dec_out)").replace(
            "def forward(self, src, dec_in):\n",
            "def forward(self, src, out):\n        dec_in = torch.cat([torch.full_like(out[:, :1],"
            " BOS), out[:, :-1]], 1)\n",
        )
    ),
    "readmit_by_line": READMIT.replace("(step + 1) / 10", "max(0.1, step / 10)"),
}
PLANTED_OF_TRAINERS = (
    Planted(
        "BH817",
        "translate",
        "pad([[BOS] + t for _, t in pairs])",
        "pad([t + [EOS] for _, t in pairs])",
    ),
    Planted("BH802", "translate", "tgt_mask=causal,", ""),
    Planted("BH802", "translate", ".size(1)) < 0", ".size(1)) >= 0"),
    Planted("BH860", "translate", "src_key_padding_mask=src == PAD, ", ""),
    Planted("BH860", "translate", " memory_key_padding_mask=src == PAD,", ""),
    Planted(
        "BH860", "translate", "src_key_padding_mask=src == PAD", "src_key_padding_mask=src != PAD"
    ),
    Planted("BH803", "translate", "pairs[:400], pairs[400:]", "pairs[:400], pairs[350:]"),
    Planted(
        "BH422", "translate", "AdamW(model.parameters()", "AdamW(model.core.decoder.parameters()"
    ),
    Planted(
        "BH848",
        "translate",
        "if step < 10:\n        return 2e-3 * (step + 1) / 10",
        "if step < 900:\n        return 2e-3 * (step + 1) / 900",
    ),
    Planted(
        "BH822",
        "translate",
        "    g = torch.Generator().manual_seed(5)\n    while True:\n",
        "    while True:\n        g = torch.Generator().manual_seed(5)\n",
    ),
    Planted(
        "BH848",
        "readmit",
        "if step < 10:\n                return (step + 1) / 10",
        "if step < 900:\n                return (step + 1) / 900",
    ),
    Planted("BH880", "demand", "np.exp(found * width + level)", "np.exp(found)"),
    Planted("BH880", "demand", "np.exp(found * width + level)", "found * width + level"),
    Planted("BH801", "textures", "s = x.mean(dim=(2, 3))", "s = x.mean(dim=(0, 2, 3))"),
    Planted("BH221", "readmit", "torch.sigmoid(self(x))", "(torch.sigmoid(self(x)) > 0.5).float()"),
)
