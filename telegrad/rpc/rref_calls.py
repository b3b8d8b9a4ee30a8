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
from typing import TYPE_CHECKING, Any, final

from telegrad.errors import CallRefusedError, CallTimeoutError, DecodeError, WorkerLostError
from telegrad.rpc.ambient import check_process
from telegrad.rpc.blocking import comes_from
from telegrad.rpc.fresh import fresh_copy
from telegrad.rpc.future import Future, new_future
from telegrad.rpc.rref_ids import ForkId, RRefId
from telegrad.rpc.rref_methods import Method, RunMethod, call_method, read_attribute
from telegrad.rpc.rref_reference import Reference, name_of_class, name_of_type, released_error
from telegrad.rpc.rref_registry import RRefRegistry
from telegrad.rpc.served_call import current_served_call, inherited, last_served_call
from telegrad.rpc.timeouts import seconds
from telegrad.rpc.unread import origin_here
from telegrad.rpc.user_call import (
    CallMode,
    UserCall,
    call_payload,
    read_call_payload,
    read_script,
)

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
    """Makes and serves the calls of one agent's RRefs.

    Args:
        registry: The agent's RRefs.
    """

    def __init__(self, registry: RRefRegistry) -> None:
        self._registry = registry
        self._agent = registry.agent
        self._agent.serve(REMOTE, self._prepare_creation)
        self._agent.serve(FETCH, self._prepare_fetch)
        self._agent.serve(CALL, self._prepare_method)
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
        return self._send(reference, FETCH, payload, "RRef.to_here", timeout)

    def call(self, method: Method, timeout: float | None) -> Future[Any]:
        """Runs a method of a value where that lives."""
        return self._send(method.reference, CALL, method.payload(), method.label, timeout)

    def read(self, reference: Reference, name: str, timeout: float | None) -> Future[Any]:
        """Returns a future of [whether it is a method, the attribute of this name if it is none]."""
        payload = {"rref": list(reference.rref), "name": name}
        label = f"{reference.type_name or 'RRef'}.{name}"
        return self._send(reference, READ, payload, label, timeout)

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
        reference.whence = origin_here() or reference.whence
        rref, fork = reference.rref, reference.fork
        if failure is not None:
            self.unuse(used)
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

    def _send(
        self,
        reference: Reference,
        kind: str,
        payload: Mapping[str, object],
        function: str,
        timeout: float | None,
    ) -> Future[Any]:
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
            _follow(outcome, value)
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
        value.call_when_done(lambda: _follow(outcome, value))
        return outcome

    def _value(self, reference: Reference) -> Future[Any]:
        if reference.released:
            raise released_error(reference)
        value = self._registry.value(reference.rref)
        if value is None:
            raise self._registry.gone(reference.rref)
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
        return reference.fork

    def unuse(self, used: ForkId | None) -> None:
        """Hears that the call is over for which `use` kept a fork."""
        if used is not None:
            self._registry.unuse(used)

    # The owner's end.

    def _prepare_fetch(self, caller: WorkerInfo, payload: object) -> UserCall:
        del caller
        reference = self._borrow(payload)
        value = self._value(reference)

        def fetched() -> Future[Any]:
            outcome = new_future(self._agent.submit, "RRef.to_here")
            comes_from(outcome, value)
            # The reference keeps what is only expected until it is there.
            value.add_done_callback(lambda done: _hand_on(done, outcome, reference))
            return outcome

        return UserCall(fetched, mode=CallMode.FUTURE, name="RRef.to_here")

    def _prepare_method(self, caller: WorkerInfo, payload: object) -> UserCall:
        return self.on_method(caller, payload, call_method)

    def on_method(self, caller: WorkerInfo, payload: object, run: RunMethod) -> UserCall:
        """Returns what calls `run` once the value that a request names is there.

        Args:
            caller: Who asks; what it may call is checked.
            payload: What `Method.payload` made.
            run: `run(value, method, args, kwargs, check)`; calls `check(value, found)` with what
                it has found under that name, before that is called.

        Raises:
            DecodeError: It is something else.
            CallRefusedError: The name is not public.
        """
        if not isinstance(payload, dict):
            raise DecodeError("the body of a method call is not a dict")
        method, args, kwargs = (payload.get(key) for key in ("method", "args", "kwargs"))
        if not (isinstance(method, str) and isinstance(args, list) and isinstance(kwargs, dict)):
            raise DecodeError("the body of a method call is not {rref, method, args, kwargs}")
        if method != "__call__":
            self._check_public(method)

        def check(value: object, found: object) -> None:
            self._agent.check_found(value, method, found, caller)

        def method_call(found: object) -> UserCall:
            self._agent.check_method(found, method, caller)
            return run(found, method, args, kwargs, check)

        return self._on_value(payload, method, method_call)

    def _prepare_read(self, caller: WorkerInfo, payload: object) -> UserCall:
        name = payload.get("name") if isinstance(payload, dict) else None
        if not isinstance(name, str):
            raise DecodeError("the body of a read is not {rref, name}")
        self._check_public(name)

        def read_call(found: object) -> UserCall:
            self._agent.check_method(found, name, caller)
            label = f"{name_of_type(found)}.{name}"
            return UserCall(read_attribute, (found, name), name=label)

        return self._on_value(payload, name, read_call)

    def _check_public(self, name: str) -> None:
        if name.startswith("_"):
            raise CallRefusedError(
                f"{name!r} begins with an underscore and is not had of an RRef's value "
                f"at {self._registry.me.name!r}"
            )

    def _on_value(
        self, payload: object, name: str, user_call: Callable[[object], UserCall]
    ) -> UserCall:
        """Returns what runs `user_call(value)` once the value that a request names is there."""
        reference = self._borrow(payload)
        value = self._value(reference)
        agent = self._agent
        if value.done():
            return user_call(_result(value))

        def run_later() -> Future[Any]:
            return value.then(lambda done: _in_pool(done, reference))

        def _in_pool(done: Future[Any], kept: Reference) -> Future[Any]:
            if (error := done.exception()) is not None:
                return _failed(error)
            # Not in the thread that made the value: its reply need not wait for this call.
            started: Future[Any] = new_future(agent.submit, f"RRef.{name}")
            context = contextvars.copy_context()
            agent.submit_in(context, lambda: started.set_result(kept))
            return started.then(lambda _: run_now(done))

        def run_now(done: Future[Any]) -> Future[Any]:
            if (served := last_served_call()) is not None:
                served.check()  # it waited for long, perhaps for longer than it was wanted
            return agent.run(user_call(_result(done)))

        return UserCall(run_later, mode=CallMode.FUTURE, name=f"RRef.{name}")

    def _prepare_creation(self, caller: WorkerInfo, payload: object) -> UserCall:
        if not isinstance(payload, dict) or not isinstance(payload.get("creation"), Creation):
            raise DecodeError("the body of a creation does not say what it creates")
        rref = payload.pop("creation").rref
        registry, agent = self._registry, self._agent
        value = registry.value(rref)
        if value is not None:
            comes_from(value, current_served_call())
        try:
            if "method" in payload:
                user_call = self._prepare_method(caller, payload)
            else:
                name, args, kwargs = read_call_payload(payload)
                func = agent.resolve(name, script=read_script(payload), caller=caller)
                user_call = UserCall.of(func, args, kwargs, name)
        except BaseException as error:  # in a remote handler: who waits for the value hears of it
            registry.settle(rref, None, fresh_copy(error))
            raise

        def keep(done: Future[Any]) -> object:
            error = done.exception()
            if error is not None:
                registry.settle(rref, None, error)
                return _failed(error)
            value = done.value()
            registry.settle(rref, value)
            return name_of_type(value)

        return UserCall(
            lambda: agent.run(user_call).then(keep), mode=CallMode.FUTURE, name=user_call.name
        )

    def _borrow(self, payload: object) -> Reference:
        """Holds the value that a request names, which may arrive before its creation."""
        ids = payload.get("rref") if isinstance(payload, dict) else None
        if not (isinstance(ids, list) and len(ids) == 3 and all(type(i) is int for i in ids)):
            raise DecodeError("the body of a request names no RRef")
        rref = RRefId(*ids)
        if rref.owner != self._registry.me.incarnation:
            raise DecodeError(f"{rref} is not owned by {self._registry.me.name!r}")
        reference = self._registry.borrow(rref)
        if reference is None:
            raise self._registry.gone(rref)
        return reference


def _follow(outcome: Future[Any], value: Future[Any]) -> None:
    outcome.try_set_thunk(lambda: _result(value), fails=value.failed)


def _failed(error: BaseException) -> Future[Any]:
    """Returns a future that has failed; to raise in its place would leave a circle.

    future ─▶ error ─▶ frames of whoever made the future, with the reference ─▶ future
    """
    failed: Future[Any] = Future()
    failed.try_set_exception(error)
    return failed


def _hand_on(done: Future[Any], outcome: Future[Any], reference: Reference | None) -> None:
    """Completes without a raise, as `_failed` does."""
    error = done.exception()
    if error is not None:
        outcome.try_set_exception(error)
    elif isinstance(value := done.value(), Future):
        value.add_done_callback(lambda inner: _hand_on(inner, outcome, reference))
    else:
        outcome.try_set_result(value)


def _result(done: Future[Any]) -> Any:
    """Returns a value, or raises a copy of its error: the original is kept and may hold no frame."""
    error = done.exception()
    if error is not None:
        raise fresh_copy(error).with_traceback(error.__traceback__)
    return done.value()
