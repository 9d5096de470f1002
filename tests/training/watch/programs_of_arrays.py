"""Programs that divide arrays: a table by person, a series by time; their columns made by numbers of
train rows, of all rows, of the held-out ones.
"""

from __future__ import annotations

from tests.training.watch.programs_of_parts import Planted

FIT = """

def fit(net, loss_of, train, held):
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    sides = [TensorDataset(*(torch.tensor(a, dtype=torch.float32) for a in side)) for side in (train, held)]
    learn, check = DataLoader(sides[0], batch_size=48, shuffle=True), DataLoader(sides[1], batch_size=64)
    for epoch in range(4):
        net.train()
        for x, y in learn:
            optimizer.zero_grad()
            loss_of(net(x).squeeze(1), y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            print(np.mean([loss_of(net(x).squeeze(1), y).item() for x, y in check]))


def network(width):
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))
"""

WHOLE = """values, sick, patient, ward = readings()
train, held = divide(patient)
sides = prepared(values, sick, ward, train, held)
fit(network(sides[0][0].shape[1]), F.binary_cross_entropy_with_logits, *sides)
"""
# Each fold is scaled by the others, so that all of them have mean 0 together; the network learns
# each from the beginning.
IN_FOLDS = (
    """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
torch.manual_seed(0)
"""
    + FIT.replace(
        "        net.eval()\n        with torch.no_grad():\n            print",
        "    net.eval()\n    with torch.no_grad():\n        print",
    )
    + """

values = rng.normal(3, 2, (900, 14))
dry = (values @ rng.normal(size=14) > 0) * 1.0
net = network(14)
start = {name: value.clone() for name, value in net.state_dict().items()}
for held in np.array_split(rng.permutation(900), 5):
    net.load_state_dict(start)
    rest = np.setdiff1d(np.arange(900), held)
    mean, std = values[rest].mean(0), values[rest].std(0)
    fit(net, F.binary_cross_entropy_with_logits, *(((values[rows] - mean) / std, dry[rows]) for rows in (rest, held)))
"""
)

READINGS = (
    """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
torch.manual_seed(0)
"""
    + FIT
    + """

def readings(n=900, people=90):
    patient = rng.integers(0, people, n)
    person = rng.normal(size=(people, 30))
    values = person[patient] * 0.5 + rng.normal(size=(n, 30))
    ward = rng.integers(0, 40, n)
    odds = 1.5 * values[:, 0] + rng.normal(0, 0.7, 40)[ward]
    sick = (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(np.float64)
    values[rng.random(values.shape) < 0.06] = np.nan
    return values, sick, patient, ward


def divide(patient):
    chosen = rng.permutation(90)[:25]
    held = np.isin(patient, chosen)
    return np.flatnonzero(~held), np.flatnonzero(held)


def best_of(values, sick):
    centred = (values - values.mean(0)) / values.std(0)
    return np.argsort(-np.abs(centred.T @ (sick - sick.mean())))[:10]


def prepared(values, sick, ward, train, held):
    middle = np.nanmedian(values[train], axis=0)
    values = np.where(np.isnan(values), middle, values)
    rates = np.array([sick[train][ward[train] == w].mean() for w in range(40)])
    mean, std = values[train].mean(0), values[train].std(0)
    values = (values - mean) / std
    kept = best_of(values[train], sick[train])
    table = np.column_stack([values[:, kept], rates[ward]])
    return (table[train], sick[train]), (table[held], sick[held])


"""
    + WHOLE
)
LEVELS = (
    """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(1)
torch.manual_seed(0)
"""
    + FIT
    + """

def levels(n=1200):
    level, rain = np.zeros(n), rng.gamma(0.4, size=n)
    for hour in range(1, n):
        level[hour] = 0.92 * level[hour - 1] + rain[hour - 1] + rng.normal(0, 0.3)
    return np.arange(n), level, rain


def with_gaps(rain):
    found = rain.copy()
    found[rng.random(len(rain)) < 0.1] = np.nan
    known = ~np.isnan(found)
    last = np.maximum.accumulate(np.where(known, np.arange(len(rain)), 0))
    return np.where(np.isnan(found[last]), 0.0, found[last])


def smoothed(level, width=7):
    padded = np.concatenate([np.full(width - 1, level[0]), level])
    return np.convolve(padded, np.ones(width) / width, "valid")


def columns(level, rain):
    return np.column_stack([level, smoothed(level), with_gaps(rain)]), np.append(level[1:], level[-1])


timestamp, level, rain = levels()
table, ahead = columns(level, rain)
train, held = np.arange(900), np.arange(930, len(table) - 1)
mean, std = table[train].mean(0), table[train].std(0)
table = (table - mean) / std
middle, width = ahead[train].mean(), ahead[train].std()
ahead = (ahead - middle) / width
fit(network(3), F.mse_loss, (table[train], ahead[train]), (table[held], ahead[held]))
"""
)

