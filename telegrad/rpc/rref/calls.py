"""The calls that RRefs make: create a value, fetch it, run one of its methods.

    rpc.remote   {func | rref + method, args, kwargs}   answered once the value is there,
                                    with its class; with [the value] if it is small and constant
    rref.fetch   {rref}                                           answered with the value
    rref.call    {rref, method, args, kwargs}                     answered with the result
    rref.read    {rref, method, args, kwargs}
                                    answered with [False, the attribute] or [True, None]: a method

`serving` is the owner's end. A small value that never changes (a number, a short str) comes with
the reply to its creation, and its creator fetches it without a message.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

from telegrad.critical import in_section
from telegrad.errors import CallTimeoutError, ValueNotFoundError, WorkerLostError
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.failure import fresh_copy, without_frames
from telegrad.rpc.base.limits import seconds
from telegrad.rpc.base.served_call import time_left
from telegrad.rpc.call.codec import Prepared
from telegrad.rpc.call.user_call import call_message
from telegrad.rpc.future.future import Future, later, new_future
from telegrad.rpc.future.unread import origin_here, watch_from
from telegrad.rpc.future.waits import comes_from
from telegrad.rpc.rref.protocol import ForkId, ForkState, RRefId
from telegrad.rpc.rref.table import Reference, RRefRegistry
from telegrad.rpc.rref.value import name_of_class, released_error
from telegrad.wire import Encoded

if TYPE_CHECKING:
    from telegrad.rpc.future.unread import Origin
    from telegrad.types import WorkerInfo

# Keeps a value for a call: a fork of another worker's, one more reference to an own one.
Used: TypeAlias = ForkId | Reference


# -- a method of an RRef's value, as a request names it --------------------------------------------


@final
@dataclass(slots=True)  # frozen ones take three times as long to make
class Method:
    """One method of an RRef's value, with its arguments."""

    reference: Reference
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.reference.type_name or 'RRef'}.{self.name}"

    def payload(self) -> dict[str, object]:
        """Returns the body of the request."""
        return {
            "rref": list(self.reference.rref),
            "method": self.name,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
        }


# -- a creation that this worker asked for: its end, and the report of its failure ---------------


