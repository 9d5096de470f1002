"""Vectors of molecules: a layer over Morgan bits, and messages between bonded atoms.

Arrays are those of `training.data.serving_expressions.molecules`, as numbers of any type. B rows, A
atoms, H width of an atom, E size of the vector, R orders of a bond.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.smiles_config import FingerprintEncoder, GraphEncoder
from training.models.inputs import init_linear_

# of `training.data.serving_expressions.molecules`, which a rank does not import; a test compares
BITS, PACKED, NEIGHBOURS = 2048, 256, 6
ATOM_CODES = (17, 9, 6, 6, 7, 5, 4, 8)
BOND_CODES = 61
ATOM = len(ATOM_CODES)
ORDERS, OF_ORDER = 3, 12  # single, multiple, aromatic; codes of bonds of one type
WIDTH = ATOM + 2 * NEIGHBOURS
FIRST_STD = 0.1


class Missing(nn.Embedding):
    """A learned vector in place of that of a row without a molecule.

    The other row of the table is a bias of all molecules.
    """

    def __init__(self, size: int) -> None:
        super().__init__(2, size)
        with torch.no_grad():
            self.weight.mul_(FIRST_STD)

    def forward(self, vectors: Tensor, present: Tensor) -> Tensor:
        """Map vectors [B, E] and which rows have a molecule, bool [B] → [B, E]."""
        kept = torch.where(present.unsqueeze(1), vectors, torch.zeros_like(vectors))
        return kept + super().forward(present.long())


class Fingerprint(nn.Module):
    """A linear layer over the bits, or over log(1 + count), with dropout: [B, 2048] → [B, E]."""

    def __init__(self, config: FingerprintEncoder) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(BITS, config.size), nn.Dropout(config.dropout)
        init_linear_(self.layer)
        # some 50 of 2,048 bits are set: a layer for inputs of variance 1 would start too small
        with torch.no_grad():
            self.layer.weight.mul_(4.0)
        self.missing = Missing(config.size)

    def forward(self, bits: Tensor) -> Tensor:
        """Map bits or counts [B, 2048] → vectors [B, E]."""
        present = (bits != 0).any(dim=1)
        scaled = torch.log2(1 + bits.clamp(min=0))  # a bit stays 1
        return self.missing(self.dropout(F.relu(self.layer(scaled))), present)


class Graph(nn.Module):
    """Message passing: an atom gets, in each step, what its neighbours and their bonds say.

    h'_v = h_v + MLP(norm(h_v + sum over neighbours u of (g_uv * h_u + e_uv))), with learned e for
    each kind of bond and g for its order. Sums are products with adjacency matrices, so that their
    gradients add in a fixed order too. Atoms beyond the molecule are masked, so its length does
    not matter; neither does the order of the atoms.

    Source: Hu et al. 2020, arXiv:1905.12265, app. A (GIN with bonds); Schlichtkrull et al. 2018,
    arXiv:1703.06103, eq. 2 (a weight for each relation, here a diagonal one).
    """

    def __init__(self, config: GraphEncoder, atoms: int) -> None:
        super().__init__()
        self.atoms, width = atoms, config.width
        starts = [sum(ATOM_CODES[:i]) for i in range(ATOM)]
        self.register_buffer("starts", torch.tensor(starts), persistent=False)
        self.register_buffer("most", torch.tensor(ATOM_CODES) - 1, persistent=False)
        self.atom = nn.Linear(sum(ATOM_CODES), width)
        self.bonds = nn.ModuleList(
            nn.Linear(BOND_CODES, width, bias=False) for _ in range(config.steps)
        )
        self.gates = nn.Parameter(torch.ones(config.steps, ORDERS, 1, width))
        self.steps = nn.ModuleList(Step(width, config.dropout) for _ in range(config.steps))
        self.norm = nn.LayerNorm(2 * width)
        self.out = nn.Linear(2 * width, config.size)
        self.missing = Missing(config.size)
        for layer in (self.atom, *self.bonds):  # a few of the inputs are 1, the others 0
            nn.init.normal_(layer.weight, std=ATOM**-0.5)
        nn.init.zeros_(self.atom.bias)
        init_linear_(self.out)

    def forward(self, rows: Tensor) -> Tensor:
        """Map packed bits and atoms [B, 256 + 20 A] → vectors [B, E]."""
        kind = self.atom.weight.dtype
        codes = rows[:, PACKED:].long().clamp(min=0).unflatten(1, (self.atoms, WIDTH))
        # codes that no molecule has are taken for the nearest one
        kinds = torch.minimum(codes[:, :, :ATOM], self.most)
        near = codes[:, :, ATOM : ATOM + NEIGHBOURS].clamp(max=self.atoms)
        bonds = codes[:, :, ATOM + NEIGHBOURS :].clamp(max=BOND_CODES - 1)
        present = (kinds[:, :, :1] > 0).to(kind)  # [B, A, 1]
        near, bonds = (x * (kinds[:, :, :1] > 0) for x in (near, bonds))
        between = self._adjacency(near, bonds, kind)  # [B, R A, A]
        counts = _counted(bonds, BOND_CODES, kind)
        counts = torch.cat([torch.zeros_like(counts[:, :, :1]), counts[:, :, 1:]], dim=2)
        blank = torch.zeros(*codes.shape[:2], self.atom.in_features, dtype=kind, device=rows.device)
        atoms = self.atom(blank.scatter(2, kinds + self.starts, 1.0)) * present
        for step, table, gate in zip(self.steps, self.bonds, self.gates, strict=True):
            said = torch.bmm(between, atoms).unflatten(1, (ORDERS, self.atoms))
            atoms = step(atoms, (said * gate).sum(dim=1) + table(counts)) * present
        count, total = present.sum(dim=1), atoms.sum(dim=1)
        pooled = torch.cat([total / count.clamp(min=1), total / 8], dim=1)
        return self.missing(self.out(self.norm(pooled)), (count > 0).squeeze(1))

    def _adjacency(self, near: Tensor, bonds: Tensor, kind: torch.dtype) -> Tensor:
        """Return which atoms are bonded in each order: neighbours [B, A, 6] → [B, R A, A]."""
        order = torch.where(near > 0, (bonds - 1).clamp(min=0) // OF_ORDER + 1, 0)
        blank = torch.zeros(*near.shape[:2], self.atoms + 1, dtype=order.dtype, device=near.device)
        found = blank.scatter(2, near, order)[:, :, 1:]  # [B, A, A]
        return torch.cat(
            [(found == 1) | (found == 5), (found == 2) | (found == 3), found == 4], dim=1
        ).to(kind)


def _counted(codes: Tensor, most: int, kind: torch.dtype) -> Tensor:
    """Return how often each code occurs: [B, A, n] → [B, A, most]."""
    known = torch.arange(most, device=codes.device)
    return (codes.unsqueeze(3) == known).to(kind).sum(dim=2)


class Step(nn.Module):
    """The network of one step: atoms and sums of messages [B, A, H] → atoms [B, A, H]."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        init_linear_(self.inner)
        init_linear_(self.outer)

    def forward(self, atoms: Tensor, messages: Tensor) -> Tensor:
        """Return the atoms with what was added to them."""
        inner = F.relu(self.inner(self.norm(atoms + messages)))
        return atoms + self.dropout(self.outer(inner))


def unpacked(rows: Tensor) -> Tensor:
    """Return the bits of a graph's or a tokens' array: [B, 256 + ...] → float [B, 2048]."""
    places = torch.arange(8, device=rows.device)
    bits = (rows[:, :PACKED].to(torch.int64).unsqueeze(2) >> places) & 1
    return bits.flatten(1).float()
