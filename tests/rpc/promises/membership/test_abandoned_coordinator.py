"""A coordinator that some workers, or all, have given up, and that can be reached again."""

from __future__ import annotations

import threading

import pytest

from telegrad.errors import RendezvousError
from telegrad.rpc import seams
from telegrad.testing import leaks
from tests.rpc.membership_world import LIMIT, Heard, World, who

SOON = 1.0  # lost_after where a test waits for silence; all run in this process, and stall as one
PATIENT = 1000.0
CLOSED = "gave up the coordinator of this job.*nobody can join this job any more"


def asking(agent: seams.AgentCore) -> list[str]:
    """Returns the thread in which a worker that has lost the coordinator asks what that means."""
    name = f"telegrad-standing-{agent.info.name}"
    return [thread.name for thread in threading.enumerate() if thread.name == name]


def wait_until_lost(agent: seams.AgentCore) -> None:
    """Waits until a worker has lost the coordinator."""
    leaks.wait_until_gone("lines", lambda: [] if asking(agent) else ["the line"], within=LIMIT)


def wait_until_known(agent: seams.AgentCore) -> None:
    """Waits until it asks no more: it is evicted by now, or never will be."""
    leaks.wait_until_gone("questions", lambda: asking(agent), within=LIMIT)


def all_call_all(agents: list[seams.AgentCore]) -> None:
    names = [agent.info.name for agent in agents]
    for agent in agents:
        assert [who(agent, name) for name in names] == names


@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "port"), [("inproc", 0), ("grpc", 0), ("inproc", None)])
def test_one_worker_has_given_up_the_coordinator_and_the_others_have_not(
    worlds: list[World], kind: str, port: int | None
) -> None:
    """It goes on with them; the coordinator learns of it by a refused dial, or the question."""
    world = World(kind, 3, lost_after=PATIENT)
    worlds.append(world)
    joining = [world.start(0), world.start(1), world.start(2, lost_after=SOON, port=port)]
    first, second, third = agents = [each.result(LIMIT) for each in joining]
    all_call_all(agents)
    heard = [Heard(agent) for agent in agents]
    world.network.partition("w2", "coordinator")
    wait_until_lost(third)
    assert world.coordinator.statistics().members == 3
    all_call_all(agents)
    world.network.heal()
    wait_until_known(third)
    statistics = world.coordinator.statistics()
    assert (statistics.members, statistics.abandoned_by) == (2, 1)
    all_call_all(agents)
    for rank, late in ((5, True), (2, False)):
        with pytest.raises(RendezvousError, match=f"'w2' {CLOSED}"):
            world.join(rank, late=late)
    third.shutdown()  # waits for nobody, as the coordinator is lost; the others for each other
    assert [each.next()[0] for each in heard[:2]] == ["leave", "leave"]
    ending = world.submit(first.shutdown)
    assert who(second, "w0") == "w0"
    second.shutdown()
    ending.result(LIMIT)
    assert [each.names() for each in heard] == [[]] * 3


def test_a_coordinator_that_was_cut_off_from_all_evicts_nobody(worlds: list[World]) -> None:
    """It has given them up as they have given it up; they go on together, and it is done."""
    world = World("inproc", 3, lost_after=SOON)
    worlds.append(world)
    agents = world.join_all()
    all_call_all(agents)
    heard = [Heard(agent) for agent in agents]
    world.network.partition("coordinator")
    for agent in agents:
        wait_until_lost(agent)
        world.wait_until_dropped(agent.info.name)
    all_call_all(agents)
    world.network.heal()
    for agent in agents:
        wait_until_known(agent)
    assert world.coordinator.statistics().abandoned_by == 3
    all_call_all(agents)
    with pytest.raises(RendezvousError, match=CLOSED):
        world.join(5, late=True)
    assert [each.names() for each in heard] == [[]] * 3
