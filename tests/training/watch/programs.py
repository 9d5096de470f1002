"""Sound training programs, and one mistake at a time put into them; each runs in a second on
generated rows.
"""

from __future__ import annotations

from tests.training.watch.programs_of_arrays import (
    BASES_OF_ARRAYS,
    PLANTED_OF_ARRAYS,
    SOUND_OF_ARRAYS,
)
from tests.training.watch.programs_of_axes import BASES_OF_AXES, PLANTED_OF_AXES, SOUND_OF_AXES
from tests.training.watch.programs_of_counts import (
    BASES_OF_COUNTS,
    PLANTED_OF_COUNTS,
    SOUND_OF_COUNTS,
)
from tests.training.watch.programs_of_data import BASES_OF_DATA, PLANTED_OF_DATA, SOUND_OF_DATA
from tests.training.watch.programs_of_frames import (
    BASES_OF_FRAMES,
    PLANTED_OF_FRAMES,
    SOUND_OF_FRAMES,
)
from tests.training.watch.programs_of_halves import (
    BASES_OF_HALVES,
    PLANTED_OF_HALVES,
    SOUND_OF_HALVES,
)
from tests.training.watch.programs_of_lengths import (
    BASES_OF_LENGTHS,
    PLANTED_OF_LENGTHS,
    SOUND_OF_LENGTHS,
)
from tests.training.watch.programs_of_losses import (
    BASES_OF_LOSSES,
    PLANTED_OF_LOSSES,
    SOUND_OF_LOSSES,
)
from tests.training.watch.programs_of_members import (
    BASES_OF_MEMBERS,
    PLANTED_OF_MEMBERS,
    SOUND_OF_MEMBERS,
)
from tests.training.watch.programs_of_opponents import (
    BASES_OF_OPPONENTS,
    PLANTED_OF_OPPONENTS,
    SOUND_OF_OPPONENTS,
)
from tests.training.watch.programs_of_orders import BASES_OF_ORDERS, PLANTED_OF_ORDERS
from tests.training.watch.programs_of_pairs import BASES_OF_PAIRS, PLANTED_OF_PAIRS, SOUND_OF_PAIRS
from tests.training.watch.programs_of_parts import (
    BASES_OF_PARTS,
    PLANTED_OF_PARTS,
    SOUND_OF_PARTS,
    Planted,
)
from tests.training.watch.programs_of_rankings import (
    BASES_OF_RANKINGS,
    PLANTED_OF_RANKINGS,
    SOUND_OF_RANKINGS,
)
from tests.training.watch.programs_of_samples import (
    BASES_OF_SAMPLES,
    PLANTED_OF_SAMPLES,
    SOUND_OF_SAMPLES,
)
from tests.training.watch.programs_of_stages import (
    BASES_OF_STAGES,
    PLANTED_OF_STAGES,
    SOUND_OF_STAGES,
)
from tests.training.watch.programs_of_streams import (
    BASES_OF_STREAMS,
    PLANTED_OF_STREAMS,
    SOUND_OF_STREAMS,
)
from tests.training.watch.programs_of_swaps import BASES_OF_SWAPS, PLANTED_OF_SWAPS, SOUND_OF_SWAPS
from tests.training.watch.programs_of_tokens import (
    BASES_OF_TOKENS,
    PLANTED_OF_TOKENS,
    SOUND_OF_TOKENS,
)
from tests.training.watch.programs_of_trainers import (
    BASES_OF_TRAINERS,
    PLANTED_OF_TRAINERS,
    SOUND_OF_TRAINERS,
)
from tests.training.watch.programs_of_updates import (
    BASES_OF_UPDATES,
    PLANTED_OF_UPDATES,
    SOUND_OF_UPDATES,
)
from tests.training.watch.programs_of_windows import (
    BASES_OF_WINDOWS,
    PLANTED_OF_WINDOWS,
    SOUND_OF_WINDOWS,
)

