"""References over a network that loses, repeats, reorders, delays and breaks: the same tests.

Those that neither look at the clock nor count messages.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from telegrad.testing import Cluster
from tests.faults.network.network_plans import OPTIONS, a_bit_of_everything
from tests.rpc.rref.programs import N, gates
from tests.rpc.rref.promises.test_faults import (  # noqa: F401
    test_a_failed_creation,
    test_a_reference_that_is_dropped_at_once,
    test_a_reply_that_nobody_reads_gives_its_forks_back,
    test_an_argument_that_cannot_travel_leaves_nothing,
    test_release,
)
from tests.rpc.rref.test_attributes import (  # noqa: F401
    test_a_stand_in_reads_what_is_no_method,
    test_errors_of_attributes_are_those_of_the_owner,
    test_the_other_stand_ins_read_with_empty_parentheses,
)
from tests.rpc.rref.test_confirmation import test_what_arrives_is_confirmed  # noqa: F401
from tests.rpc.rref.test_rref import (  # noqa: F401
    test_a_parked_fetch_blocks_no_thread,
    test_a_reference_travels_before_its_value_exists,
    test_a_value_made_by_remote,
    test_a_value_of_its_own_owner,
    test_coroutines_make_values_and_await_them,
    test_many_threads_share_and_drop,
    test_methods_of_every_kind,
    test_rrefs_as_arguments_and_results,
)
from tests.rpc.rref.test_travels import (  # noqa: F401
    test_in_every_container_there_and_back,
    test_in_values_that_are_referred_to,
)

LONG_SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12)]


@pytest.fixture(params=[1, *LONG_SEEDS], ids="seed{}".format)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    gates.clear()
    with Cluster(N, options=OPTIONS, faults=a_bit_of_everything(request.param, most=6)) as made:
        yield made
