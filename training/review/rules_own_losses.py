"""Rules BH324: to BH326: losses that are written out and turned round: an overlap that is made
small, a quantile from the other end, far neighbours pulled near.
"""

from __future__ import annotations

TWO, FOUR = 2, 4  # sides of a pair; names of two crossed pairs
FAR, NEAR = (
    {"negative", "negatives", "neg", "negs", "dissimilar"},
    {
        "positive",
        "positives",
        "pos",
        "similar",
    },
)
