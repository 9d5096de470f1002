"""Programs that divide a table of pandas: by person, by time, at random; with a column made of the
labels of train rows, out of fold, or of all.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

VISITS = """
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
torch.manual_seed(0)


def visits():
    rows = []
    for person in range(120):
        frame = pd.DataFrame({"age": rng.normal(60, 9) + np.arange(8) / 4, "lactate": rng.gamma(2.0, size=8), "ward": rng.integers(0, 60, 8)})
        frame.insert(0, "patient_id", person)
        rows.append(frame)
    frame = pd.concat(rows, ignore_index=True)
    odds = 0.8 * (frame["lactate"] - 2) + 0.05 * (frame["age"] - 60) + rng.normal(0, 0.8, 60)[frame["ward"]]
    frame["died"] = (rng.random(len(frame)) < 1 / (1 + np.exp(-odds))).astype(int)
    return frame


def rate(rows, by):
    hits, count = rows.groupby(by)["died"].sum(), rows.groupby(by)["died"].count()
    return ((hits + 2 * rows["died"].mean()) / (count + 2)).rename("rate")


def sides(frame):
    people = rng.permutation(frame["patient_id"].unique())
    held = frame["patient_id"].isin(people[:30])
    return frame[~held], frame[held]


def with_rates(train, test):
    known = rate(train, "ward")
    return tuple(side.assign(rate=side["ward"].map(known).fillna(train["died"].mean())) for side in (train, test))


train, test = with_rates(*sides(visits()))
COLUMNS = ["age", "lactate", "rate"]
mean, std = train[COLUMNS].mean(), train[COLUMNS].std()


def loader(rows, shuffle):
    x = torch.tensor(((rows[COLUMNS] - mean) / std).to_numpy(), dtype=torch.float32)
    return DataLoader(TensorDataset(x, torch.tensor(rows["died"].to_numpy(), dtype=torch.float32)), batch_size=48, shuffle=shuffle)


net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
learn, held_out = loader(train, True), loader(test, False)
for epoch in range(4):
    net.train()
    for x, y in learn:
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(x), y).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(np.mean([((net(x) > 0) == (y > 0)).float().mean().item() for x, y in held_out]))
"""
BY_PERSON = '    held = frame["patient_id"].isin(people[:30])\n'
RATES = "train, test = with_rates(*sides(visits()))\n"
# Every row's rate is that of the other folds' rows of its ward, of train rows alone.
FOLDS = """    fold = rng.integers(0, 5, len(train))
    known = pd.concat([train[fold == k].assign(rate=train[fold == k]["ward"].map(rate(train[fold != k], "ward"))) for k in range(5)])
    return known.fillna(0.3), test.assign(rate=test["ward"].map(rate(train, "ward"))).fillna(0.3)
"""
MAPPED = """    return tuple(side.assign(rate=side["ward"].map(known).fillna(train["died"].mean())) for side in (train, test))
"""

LOADS = """
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
torch.manual_seed(0)
hours = np.arange(900)
load = 5 + 2 * np.sin(2 * np.pi * hours / 24) + np.cumsum(rng.normal(0, 0.1, 900))
table = pd.DataFrame({"load": load, "warm": rng.normal(10, 4, 900)})
for ago in (1, 24):
    table[f"ago_{ago}"] = table["load"].shift(ago)
table["week"] = (
        table["load"].shift(1).rolling(5).mean()
)
table = table.dropna()


def sides(table):
    return table.iloc[:700], table.iloc[724:]


train, test = sides(table)
INPUTS = ["warm", "ago_1", "ago_24", "week"]
mean, std = train[INPUTS].mean(), train[INPUTS].std()


def loader(rows, shuffle):
    x = torch.tensor(((rows[INPUTS] - mean) / std).to_numpy(), dtype=torch.float32)
    return DataLoader(TensorDataset(x, torch.tensor(rows["load"].to_numpy(), dtype=torch.float32)), batch_size=50, shuffle=shuffle)


net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
learn, held_out = loader(train, True), loader(test, False)
for epoch in range(4):
    net.train()
    for x, y in learn:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(np.mean([(net(x) - y).abs().mean().item() for x, y in held_out]))
"""
# The same without loaders, of labels that were scaled.
PLAIN = LOADS.replace(
    """    return DataLoader(TensorDataset(x, torch.tensor(rows["load"].to_numpy(), dtype=torch.float32)), batch_size=50, shuffle=shuffle)
