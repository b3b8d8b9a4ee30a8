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

Every one takes its message first; what else it knows is keyword-only and kept as an attribute.
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

    That is on an event loop that telegrad runs, or `shutdown()` in a call that is served.
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
    """The graph cannot be differentiated as asked."""


class ContextError(TelegradError, RuntimeError):
    """No such autograd context here, or none is active, or it was released."""


class ContextMismatchError(TelegradError, RuntimeError):
    """A gradient of one autograd context reached a value that was received in another."""


class PoolExhaustedError(TelegradError, RuntimeError):
    """The callee's pool has as many threads as it may have and takes no further call."""


class WaitCycleError(TelegradError, RuntimeError):
    """Calls wait for each other, so that none of them can end.

    Attributes:
        chain: Who waits for what, one line for each wait; the last one waits for the first.
    """

    def __init__(self, message: str, *, chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.chain = tuple(chain)


class RendezvousError(TelegradError, ConnectionError):
    """The job could not be joined.

    Attributes:
        missing: The ranks or names that had not joined, each with the last error seen of it.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class WorkerLostError(TelegradError, ConnectionError):
    """A worker that this operation waits for is gone, for this pair of incarnations and for good.

    Attributes:
        worker: Its name.
        incarnation: Which incarnation of that name was lost.
        last_seen: Seconds since it was last heard when it was given up.
        reason: Why it was given up.
        left: Whether it said goodbye, rather than fall silent or be gone.
        fenced: Whether it was the other way round: it had given up this worker.
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
    """Neither this worker nor the other one listens, so that no call can pass between them.

    Both are members of the job, and others reach them; nothing was sent. See `RpcOptions.listen`.
    """


class CallTimeoutError(TelegradError, TimeoutError):
    """A call, fetch or wait passed its deadline.

    Attributes:
        worker: The callee's name.
        function: What was called.
        phase: How far it was known to have come (`sending`, `waiting`, ...).
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
    """A call was cancelled: by `Future.cancel()`, or with the served call that had made it.

    It is no `asyncio.CancelledError`: a task that awaits a cancelled call gets an exception like
    any other, and is not itself taken for cancelled.
    """


class NotEnoughResultsError(TelegradError, RuntimeError):
    """So many of several calls failed that too few are left to succeed.

    Attributes:
        failures: The errors of those that failed, in the order in which they did.
    """

    def __init__(self, message: str, *, failures: Sequence[BaseException] = ()) -> None:
        super().__init__(message)
        self.failures = list(failures)


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """The job was not complete in time."""


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
        path: Where in the message it stands, for instance `args[0]['lr']`.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class DecodeError(TelegradError, ValueError):
    """Bytes from a peer are not a message, or name what may not be built here."""


class DuplicateNameError(TelegradError, ValueError):
    """A name is taken: another living worker has it, or its rank; or another object or codec does."""


class CollectiveMismatchError(TelegradError, ValueError):
    """The members of a group called different collectives."""
