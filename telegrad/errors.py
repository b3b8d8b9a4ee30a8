"""The exception tree: one type per cause, each also the builtin that users already catch.

    TelegradError
    ├─ NotInitializedError, AlreadyInitializedError, BlockingCallError, AgentForkedError,
    │  RemoteError, AutogradError, ContextError, ContextMismatchError,
    │  PoolExhaustedError, WaitCycleError, NotEnoughResultsError       (RuntimeError)
    ├─ RendezvousError, WorkerLostError                                (ConnectionError)
    │  ├─ RendezvousTimeoutError, JoinCancelledError                   (RendezvousError)
    │  └─ OwnerLostError, EvictedError, UnreachableWorkerError         (WorkerLostError)
    ├─ CallTimeoutError, RendezvousTimeoutError                        (TimeoutError)
    ├─ CallCancelledError                           (concurrent.futures.CancelledError)
    ├─ UnknownWorkerError, FunctionNotFoundError                       (LookupError)
    ├─ AuthenticationError, CallRefusedError                           (PermissionError)
    ├─ EncodeError                                                     (TypeError)
    └─ DecodeError, DuplicateNameError, CollectiveMismatchError        (ValueError)

Every error takes its message first. Further facts are keyword-only and kept as attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError

__all__ = [
    "AgentForkedError",
    "AlreadyInitializedError",
    "AuthenticationError",
    "AutogradError",
    "BlockingCallError",
    "CallCancelledError",
    "CallRefusedError",
    "CallTimeoutError",
    "CollectiveMismatchError",
    "ContextError",
    "ContextMismatchError",
    "DecodeError",
    "DuplicateNameError",
    "EncodeError",
    "EvictedError",
    "FunctionNotFoundError",
    "JoinCancelledError",
    "NotEnoughResultsError",
    "NotInitializedError",
    "OwnerLostError",
    "PoolExhaustedError",
    "RemoteError",
    "RendezvousError",
    "RendezvousTimeoutError",
    "TelegradError",
    "UnknownWorkerError",
    "UnreachableWorkerError",
    "WaitCycleError",
    "WorkerLostError",
]


class TelegradError(Exception):
    """The base of every error that telegrad raises on purpose."""


class NotInitializedError(TelegradError, RuntimeError):
    """No agent runs here: `init_rpc` was not called, failed, or `shutdown` was called since."""


class AlreadyInitializedError(TelegradError, RuntimeError):
    """An agent already runs in this process."""


class BlockingCallError(TelegradError, RuntimeError):
    """A blocking verb was called where it could never return; nothing was sent.

    Such places are an event loop that telegrad runs, and for `shutdown()` a call being served.
    """


class AgentForkedError(TelegradError, RuntimeError):
    """The agent belongs to the parent of this process; it does not survive `fork()`.

    Start processes with multiprocessing's `spawn` method. docs/architecture.md ("Starting and
    ending") says what to set where a library forks.
    """


class RemoteError(TelegradError, RuntimeError):
    """The callee raised an exception whose class is not imported here.

    Attributes:
        type_name: The class of the original as `module:qualname`.
    """

    def __init__(self, message: str, *, type_name: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name


class AutogradError(TelegradError, RuntimeError):
    """The graph cannot be differentiated in the way that was requested."""


class ContextError(TelegradError, RuntimeError):
    """The autograd context does not exist here, was released, or none is active."""


class ContextMismatchError(TelegradError, RuntimeError):
    """A gradient of one autograd context reached a value that was received in another."""


class PoolExhaustedError(TelegradError, RuntimeError):
    """The callee's pool has reached its maximum of threads and takes no further call."""


class WaitCycleError(TelegradError, RuntimeError):
    """Calls wait for each other, so that none of them can end.

    Attributes:
        chain: The waits, one line each: a waiter and what it waits for. The last waits for the
            first.
    """

    def __init__(self, message: str, *, chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.chain = tuple(chain)


class RendezvousError(TelegradError, ConnectionError):
    """The job could not be joined.

    Attributes:
        missing: The ranks or names that had not joined, each with the last error seen from it.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class WorkerLostError(TelegradError, ConnectionError):
    """A worker that this operation needs is lost: this pair of incarnations will never talk again.

    Attributes:
        worker: The name of the lost worker.
        incarnation: The incarnation of that name that was lost.
        last_seen: Seconds from the last sign of life until the worker was given up.
        reason: The reason for giving it up.
        left: True if the worker said goodbye; False if it fell silent or ended without a word.
        fenced: True if the other worker had given up this one, rather than this one the other.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: str = "",
        incarnation: int = 0,
        last_seen: float = 0.0,
        reason: str = "",
        left: bool = False,
        fenced: bool = False,
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.incarnation = incarnation
        self.last_seen = last_seen
        self.reason = reason
        self.left = left
        self.fenced = fenced


class OwnerLostError(WorkerLostError):
    """The owner of an RRef is lost, and its value with it."""


class EvictedError(WorkerLostError):
    """The coordinator gave up this worker; the job goes on without it."""


class UnreachableWorkerError(WorkerLostError):
    """Neither this worker nor the other one listens, so no call can pass between them.

    Both are members of the job, and other workers reach them. Nothing was sent. See
    `RpcOptions.listen`.
    """


class CallTimeoutError(TelegradError, TimeoutError):
    """A call, fetch or wait passed its deadline.

    Attributes:
        worker: The callee's name.
        function: The function that was called.
        phase: The last phase that the call is known to have reached (`sending`, `waiting`, ...).
        elapsed: Seconds from the call to the expiry.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: str = "",
        function: str = "",
        phase: str = "",
        elapsed: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.function = function
        self.phase = phase
        self.elapsed = elapsed


class CallCancelledError(TelegradError, CancelledError):
    """A call was cancelled, by `Future.cancel()` or together with the served call that made it.

    This is no `asyncio.CancelledError`: a task that awaits a cancelled call gets an ordinary
    exception and does not count as cancelled itself.
    """


class NotEnoughResultsError(TelegradError, RuntimeError):
    """So many of several calls failed that the number wanted cannot succeed any more.

    Attributes:
        failures: The errors of the failed calls, in the order in which they failed.
    """

    def __init__(self, message: str, *, failures: Sequence[BaseException] = ()) -> None:
        super().__init__(message)
        self.failures = list(failures)


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """The job was not complete before the deadline."""


class JoinCancelledError(RendezvousError):
    """This worker gave up joining the job: `shutdown()` was called while it still waited."""


class UnknownWorkerError(TelegradError, LookupError):
    """No member of the job has this name or rank."""


class FunctionNotFoundError(TelegradError, LookupError):
    """The callee has no such function."""


class AuthenticationError(TelegradError, PermissionError):
    """A peer did not prove that it holds the job's token."""


class CallRefusedError(TelegradError, PermissionError):
    """The callee does not allow this function to be called."""


class EncodeError(TelegradError, TypeError):
    """A value cannot travel.

    Attributes:
        path: The place of the value in the message, for instance `args[0]['lr']`.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class DecodeError(TelegradError, ValueError):
    """Bytes from a peer are not a valid message, or name something that may not be built here."""


class DuplicateNameError(TelegradError, ValueError):
    """A name, rank or codec is already taken by another living worker, or by another object."""


class CollectiveMismatchError(TelegradError, ValueError):
    """The members of a group called different collectives."""
