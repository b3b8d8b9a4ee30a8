"""What a worker knows of the others when news of them come late or in an unlucky order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import UnknownWorkerError, WorkerLostError
from telegrad.rendezvous import MOST_LOST
from telegrad.rpc.agent.events import MembershipEvents, _Kind
from telegrad.rpc.base import members as members_module
from telegrad.rpc.base.life import GRACEFUL
from telegrad.rpc.base.members import Members
from tests.repeated import TRANSPORTS
from tests.rpc.membership_world import Heard, World

OWN = rpc.WorkerInfo("w0", 0, 1)
OLD = rpc.WorkerInfo("w1", 1, 2)
NEW = rpc.WorkerInfo("w1", 1, 3)
NEWEST = rpc.WorkerInfo("w1", 1, 4)


def lost(worker: rpc.WorkerInfo, **more: Any) -> WorkerLostError:
    return WorkerLostError("gone", worker=worker.name, incarnation=worker.incarnation, **more)


@pytest.fixture
def members() -> Members:
    return Members(OWN, 2)


def test_an_old_incarnation_does_not_replace_its_replacement(members: Members) -> None:
    members.add([NEW])
    members.add([OWN, OLD])
    assert members.find("w1") == members.find(1) == NEW
    assert members.living() == [OWN, NEW]


def test_a_rank_that_has_not_joined_is_said_to_be_none_yet(members: Members) -> None:
    words = (
        r"rank 1 has not joined yet \(world size 2, members: 'w0' \(rank 0\)\); see rpc\.on_join"
    )
    with pytest.raises(UnknownWorkerError, match=words):
        members.find(1)
    with pytest.raises(UnknownWorkerError, match="no worker 2 in this job"):
        members.find(2)


def test_who_lives_replaces_who_is_lost_whatever_was_drawn_first(members: Members) -> None:
    other = rpc.WorkerInfo("other", 1, 3)
    members.add([other])
    members.lose(other, lost(other))
    members.add([OLD])
    assert members.find(1) == OLD


def test_an_incarnation_that_was_replaced_is_lost_and_not_unknown(members: Members) -> None:
    members.add([NEW])
    assert members.find(OLD) == OLD
    loss = members.lost(OLD)
    assert isinstance(loss, WorkerLostError)
    assert (loss.worker, loss.incarnation) == ("w1", 2)
    assert members.lost(NEW) is None
    with pytest.raises(UnknownWorkerError):
        members.find(NEWEST)


def test_what_is_remembered_of_lost_workers_grows_with_names_alone(members: Members) -> None:
    """Who was replaced long ago is lost all the same, and late news of it change nothing."""
    of_w1 = [rpc.WorkerInfo("w1", 1, 2 + 2 * i) for i in range(3000)]
    of_w2 = [rpc.WorkerInfo("w2", 2, 3 + 2 * i) for i in range(3000)]
    for each in (pair for pairs in zip(of_w1, of_w2, strict=True) for pair in pairs):
        members.add([each])
        members.lose(each, lost(each))
    assert len(members.losses()) <= 3 * members_module.MOST_REPLACED
    assert members.living() == [OWN]
    for each in (*of_w1, *of_w2):
        error = members.lost(each)
        assert error is not None
        assert (error.worker, error.incarnation) == (each.name, each.incarnation)
        assert members.find(each) == each
    newest = of_w1[-1]
    assert str(members.lost(newest)) == "gone"
    for each in of_w1[:-1]:  # heard of late
        members.add([each])
        assert members.find("w1") == members.find(1) == newest
    again = rpc.WorkerInfo("w1", 1, 10_000)
    members.add([again])
    assert members.living() == [OWN, again]


def test_who_is_lost_and_was_never_replaced_is_kept(members: Members) -> None:
    others = [rpc.WorkerInfo(f"other{i}", i, i) for i in range(2, 2000)]
    for each in others:
        members.add([each])
        members.lose(each, lost(each))
    assert [worker for worker, _ in members.losses()] == others
    assert members.living() == [OWN]


def test_events_remember_the_last_of_the_lost_alone() -> None:
    told = Told()
    told.events.begin([OWN])
    workers = [rpc.WorkerInfo(f"other{i}", i, 2 + i) for i in range(1, 3 * MOST_LOST)]
    for each in workers:
        told.events.lost(each, lost(each))
    before = len(told.run())
    for each in workers[-MOST_LOST:]:
        told.events.joined(each)  # heard of late: it is gone
    assert len(told.run()) == before
    told.events.joined(workers[0])  # forgotten
    assert len(told.run()) == before + 1


class Told:
    """Events, and what their callbacks were told, with a pool that runs when it is asked to."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._work: list[Callable[..., None]] = []
        self.events = MembershipEvents(OWN, self._work.append)
        for kind in _Kind:
            self.events.add(kind, lambda worker, *_, kind=kind: self._note(kind, worker))

    def _note(self, kind: _Kind, worker: rpc.WorkerInfo) -> None:
        self.words.append(f"{kind.value} {worker.incarnation}")

    def run(self) -> list[str]:
        while self._work:
            self._work.pop()()
        return self.words


def test_one_that_comes_back_is_told_after_the_loss_of_its_predecessor() -> None:
    told = Told()
    told.events.begin([OWN, OLD])
    told.events.joined(NEW)
    told.events.joined(NEWEST)
    assert told.run() == []
    told.events.lost(OLD, lost(OLD))
    assert told.run() == ["on_loss 2", "on_join 3"]
    told.events.lost(NEW, lost(NEW, left=True))
    assert told.run() == ["on_loss 2", "on_join 3", "on_leave 3", "on_join 4"]


def test_one_that_is_lost_before_it_was_told_is_never_told() -> None:
    told = Told()
    told.events.begin([OWN, OLD])
    told.events.joined(NEW)
    told.events.lost(NEW, lost(NEW))
    told.events.joined(NEW)
    told.events.lost(OLD, lost(OLD))
    assert told.run() == ["on_loss 2"]


def test_after_a_goodbye_that_is_not_told_the_next_one_is() -> None:
    told = Told()
    told.events.begin([OWN, OLD])
    told.events.joined(NEW)
    told.events.lost(OLD, lost(OLD, left=True, reason=GRACEFUL))
    assert told.run() == ["on_join 3"]


@pytest.fixture(params=TRANSPORTS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param, 2)
    yield made
    made.close()


def test_a_loss_is_noted_where_it_is_handled_and_not_later_in_the_pool(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.join_all()
    heard = Heard(first)
    later = SimpleNamespace(submit=lambda *work: None)  # when it is too late
    monkeypatch.setattr(first.inbox, "_pool", later)
    old = second.info
    world.kill(second)
    what, (worker, _) = heard.next()
    assert (what, worker) == ("loss", old)