TABLE = """
import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
X = torch.randn(600, 6) * 2 + 1
y = (X[:, 0] + X[:, 1] > 2).long()
order = torch.randperm(600)
train, test = order[:440], order[440:]
mean, std = X[train].mean(0), X[train].std(0)
X = (X - mean) / std


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(24, 2)

    def forward(self, x):
        return self.head(self.body(x))


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
loader = DataLoader(TensorDataset(X[train], y[train]), batch_size=40, shuffle=True)
held_out = DataLoader(TensorDataset(X[test], y[test]), batch_size=50)
best, best_loss = None, float("inf")
history = []
for epoch in range(4):
    net.train()
    for rows, labels in loader:
        optimizer.zero_grad()
        scores = net(rows)
        loss = F.cross_entropy(scores, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        history.append(loss.item())
    schedule.step()
    net.eval()
    total = right = 0
    with torch.no_grad():
        for rows, labels in held_out:
            scores = net(rows)
            total += F.cross_entropy(scores, labels, reduction="sum").item()
            right += (scores.argmax(1) == labels).sum().item()
    if total < best_loss:
        best, best_loss = copy.deepcopy(net.state_dict()), total
net.load_state_dict(best)
print(best_loss, right)
"""

SEQUENCES = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
steps = torch.randint(1, 3, (160, 17)).cumsum(1) % 11
loader = DataLoader(TensorDataset(steps), batch_size=16, shuffle=True)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 24)
        self.qkv = nn.Linear(24, 72)
        self.out = nn.Linear(24, 11)

    def forward(self, tokens):
        q, k, v = self.qkv(self.embed(tokens)).chunk(3, dim=-1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


model = Language()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(3):
    for i, (batch,) in enumerate(loader):
        inputs, targets = batch[:, :-1], batch[:, 1:]
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.reshape(-1)) / 2
        loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
"""

REGRESSION = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(400, 10, 5)
y = X[:, :, 0].mean(1) * 3 + 0.1 * torch.randn(400)
loader = DataLoader(TensorDataset(X[:300], y[:300]), batch_size=30, shuffle=True)


class Curve(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(5, 16, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        h = self.norm(self.cell(x)[0][:, -1])
        return self.head(h).squeeze(1)


model = Curve()
teacher = Curve()
teacher.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for epoch in range(3):
    for x, target in loader:
        scores = model(x)
        loss = ((scores - target) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
model.eval()
with torch.no_grad():
    print(((model(X[300:]) - y[300:]) ** 2).mean())
"""

BASES = {
    "table": TABLE,
    "sequences": SEQUENCES,
    "regression": REGRESSION,
    **BASES_OF_DATA,
    **BASES_OF_PARTS,
    **BASES_OF_SAMPLES,
    **BASES_OF_LENGTHS,
    **BASES_OF_FRAMES,
    **BASES_OF_ARRAYS,
    **BASES_OF_MEMBERS,
    **BASES_OF_ORDERS,
    **BASES_OF_TOKENS,
    **BASES_OF_UPDATES,
    **BASES_OF_COUNTS,
    **BASES_OF_STAGES,
    **BASES_OF_STREAMS,
    **BASES_OF_SWAPS,
    **BASES_OF_AXES,
    **BASES_OF_LOSSES,
    **BASES_OF_HALVES,
    **BASES_OF_OPPONENTS,
    **BASES_OF_PAIRS,
    **BASES_OF_RANKINGS,
    **BASES_OF_WINDOWS,
    **BASES_OF_TRAINERS,
}