STAYS = (
    """
import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(3)
torch.manual_seed(0)
"""
    + FIT
    + """

def stays(n=800):
    known = pd.DataFrame({"stay_id": rng.permutation(n) + 500, "severity": rng.normal(size=n)})
    known["died"] = (known["severity"] + rng.normal(0, 0.5, n) > 0.4).astype(int)
    taken = known.loc[rng.integers(0, n, 8 * n), ["stay_id", "severity"]]
    labs = taken.assign(kind=rng.choice(["lactate", "urea", "ph"], len(taken)), value=taken["severity"] + rng.normal(0, 0.6, len(taken)))
    return known, labs


def matrix(known, labs):
    wide = labs.pivot_table(index="stay_id", columns="kind", values="value").dropna()
    known = known[known["stay_id"].isin(wide.index)].set_index("stay_id").loc[wide.index]
    return wide.to_numpy(), known["died"].to_numpy()


def scaled(x_train, x_test):
    mean, std = x_train.mean(0), x_train.std(0)
    return (x_train - mean) / std, (x_test - mean) / std


x_train, x_test, y_train, y_test = train_test_split(*matrix(*stays()), test_size=0.25, random_state=0)
x_train, x_test = scaled(x_train, x_test)
fit(network(3), F.binary_cross_entropy_with_logits, (x_train, y_train), (x_test, y_test))
"""
)

SCALE = "    mean, std = values[train].mean(0), values[train].std(0)\n"
CHOSEN = "    held = np.isin(patient, chosen)\n"
RATES = "[sick[train][ward[train] == w].mean() for w in range(40)]"
DIVIDED = "train, held = np.arange(900), np.arange(930, len(table) - 1)\n"

BASES_OF_ARRAYS = {
    "readings": READINGS,
    "levels": LEVELS,
    "stays": STAYS,
}

SOUND_OF_ARRAYS = {
    "readings_by_folds": READINGS.replace(
        "    return np.flatnonzero(~held), np.flatnonzero(held)\n",
        "    rest = np.flatnonzero(~held)\n    return rest[rng.permutation(len(rest))],"
        " np.flatnonzero(held)\n",
    ),
    "readings_by_ranges": READINGS.replace(
        SCALE, "    mean, std = np.median(values[train], axis=0), np.ptp(values[train], axis=0)\n"
    ),
    "readings_with_ages": READINGS.replace(
        "    ward = rng.integers(0, 40, n)\n",
        "    ward, patient_age = rng.integers(0, 40, n), rng.integers(50, 80, n)\n",
    ),
    # Every number of points has one label, since the label follows from them.
    "readings_of_points": READINGS.replace(
        "    values[rng.random(values.shape) < 0.06] = np.nan\n",
        "    points = rng.integers(0, 60, n)\n    sick, values[:, 1] = (points > 40) * 1.0,"
        " points\n",
    ),
    "in_folds": IN_FOLDS,
    "levels_with_more": LEVELS.replace(
        "def smoothed(level, width=7)", "def smoothed(level, width=12)"
    ),
}

PLANTED_OF_ARRAYS = [
    Planted("BH506", "readings", CHOSEN, "    held = rng.random(len(patient)) < 0.3\n"),
    Planted("BH503", "readings", SCALE, "    mean, std = values.min(0), np.ptp(values, axis=0)\n"),
    Planted("BH504", "readings", RATES, "[sick[ward == w].mean() for w in range(40)]"),
    Planted("BH503", "readings", SCALE, "    mean, std = values.mean(0), values.std(0)\n"),
    Planted(
        "BH502",
        "readings",
        "(table[held], sick[held])",
        "((table[held] - table[held].mean(0)) / table[held].std(0), sick[held])",
    ),
    Planted("BH523", "readings", "best_of(values[train], sick[train])", "best_of(values, sick)"),
    Planted(
        "BH537",
        "stays",
        "    return wide.to_numpy(), ",
        "    values = wide.to_numpy()\n    return values[rng.permutation(len(values))], ",
    ),
    Planted(
        "BH524",
        "levels",
        "smoothed(level), with_gaps",
        "np.append(level[2:], level[-2:]), with_gaps",
    ),
    Planted(
        "BH524",
        "levels",
        "np.concatenate([np.full(width - 1, level[0]), level])",
        "np.pad(level, width // 2, mode='edge')",
    ),
    Planted(
        "BH507",
        "levels",
        DIVIDED,
        "order = rng.permutation(len(table) - 1)\ntrain, held = order[:900], order[900:]\n",
    ),
]
