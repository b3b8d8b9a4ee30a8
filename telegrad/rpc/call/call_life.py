"""The life of each call that this worker makes: states and events. Pure.

    state      send            permit   refused      reply     due, cancel    lost       back
    ---------  --------------  -------  -----------  --------  -------------  ---------  ------
    NEW        POSTED/WAITING  -        -            -         OVER           -          -
    WAITING    -               POSTED   AWAY/OVER    -         OVER           AWAY/OVER  -
    POSTED     -               -        AWAY/OVER    OVER      GIVEN_UP       AWAY/OVER  -
    AWAY       -               -        -            -         OVER           -          NEW
    GIVEN_UP   -               -        end          end       -              end        -

`close` ends all calls, whatever their state, and from then on none begins. A call that is NEW is
in the hands of the thread that sends it. A call that is WAITING has no place in the window of its
peer, or no permit (`admission`). A call that is AWAY waits for the return of its callee; only one
that may run twice does so. A call that was given up keeps its place until its reply comes, which is
dropped.

Each event returns what is to be done; the owner of the table does that without its lock. A message
that waits belongs to its call. The event that takes it out hands it over: to be posted, or to be
taken back, and never both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, final

from telegrad.rpc.call.admission import Move, NextStep, Window
from telegrad.rpc.call.codec import Sealed
from telegrad.rpc.call.pending_call import PendingCall, State
from telegrad.transport import Requests
from telegrad.types import WorkerInfo


class Do(Enum):
    """What is to be done for a call."""

    POST = "post its message; `refused` if that fails"
    ASK = "ask its callee for a permit; `refused` if that fails"
    WITHDRAW = "tell its callee, which was asked, that it will not come"
    TAKE_BACK = "take its message back"
    TELL = "tell its callee that nobody waits for the reply"
    SEEK = "look for the worker that has taken the place of its callee"
    END = "fail its future"


# Named at module level: reading a member of an enum through its class takes four times as long.
_POSTED, _WAITING, _GIVEN_UP, _OVER = State.POSTED, State.WAITING, State.GIVEN_UP, State.OVER
_POST, _START = Do.POST, NextStep.START
_NO_PERMIT: Final = {NextStep.ASK: Do.ASK, NextStep.WITHDRAW: Do.WITHDRAW}


class Action(NamedTuple):
    """One thing to do for a call.

    Attributes:
        do: The thing.
        call: The call.
        peer: Its callee at the event; it may have another one by now.
        was: The state of the call before the event.
        message: The message to post or to take back.
        size: The bytes for which the callee is asked.
    """

    do: Do
    call: PendingCall
    peer: WorkerInfo
    was: State
    message: Sealed | None = None
    size: int = 0


_NOTHING: Final[Sequence[Action]] = ()


@final
class CallLife:
    """The calls of one worker that have not ended. The caller of each event holds one lock.

    Args:
        places: The most calls to one peer with a place at once.
        allowance: The most bytes of calls to one peer that are sent at once, without a permit.

    Attributes:
        requests: The calls by their numbers.
        sent: The number of calls with user values that were ever made.
        closed: True if no call begins any more.
    """

    def __init__(self, places: int, allowance: int) -> None:
        self.requests: Requests[PendingCall] = Requests()
        self.sent = 0
        self.closed = False
        self._window = places, allowance
        # An incarnation is hashed in C; a WorkerInfo would run a function of Python's for each
        # call.
        self._windows: dict[int, tuple[WorkerInfo, Window]] = {}  # by the peer's incarnation
        self._messages: dict[int, Sealed] = {}  # of the calls that are WAITING

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a place or a permit; without the lock."""
        return len(self._messages)

    @property
    def away(self) -> int:
        """The number of calls that wait for the return of their callee; without the lock."""
        return sum([each.state is State.AWAY for each in self.requests])

    @property
    def awaited(self) -> list[PendingCall]:
        """The calls with user values whose reply somebody waits for, oldest first; lock-free.

        They are looked up when asked for: a signal handler may raise between any two steps of a
        change, and a shutdown waits until there is none.
        """
        return [each for each in self.requests if each.values and each.state is not _GIVEN_UP]

    def due_before(self, moment: float) -> list[PendingCall]:
        """Returns the calls that are due before a moment and have no deadline yet; lock-free.

        It looks at all calls: a look at 10,000 takes a millisecond, and one a second is enough.

        Args:
            moment: A time of `time.monotonic`.
        """
        return [
            call
            for call in self.requests
            if call.deadline is None
            and call.state not in (_GIVEN_UP, State.NEW)
            and call.started + call.limit < moment
        ]

    # The events.

    def send(self, call: PendingCall, message: Sealed, size: int | None) -> Do | None:
        """Takes a call that is NEW: one that was just made, or that is sent again.

        A root call has a `size` in bytes: it needs a place, and perhaps a permit.

        Returns:
            POST or ASK; None if it waits; TAKE_BACK if it has ended before; END if the table is
            closed.
        """
        if call.state is _OVER:
            # A call that is sent again is known by its number all the while: it may have been
            # cancelled, or its time be over, while a thread of the pool sealed its message.
            return Do.TAKE_BACK
        if self.closed:
            call.state = _OVER
            return Do.END
        again, parent = call.again, call.parent
        if again is None or self.requests.find(call.number) is None:
            self.requests.add(call.number, call)
            self.sent += call.values
        if again is not None:
            again.sent += 1
        if parent is not None:
            parent.nests(call.future)
        if size is not None:
            incarnation = call.peer.incarnation
            if incarnation not in self._windows:
                self._windows[incarnation] = call.peer, Window(*self._window)
            call.window = self._windows[incarnation][1]
            step = call.window.enter(call.number, size)
            if step is not _START:
                call.state, self._messages[call.number] = _WAITING, message
                return _NO_PERMIT.get(step)
        call.state = _POSTED
        return _POST

    def send_away(self, call: PendingCall) -> list[Action]:
        """Takes a new call whose callee is known as lost."""
        call.state = _OVER if self.closed else State.AWAY
        if self.closed:
            return [_action(Do.END, call, State.NEW)]
        if call.parent is not None:
            call.parent.nests(call.future)
        self.requests.add(call.number, call)
        self.sent += call.values
        return [_action(Do.SEEK, call, State.NEW)]

    def permit(self, peer: WorkerInfo, number: object) -> list[Action]:
        """Takes the permit of a callee, for a call that may have been withdrawn."""
        _, window = self._windows.get(peer.incarnation, (peer, None))
        if window is None or not isinstance(number, int) or not window.admit(number):
            return []  # the callee hears of the withdrawal too
        call = self.requests.find(number)
        assert call is not None  # it leaves its window when it ends
        return [self._post(call)]

    def refused(self, call: PendingCall, peer: WorkerInfo, *, may_return: bool) -> list[Action]:
        """Takes the news that a call could not be posted, or that its callee could not be asked.

        Args:
            call: The call.
            peer: The callee to which it was to go; it may have another one by now.
            may_return: True if that callee is lost, and may come back.
        """
        # The thread that posts and the loop both hear of a loss. The first may have handed the call
        # on to the successor of its callee; the second must not take it back from there.
        known = self.requests.find(call.number) is call  # else it was given up, and then closed
        if not known or call.peer is not peer or call.state in (State.NEW, State.AWAY):
            return []
        permitted = call.window is not None and call.window.is_permitted(call.number)
        actions = [_action(Do.WITHDRAW, call, call.state)] if permitted else []
        actions += self._leave(call)
        return self._lose(call, may_return=may_return) + actions

    def reply(self, peer: WorkerInfo, number: int) -> tuple[PendingCall | None, Sequence[Action]]:
        """Takes a reply; returns its call, given up or not; None if nothing of that peer waits."""
        call = self.requests.find(number)
        # The number alone proves nothing: any member may answer it, and so may the lost incarnation
        # of a callee whose successor has the call now.
        if call is None or call.peer.incarnation != peer.incarnation:
            return None, _NOTHING
        if call.state is _POSTED:
            call.state = _OVER
            if call.parent is not None:
                call.parent.nested.discard(call.future)
        elif call.state is not _GIVEN_UP:
            return None, _NOTHING
        self.requests.end(number, None)
        window, call.window = call.window, None
        if window is None or not (moves := window.leave(number)):  # as nearly always
            return call, _NOTHING
        return call, [self._moved(move) for move in moves]

    def give_up(self, call: PendingCall, *states: State) -> list[Action]:
        """Ends a call at its deadline, or as it was cancelled; in some states alone, if given."""
        was = call.state
        if was in (_OVER, _GIVEN_UP) or (states and was not in states):
            return []
        # A posted call keeps its place in the window until its reply comes: its callee may be at
        # work. Else calls that time out one after the other would exceed the window.
        if was is _POSTED:  # its reply is still expected
            call.state = _GIVEN_UP
            if call.parent is not None:
                call.parent.nested.discard(call.future)
            return [_action(Do.END, call, was), _action(Do.TELL, call, was)]
        actions = self._leave(call)
        return [*self._end(call), *actions]

    def back(self, call: PendingCall, successor: WorkerInfo) -> bool:
        """Hands a call that is AWAY to the thread that sends it to the successor of its callee."""
        if call.state is not State.AWAY:
            return False
        call.state, call.peer = State.NEW, successor
        call.window = None
        return True

    def lose(self, gone: Callable[[WorkerInfo], bool], *, may_return: bool) -> list[Action]:
        """Takes the loss of peers.

        Args:
            gone: Returns True for a peer that is lost.
            may_return: True if it may come back.
        """
        # The windows go before the calls, and make no moves: every call in them ends below, so that
        # none of them may get the place of another.
        for peer, window in list(self._windows.values()):
            if gone(peer):
                window.lose()
                del self._windows[peer.incarnation]
        actions: list[Action] = []
        for call in self.requests:
            if gone(call.peer) and call.state not in (State.NEW, State.AWAY):
                actions += self._lose(call, may_return=may_return)
        return actions

    def close(self) -> list[Action]:
        """Ends all calls; none begins any more."""
        self.closed = True
        self._windows.clear()
        return [action for call in self.requests for action in self._end(call)]

    def _post(self, call: PendingCall) -> Action:
        was, call.state = call.state, _POSTED
        return _action(_POST, call, was, self._messages.pop(call.number))

    def _lose(self, call: PendingCall, *, may_return: bool) -> list[Action]:
        """Ends a call whose callee is lost, or has it wait for the return of that."""
        again, was = call.again, call.state
        if was is _GIVEN_UP or again is None or not may_return or again.sent > again.retry:
            return self._end(call)
        message, call.state = self._messages.pop(call.number, None), State.AWAY
        back = [] if message is None else [_action(Do.TAKE_BACK, call, was, message)]
        return [*back, _action(Do.SEEK, call, was)]

    def _end(self, call: PendingCall) -> list[Action]:
        """Removes a call."""
        was = call.state
        self.requests.end(call.number, None)
        if was is _GIVEN_UP:
            return []
        message, call.state = self._messages.pop(call.number, None), _OVER
        if call.parent is not None:
            call.parent.nested.discard(call.future)
        back = [] if message is None else [_action(Do.TAKE_BACK, call, was, message)]
        return [*back, _action(Do.END, call, was)]

    def _leave(self, call: PendingCall) -> list[Action]:
        """Takes a call out of its window; returns the steps of those that get its place."""
        window, call.window = call.window, None
        moves = [] if window is None else window.leave(call.number)
        return [self._moved(move) for move in moves]

    def _moved(self, move: Move) -> Action:
        call = self.requests.find(move.call)
        assert call is not None  # it leaves its window when it ends
        if move.step is _START:
            return self._post(call)
        return _action(_NO_PERMIT[move.step], call, call.state, size=move.size)


def _action(
    do: Do, call: PendingCall, was: State, message: Sealed | None = None, size: int = 0
) -> Action:
    return Action(do, call, call.peer, was, message, size)