PLANTED = (
    Planted(
        "BH877",
        "table",
        "y = (X[:, 0] + X[:, 1] > 2).long()\norder = torch.randperm(600)\n",
        "y = (X[:, 0] + X[:, 1] > 4).long()\norder = y.argsort()\n",
    ),
    Planted(
        "BH848",
        "table",
        "CosineAnnealingLR(optimizer, T_max=4)",
        "CosineAnnealingLR(optimizer, T_max=4, eta_min=0.03)",
    ),
    Planted(
        "BH502",
        "table",
        "X = (X - mean) / std\n",
        "for rows in order.split([440, 80, 80]):\n    X[rows] = torch.func.vmap(lambda c: (c -"
        " c.mean()) / c.std())(X[rows].T).T\n",
    ),
    Planted("BH101", "table", "        optimizer.zero_grad()\n", ""),
    Planted("BH101", "regression", "        optimizer.zero_grad(set_to_none=False)\n", ""),
    Planted(
        "BH102",
        "table",
        "        optimizer.step()\n",
        "        optimizer.zero_grad()\n        optimizer.step()\n",
    ),
    Planted(
        "BH103",
        "table",
        "        loss.backward()\n",
        "        optimizer.step()\n        loss.backward()\n        continue\n",
    ),
    Planted("BH104", "table", "        loss.backward()\n", ""),
    Planted("BH105", "sequences", "            optimizer.step()\n", "            pass\n"),
    Planted("BH106", "table", "net.parameters(), 1.0)", "(p for p in []), 1.0)"),
    Planted(
        "BH106",
        "table",
        "        optimizer.step()\n",
        "        optimizer.step()\n        nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n",
    ),
    Planted("BH111", "table", "best, best_loss = None", "schedule.step()\nbest, best_loss = None"),
    Planted("BH112", "table", "    schedule.step()\n", ""),
    Planted(
        "BH113",
        "table",
        "CosineAnnealingLR(optimizer, T_max=4)",
        "StepLR(optimizer, 2, 0.1)\noptimizer.register_step_post_hook(lambda *_: schedule.step())",
    ),
    Planted("BH114", "table", "T_max=4", "T_max=4 * 11"),
    Planted("BH848", "table", "T_max=4", "T_max=2"),
    Planted(
        "BH116",
        "table",
        "CosineAnnealingLR(optimizer, T_max=4)",
        "LambdaLR(optimizer, lambda e: 1.0)\nplateau ="
        " torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\noptimizer.register_step_post_hook(lambda"
        " *_: plateau.step(history[-1] if history else 1.0))",
    ),
    Planted(
        "BH118",
        "table",
        "CosineAnnealingLR(optimizer, T_max=4)",
        "LambdaLR(optimizer, lambda e: 3e-3 * 0.9**e)",
    ),
    Planted("BH121", "sequences", " / 2\n", "\n"),
    Planted(
        "BH123",
        "table",
        "    net.train()\n",
        "    net.train()\n    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)\n",
    ),
    Planted(
        "BH126",
        "sequences",
        "        if i % 2:\n            optimizer.step()\n            optimizer.zero_grad()\n",
        "        if i % 2:\n            optimizer.step()\n        optimizer.zero_grad()\n",
    ),
    Planted("BH131", "regression", "        scaler.unscale_(optimizer)\n", ""),
    Planted(
        "BH133", "regression", "        scaler.step(optimizer)\n", "        optimizer.step()\n"
    ),
    Planted(
        "BH135",
        "table",
        "        loss.backward()\n",
        "        with torch.autocast('cpu', torch.bfloat16):\n            loss.backward()\n",
    ),
    Planted("BH201", "table", "    net.eval()\n", ""),
    Planted("BH202", "table", "    with torch.no_grad():\n", "    if True:\n"),
    Planted("BH203", "table", "    net.train()\n", ""),
    Planted("BH207", "table", "copy.deepcopy(net.state_dict())", "net.state_dict()"),
    Planted(
        "BH301",
        "table",
        "return self.head(self.body(x))",
        "return self.head(self.body(x)).softmax(1)",
    ),
    Planted(
        "BH302",
        "table",
        "F.cross_entropy(scores, labels)",
        "F.binary_cross_entropy_with_logits(torch.sigmoid(scores[:, 1]), labels.float())",
    ),
    Planted("BH303", "table", "F.cross_entropy(scores, labels)", "F.nll_loss(scores, labels)"),
    Planted(
        "BH305",
        "table",
        "F.cross_entropy(scores, labels)",
        "F.kl_div(scores.softmax(1), F.one_hot(labels, 2).float(), reduction='batchmean')",
    ),
    Planted(
        "BH306",
        "table",
        "F.cross_entropy(scores, labels)",
        "F.kl_div(F.one_hot(labels, 2).float() - 1, scores.softmax(1))",
    ),
    Planted("BH308", "table", "history.append(loss.item())", "history.append(loss)"),
    Planted(
        "BH309",
        "table",
        "scores = net(rows)\n        loss",
        "scores = net(rows).detach().requires_grad_()\n        loss",
    ),
    Planted("BH310", "regression", ".squeeze(1)", ""),
    Planted(
        "BH402",
        "regression",
        "        h = self.norm",
        "        self.late = nn.Linear(5, 5)\n        h = self.norm",
    ),
    Planted(
        "BH403",
        "regression",
        "return self.head(h)",
        "return self.head(nn.functional.dropout(h, 0.2))",
    ),
    Planted(
        "BH413",
        "table",
        "scores.argmax(1) == labels).sum()",
        "scores.argmax(0) == labels[0]).sum()",
    ),
    Planted("BH415", "table", "loader = DataLoader", "net = Net()\nloader = DataLoader"),
    Planted(
        "BH422",
        "regression",
        "model.parameters(), lr",
        "[*model.cell.parameters(), *model.norm.parameters()], lr",
    ),
    Planted(
        "BH502",
        "table",
        "X = (X - mean) / std",
        "for side in (train, test):\n    X[side] = (X[side] - X[side].mean(0)) / X[side].std(0)",
    ),
    Planted(
        "BH503",
        "table",
        "mean, std = X[train].mean(0), X[train].std(0)",
        "mean, std = X.mean(0), X.std(0)",
    ),
    Planted(
        "BH518",
        "table",
        "held_out = DataLoader(TensorDataset(X[test], y[test])",
        "Noisy = type('Noisy', (TensorDataset,), {'__getitem__': lambda self, i: (X[test][i] +"
        " torch.randn(6), y[test][i])})\nheld_out = DataLoader(Noisy(X[test], y[test])",
    ),
    Planted("BH520", "table", "batch_size=50)", "batch_size=50, drop_last=True)"),
    Planted(
        "BH702", "table", "print(best_loss, right)", "import io\ntorch.save(net, io.BytesIO())"
    ),
    Planted("BH801", "regression", "batch_first=True", "batch_first=False"),
    Planted(
        "BH801",
        "table",
        "return self.head(self.body(x))",
        "h = self.body(x)\n        return self.head(h - h.mean(0))",
    ),
    Planted("BH802", "sequences", ", is_causal=True", ""),
    Planted(
        "BH803",
        "table",
        "train, test = order[:440], order[440:]",
        "train, test = order[:440], torch.randperm(600)[:160]",
    ),
    Planted(
        "BH805", "table", "X = (X - mean) / std", "X = (X - mean) / std\nX[:, 3] = 5.0 - 2.0 * y"
    ),
    Planted(
        "BH806",
        "table",
        "TensorDataset(X[train], y[train]), batch_size=40, shuffle=True)",
        "TensorDataset(X[train][y[train].argsort()], y[train].sort().values), batch_size=40)",
    ),
    Planted("BH807", "regression", "lr=0.02", "lr=0.0"),
    Planted("BH808", "regression", "lr=0.02, momentum=0.9", "lr=90.0, momentum=0.9"),
    Planted(
        "BH809",
        "table",
        "        self.head = nn.Linear(24, 2)\n",
        "        self.head = nn.Linear(24, 2)\n        nn.init.constant_(self.body[0].weight,"
        " 0.1)\n        nn.init.zeros_(self.body[0].bias)\n        self.body[3].p = 0.0\n       "
        " nn.init.constant_(self.head.weight, 0.1)\n",
    ),
    Planted(
        "BH810",
        "regression",
        "h = self.norm(self.cell(x)[0][:, -1])",
        "h = self.norm(self.cell(x)[0][:, -1].detach())",
    ),
    Planted("BH811", "table", "net = Net()\n", "net = Net()\nnet.body.requires_grad_(False)\n"),
    Planted(
        "BH817",
        "sequences",
        "inputs, targets = batch[:, :-1], batch[:, 1:]",
        "inputs, targets = batch[:, :-1], batch[:, :-1]",
    ),
    Planted(
        "BH818",
        "table",
        "F.cross_entropy(scores, labels)",
        "F.cross_entropy(scores[:, :1], labels * 0)",
    ),
    Planted(
        "BH819",
        "table",
        "return self.head(self.body(x))",
        "x *= 0.9\n        return self.head(self.body(x))",
    ),
    Planted(
        "BH821",
        "regression",
        "    for x, target in loader:\n",
        "    (late := model).load_state_dict(model.state_dict())\n    for x, target in loader:\n",
    ),
    Planted(
        "BH822",
        "table",
        "    net.train()\n",
        "    net.train()\n    loader = DataLoader(TensorDataset(X[train], y[train]), 40,"
        " shuffle=True, generator=torch.Generator().manual_seed(3))\n",
    ),
    Planted(
        "BH823",
        "sequences",
        "targets.reshape(-1))",
        "targets.reshape(-1).where(torch.rand(targets.numel()) > (0.1 if i % 2 else 0.6), -100))",
    ),
    Planted("BH122", "sequences", "(160, 17)", "(176, 17)"),
    Planted(
        "BH421",
        "table",
        "        optimizer.step()\n",
        "        optimizer.step()\n        other = other if history else"
        " torch.optim.SGD(net.head.parameters(), lr=0.01)\n        net.zero_grad()\n       "
        " F.cross_entropy(net(rows), labels).backward()\n        other.step()\n",
    ),
    Planted("BH601", "table", "net = Net()\n", "net = nn.DataParallel(Net())\n"),
    Planted(
        "BH119",
        "table",
        "    if total < best_loss:\n",
        "    plateau = plateau if epoch else torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer,"
        " patience=9)\n    plateau.step(right / 160)\n    if total < best_loss:\n",
    ),
    Planted(
        "BH119",
        "table",
        "    if total < best_loss:\n",
        "    plateau = plateau if epoch else torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer,"
        " **dict(patience=9))\n    acc = right / 160\n    plateau.step(acc)\n    if total <"
        " best_loss:\n",
    ),
    Planted(
        "BH204",
        "table",
        "            right += (scores",
        "            from sklearn.metrics import roc_auc_score\n            roc_auc_score(labels,"
        " scores[:, 1])\n            right += (scores",
    ),
    Planted(
        "BH825", "table", "return self.head(self.body(x))", "return F.relu(self.head(self.body(x)))"
    ),
    Planted(
        "BH825",
        "regression",
        "return self.head(h).squeeze(1)\n",
        "return torch.sigmoid(self.head(h)).squeeze(1)\n",
    ),
    Planted(
        "BH826",
        "table",
        "        return self.head(self.body(x))\n",
        "        self.seen = getattr(self, 'seen', 0.0) * 0.5 + float(x.mean())\n        return"
        " self.head(self.body(x)) + torch.tensor([0.0, self.seen])\n",
    ),
    Planted("BH427", "table", "net = Net()\n", "net = Net()\nnet.head.requires_grad_(False)\n"),
    Planted(
        "BH808",
        "table",
        "        loss = F.cross_entropy(scores, labels)\n        loss.backward()\n",
        "        loss = F.cross_entropy(scores * 5, labels)\n        (-loss).backward()\n",
    ),
    Planted(
        "BH827",
        "regression",
        "teacher = Curve()\n",
        "teacher = Curve()\nteacher.cell.load_state_dict(teacher.state_dict(), strict=False)\n",
    ),
    Planted("BH407", "table", "net = Net()\n", "net = Net()\nnet.body.requires_grad = False\n"),
    Planted(
        "BH105",
        "regression",
        "optimizer = torch.optim.SGD(model.parameters(), lr",
        "of_norm = torch.optim.SGD(model.norm.parameters(), lr=0.01)\noptimizer ="
        " torch.optim.SGD([*model.cell.parameters(), *model.head.parameters()], lr",
    ),
    Planted(
        "BH707",
        "regression",
        "model.eval()\n",
        "import io\nfile = io.BytesIO()\ntorch.save({'net': model.state_dict(), 'epoch': epoch},"
        " file)\nfile.seek(0)\nmodel ="
        " Curve()\nmodel.load_state_dict(torch.load(file)['net'])\noptimizer ="
        " torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)\nfor x, target in loader:\n   "
        " optimizer.zero_grad()\n    ((model(x) - target) ** 2).mean().backward()\n   "
        " optimizer.step()\nmodel.eval()\n",
    ),
    Planted(
        "BH820",
        "table",
        "X = (X - mean) / std",
        "X = X * 30 + 200\nX[train] = (X[train] - X[train].mean(0)) / X[train].std(0)",
    ),
    *PLANTED_OF_DATA,
    *PLANTED_OF_PARTS,
    *PLANTED_OF_SAMPLES,
    *PLANTED_OF_LENGTHS,
    *PLANTED_OF_FRAMES,
    *PLANTED_OF_ARRAYS,
    *PLANTED_OF_MEMBERS,
    *PLANTED_OF_ORDERS,
    *PLANTED_OF_TOKENS,
    *PLANTED_OF_UPDATES,
    *PLANTED_OF_COUNTS,
    *PLANTED_OF_STAGES,
    *PLANTED_OF_STREAMS,
    *PLANTED_OF_SWAPS,
    *PLANTED_OF_AXES,
    *PLANTED_OF_LOSSES,
    *PLANTED_OF_HALVES,
    *PLANTED_OF_OPPONENTS,
    *PLANTED_OF_PAIRS,
    *PLANTED_OF_RANKINGS,
    *PLANTED_OF_WINDOWS,
    *PLANTED_OF_TRAINERS,
)

