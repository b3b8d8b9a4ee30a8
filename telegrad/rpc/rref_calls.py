"""The calls that RRefs make, at both ends: create a value, fetch it, run one of its methods.

    rpc.remote   {func | rref + method, args, kwargs, creation}   answered once the value is there
    rref.fetch   {rref}                                           answered with the value
    rref.call    {rref, method, args, kwargs}                     answered with what it returns
    rref.read    {rref, name}          answered with [False, the attribute] or [True, None]: a method

The owner answers each from Futures: a fetch or a method call that arrives before its value is
there waits without a thread.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from telegrad.errors import CallTimeoutError, DecodeError, WorkerLostError
from telegrad.rpc.ambient import check_process
from telegrad.rpc.blocking import comes_from
from telegrad.rpc.fresh import fresh_copy, without_frames
from telegrad.rpc.future import Future, new_future
from telegrad.rpc.rref_admission import AdmittedMethod, admit_method, check_public, read_rref
from telegrad.rpc.rref_futures import failed, follow, hand_on, result
from telegrad.rpc.rref_ids import ForkId, RRefId
from telegrad.rpc.rref_methods import Method, RunMethod, call_method, read_attribute
from telegrad.rpc.rref_reference import Reference, name_of_class, name_of_type, released_error
from telegrad.rpc.rref_registry import RRefRegistry
from telegrad.rpc.served_call import current_served_call, inherited, last_served_call
from telegrad.rpc.timeouts import seconds
from telegrad.rpc.unread import origin_here, watch_from
from telegrad.rpc.user_call import (
    ARGUMENTS,
    CallMode,
    Prepare,
    UserCall,
    admit_function,
    call_payload,
    read_arguments,
)
from telegrad.wire import read_head

if TYPE_CHECKING:
    from telegrad.types import WorkerInfo

__all__ = ["CALL", "FETCH", "READ", "REMOTE", "Creation", "RRefCalls"]

REMOTE = "rpc.remote"
FETCH = "rref.fetch"
CALL = "rref.call"
READ = "rref.read"


@final
@dataclass(frozen=True, slots=True)
class Creation:
    """Travels as an external of a creation request, so that the interceptor sees it."""

    rref: RRefId
    fork: ForkId | None


@final
class RRefCalls:
    """For the library: makes and serves the calls of one agent's RRefs.

    Args:
        registry: The agent's RRefs.
    """

    def __init__(self, registry: RRefRegistry) -> None:
        self._registry = registry
        self._agent = registry.agent
        self._agent.serve_named(REMOTE, self._admit_creation)
        self._agent.serve(FETCH, self._prepare_fetch)
        self._agent.serve_named(CALL, self._admit_call)
        self._agent.serve(READ, self._prepare_read)

    # The caller's end.

    def create(
        self,
        to: WorkerInfo,
        func: Callable[..., Any],
        args: object,
        kwargs: object,
        timeout: float | None,
    ) -> Reference:
        """Asks `to` to call a function and keep what it returns."""
        name, payload = call_payload(func, args, kwargs)
        reference = self._create(to, name, payload, timeout)
        if isinstance(func, type) and not reference.type_name:
            reference.type_name = name_of_class(func)  # before the owner says so
        return reference

    def create_by_method(self, method: Method, timeout: float | None) -> Reference:
        """Asks an owner to run a method of a value and keep what it returns."""
        source = method.reference
        used, failure = self.use(source), self._registry.failure(source)
        return self._create(
            source.owner, method.label, method.payload(), timeout, used=used, failure=failure
        )

    def fetch(self, reference: Reference, timeout: float | None) -> Future[Any]:
        """Returns a future of a value: the object itself on its owner, else a new copy."""
        if reference.fork is None:
            return self._own_value(reference, timeout)
        payload = {"rref": list(reference.rref)}
        return self.send(reference, FETCH, payload, "RRef.to_here", timeout)

    def call(self, method: Method, timeout: float | None) -> Future[Any]:
        """Runs a method of a value where that lives."""
        return self.send(method.reference, CALL, method.payload(), method.label, timeout)

    def read(self, reference: Reference, name: str, timeout: float | None) -> Future[Any]:
        """Returns a future of [whether it is a method, the attribute of this name if it is none]."""
        payload = {"rref": list(reference.rref), "name": name}
        label = f"{reference.type_name or 'RRef'}.{name}"
        return self.send(reference, READ, payload, label, timeout)

    def limit(self, timeout: float | None) -> float:
        """Returns the seconds that a timeout of a proxy means."""
        return seconds(timeout, self._agent.options.timeout)

    def _create(
        self,
        to: WorkerInfo,
        name: str,
        payload: dict[str, Any],
        timeout: float | None,
        used: ForkId | None = None,
        failure: BaseException | None = None,
    ) -> Reference:
        registry = self._registry
        reference = registry.own_later() if to == registry.me else registry.create(to)
        origin = origin_here()
        reference.whence = origin or reference.whence
        rref, fork = reference.rref, reference.fork
        untold = new_future(self._agent.submit, f"rpc.remote of {name} on {to.name!r}")
        reference.untold = watch_from(self._agent, untold, origin)
        if failure is not None:
            self.unuse(used)
            untold.try_set_exception(without_frames(fresh_copy(failure)))
            self._creation_failed(rref, fork, failure, delivered=False)
            return reference
        try:
            creation = {**payload, "creation": Creation(rref, fork)}
            future = self._agent.send(to, REMOTE, creation, function=name, timeout=timeout)
        except BaseException:
            self.unuse(used)
            # Nobody sees this reference; keeping the error would keep the caller's frames alive.
            unsent = RuntimeError(f"the creation by {name} could not be sent")
            self._creation_failed(rref, fork, unsent, delivered=False)
            raise
        reference.creation = future
        watched = weakref.ref(reference)

        def created(done: Future[Any]) -> None:
            self.unuse(used)
            error = done.exception()
            kept = watched()
            if kept is not None:
                kept.creation = None
                kept.type_name = str(done.value()) if error is None else ""
            if error is not None:
                # Its frames would keep this reference, and so it would never be told.
                untold.try_set_exception(without_frames(fresh_copy(error)))
                self._creation_failed(rref, fork, self.of_owner(to, error))
            elif fork is not None:
                registry.created(fork)

        future.add_done_callback(created)
        return reference

    def _creation_failed(
        self, rref: RRefId, fork: ForkId | None, error: BaseException, *, delivered: bool = True
    ) -> None:
        if fork is None:
            self._registry.settle(rref, None, error)
        else:
            self._registry.creation_failed(fork, error, delivered=delivered)

    def send(
        self,
        reference: Reference,
        kind: str,
        payload: Mapping[str, object],
        function: str,
        timeout: float | None,
    ) -> Future[Any]:
        """Asks the owner of a value for something; the fork is kept until that is answered.

        Args:
            reference: Which value.
            kind: What the owner serves such requests by.
            payload: Has the value's id as `rref`.
            function: What is asked for, for messages.
            timeout: Seconds; None for the default.

        Returns:
            The future of the answer; a lost owner is an OwnerLostError in it.

        Raises:
            EncodeError: An argument cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
            NotInitializedError: The agent was shut down.
            RuntimeError: The RRef was released.
        """
        used = self.use(reference)
        outcome = new_future(self._agent.submit, f"{function} at {reference.owner.name!r}")
        failure = self._registry.failure(reference)
        if failure is not None:
            self.unuse(used)
            outcome.set_exception(failure)
            return outcome
        try:
            reply = self._agent.send(
                reference.owner,
                kind,
                payload,
                function=function,
                timeout=timeout,
                at_once=kind == FETCH,
            )
        except BaseException:
            self.unuse(used)
            raise

        def value() -> Any:
            try:
                return reply.value()
            except WorkerLostError as error:
                told = self.of_owner(reference.owner, error)
                if told is error:
                    raise
                raise told from error
            except LookupError:
                if creation is not None and creation.failed:
                    creation.value()  # why there is nothing: the owner only knows that there is not
                raise

        creation = reference.creation

        def arrived() -> None:
            outcome.try_set_thunk(value, fails=reply.failed)
            self.unuse(used)

        comes_from(outcome, reply)
        outcome.let_cancel(reply.cancel)
        reply.call_when_done(arrived)
        if creation is not None and not creation.done():
            # Nothing may ever be created: whoever waits for the value hears when that is known.
            creation.add_done_callback(lambda done: self._fail_with(outcome, reference.owner, done))
        return outcome

    def _fail_with(self, outcome: Future[Any], owner: WorkerInfo, creation: Future[Any]) -> None:
        error = creation.exception()
        if error is not None:
            outcome.try_set_exception(fresh_copy(self.of_owner(owner, error)))

    def of_owner(self, owner: WorkerInfo, error: BaseException) -> BaseException:
        """Says of a lost worker that it was the owner, where it was."""
        if isinstance(error, WorkerLostError) and error.incarnation == owner.incarnation:
            return self._registry.owner_lost(owner, error)
        return error

    def _own_value(self, reference: Reference, timeout: float | None) -> Future[Any]:
        limit = min(seconds(timeout, self._agent.options.timeout), inherited()[0])
        value = self._value(reference)
        outcome = new_future(self._agent.submit, "RRef.to_here at its owner")
        comes_from(outcome, value)
        if value.done():
            follow(outcome, value)
            return outcome
        check_process(self._agent.info.name, self._agent.pid)  # a child makes no value

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

        outcome.call_when_done(self._agent.after(max(limit, 0.0), expire))
        value.call_when_done(lambda: follow(outcome, value))
        return outcome

    def _value(self, reference: Reference) -> Future[Any]:
        if reference.released:
            raise released_error(reference)
        value = self._registry.value(reference.rref)
        if value is None:
            raise self._registry.gone(reference.rref)
        reference.hears()
        return value

    def use(self, reference: Reference) -> ForkId | None:
        """Keeps the fork while a call names it.

        Raises:
            NotInitializedError: The agent was shut down.
            RuntimeError: The reference was released.
        """
        self._registry.check_open()
        if reference.fork is None:
            self._value(reference)
        elif reference.released or not self._registry.use(reference.fork):
            raise released_error(reference)
        reference.hears()
        return reference.fork

    def unuse(self, used: ForkId | None) -> None:
        """Hears that the call is over for which `use` kept a fork."""
        if used is not None:
            self._registry.unuse(used)

    # The owner's end.

    def _prepare_fetch(self, caller: WorkerInfo, payload: object) -> UserCall:
        reference = self._borrow(payload)
        value = self._value(reference)

        def fetched() -> Future[Any]:
            outcome = new_future(self._agent.submit, "RRef.to_here")
            comes_from(outcome, value)

            def answer(done: Future[Any]) -> None:
                if done.exception() is not None:
                    self._registry.tell_failed(reference.rref, caller)
                hand_on(done, outcome, reference)  # which keeps what is only expected until then

            value.add_done_callback(answer)
            return outcome

        return UserCall(fetched, mode=CallMode.FUTURE, name="RRef.to_here")

    def admit(self, caller: WorkerInfo, document: bytes) -> AdmittedMethod:
        """Returns the method that a request names, before its arguments are decoded.

        Raises:
            DecodeError: It names none.
            CallRefusedError: The caller may not have it.
        """
        return admit_method(self._registry, caller, read_head(document, ARGUMENTS))

    def _admit_call(self, caller: WorkerInfo, document: bytes) -> Prepare:
        return self._prepare_method(self.admit(caller, document))

    def _prepare_method(self, method: AdmittedMethod) -> Prepare:
        return lambda caller, payload: self.on_method(caller, payload, method, call_method)

    def on_method(
        self, caller: WorkerInfo, payload: object, method: AdmittedMethod, run: RunMethod
    ) -> UserCall:
        """Returns what calls `run` once the value that a request names is there.

        Args:
            caller: Who asks; what it may call is checked.
            payload: What `Method.payload` made.
            method: What `admit` returned for it.
            run: `run(value, method, args, kwargs, check)`; calls `check(value, found)` with what
                it has found under that name, before that is called.

        Raises:
            DecodeError: It is something else.
        """
        args, kwargs = method.arguments(payload)

        def check(value: object, found: object) -> None:
            self._agent.check_found(value, method.name, found, caller)

        def method_call(found: object) -> UserCall:
            if not method.judged:
                self._agent.check_method(found, method.name, caller)
            return run(found, method.name, args, kwargs, check)

        return self.on_value(payload, method.name, method_call)

    def _prepare_read(self, caller: WorkerInfo, payload: object) -> UserCall:
        name = payload.get("name") if isinstance(payload, dict) else None
        if not isinstance(name, str):
            raise DecodeError("the body of a read is not {rref, name}")
        check_public(self._registry, caller, name)

        def read_call(found: object) -> UserCall:
            self._agent.check_method(found, name, caller)
            label = f"{name_of_type(found)}.{name}"
            return UserCall(read_attribute, (found, name), name=label)

        return self.on_value(payload, name, read_call)

    def on_value(
        self, payload: object, name: str, user_call: Callable[[object], UserCall]
    ) -> UserCall:
        """Returns what runs `user_call(value)` once the value that a request names is there.

        Args:
            payload: Has the value's id as `rref`.
            name: What is asked for, for messages.
            user_call: Is called in a thread of the pool, inside the call that is served.

        Raises:
            DecodeError: It names no value of this worker's.
            LookupError: The value is gone.
        """
        reference = self._borrow(payload)
        value = self._value(reference)
        agent = self._agent
        if value.done():
            return user_call(result(value))

        def run_later() -> Future[Any]:
            return value.then(lambda done: _in_pool(done, reference))

        def _in_pool(done: Future[Any], kept: Reference) -> Future[Any]:
            if (error := done.exception()) is not None:
                return failed(error)
            # Not in the thread that made the value: its reply need not wait for this call.
            started: Future[Any] = new_future(agent.submit, f"RRef.{name}")
            context = contextvars.copy_context()
            agent.submit_in(context, lambda: started.set_result(kept))
            return started.then(lambda _: run_now(done))

        def run_now(done: Future[Any]) -> Future[Any]:
            if (served := last_served_call()) is not None:
                served.check()  # it waited for long, perhaps for longer than it was wanted
            return agent.run(user_call(result(done)))

        return UserCall(run_later, mode=CallMode.FUTURE, name=f"RRef.{name}")

    def _admit_creation(self, caller: WorkerInfo, document: bytes) -> Prepare:
        head = read_head(document, ARGUMENTS)
        if "method" in head:
            prepare = self._prepare_method(admit_method(self._registry, caller, head))
            return partial(self._prepare_creation, prepare)
        name, func = admit_function(self._agent.resolve, caller, head)

        def prepare_function(_: WorkerInfo, payload: object) -> UserCall:
            return UserCall.of(func, *read_arguments(payload, name), name)

        return partial(self._prepare_creation, prepare_function)

    def _prepare_creation(self, prepare: Prepare, caller: WorkerInfo, payload: object) -> UserCall:
        if not isinstance(payload, dict) or not isinstance(payload.get("creation"), Creation):
            raise DecodeError("the body of a creation does not say what it creates")
        rref = payload.pop("creation").rref
        registry, agent = self._registry, self._agent
        value = registry.value(rref)
        if value is not None:
            comes_from(value, current_served_call())
        try:
            user_call = prepare(caller, payload)
        except BaseException as error:  # in a remote handler: who waits for the value hears of it
            registry.settle(rref, None, fresh_copy(error))
            raise

        def keep(done: Future[Any]) -> object:
            error = done.exception()
            if error is not None:
                registry.settle(rref, None, error)
                return failed(error)
            value = done.value()
            registry.settle(rref, value)
            return name_of_type(value)

        return UserCall(
            lambda: agent.run(user_call).then(keep), mode=CallMode.FUTURE, name=user_call.name
        )

    def _borrow(self, payload: object) -> Reference:
        """Holds the value that a request names, which may arrive before its creation."""
        rref = read_rref(self._registry, payload)
        reference = self._registry.borrow(rref)
        if reference is None:
            raise self._registry.gone(rref)
        return reference