@final
@dataclass(slots=True, eq=False)
class Asked:
    """A creation that this worker asked for; called when its reply has come.

    It does not keep the reference to the value; the reference keeps it. So if the creation failed
    and no code was told, the log is told once both are garbage.

    Attributes:
        creation: The ids of the value, and of this worker's fork.
        origin: The place where the program asked; None where telegrad itself did.
        used: The use of another value, which is kept until the reply; None for none.
        future: The future of the reply, until it has come.
    """

    calls: RRefCalls
    reference: weakref.ref[Reference]
    owner: WorkerInfo
    creation: Creation
    function: str
    origin: Origin | None
    used: Used | None
    future: Future[Any] | None = None
    _heard: bool = False
    _untold: Future[Any] | None = None  # tells the log, once it is garbage

    def __call__(self) -> None:
        """Takes the reply; decodes nothing, as this may be a loop."""
        future, self.future = self.future, None
        assert future is not None
        self.calls.unuse(self.used)
        if future._failed:
            future._when_done(self._fails)
            return
        if self.creation.fork is not None:
            registry = self.calls.registry
            registry.event(registry.users.created, self.creation.fork)
        if (reference := self.reference()) is not None:
            reference.asked = None  # there is nothing to hear: this goes, and four objects with it

    def hear(self) -> None:
        """Records that the reference is used: its user is told if the creation failed."""
        self._heard = True  # first: `fail` looks at it last
        untold, self._untold = self._untold, None
        if untold is not None:
            untold._hand_on()

    def fail(self, error: BaseException, *, delivered: bool = True) -> None:
        """Fails the value, for this worker and all others.

        Args:
            error: The reason.
            delivered: False only if the request is known not to have been handed over.
        """
        calls, fork = self.calls, self.creation.fork
        agent, label = calls.registry.agent, f"rpc.remote of {self.function} on "
        untold = new_future(agent.pool.submit, f"{label}{self.owner.name!r}")
        # Its frames would keep the reference, and so it would never be told.
        untold.try_set_exception(without_frames(fresh_copy(error)))
        self._untold = watch_from(agent, untold, self.origin)
        # The user may have asked while this was made: then nothing was there for `hear` to hand on.
        if self._heard:
            self.hear()
        told, kept = calls.of_owner(self.owner, error), self.reference()
        if kept is not None:
            kept.creation = None
            if fork is not None:  # its frames, and their callers', would keep the reference
                kept.failure = told.with_traceback(None)
        calls.creation_failed(self.creation, told, delivered=delivered)

    def _fails(self, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            self.fail(error)


# -- futures of values: one follows another, whose error is kept and must hold no frame -----------


def follow(outcome: Future[Any], value: Future[Any]) -> None:
    """Completes a future as another one was completed; takes the value out only on demand.

    An error keeps its traceback, which says where the creation failed. An error that cannot be
    copied is raised itself and loses its traceback, as every raise would add frames to it.
    """

    def fail(done: Future[Any]) -> None:
        error = done.exception()
        if error is not None and (copy := fresh_copy(error)) is not error:
            outcome.try_set_exception(copy.with_traceback(error.__traceback__))
        else:
            outcome._try_set_thunk(lambda: result(done), fails=True)

    if value._failed:
        value._when_done(fail)
    else:
        outcome._try_set_thunk(value.value)


def failed(error: BaseException) -> Future[Any]:
    """Returns a future that has failed; an error that is raised in its place would leave a circle.

    future ─▶ error ─▶ frames of the code that made the future, with the reference ─▶ future
    """
    outcome: Future[Any] = Future()
    outcome.try_set_exception(error)
    return outcome


def result(done: Future[Any]) -> Any:
    """Returns a value, or raises a copy of its error: the original is kept and holds no frame."""
    error = done.exception()
    if error is not None:
        raise fresh_copy(error).with_traceback(error.__traceback__)
    return done.value()


# ------------------------------------------------------------------------------------------------

NAME = "rref"  # of the interceptor: its header, and where the record of a call has its Creation
REMOTE = "rpc.remote"
FETCH = "rref.fetch"
CALL = "rref.call"
READ = "rref.read"

_HAS_VALUE = (ForkState.CONFIRMED, ForkState.PENDING)  # states of a fork whose value may be there


@final
@dataclass(slots=True)  # frozen ones take three times as long to make
class Creation:
    """The ids of a value that a request creates; the call records them, a header carries them."""

    rref: RRefId
    fork: ForkId | None


@final
class RRefCalls:
    """For the library: makes the calls of one agent's RRefs."""

    def __init__(self, registry: RRefRegistry) -> None:
        self.registry = registry
        self._agent = registry.agent

    def create(
        self,
        to: WorkerInfo,
        func: Callable[..., Any],
        args: object,
        kwargs: object,
        timeout: float | None,
    ) -> Reference:
        """Asks `to` to call a function and keep its value."""
        return self.create_by(to, func, call_message(func, args, kwargs), timeout)

    def create_by(
        self,
        to: WorkerInfo,
        func: Callable[..., Any],
        message: tuple[str, dict[str, Any] | Encoded | Prepared],
        timeout: float | None,
    ) -> Reference:
        """Does what `create` does, for a call whose name and payload are known."""
        reference = self._create(to, *message, timeout)
        if isinstance(func, type) and not reference.type_name:
            reference.type_name = name_of_class(func)  # before the owner says so
        return reference

    def create_by_method(
        self, method: Method, timeout: float | None, payload: Prepared | None = None
    ) -> Reference:
        """Asks an owner to run a method of a value and keep the result.

        Args:
            method: The method and its arguments.
            timeout: Seconds until the value must be there.
            payload: The request, if it is encoded already.
        """
        source, body = method.reference, payload or method.payload()
        used, failure = self.use(source)
        return self._create(source.owner, method.label, body, timeout, used=used, failure=failure)

    def fetch(self, reference: Reference, timeout: float | None) -> Future[Any]:
        """Returns a future of a value: the object itself on its owner, else a new copy."""
        if reference.fork is None:
            return self._own_value(reference, timeout)
        if (known := self._known(reference)) is not None:
            return known
        payload = {"rref": list(reference.rref)}
        return self.send(reference, FETCH, payload, "RRef.to_here", timeout)

    def call(self, method: Method, timeout: float | None) -> Future[Any]:
        """Runs a method of a value where that lives."""
        if not in_section():
            return self.send(method.reference, CALL, method.payload(), method.label, timeout)
        payload, reference = Prepared.of(method.payload()).freeze(), method.reference
        late = partial(self.send, reference, CALL, payload, method.label, timeout)
        return later(self._agent.pool.submit, method.label, late)

    def read(self, reference: Reference, name: str, timeout: float | None) -> Future[Any]:
        """Returns a future of [True, None] for a method, else of [False, the attribute]."""
        method = Method(reference, name, (), {})
        return self.send(reference, READ, method.payload(), method.label, timeout)

    def limit(self, timeout: float | None) -> float:
        """Returns the seconds of a proxy's timeout, which may be None."""
        return seconds(timeout, self._agent.options.timeout)

    def _known(self, reference: Reference) -> Future[Any] | None:
        """Returns the future of a value that came with the reply to its creation; None if none."""
        if (constant := reference.constant) is None:
            return None
        self.registry.check_open()
        if reference.released:
            raise released_error(reference.owner)
        failure = self.registry.failure(reference)
        known = new_future(self._agent.pool.submit, "RRef.to_here")
        if failure is None:
            known.try_set_result(constant[0])
        else:
            known.try_set_exception(failure)
        return known

    def _create(
        self,
        to: WorkerInfo,
        name: str,
        payload: dict[str, Any] | Encoded | Prepared,
        timeout: float | None,
        used: Used | None = None,
        failure: BaseException | None = None,
    ) -> Reference:
        registry = self.registry
        reference = registry.create(to)
        origin = origin_here()
        reference.whence = origin or reference.whence
        creation = Creation(reference.rref, reference.fork)
        asked = Asked(self, weakref.ref(reference), to, creation, name, origin, used)
        reference.asked = asked.hear
        if failure is not None:
            self.unuse(used)
            asked.fail(failure, delivered=False)
            return reference
        try:
            record = CallRecord(name, {NAME: creation})
            future = self._agent.calling.send(
                to, REMOTE, payload, function=name, timeout=timeout, record=record
            )
        except BaseException:
            self.unuse(used)
            # Nobody sees this reference; keeping the error would keep the caller's frames alive.
            unsent = RuntimeError(f"the creation by {name} could not be sent")
            self.creation_failed(creation, unsent, delivered=False)
            raise
        asked.future = reference.creation = future
        # Last: the reply may be here already, and `asked` then reads what is set above.
        future._call_when_done(asked)
        return reference

    def creation_failed(
        self, creation: Creation, error: BaseException, *, delivered: bool = True
    ) -> None:
        """Records that a creation failed that this worker asked for."""
        registry = self.registry
        if creation.fork is None:
            registry.settle(creation.rref, None, error)
        else:
            registry.event(registry.users.creation_failed, creation.fork, delivered=delivered)

    def send(
        self,
        reference: Reference,
        kind: str,
        payload: Mapping[str, object] | Prepared,
        function: str,
        timeout: float | None,
        record: CallRecord | None = None,
        fail: Callable[[BaseException], object] | None = None,
    ) -> Future[Any]:
        """Sends a request to the owner of a value; keeps the fork until the answer.

        Args:
            reference: The reference to the value.
            kind: The kind by which the owner serves such requests.
            payload: The body, which has the value's id as `rref`.
            function: The name of the request, for messages.
            timeout: Seconds; None for the default.
            record: This end's record of the request; None for a new one.
            fail: Takes the error if the creation of the value fails; by default the future does.

        Returns:
            The future of the answer; a lost owner is an OwnerLostError in it.

        Raises:
            EncodeError: An argument cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
            NotInitializedError: The agent was shut down.
            InvalidUseError: The RRef was released.
        """
        used, failure = self.use(reference)
        if failure is not None:
            self.unuse(used)
            return failed(failure)
        creation, owner = reference.creation, reference.owner
        record = record or CallRecord(function)
        record.explain = partial(self._explained, owner, creation)
        try:
            reply = self._agent.calling.send(
                owner,
                kind,
                payload,
                function=function,
                timeout=timeout,
                at_once=kind == FETCH,
                record=record,
            )
        except BaseException:
            self.unuse(used)
            raise
        # Before any other callback: the code that reads the value may let go of it at once.
        reply._call_when_done(partial(self.unuse, used))
        if creation is not None and not creation.done():
            # The creation may fail, and the owner then never gets a value to answer with. So the
            # end of the creation ends this request, too.
            self._fail_with(creation, owner, fail or reply.try_set_exception)
        return reply

    def _explained(
        self, owner: WorkerInfo, creation: Future[Any] | None, error: BaseException
    ) -> BaseException:
        """Returns an error that says more than the error of a reply; that error if none does."""
        told = error
        if isinstance(error, WorkerLostError):
            told = self.of_owner(owner, error)
            if told is not error:
                told.__cause__ = error
        elif isinstance(error, ValueNotFoundError) and creation is not None and creation._failed:
            reason = creation.exception()  # the owner only knows that there is no value
            told = error if reason is None else fresh_copy(reason)
        return told

    def _fail_with(
        self, creation: Future[Any], owner: WorkerInfo, fail: Callable[[BaseException], object]
    ) -> None:
        """Calls `fail(error)` if a creation fails, as soon as that is known."""

        def read(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                fail(fresh_copy(self.of_owner(owner, error)))

        def ended() -> None:  # decodes nothing: it may be on a loop
            if creation._failed:
                creation._when_done(read)

        creation._call_when_done(ended)

    def of_owner(self, owner: WorkerInfo, error: BaseException) -> BaseException:
        """Returns an OwnerLostError if an error says that the owner is lost; else that error."""
        if isinstance(error, WorkerLostError) and error.incarnation == owner.incarnation:
            return self.registry.owner_lost(owner, error)
        return error

    def _own_value(self, reference: Reference, timeout: float | None) -> Future[Any]:
        limit = min(seconds(timeout, self._agent.options.timeout), time_left())
        value = self._value(reference)
        outcome = new_future(self._agent.pool.submit, "RRef.to_here at its owner")
        comes_from(outcome, value)
        if value.done():
            follow(outcome, value)
            return outcome
        self._agent.life.check_process()  # a forked child creates no value

        def expire() -> None:
            outcome.try_set_exception(
                CallTimeoutError(
                    f"the value of this RRef was not there after {limit:.3g} s; it is still being "
                    f"created on this worker, {reference.owner.name!r}",
                    worker=reference.owner.name,
                    function="RRef.to_here",
                    phase="creating",
                    elapsed=limit,
                )
            )

        outcome._call_when_done(self._agent.deadlines.after(max(limit, 0.0), expire).cancel)
        value._call_when_done(lambda: follow(outcome, value))
        return outcome

    def _value(self, reference: Reference) -> Future[Any]:
        if reference.released:
            raise released_error(reference.owner)
        value = self.registry.value(reference.rref)
        if value is None:
            raise self.registry.gone(reference.rref)
        reference.hears()
        return value

    def use(self, reference: Reference) -> tuple[Used, BaseException | None]:
        """Keeps the value while a call names it, even if the reference is released.

        Returns:
            The use, for `unuse`; and a fresh error if it is known that there is no value.

        Raises:
            NotInitializedError: The agent was shut down.
            InvalidUseError: The reference was released.
        """
        registry, fork = self.registry, reference.fork
        registry.check_open()
        if fork is None:
            # An own value is held, too: its reference may be let go while the call is under way.
            self._value(reference)
            return registry.borrow(reference.rref), None
        # The look at `released` saves a lock. The table decides: the handle may go at any time.
        state = None if reference.released else registry.ask(registry.users.use, fork)
        if state is None:
            raise released_error(reference.owner)
        if reference.asked is not None:
            reference.hears()
        return fork, None if state in _HAS_VALUE else registry.failure(reference)

    def unuse(self, used: Used | None) -> None:
        """Ends a `use`, as the call is over; None for a call that names no value."""
        if isinstance(used, Reference):
            used.release()
        elif used is not None:
            self.registry.event(self.registry.users.unuse, used)