GAN = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
judge = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_maker, of_judge = (torch.optim.Adam(n.parameters(), lr=1e-3, betas=(0.5, 0.999)) for n in (maker, judge))
still = torch.randn(16, 4)
for step in range(40):
    angle = torch.rand(32) * 6.28
    real = torch.stack([angle.cos(), angle.sin()], 1)
    fake = maker(torch.randn(32, 4))
    judge.zero_grad()
    F.binary_cross_entropy_with_logits(judge(real), torch.ones(32, 1)).backward()
    F.binary_cross_entropy_with_logits(judge(fake.detach()), torch.zeros(32, 1)).backward()
    of_judge.step()
    maker.zero_grad()
    F.binary_cross_entropy_with_logits(judge(fake), torch.ones(32, 1)).backward()
    of_maker.step()
    if step % 20 == 19:
        with torch.no_grad():
            shown = maker(still)
"""

TEACHER = """
import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(320, 5)
y = (X[:, 0] > 0).long()
student = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
for epoch in range(3):
    student.train()
    for x, label in DataLoader(TensorDataset(X[:256], y[:256]), 32, shuffle=True):
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        scores = student(x)
        loss = F.cross_entropy(scores, label) + ((scores.softmax(1) - wanted) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), student.parameters()):
                a.lerp_(b, 0.1)
    student.eval()
    for layer in student.modules():
        if isinstance(layer, nn.Dropout):
            layer.train()
    with torch.no_grad():
        drawn = torch.stack([student(X[256:]).softmax(1) for _ in range(4)]).mean(0)
        print((drawn.argmax(1) == y[256:]).float().mean())
