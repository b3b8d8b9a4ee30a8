"""Collective operations on arrays, between the workers of a job or some of them."""

from __future__ import annotations

from telegrad.collectives.api.barriers import barrier
from telegrad.collectives.api.exchanges import all_gather, broadcast
from telegrad.collectives.api.groups import (
    destroy_process_group,
    get_rank,
    get_world_size,
    init_process_group,
    new_group,
    world_group,
)
from telegrad.collectives.api.point_to_point import recv, send
from telegrad.collectives.api.reductions import all_reduce
from telegrad.collectives.process_group import GroupStatistics, ProcessGroup, Work
from telegrad.collectives.reduction import ReduceOp

__all__ = [
    "GroupStatistics",
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "new_group",
    "recv",
    "send",
    "world_group",
]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
