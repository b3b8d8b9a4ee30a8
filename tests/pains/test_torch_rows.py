"""Rows of docs/coming-from-torch.md that no other test shows: what torch has and telegrad refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import rendezvous
from telegrad.rendezvous import MemoryStore
from telegrad.testing import Cluster
from tests.collectives import remote_code

NAMES = {
    dist: """AllreduceOptions Backend.register_backend BackendConfig DebugLevel DistBackendError DistError
        DistNetworkError DistStoreError GroupMember breakpoint get_backend get_backend_config
        get_debug_level get_default_backend_for_device get_pg_count group is_available
        is_backend_available is_gloo_available is_nccl_available is_torchelastic_launched record_comm
        reduce_op rendezvous set_debug_level supports_complex _ControlCollectives _StoreCollectives
        _abort_process_group _add_ephemeral_timeout_for_all_pgs _dump_fr_trace _set_pg_timeout
        _time_estimator ProcessGroup.merge_remote_group ProcessGroup.set_timeout
        ProcessGroup.shutdown Work.block_current_stream Work.boxed Work.synchronize""",
    rendezvous: """Store.has_extended_api Store.set_timeout Store.barrier HashStore
        PrefixStore.underlying_store rendezvous register_rendezvous_handler""",
}


@pytest.mark.parametrize("face", NAMES, ids=lambda face: face.__name__)
def test_names_of_torch_are_not_there(face: Any) -> None:
    for name in NAMES[face].split():
        *outer, last = name.split(".")
        thing = face
        for part in outer:
            thing = getattr(thing, part)
        assert not hasattr(thing, last), name


def with_arguments_of_torch() -> None:
    verbs: Any = dist
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: verbs.init_process_group(store=MemoryStore()), "unexpected keyword.*'store'"),
        (lambda: verbs.init_process_group(pg_options=None), "unexpected keyword.*'pg_options'"),
        (lambda: verbs.init_process_group(device_id=0), "unexpected keyword.*'device_id'"),
        (lambda: verbs.init_process_group(group_name=""), "unexpected keyword.*'group_name'"),
        (
            lambda: verbs.init_process_group(timeout=timedelta(1)),
            "timeout must be a number of seconds",
        ),
    ]
    for call, words in refused:
        with pytest.raises(TypeError, match=words):
            call()
    r = remote_code.begin()
    array = np.ones(2)
    refused = [
        (lambda: verbs.broadcast(array, group_src=0), "unexpected keyword.*'group_src'"),
        (lambda: verbs.reduce(array, group_dst=0), "unexpected keyword.*'group_dst'"),
        (lambda: verbs.send(array, group_dst=1 - r), "argument.*'(group_dst|dst)'"),
        (
            lambda: verbs.all_reduce(array, timeout=timedelta(seconds=1)),
            "timeout must be a number of seconds",
        ),
        (
            lambda: verbs.new_group([0, 1], timeout=timedelta(1)),
            "timeout must be a number of seconds",
        ),
        (lambda: verbs.barrier(timeout=timedelta(1)), "timeout must be a number of seconds"),
        (
            lambda: verbs.P2POp(dist.isend, array, group_peer=1 - r),
            "unexpected keyword.*'group_peer'",
        ),
        (lambda: verbs.new_group([0, 1], sort_ranks=False), "unexpected keyword.*'sort_ranks'"),
        (
            lambda: verbs.new_group([0, 1], use_local_synchronization=True),
            "unexpected keyword.*'use_local_synchronization'",
        ),
        (lambda: verbs.new_group([0, 1], group_desc="a"), "unexpected keyword.*'group_desc'"),
        (lambda: verbs.shrink_group(shrink_flags=0), "unexpected keyword.*'shrink_flags'"),
        (
            lambda: verbs.send_object_list([1], 1 - r, use_batch=True),
            "unexpected keyword.*'use_batch'",
        ),
    ]
    for call, words in refused:
        with pytest.raises(TypeError, match=words):
            call()
    dist.all_reduce(array)  # none of all that has sent anything
    assert array.tolist() == [2.0, 2.0]


def test_arguments_of_torch_are_refused_in_words() -> None:
    with Cluster(2) as cluster:
        cluster.run(with_arguments_of_torch)