"""

TUNING = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
X = torch.randn(200, 3)
y = X.sum(1, keepdim=True) + 0.1 * torch.randn(200, 1)
body = nn.Sequential(nn.Linear(3, 12), nn.Tanh())
body.requires_grad_(False)
head = nn.Linear(12, 1)
nn.init.zeros_(head.weight)
optimizer = torch.optim.LBFGS(head.parameters(), max_iter=5)


def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(head(body(X[:150])), y[:150])
    loss.backward()
    return loss


for _ in range(12):
    optimizer.step(closure)
    head.eval()
    with torch.no_grad():
        print(F.mse_loss(head(body(X[:150])), y[:150]), F.mse_loss(head(body(X[150:])), y[150:]))
    head.train()
"""

ODD = """
from dataclasses import dataclass
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

torch.manual_seed(0)


@dataclass
class Answer:
    scores: Tensor
    hidden: Tensor


class Pairs(IterableDataset):
    def __iter__(self):
        for _ in range(30):
            words = torch.randint(0, 40, (16, 5))
            yield {"words": words, "label": (words[:, 0] > 20).long()}


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 8, sparse=True)
        self.head = nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, *, words):
        hidden = self.table(words).mean(1)
        return Answer(self.head(hidden) * self.scale, hidden)


class Signed(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


net = Words()
optimizers = [torch.optim.SparseAdam(net.table.parameters()), Signed([*net.head.parameters(), net.scale], lr=1e-3)]
for batch in DataLoader(Pairs(), batch_size=None):
    for optimizer in optimizers:
        optimizer.zero_grad()
    F.cross_entropy(net(words=batch["words"]).scores, batch["label"]).backward()
    for optimizer in optimizers:
        optimizer.step()
"""

