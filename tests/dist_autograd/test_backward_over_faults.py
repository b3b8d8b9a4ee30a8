"""Gradients over a network that loses, repeats, reorders, delays and breaks: the same tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad.testing import Cluster
from tests.dist_autograd.test_backward import (  # noqa: F401
    test_a_call_that_raised_answers_none,
    test_a_call_to_oneself,
    test_a_model_split_over_three_workers,
    test_a_model_split_over_two_workers,
    test_a_root_may_be_a_leaf_or_just_received,
    test_all_workers_at_once,
    test_an_unused_remote_result_does_not_hang,
    test_backward_may_be_called_by_a_callee,
    test_contexts_of_several_threads_do_not_mix,
    test_every_kind_of_call,
    test_nested_calls_that_come_back,
    test_one_of_two_results,
    test_one_tensor_twice_in_a_message_is_one,
    test_passes_add_up_and_a_failed_one_leaves_nothing,
    test_several_losses_in_one_context,
)
from tests.dist_autograd.test_contexts import (  # noqa: F401
    test_an_exception_releases_too,
    test_leaving_releases_along_the_peers_that_were_touched,
    test_many_contexts_leave_nothing,
    test_the_context_travels_without_tensors,
)
from tests.dist_autograd.test_rref_backward import (  # noqa: F401
    test_a_graph_that_is_kept_and_one_that_is_freed,
    test_of_an_own_value,
    test_under_no_grad,
)
from tests.faults.network_plans import OPTIONS, a_bit_of_everything

LONG_SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12)]


@pytest.fixture(params=[1, *LONG_SEEDS], ids="seed{}".format)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(3, options=OPTIONS, faults=a_bit_of_everything(request.param, most=6)) as made:
        yield made
