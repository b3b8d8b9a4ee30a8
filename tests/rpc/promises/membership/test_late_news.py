"""What a worker does about one of whose arrival, or predecessor's loss, it hears late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from telegrad import rpc
from telegrad.rendezvous import control as messages
from telegrad.rendezvous.control import ControlLine
from telegrad.rendezvous.joined_job import MemberEvents, as_member
from telegrad.transport.security.guest_list import GuestList
from tests.conftest import Programs
from tests.rpc import remote_code
from tests.rpc.conftest import Job, MakeJob


class SlowLine:
    """Holds back what the coordinator says to w1 of arrivals and losses, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[Callable[[], None]] = []
        self.slow = False
        self.claims = False  # w1 says that it knows those of whom it has not heard
        self.holds = threading.Event()
        self._lock = threading.Lock()
        self.waits = threading.Event()  # somebody at a door
        names: dict[MemberEvents, str] = {}
        lines: dict[MemberEvents, ControlLine] = {}
        take, begin, admits = MemberEvents.on_message, MemberEvents.begin, GuestList.admits

        def begun(events: MemberEvents, info: rpc.WorkerInfo, line: ControlLine) -> None:
            names[events], lines[events] = info.name, line
            begin(events, info, line)

        async def waited(guests: GuestList, peer: rpc.WorkerInfo, seconds: float) -> None:
            if self.slow and peer not in guests:
                self.waits.set()
            await admits(guests, peer, seconds)

        def on_message(events: MemberEvents, kind: str, body: object) -> None:
            of_w1 = names.get(events) == "w1"
            with self._lock:
                if self.slow and of_w1 and kind in (messages.JOINED, messages.LOST):
                    self.held.append(lambda: take(events, kind, body))
                    if self.claims and kind == messages.JOINED:
                        known = {"incarnation": as_member(body).info.incarnation}
                        lines[events].tell(messages.KNOWS, known)
                    if kind == messages.JOINED:
                        self.holds.set()
                    return
            take(events, kind, body)

        monkeypatch.setattr(MemberEvents, "on_message", on_message)
        monkeypatch.setattr(MemberEvents, "begin", begun)
        monkeypatch.setattr(GuestList, "admits", waited)

    def let_go(self) -> None:
        with self._lock:
            self.slow, held = False, self.held
        for each in held:
            each()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowLine]:
    slow = SlowLine(monkeypatch)
    yield slow
    slow.let_go()


def test_a_successor_waits_until_the_news_of_it_is_there(make_job: MakeJob, line: SlowLine) -> None:
    """It was a member as far as the coordinator says; w1 has not heard that, nor of the loss.

    `init_rpc` waits until w1 knows it, but for no longer than `lost_after`; as if that were over.
    """
    job = make_job(3)
    assert job.on(0, rpc.rpc_sync, "w1", remote_code.who) == "w1"
    former = job.agents[0].info
    line.slow = line.claims = True
    job.agents[0].shutdown(graceful=False)
    visit(job)
    line.waits.clear()  # w2 may have heard a moment later, too
    answer = job.on(0, rpc.rpc_async, "w1", remote_code.who)
    assert line.waits.wait(20)
    assert job.agents[0].info not in job.agents[1].members.living()
    assert not answer.done()
    line.let_go()
    assert answer.wait() == "w1"
    assert job.agents[0].info in job.agents[1].members.living()
    assert former not in job.agents[1].members.living()


def test_who_has_joined_may_be_called_by_all(make_job: MakeJob, line: SlowLine) -> None:
    """And not only by those who happened to hear of it as soon as it did."""
    job = make_job(3)
    line.slow = True
    job.agents[0].shutdown(graceful=False)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(job.rejoin, 0)
        assert line.holds.wait(20)
        with pytest.raises(TimeoutError):
            joining.result(0.3)
        line.let_go()
        joining.result(20)
    for caller in (1, 2):
        assert job.on(caller, rpc.rpc_sync, "w0", remote_code.who) == "w0"


def visit(job: Job) -> None:
    """w0 comes back, of which w2 hears at once, and w1 when it is told."""
    job.rejoin(0)
    assert job.on(0, rpc.rpc_sync, "w2", remote_code.who) == "w2"


DIES_AT_ONCE = """
import os
import sys
import threading
from telegrad import collectives as dist, rpc
from telegrad.errors import WorkerLostError
from telegrad.rendezvous import control as messages
from telegrad.rendezvous.joined_job import MemberEvents

if os.environ["RANK"] == "1":
    rpc.init_rpc()
    os._exit(0)

LOST = threading.Event()
on_message, welcome = MemberEvents.on_message, MemberEvents.welcome


def note(events, kind, body):
    on_message(events, kind, body)
    if kind == messages.LOST:
        LOST.set()


def read_late(events, members):  # the thread that joins comes to run when the other one is gone
    LOST.wait()
    return welcome(events, members)


def make_and_use_a_group():
    dist.init_process_group()
    dist.barrier()  # it waits for nobody before


MemberEvents.on_message, MemberEvents.welcome = note, read_late
if sys.argv[1] == "group":
    verbs = [make_and_use_a_group]
else:
    rpc.init_rpc()
    verbs = [lambda: rpc.rpc_sync(1, os.getpid), lambda: rpc.rpc_sync("worker1", os.getpid)]
    verbs += [make_and_use_a_group]
for verb in verbs:
    try:
        verb()
    except WorkerLostError as error:
        print(type(error).__name__, error.worker, flush=True)
rpc.shutdown()
"""


@pytest.mark.parametrize("how", ["rpc", "group"])
def test_a_worker_that_dies_before_another_has_read_its_welcome_is_lost_there(
    programs: Programs, how: str
) -> None:
    """The other one did not know that there had been such a worker: UnknownWorkerError."""
    script = programs.script(DIES_AT_ONCE)
    first, second = programs.ranks(script, 2, arguments=[how])
    second.wait()
    said = first.wait().splitlines()
    assert said == ["WorkerLostError worker1"] * (3 if how == "rpc" else 1)