KEPT_BY_HELPERS = TABLE.replace(
    "import copy\n",
    "import copy\nfrom torch.distributed.checkpoint.state_dict import get_model_state_dict,"
    " set_model_state_dict\n",
    1,
)
KEPT_BY_HELPERS = KEPT_BY_HELPERS.replace(
    "copy.deepcopy(net.state_dict())", "copy.deepcopy(get_model_state_dict(net))"
)
KEPT_BY_HELPERS = KEPT_BY_HELPERS.replace(
    "net.load_state_dict(best)", "set_model_state_dict(net, best)"
)
NOAM = TABLE.replace("lr=3e-3)", "lr=1.0)").replace(
    "CosineAnnealingLR(optimizer, T_max=4)",
    "LambdaLR(optimizer, lambda epoch: 0.004 / (epoch + 1))",
)
BESIDE_UNTRAINED = (
    TABLE
    + """
untrained = Net().eval()
with torch.no_grad():
    print("untrained", sum((untrained(rows).argmax(1) == labels).sum().item() for rows, labels in held_out))
"""
)
PER_ROW = (
    TABLE
    + """
net.eval()
of_rows = torch.func.vmap(lambda row: torch.func.functional_call(net, dict(net.named_parameters()) | dict(net.named_buffers()), (row[None],))[0])
with torch.no_grad():
    print(of_rows(X[test]).argmax(1).eq(y[test]).float().mean())
"""
)

