"""Calls that reduce over ranks."""

from __future__ import annotations

from training.review.rules.distributed import COLLECTIVES

REDUCES = COLLECTIVES - {"barrier", "broadcast", "broadcast_object_list"} | {
    "synchronize_between_processes",
    "gather_for_metrics",
    "reduce_dict",
    "all_gather_into_tensor",
    "all_reduce_dict",
    "synchronize",
    "sync",
    "reduce_tensor",
}
