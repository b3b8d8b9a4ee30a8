"""The promise of a session over a network that drops, delays, repeats, reorders and breaks.

The tests are those of `test_promise.py`, but for what they say of a sound network (how often one
dials, which of two arrives first) and what they ask of a clock that stands: a message that is
lost at the end of all others is missed when the next heartbeat comes, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import pytest

from telegrad.testing import Fault, FaultPlan, FaultRule, FaultyNetwork, FaultyTransport
from telegrad.transport import Transport
from tests.transport.promises.test_promise import (  # noqa: F401
    test_a_big_document_and_big_externals,
    test_a_conversation,
    test_a_goodbye_follows_what_was_posted_and_is_a_loss_with_its_reason,
    test_a_loss_lets_go_of_what_was_posted,
    test_a_refused_dial_is_a_loss,
    test_all_leave_at_once,
    test_an_envelope_arrives_whole,
    test_another_incarnation_is_a_loss,
    test_both_directions_at_once_from_many_threads,
    test_buffers_of_every_size,
    test_either_side_dials_again,
    test_leaving_one_peer_keeps_the_others,
    test_what_was_posted_before_an_endpoint_was_known_leaves_then,
)
from tests.transport.workers import SECONDS, Floor, Worker, wait_until

# Five beats in it: how soon a message that was lost at the end is missed, 0.3 s.
LOST_AFTER = 1.5
# Each loss at the end costs a beat; a test of 100 messages in a row has to end.
MOST = 6

PLANS: dict[str, dict[str, Any]] = {
    "drop": {"drop": 0.1, "most": MOST},
    # A chunk that comes twice ends its stream: of a hundred in a row one always would.
    "duplicate": {"duplicate": 0.1, "most": 4 * MOST},
    "reorder": {"reorder": 0.1, "most": MOST},
    "kill": {"kill": 0.1, "most": 4 * MOST},
    "delay": {"delay": 0.3, "longest_delay": 0.005},
    "all": {
        "drop": 0.03,
        "delay": 0.1,
        "duplicate": 0.03,
        "reorder": 0.03,
        "kill": 0.05,
        "most": MOST,
    },
}
FAST = [("inproc", "all", 1), ("grpc", "all", 1)]
LONG = [(kind, name, s) for kind in ("inproc", "grpc") for name in PLANS for s in range(1, 6)]


@final
class FaultyFloor(Floor):
    """Makes workers over a faulty network; whoever is silent is given up soon."""

    def __init__(self, kind: str, plan: FaultPlan) -> None:
        super().__init__(kind)
        self.network = FaultyNetwork(plan)

    def transport(self) -> Transport:
        return FaultyTransport(super().transport(), self.network)

    def worker(self, name: str, **options: Any) -> Worker:
        return super().worker(name, **{"lost_after": LOST_AFTER, **options})


def identity(param: tuple[str, str, int]) -> str:
    kind, name, seed = param
    return f"{kind}-{name}-seed{seed}"


@pytest.fixture(
    params=[
        *FAST,
        *(pytest.param(each, marks=pytest.mark.long) for each in LONG if each not in FAST),
    ],
    ids=identity,
)
def floor(request: pytest.FixtureRequest) -> Iterator[Floor]:
    """Workers over a faulty network; stands in for the fixture of the imported tests."""
    kind, name, seed = request.param
    floor = FaultyFloor(kind, FaultPlan(seed=seed, **PLANS[name]))
    try:
        yield floor
    finally:
        floor.close()


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", ["inproc", pytest.param("grpc", marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", [each for each in Fault if each is not Fault.DELAY])
@pytest.mark.parametrize("what", ["test.message", "bulk", "heartbeat", "receipt", "goodbye"])
def test_a_fault_at_every_kind_of_message(kind: str, fault: Fault, what: str) -> None:
    """Each is struck where it first stands, at each of the two.

    A chunk that is lost at the end of all others is missed when the lane has stood still for the
    whole bound; so there only one is.
    """
    names = ["alice", "bob"][: 1 if what == "bulk" else 2]
    rules = [FaultRule(fault, what, sender=name) for name in names]
    floor = FaultyFloor(kind, FaultPlan(rules=rules))
    try:
        alice, bob = floor.pair()
        for call in range(100):  # enough that receipts go alone
            alice.post(bob, call, buffers=[b"x" * 2**20] if call == 50 else ())
        bob.recorder.wait_envelopes(100)
        if what == "receipt":  # what bob posts next would take it along
            wait_until("a receipt goes alone", lambda: floor.network.statistics().faults >= 1)
        bob.send(alice, 100, buffers=[b"x" * 2**20])
        assert not alice.recorder.lost
        assert not bob.recorder.lost
        alice.exchange.close(SECONDS, "done here")
        assert bob.recorder.wait_lost().reason == "done here"
        bob.exchange.close(SECONDS)
        assert sorted(bob.recorder.calls()) == list(range(100))
        assert alice.recorder.calls() == [100]
        assert floor.network.statistics().faults >= 1
    finally:
        floor.close()