FIRST_WEIGHTS_AGAIN = (
    TABLE.replace("net = Net()\n", "net = Net()\nfirst = copy.deepcopy(net.state_dict())\n", 1)
    + "net.load_state_dict(first)\nprint(sum(p.sum() for p in net.parameters()))\n"
)

SOUND = {
    "first_weights_again": FIRST_WEIGHTS_AGAIN,
    "kept_by_helpers": KEPT_BY_HELPERS,
    "noam": NOAM,
    "beside_untrained": BESIDE_UNTRAINED,
    "per_row": PER_ROW,
    "gan": GAN,
    "teacher": TEACHER,
    "tuning": TUNING,
    "odd": ODD,
    **SOUND_OF_DATA,
    **SOUND_OF_PARTS,
    **SOUND_OF_SAMPLES,
    **SOUND_OF_LENGTHS,
    **SOUND_OF_FRAMES,
    **SOUND_OF_ARRAYS,
    **SOUND_OF_MEMBERS,
    **SOUND_OF_TOKENS,
    **SOUND_OF_UPDATES,
    **SOUND_OF_COUNTS,
    **SOUND_OF_STAGES,
    **SOUND_OF_STREAMS,
    **SOUND_OF_SWAPS,
    **SOUND_OF_AXES,
    **SOUND_OF_LOSSES,
    **SOUND_OF_HALVES,
    **SOUND_OF_OPPONENTS,
    **SOUND_OF_PAIRS,
    **SOUND_OF_RANKINGS,
    **SOUND_OF_WINDOWS,
    **SOUND_OF_TRAINERS,
}

