"""Dials for troubleshooting end, whatever the peer does."""

from __future__ import annotations

import pytest

from telegrad.transport import dial_peers
from telegrad.transport.session import link
from tests.transport.workers import SECONDS, Floor, Slow, wait_until


def test_a_peer_that_always_dials_too_holds_no_dial(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the smaller name, so it refuses the other's dial while its own is under way."""
    monkeypatch.setattr(link, "DIAL_SECONDS", 0.2)
    bob = floor.worker("bob")
    alice = floor.worker("alice", transport=Slow(floor.transport())).knows(bob)
    bob.knows(alice)
    alice.post(bob, 1)
    wait_until("the dial of alice", lambda: alice.connection(bob.info).hellos > 0)
    (dial,) = dial_peers(bob.exchange, [alice.info], SECONDS)
    assert dial.ended == link.SILENT
    assert dial.words == f"{alice.endpoints[0]} answers, and no carrier came up within 0.2 s"
