"""Rules BH624: and BH566: replicas that begin with weights of their own, held-out rows that are
scaled otherwise than those of train.
"""

from __future__ import annotations

OF_TRAIN, OF_OTHERS = (
    {"train", "training", "fit", "tr"},
    {
        "val",
        "valid",
        "validation",
        "test",
        "eval",
        "evaluation",
        "dev",
        "heldout",
        "te",
        "va",
    },
)
