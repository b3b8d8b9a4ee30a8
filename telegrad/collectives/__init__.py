"""Collective operations on arrays, between the workers of a job or some of them."""

from __future__ import annotations

from telegrad.collectives.api.barriers import barrier, monitored_barrier
from telegrad.collectives.api.coalescing import coalesced
from telegrad.collectives.api.exchanges import (
    all_gather,
    all_gather_single,
    all_to_all,
    all_to_all_single,
    broadcast,
    gather,
    scatter,
)
from telegrad.collectives.api.groups import (
    destroy_process_group,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    shrink_group,
    split_group,
    world_group,
)
from telegrad.collectives.api.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from telegrad.collectives.api.point_to_point import (
    P2POp,
    batch_isend_irecv,
    irecv,
    isend,
    recv,
    send,
)
from telegrad.collectives.api.reductions import (
    all_reduce,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
)
from telegrad.collectives.api.tuning import tune
from telegrad.collectives.backends import MessageBackend
from telegrad.collectives.groups.process_group import GroupStatistics, ProcessGroup
from telegrad.collectives.link import Backend, Link
from telegrad.collectives.reduction import ReduceOp
from telegrad.collectives.select import Thresholds
from telegrad.collectives.work import Work

__all__ = [
    "Backend",
    "GroupStatistics",
    "Link",
    "MessageBackend",
    "P2POp",
    "ProcessGroup",
    "ReduceOp",
    "Thresholds",
    "Work",
    "all_gather",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "coalesced",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "irecv",
    "is_initialized",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "shrink_group",
    "split_group",
    "tune",
    "world_group",
]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
