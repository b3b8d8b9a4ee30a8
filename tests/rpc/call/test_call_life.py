"""The life of each call: any order of events ends it once, and hands each message over once."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from telegrad import rpc
from telegrad.errors import CallTimeoutError, WorkerLostError
from telegrad.rpc import seams
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.call import calling, delivery
from telegrad.rpc.call.call_life import Action, CallLife, Do
from telegrad.rpc.call.codec import Sealed
from telegrad.rpc.call.delivery import Delivery
from telegrad.rpc.call.pending_call import Again, PendingCall, State
from telegrad.rpc.future.future import new_future
from telegrad.rpc.pool.deadlines import Deadline, Deadlines
from telegrad.transport import LoopThread
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope
from tests.rpc import remote_code
from tests.rpc.conftest import MakeJob

PLACES, ALLOWANCE, RETRY = 2, 10, 2
ENDED = (State.OVER, State.GIVEN_UP)
SIZES = st.sampled_from([None, 1, 8, 11, 50])


def made(
    peer: WorkerInfo, *, again: bool = False, limit: float = math.inf, values: bool = True
) -> PendingCall:
    means = Again(None, RETRY, math.inf, lambda _: None, lambda _: None, None) if again else None
    call = PendingCall(peer, CallRecord("f"), None, 0.0, limit, values=values, again=means)
    call.future = new_future(None, "a call", call=call)
    return call


class Lives(RuleBasedStateMachine):
    """An owner of the table, whose threads may stop between an event and what that wants."""

    def __init__(self) -> None:
        super().__init__()
        self.life = CallLife(PLACES, ALLOWANCE)
        self.incarnations = Counter[int]()
        self.lost = set[WorkerInfo]()
        self.known: list[PendingCall] = []
        self.sealing: list[PendingCall] = []  # NEW ones, in the hands of a thread
        self.posting: list[tuple[PendingCall, WorkerInfo, Sealed | None]] = []
        self.asked = Counter[tuple[WorkerInfo, int]]()
        self.there = Counter[tuple[WorkerInfo, int]]()  # posted, and not answered
        self.ends = Counter[int]()
        self.gone = Counter[int]()  # messages that were posted or taken back
        self.sealed: list[Sealed] = []
        self.told = Counter[int]()
        self.asking = set[tuple[WorkerInfo, int]]()  # an ASK, and no WITHDRAW
        self.permitted = set[tuple[WorkerInfo, int]]()  # the callee keeps room for them
        self.entered = 0
        self.tries = Counter[int]()
        self.parent = ServedCall("w9", self.peer(0), 1, CallRecord("g"), math.inf, 0)

    # What the owner does.

    def seal(self) -> Sealed:
        self.sealed.append(Sealed(Envelope("f")))
        return self.sealed[-1]

    def peer(self, rank: int) -> WorkerInfo:
        return WorkerInfo(f"w{rank}", rank, 100 * rank + self.incarnations[rank] + 1)

    def carry_out(self, actions: Iterable[Action]) -> None:
        left = deque(actions)
        while left:
            do, call, peer, was, message, size = left.popleft()
            if do is Do.END:
                assert was is not State.GIVEN_UP
                self.ends[call.number] += 1
            elif do is Do.TAKE_BACK:
                assert was is State.WAITING
                self.gone[id(message)] += 1
            elif do is Do.TELL:
                self.told[call.number] += 1
            elif do is Do.WITHDRAW:
                self.asked.pop((peer, call.number), None)
                self.asking.remove((peer, call.number))
                self.permitted.discard((peer, call.number))
            elif do is Do.SEEK:
                assert call.again is not None
            else:
                assert (do is Do.ASK) == (message is None)
                assert message is not None or size > ALLOWANCE or call.state is State.WAITING
                self.posting.append((call, peer, message))
                if do is Do.ASK:
                    self.asking.add((peer, call.number))

    def send(self, call: PendingCall, size: int | None) -> None:
        message = self.seal()
        if call.state is State.NEW and not self.life.closed:
            self.tries[call.number] += 1
        do = self.life.send(call, message, size)
        if do is Do.POST:
            self.posting.append((call, call.peer, message))
        elif do is Do.ASK:
            self.posting.append((call, call.peer, None))
            self.asking.add((call.peer, call.number))
        elif do is not None:
            self.gone[id(message)] += 1
            self.ends[call.number] += do is Do.END
            assert do is Do.TAKE_BACK or self.life.closed

    def permit(self, peer: WorkerInfo, number: int) -> None:
        self.permitted.add((peer, number))
        actions = self.life.permit(peer, number)
        if not actions:  # its withdrawal is on the way
            self.permitted.discard((peer, number))
        self.carry_out(actions)

    # The events.

    @rule(rank=st.integers(0, 1), size=SIZES, again=st.booleans(), values=st.booleans())
    def makes_one(self, rank: int, size: int | None, again: bool, values: bool) -> None:
        call = made(self.peer(rank), again=again, values=values)
        call.parent = self.parent if size is None else None
        self.entered += values and not self.life.closed
        call.number = self.life.requests.draw()
        self.known.append(call)
        self.send(call, size)

    @rule(rank=st.integers(0, 1))
    def makes_one_that_is_away(self, rank: int) -> None:
        call = made(self.peer(rank), again=True)
        self.entered += not self.life.closed
        call.number = self.life.requests.draw()
        self.known.append(call)
        actions = self.life.send_away(call)
        assert [each.do for each in actions] == [Do.END if self.life.closed else Do.SEEK]
        self.carry_out(actions)

    @precondition(lambda self: self.posting)
    @rule(data=st.data(), fails=st.booleans())
    def posts(self, data: st.DataObject, fails: bool) -> None:
        which = data.draw(st.integers(0, len(self.posting) - 1))
        call, peer, message = self.posting.pop(which)
        fails |= peer in self.lost
        if message is not None:
            self.gone[id(message)] += 1
        if fails:
            self.carry_out(self.life.refused(call, peer, may_return=peer in self.lost))
        elif message is None:
            self.asked[peer, call.number] = 1
        else:
            self.there[peer, call.number] = 1
            self.permitted.discard((peer, call.number))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def permits(self, data: st.DataObject) -> None:
        peer, number = list(self.asked)[data.draw(st.integers(0, len(self.asked) - 1))]
        del self.asked[peer, number]
        self.permit(peer, number)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def answers(self, data: st.DataObject) -> None:
        peer, number = list(self.there)[data.draw(st.integers(0, len(self.there) - 1))]
        del self.there[peer, number]
        before = self.life.requests.find(number)
        given_up = before is not None and before.state is State.GIVEN_UP
        call, actions = self.life.reply(peer, number)
        self.carry_out(actions)
        if call is not None:
            assert given_up == (call.state is State.GIVEN_UP)
            self.ends[number] += not given_up
        assert self.life.reply(peer, number)[0] is None

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def answers_what_it_never_got(self, data: st.DataObject) -> None:
        call = self.known[data.draw(st.integers(0, len(self.known) - 1))]
        if call.state not in (State.POSTED, State.GIVEN_UP):
            assert self.life.reply(call.peer, call.number)[0] is None

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        call = self.known[data.draw(st.integers(0, len(self.known) - 1))]
        before = call.state
        actions = self.life.give_up(call)
        assert bool(actions) == (before not in (State.GIVEN_UP, State.OVER))
        assert (Do.TELL in [each.do for each in actions]) == (before is State.POSTED)
        self.carry_out(actions)
        assert self.life.give_up(call) == []

    @rule(rank=st.integers(0, 1))
    def loses(self, rank: int) -> None:
        gone = self.peer(rank)
        self.lost.add(gone)
        self.incarnations[rank] += 1
        for peer, number in list(self.there):  # but a permit of it may be on the way
            if peer == gone:
                del self.there[peer, number]
        self.carry_out(self.life.lose(lambda peer: peer == gone, may_return=True))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def comes_back(self, data: st.DataObject) -> None:
        call = self.known[data.draw(st.integers(0, len(self.known) - 1))]
        away = call.state is State.AWAY
        assert self.life.back(call, self.peer(call.peer.rank)) == away
        if away:
            self.sealing.append(call)

    @precondition(lambda self: self.sealing)
    @rule(size=SIZES)
    def sends_again(self, size: int | None) -> None:
        self.send(self.sealing.pop(0), size)

    @precondition(lambda self: len(self.known) > 8)
    @rule()
    def closes(self) -> None:
        self.carry_out(self.life.close())
        assert not len(self.life.requests)

    @invariant()
    def each_ends_at_most_once(self) -> None:
        assert all(count <= 1 for count in self.ends.values())
        assert all(count <= 1 for count in self.gone.values())
        assert all(count <= 1 for count in self.told.values())
        assert self.life.waiting == sum(call.state is State.WAITING for call in self.known)
        assert self.life.away == sum(call.state is State.AWAY for call in self.known)
        assert self.life.sent == self.entered
        wanted = [each for each in self.life.requests if each.state is not State.GIVEN_UP]
        assert self.life.awaited == [each for each in wanted if each.values]
        for call in self.known:
            open_ = self.life.requests.find(call.number) is call
            assert open_ or call.state in ENDED
            assert self.ends[call.number] == (call.state in ENDED)
            assert call.again is None or call.again.sent == self.tries[call.number] <= RETRY + 1
            ends_with_parent = call.parent is not None and call.state not in ENDED
            assert (call.future in self.parent.nested) == ends_with_parent

    def teardown(self) -> None:
        """Lets each thread go on and each callee answer: then nothing is left."""
        while self.sealing:
            self.send(self.sealing.pop(0), None)
        while self.posting or self.asked or self.there:
            for call, peer, message in [self.posting.pop() for _ in self.posting]:
                if message is not None:
                    self.gone[id(message)] += 1
                if peer in self.lost:
                    self.carry_out(self.life.refused(call, peer, may_return=False))
                elif message is None:
                    self.permit(peer, call.number)
                else:
                    self.there[peer, call.number] = 1
                    self.permitted.discard((peer, call.number))
            for peer, number in list(self.asked):
                del self.asked[peer, number]
                self.permit(peer, number)
            for peer, number in list(self.there):
                del self.there[peer, number]
                call_, actions = self.life.reply(peer, number)
                if call_ is not None and call_.state is State.OVER:
                    self.ends[number] += 1
                self.carry_out(actions)
        left = list(self.life.requests)
        if not self.life.closed:  # else its peers lose this worker, with all that it had asked for
            assert all(peer in self.lost for peer, _ in self.permitted)
            for rank in (0, 1):  # all places are free again
                for _ in range(PLACES):
                    call = made(self.peer(rank))
                    call.number = self.life.requests.draw()
                    assert self.life.send(call, self.seal(), ALLOWANCE // PLACES) is Do.POST
                    self.known.append(call)
                    self.entered += 1
                    self.gone[id(self.sealed[-1])] += 1
        assert all(each.state is State.AWAY for each in left), left
        self.carry_out(self.life.close())
        self.each_ends_at_most_once()
        assert all(self.ends[call.number] == 1 for call in self.known)
        assert all(self.gone[id(each)] == 1 for each in self.sealed)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("back", [False, True])
def test_a_loss_of_which_two_threads_hear_is_one(back: bool) -> None:
    """The loop, and the thread that posts the call."""
    life, gone, call = (
        CallLife(1, 1),
        WorkerInfo("w1", 1, 1),
        made(WorkerInfo("w1", 1, 1)),
    )
    call.peer, call.number = gone, 1
    call.again = Again(None, 1, 60.0, lambda _: None, lambda _: None, None)
    assert life.send(call, Sealed(Envelope("f")), None) is Do.POST
    assert [each.do for each in life.lose(lambda _: True, may_return=True)] == [Do.SEEK]
    if back:
        assert life.back(call, WorkerInfo("w1", 1, 2))
        assert life.send(call, Sealed(Envelope("f")), None) is Do.POST
    assert life.refused(call, gone, may_return=True) == []
    assert call.state is (State.POSTED if back else State.AWAY)
    assert [each.do for each in life.close()] == [Do.END]


def test_calls_that_are_due_are_found_once_they_are() -> None:
    life, calls = (
        CallLife(1, 1),
        [made(WorkerInfo("w1", 1, 1), limit=n) for n in (60.0, 30.0)],
    )
    assert life.due_before(1e9) == []
    for call in (*calls, never := made(WorkerInfo("w1", 1, 1))):
        call.number = life.requests.draw()
        life.send(call, Sealed(Envelope("f")), None)
    assert life.due_before(30.0) == []
    assert life.due_before(30.5) == [calls[1]]
    assert life.due_before(60.5) == calls
    calls[0].deadline = Deadline(Deadlines(LoopThread()), None)
    assert life.due_before(60.5) == [calls[1]]
    calls[0].deadline = None
    assert life.reply(calls[1].peer, calls[1].number)[0] is calls[1]
    assert life.due_before(1e9) == [calls[0]]
    assert never in life.awaited
    life.give_up(calls[0])
    assert life.due_before(1e9) == []


def test_a_permit_of_a_lost_callee_comes_too_late() -> None:
    life, call = CallLife(1, 1), made(WorkerInfo("w1", 1, 1), again=True)
    call.number = life.requests.draw()
    assert life.send(call, Sealed(Envelope("f")), 2) is Do.ASK
    life.lose(lambda peer: peer == call.peer, may_return=True)
    assert life.permit(call.peer, call.number) == []
    assert call.state is State.AWAY


def test_a_call_that_could_not_be_posted_gives_its_place_to_the_next() -> None:
    life, calls = CallLife(1, 1), [made(WorkerInfo("w1", 1, 1)) for _ in range(2)]
    for call in calls:
        call.number = life.requests.draw()
        life.send(call, Sealed(Envelope("f")), 1)
    actions = life.refused(calls[0], calls[0].peer, may_return=False)
    assert [(each.do, each.call) for each in actions] == [(Do.END, calls[0]), (Do.POST, calls[1])]


def test_only_the_callee_answers() -> None:
    life, call = CallLife(1, 1), made(WorkerInfo("w1", 1, 1))
    call.number = life.requests.draw()
    life.send(call, Sealed(Envelope("f")), None)
    for other in (WorkerInfo("w1", 1, 2), WorkerInfo("w2", 2, 3)):
        assert life.reply(other, call.number)[0] is None
    assert life.reply(call.peer, call.number)[0] is call


@pytest.mark.parametrize("timeout", [0.05, 0.3])
def test_a_call_expires_whether_or_not_that_is_soon(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    monkeypatch.setattr(calling, "HOUSEKEEPING_SECONDS", 0.05)
    monkeypatch.setattr(delivery, "SOON_SECONDS", 0.1)
    job = make_job(2)
    name = f"expires-{timeout}"
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, (name,), timeout=timeout)
        with pytest.raises(CallTimeoutError, match="took longer than") as raised:
            future.wait(20)
        assert raised.value.elapsed >= timeout
        rpc.rpc_sync("w1", remote_code.release, (name,))


@pytest.mark.parametrize("timeout", [0.5, 10.0])
def test_a_call_has_a_deadline_of_its_own_where_that_is_soon(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    job = make_job(2)
    deadlines, at = list[float](), Deadlines.at

    def noted(self: Deadlines, when: float, callback: Callable[[], None]) -> Deadline:
        deadlines.append(when)
        return at(self, when, callback)

    monkeypatch.setattr(Deadlines, "at", noted)
    with seams.use_agent(job.agents[0]):
        for _ in range(100):
            rpc.rpc_sync("w1", remote_code.who, timeout=timeout)
    if timeout < delivery.SOON_SECONDS:
        assert len(deadlines) >= 100
    else:
        assert len(deadlines) < 50


def test_a_callee_that_was_asked_hears_the_withdrawal_and_not_its_successor() -> None:
    life, gone = CallLife(1, 1), WorkerInfo("w1", 1, 1)
    call = made(gone, again=True)
    call.number = life.requests.draw()
    assert life.send(call, Sealed(Envelope("f")), 2) is Do.ASK
    actions = life.refused(call, gone, may_return=True)
    assert life.back(call, WorkerInfo("w1", 1, 2))
    assert [each.do for each in actions] == [Do.TAKE_BACK, Do.SEEK, Do.WITHDRAW]
    assert {each.peer for each in actions} == {gone}


class Broken(Exception):
    pass


def test_calls_end_also_if_a_message_cannot_be_taken_back(make_job: MakeJob) -> None:
    """Of the calls that one event ends, each one's interceptor raises."""
    agent = make_job(1).agents[0]
    to = (agent.life, agent.codec, agent.deadlines, agent.exchange, agent.options.limits)
    delivery = Delivery(*to, agent.calling.request)
    calls = [made(WorkerInfo("w1", 1, 1)) for _ in range(3)]

    def breaks() -> None:
        raise Broken

    for call in calls:
        call.number = delivery.life.requests.draw()
        delivery.life.send(call, Sealed(Envelope("f"), breaks), 10**9)
    with pytest.raises(Broken):
        delivery.lose(calls[0].peer, WorkerLostError("gone", worker="w1", incarnation=1))
    for call in calls:
        assert isinstance(call.future.exception(), WorkerLostError)