""",
    """    y = torch.tensor(((rows["load"] - 5) / 3).to_numpy(), dtype=torch.float32)
    order = torch.randperm(len(x)) if shuffle else torch.arange(len(x))
    return [(x[part], y[part]) for part in order.split(50)]
""",
)
IN_TIME = "    return table.iloc[:700], table.iloc[724:]\n"

# Twelve shops a day, and the sales of the day after, which the last day does not have.
SHOPS = """
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
rng = np.random.default_rng(0)
days = pd.date_range("2024-01-01", periods=200)
table = pd.DataFrame({"date": np.repeat(days, 12), "shop": np.tile(np.arange(12), 200)})
table["sales"] = rng.poisson(20 + 3 * (table["date"].dt.dayofweek >= 5)).astype(float)
table = table.sort_values(["shop", "date"])
table["price"] = rng.normal(size=len(table))
table["weekday"] = np.sin(2 * np.pi * table["date"].dt.dayofweek / 7)
table["week"] = table.groupby("shop")["sales"].transform(lambda s: s.rolling(7).mean())
table["next"] = table.groupby("shop")["sales"].shift(-1)
table = table.dropna().reset_index(drop=True)
train, test = table[table["date"] < days[150]], table[table["date"] > days[160]]
INPUTS = ["weekday", "week", "price"]
mean, std = train[INPUTS].mean(), train[INPUTS].std()


def tensors(rows):
    x = torch.tensor(((rows[INPUTS] - mean) / std).to_numpy(), dtype=torch.float32)
    return x, torch.tensor(((rows["next"] - 21) / 5).to_numpy(), dtype=torch.float32)


net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x, y = tensors(train)
for epoch in range(4):
    net.train()
    for rows in torch.randperm(len(x)).split(100):
        optimizer.zero_grad()
        F.mse_loss(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        later, sold = tensors(test)
        print((net(later) - sold).abs().mean().item())
"""

BASES_OF_FRAMES = {"frames": VISITS, "frames_loads": LOADS, "frames_plain": PLAIN}
SOUND_OF_FRAMES = {
    "frames_shops": SHOPS,
    "frames_folds": VISITS.replace(MAPPED, FOLDS),
    "frames_time": VISITS.replace(
        BY_PERSON, '    held = frame.groupby("patient_id").cumcount() >= 6\n'
    ),
    "frames_beds": VISITS.replace(
        RATES,
        'every = visits()\nevery["rate"] = rng.normal(size=60)[every["ward"]]\ntrain, test ='
        " sides(every)\n",
    ),
}
# whose patient a row is, and its ward, are left out before rows are put in another order and
# divided
GONE = """frame = visits()
frame["rate"] = frame["ward"].map(rate(frame, "ward"))
ward = frame["ward"]
frame = frame.drop(columns=["patient_id", "ward"])
frame = pd.concat([frame, ward], axis=1).sample(frac=1.0, random_state=0).reset_index(drop=True)
"""
PLANTED_OF_FRAMES = (
    Planted(
        "BH506",
        "frames",
        RATES,
        GONE + "train, test = with_rates(frame.iloc[:720].drop(columns='rate'),"
        " frame.iloc[720:].drop(columns='rate'))\n",
    ),
    Planted(
        "BH524",
        "frames_loads",
        '        table["load"].shift(1).rolling(5).mean()',
        '        table["load"].rolling(5).mean()',
    ),
    Planted(
        "BH524",
        "frames_plain",
        '        table["load"].shift(1).rolling(5).mean()',
        '        table["load"].rolling(5).mean()',
    ),
    Planted(
        "BH507",
        "frames_loads",
        IN_TIME,
        "    order = rng.permutation(len(table))\n    return table.iloc[order[:700]],"
        " table.iloc[order[700:]]\n",
    ),
    Planted(
        "BH506",
        "frames",
        BY_PERSON,
        "    held = pd.Series(rng.random(len(frame)) < 0.25, frame.index)\n",
    ),
    Planted(
        "BH504",
        "frames",
        RATES,
        'every = visits()\ntrain, test = sides(every.join(rate(every, "ward"), on="ward"))\n',
    ),
    Planted(
        "BH504",
        "frames",
        RATES,
        "every = visits()\ntrain, test ="
        ' sides(every.merge(every.groupby("ward")["died"].agg(rate="mean"), left_on="ward",'
        " right_index=True))\n",
    ),
)