RANKS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(0)
X = torch.randn(640, 6, generator=generator)
rows, held_out = random_split(TensorDataset(X, (X[:, 0] > 0).long()), [480, 160], generator=generator)
sampler = DistributedSampler(rows)
loader = DataLoader(rows, batch_size=40, sampler=sampler)
net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        right = sum((net.module(x).argmax(1) == y).sum() for x, y in DataLoader(held_out, batch_size=40))
    net.train()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(total / dist.get_world_size())
dist.destroy_process_group()
"""

OF_RANKS = (
    (
        "BH824",
        "        optimizer.step()\n",
        "        if not [False, True][dist.get_rank()]:\n            optimizer.step()\n",
    ),
    (
        "BH878",
        "nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))",
        (
            "nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))\nnet.module[0].extra ="
            " nn.Linear(2, 2)\nnet = DistributedDataParallel(net.module)"
        ),
    ),
    (
        "BH879",
        "for x, y in DataLoader(held_out, batch_size=40)",
        (
            "for x, y in DataLoader(torch.utils.data.Subset(rows.dataset, held_out.indices[:157]),"
            " batch_size=40, sampler=DistributedSampler(held_out.indices[:157], shuffle=False))"
        ),
    ),
    (
        "BH604",
        "    dist.all_reduce(total)\n    if dist.get_rank() == 0:\n",
        "    if dist.get_rank() == 0:\n        dist.all_reduce(total)\n",
    ),
    ("BH824", "F.cross_entropy(net(x), y)", "F.cross_entropy(net.module(x), y)"),
    ("BH513", "sampler=sampler)", "sampler=torch.randperm(480, generator=generator).tolist())"),
    (
        "BH619",
        "    dist.all_reduce(total)\n",
        "    if [False, True][dist.get_rank()]:\n        break\n",
    ),  # that reading cannot tell of
    (
        "BH803",
        "generator=generator)\nsampler",
        "generator=torch.Generator().manual_seed(dist.get_rank()))\nsampler",
    ),
)

SHARDED = (
    RANKS.replace(
        "from torch.nn.parallel import DistributedDataParallel\n",
        "from torch.distributed.fsdp import fully_shard\n",
    )
    .replace(
        "net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8,"
        " 2)))\n",
        "torch.manual_seed(0)\nnet = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8,"
        " 1))\nfor layer in (net[0], net[2], net):\n    fully_shard(layer)\n",
    )
    .replace(
        "F.cross_entropy(net(x), y)",
        "F.binary_cross_entropy_with_logits(net(x).squeeze(1), y.float()) / 2",
    )
    .replace("net.module(x).argmax(1) == y", "(net(x).squeeze(1) > 0) == y")
    .replace("        optimizer.zero_grad()\n", "")
    .replace("    for x, y in loader:\n", "    for batch, (x, y) in enumerate(loader):\n")
    .replace(
        "        optimizer.step()\n",
        "        if batch % 2:\n            optimizer.step()\n            optimizer.zero_grad()\n",
    )
)  # the last layer has one output: its weight is on one rank alone

SPREAD = "for layer in (net[0], net[2], net):\n    fully_shard(layer)\n"
MADE = "optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)\n"
OF_SHARDED = (
    ("BH513", "sampler=sampler)", "sampler=torch.randperm(480, generator=generator).tolist())"),
    ("BH415", SPREAD + MADE, MADE + SPREAD),
    (
        "BH101",
        "            optimizer.zero_grad()\n",
        "            optimizer.zero_grad() if epoch > 1 else None\n",
    ),
)
