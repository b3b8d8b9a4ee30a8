"""The exception tree: one type per cause, each also the builtin that users already catch.

    TelegradError
    ├─ NotInitializedError, AlreadyInitializedError, BlockingCallError, AgentForkedError,
    │  RemoteError, AutogradError, ContextError, ContextMismatchError,
    │  PoolExhaustedError, WaitCycleError, NotEnoughResultsError,
    │  InvalidUseError, KernelError, PipelineError                     (RuntimeError)
    ├─ RendezvousError, WorkerLostError                                (ConnectionError)
    │  ├─ RendezvousTimeoutError, JoinCancelledError                   (RendezvousError)
    │  └─ OwnerLostError, EvictedError, UnreachableWorkerError         (WorkerLostError)
    ├─ CallTimeoutError, RendezvousTimeoutError                        (TimeoutError)
    ├─ CallCancelledError                           (concurrent.futures.CancelledError)
    ├─ UnknownWorkerError, FunctionNotFoundError, ValueNotFoundError   (LookupError)
    ├─ AuthenticationError, CallRefusedError                           (PermissionError)
    ├─ EncodeError                                                     (TypeError)
    ├─ QueueEmptyError                                                 (queue.Empty)
    └─ DecodeError, DuplicateNameError, CollectiveMismatchError,
       ScheduleError                                                    (ValueError)

Every error takes its message first. Further facts are keyword-only and kept as attributes.
"""

from __future__ import annotations

import queue
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
    "InvalidUseError",
    "JoinCancelledError",
    "KernelError",
    "NotEnoughResultsError",
    "NotInitializedError",
    "OwnerLostError",
    "PipelineError",
    "PoolExhaustedError",
    "QueueEmptyError",
    "RemoteError",
    "RendezvousError",
    "RendezvousTimeoutError",
    "ScheduleError",
    "TelegradError",
    "UnknownWorkerError",
    "UnreachableWorkerError",
    "ValueNotFoundError",
    "WaitCycleError",
    "WorkerLostError",
]


class TelegradError(Exception):
    """The base of every error that telegrad raises on purpose.

    A wrong argument raises TypeError, ValueError or the like, as everywhere in Python, and a lack
    of the system (a port in use, no memory) an OSError or MemoryError.

    Example:
        >>> from telegrad import rpc
        >>> try:
        ...     rpc.rpc_sync("worker1", print)
        ... except TelegradError as error:
        ...     print(type(error).__name__)
        NotInitializedError
    """


class NotInitializedError(TelegradError, RuntimeError):
    """No agent runs here: `init_rpc` was not called, failed, or `shutdown` was called since.

    Example:
        >>> from telegrad import rpc
        >>> rpc.get_worker_info()
        Traceback (most recent call last):
        telegrad.errors.NotInitializedError: no agent runs in this process; call ...
    """


class InvalidUseError(TelegradError, RuntimeError):
    """This object cannot be used in this way, on this worker, or any more.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("a"):
        ...     rref = rpc.RRef([1])
        ...     rref.release()
        ...     rref.to_here()
        Traceback (most recent call last):
        telegrad.errors.InvalidUseError: this RRef to a value at 'a' was released; use it ...
    """


class KernelError(TelegradError, RuntimeError):
    """A GPU kernel cannot be compiled, or takes no arrays of this dtype.

    The message names the kernel; the compiler's words name the file and the line.

    Example:
        >>> import numpy as np
        >>> from telegrad.kernels.cuda import code_of
        >>> code_of("gelu", ITEM=np.complex64)
        Traceback (most recent call last):
        telegrad.errors.KernelError: the kernels of gelu.cu take no arrays of complex64
    """


class AlreadyInitializedError(TelegradError, RuntimeError):
    """An agent already runs in this process.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("a"):
        ...     rpc.init_rpc("b")
        Traceback (most recent call last):
        telegrad.errors.AlreadyInitializedError: the agent 'a' already runs in this ...
    """


class BlockingCallError(TelegradError, RuntimeError):
    """A blocking verb was called where it could never return; nothing was sent.

    Such places are an event loop that telegrad runs, and for `shutdown()` a call being served.

    Example:
        >>> from telegrad import rpc
        >>> async def serve() -> int:
        ...     return rpc.rpc_sync("a", len, ([1, 2],))  # blocks the loop; await rpc_async instead
        >>> try:
        ...     with rpc.init_rpc("a"):
        ...         rpc.rpc_sync("a", serve)
        ... except BlockingCallError:
        ...     print("nothing was sent")
        nothing was sent
    """


class AgentForkedError(TelegradError, RuntimeError):
    """The agent belongs to the parent of this process; it does not survive `fork()`.

    Start processes with multiprocessing's `spawn` method. docs/architecture.md ("Starting and
    ending") says what to set where a library forks.

    Example:
        >>> from collections.abc import Callable
        >>> def load_batch(fetch: Callable[[], str]) -> str:
        ...     try:
        ...         return fetch()
        ...     except AgentForkedError:
        ...         return "a forked process has no agent: start it with the spawn method"
        >>> def fetch_in_forked_child() -> str:
        ...     raise AgentForkedError("the agent belongs to the parent")  # as rpc_sync does there
        >>> load_batch(fetch_in_forked_child)
        'a forked process has no agent: start it with the spawn method'
    """


class RemoteError(TelegradError, RuntimeError):
    """The callee raised an exception whose class is not imported here.

    Attributes:
        type_name: The class of the original as `module:qualname`.

    Example:
        >>> error = RemoteError("the trainer raised ModelError", type_name="train:ModelError")
        >>> error.type_name
        'train:ModelError'
    """

    def __init__(self, message: str, *, type_name: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name


class AutogradError(TelegradError, RuntimeError):
    """The graph cannot be differentiated in the way that was requested.

    Example:
        >>> from telegrad import tensor
        >>> tensor([1.0, 2.0]).backward()
        Traceback (most recent call last):
        telegrad.errors.AutogradError: the root of a backward needs no gradient: ...
    """


class ContextError(TelegradError, RuntimeError):
    """The autograd context does not exist here, was released, or none is active.

    Example:
        >>> from telegrad import dist_autograd, rpc
        >>> with rpc.init_rpc("a"):
        ...     with dist_autograd.context() as context_id:
        ...         pass
        ...     dist_autograd.get_gradients(context_id)
        Traceback (most recent call last):
        telegrad.errors.ContextError: autograd context ...
    """


class ContextMismatchError(TelegradError, RuntimeError):
    """A gradient of one autograd context reached a value that was received in another.

    Example:
        >>> from telegrad import dist_autograd, rpc, tensor
        >>> def double(x):
        ...     return 2.0 * x
        >>> x = tensor([1.0, 2.0], requires_grad=True)
        >>> with rpc.init_rpc("a"):
        ...     with dist_autograd.context():
        ...         doubled = rpc.rpc_sync("a", double, (x,))
        ...     with dist_autograd.context() as another:
        ...         dist_autograd.backward(another, [doubled.sum()])
        Traceback (most recent call last):
        telegrad.errors.ContextMismatchError: backward in autograd context ...
    """


class PoolExhaustedError(TelegradError, RuntimeError):
    """The callee's pool has reached its maximum of threads and takes no further call.

    Example:
        >>> from telegrad import rpc
        >>> def work() -> int:
        ...     return rpc.rpc_sync("a", len, ([1, 2],))  # a second call while the first is served
        >>> options = rpc.RpcOptions(limits=rpc.Limits(served_calls_per_peer=1))
        >>> with rpc.init_rpc("a", options=options):
        ...     rpc.rpc_sync("a", work)
        Traceback (most recent call last):
        telegrad.errors.PoolExhaustedError: worker 'a' has 1 calls of 'a' to serve, ...
    """


class PipelineError(TelegradError, RuntimeError):
    """A stage of a pipeline failed, and the step with it; `__cause__` is the reason.

    Attributes:
        stage: The number of the stage; -1 if it is not known.
        worker: The name of its worker.
        micro_batch: The micro-batch that the stage worked on; -1 if it is not known.
        phase: The work that failed: `forward`, `backward`, `optimizer`, ...

    Example:
        >>> import numpy as np
        >>> from telegrad import nn, parallel, rpc
        >>> def loss(output, target):
        ...     raise ValueError("no target fits")
        >>> with rpc.init_rpc("a"):
        ...     stages = [("a", nn.Linear, (3, 2))]
        ...     pipe = parallel.Pipeline(stages, num_microbatches=2, loss=loss)
        ...     pipe.step(np.ones((4, 3), np.float32), np.ones(4))
        Traceback (most recent call last):
        telegrad.errors.PipelineError: stage 0 on worker 'a' failed in the forward of ...
    """

    def __init__(
        self,
        message: str,
        *,
        stage: int = -1,
        worker: str = "",
        micro_batch: int = -1,
        phase: str = "",
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.worker = worker
        self.micro_batch = micro_batch
        self.phase = phase


class WaitCycleError(TelegradError, RuntimeError):
    """Calls wait for each other, so that none of them can end.

    Attributes:
        chain: The waits, one line each: a waiter and what it waits for. The last waits for the
            first.

    Example:
        >>> from collections.abc import Callable
        >>> def explain(call: Callable[[], None]) -> None:
        ...     try:
        ...         call()
        ...     except WaitCycleError as error:
        ...         for line in error.chain:
        ...             print(line)
        >>> def call_back() -> None:  # stands for a call of 'b' that waits for 'a'
        ...     chain = ["work on 'b' waits for the call of reply", "reply on 'a' waits for work"]
        ...     raise WaitCycleError("2 calls wait for each other", chain=chain)
        >>> explain(call_back)
        work on 'b' waits for the call of reply
        reply on 'a' waits for work
    """

    def __init__(self, message: str, *, chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.chain = tuple(chain)


class RendezvousError(TelegradError, ConnectionError):
    """The job could not be joined.

    Attributes:
        missing: The ranks or names that had not joined, each with the last error seen from it.

    Example:
        >>> from telegrad import rpc
        >>> try:
        ...     rpc.init_rpc("a", rank=0, world_size=2, init_method="file:///no/such/directory/a")
        ... except RendezvousError:
        ...     print("no job was joined")
        no job was joined
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

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> try:
        ...     with Cluster(2) as cluster:
        ...         cluster.kill(1)
        ...         cluster.call(0, rpc.rpc_sync, "worker1", math.sqrt, (4.0,))
        ... except WorkerLostError as error:
        ...     print(error.worker)
        worker1
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
    """The owner of an RRef is lost, and its value with it.

    Example:
        >>> import numpy as np
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> def fetch(cluster: Cluster) -> None:
        ...     rref = rpc.remote("worker1", np.zeros, (2,))
        ...     rref.to_here()
        ...     cluster.kill(1)
        ...     rref.to_here()
        >>> try:
        ...     with Cluster(2) as cluster:
        ...         cluster.call(0, fetch, cluster)
        ... except OwnerLostError as error:
        ...     print(error.worker)
        worker1
    """


class EvictedError(WorkerLostError):
    """The coordinator gave up this worker; the job goes on without it.

    Example:
        >>> from collections.abc import Callable
        >>> def train(step: Callable[[], None]) -> str:
        ...     try:
        ...         step()
        ...     except EvictedError as error:  # a WorkerLostError, but the lost worker is this one
        ...         return f"the job goes on without {error.worker}: start this process again"
        ...     return "done"
        >>> def step_of_evicted_worker() -> None:
        ...     raise EvictedError("the coordinator gave up 'worker1'", worker="worker1")
        >>> train(step_of_evicted_worker)
        'the job goes on without worker1: start this process again'
    """


class UnreachableWorkerError(WorkerLostError):
    """Neither this worker nor the other one listens, so no call can pass between them.

    Both are members of the job, and other workers reach them. Nothing was sent. See
    `RpcOptions.port`.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> try:
        ...     with Cluster(2, options=rpc.RpcOptions(port=None)) as cluster:
        ...         cluster.call(0, rpc.rpc_sync, "worker1", math.sqrt, (4.0,))
        ... except UnreachableWorkerError as error:
        ...     print("call", error.worker, "through a worker that listens")
        call worker1 through a worker that listens
    """


class CallTimeoutError(TelegradError, TimeoutError):
    """A call, fetch or wait passed its deadline.

    Attributes:
        worker: The callee's name.
        function: The function that was called.
        phase: The last phase that the call is known to have reached (`sending`, `waiting`, ...).
        elapsed: Seconds from the call to the expiry.

    Example:
        >>> import threading
        >>> from telegrad import rpc
        >>> never = threading.Event()
        >>> def wait() -> None:
        ...     never.wait(10.0)
        >>> try:
        ...     with rpc.init_rpc("a"):
        ...         rpc.rpc_sync("a", wait, timeout=0.05)
        ... except CallTimeoutError as error:
        ...     print(error.worker, error.function)
        a __main__:wait
        >>> never.set()
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

    Example:
        >>> from telegrad import rpc
        >>> future = rpc.Future()
        >>> future.cancel()
        True
        >>> future.wait()
        Traceback (most recent call last):
        telegrad.errors.CallCancelledError: a future was cancelled
    """


class NotEnoughResultsError(TelegradError, RuntimeError):
    """So many of several calls failed that the number wanted cannot succeed any more.

    Attributes:
        failures: The errors of the failed calls, in the order in which they failed.

    Example:
        >>> from telegrad import rpc
        >>> good, bad = rpc.Future(), rpc.Future()
        >>> good.set_result(1), bad.set_exception(KeyError("lr"))
        (None, None)
        >>> try:
        ...     rpc.first_n([good, bad], 2).wait()
        ... except NotEnoughResultsError as error:
        ...     print(error.failures)
        [KeyError('lr')]
    """

    def __init__(self, message: str, *, failures: Sequence[BaseException] = ()) -> None:
        super().__init__(message)
        self.failures = list(failures)


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """The job was not complete before the deadline.

    Example:
        >>> import tempfile
        >>> from telegrad import rpc
        >>> place = f"file://{tempfile.mkdtemp()}/store"
        >>> try:
        ...     options = rpc.RpcOptions(init_timeout=0.2)
        ...     rpc.init_rpc("a", rank=0, world_size=2, init_method=place, options=options)
        ... except RendezvousTimeoutError as error:
        ...     print(len(error.missing), "worker is missing")
        1 worker is missing
    """


class JoinCancelledError(RendezvousError):
    """This worker gave up joining the job: `shutdown()` was called while it still waited.

    Example:
        >>> import tempfile
        >>> from concurrent.futures import ThreadPoolExecutor, wait
        >>> from telegrad import rpc
        >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        ...     place = f"file://{folder}/store"
        ...     joining = pool.submit(rpc.init_rpc, "a", rank=0, world_size=2, init_method=place)
        ...     while wait([joining], timeout=0.01).not_done:
        ...         rpc.shutdown()  # has no effect before init_rpc has begun
        ...     print(type(joining.exception()).__name__)
        JoinCancelledError
    """


class UnknownWorkerError(TelegradError, LookupError):
    """No member of the job has this name or rank.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("a"):
        ...     rpc.get_worker_info("b")
        Traceback (most recent call last):
        telegrad.errors.UnknownWorkerError: no worker 'b' in this job (members: 'a' ...
    """


class ValueNotFoundError(TelegradError, LookupError):
    """The owner of an RRef does not have its value any more, or nothing is published by this name.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("a"):
        ...     rpc.unpublish("weights")
        Traceback (most recent call last):
        telegrad.errors.ValueNotFoundError: nothing is published as 'weights' on worker ...
    """


class QueueEmptyError(TelegradError, queue.Empty):
    """A queue of a store is empty, and its reader did not want to wait.

    Example:
        >>> from telegrad.rendezvous import MemoryStore
        >>> MemoryStore().queue_pop("tasks", block=False)
        Traceback (most recent call last):
        telegrad.errors.QueueEmptyError: the queue 'tasks' is empty; push a value, or wait for ...
    """


class FunctionNotFoundError(TelegradError, LookupError):
    """The callee has no such function.

    Example:
        >>> from telegrad import rpc
        >>> def predict() -> float:
        ...     raise FunctionNotFoundError("no 'predict' here")  # as an older worker answers
        >>> def ask(worker: str) -> str:
        ...     try:
        ...         return str(rpc.rpc_sync(worker, predict))
        ...     except FunctionNotFoundError:
        ...         return f"{worker} runs another version of this program"
        >>> with rpc.init_rpc("a"):
        ...     ask("a")
        'a runs another version of this program'
    """


class AuthenticationError(TelegradError, PermissionError):
    """A peer did not prove that it holds the job's token.

    Example:
        >>> import socket
        >>> from telegrad import rpc
        >>> with socket.create_server(("127.0.0.1", 0)) as server:
        ...     place = f"tcp://127.0.0.1:{server.getsockname()[1]}"  # a free port
        >>> mine = rpc.RpcOptions(token="the token of this job", start_when=1)
        >>> other = rpc.RpcOptions(token="the token of another")
        >>> with rpc.Agent("a", rank=0, world_size=2, init_method=place, options=mine):
        ...     rpc.Agent("b", rank=1, world_size=2, init_method=place, options=other)
        Traceback (most recent call last):
        telegrad.errors.AuthenticationError: ...the dialler holds another token; ...
    """


class CallRefusedError(TelegradError, PermissionError):
    """The callee does not allow this function to be called.

    Example:
        >>> import shutil
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("a"):
        ...     rpc.rpc_sync("a", shutil.which, ("ls",))
        Traceback (most recent call last):
        telegrad.errors.CallRefusedError: worker 'a' does not let the caller 'a' have ...
    """


class EncodeError(TelegradError, TypeError):
    """A value cannot travel.

    Attributes:
        path: The place of the value in the message, for instance `args[0]['lr']`.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("a"):
        ...     rpc.rpc_sync("a", len, (lambda: 0,))
        Traceback (most recent call last):
        telegrad.errors.EncodeError: ...
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class DecodeError(TelegradError, ValueError):
    """Bytes from a peer are not a valid message, or name something that may not be built here.

    Example:
        >>> from telegrad import rpc
        >>> limits = rpc.Limits(document_bytes=2**16)  # and so 2,520 items
        >>> with rpc.init_rpc("a", options=rpc.RpcOptions(limits=limits)):
        ...     rpc.rpc_sync("a", len, ([0] * 3000,))
        Traceback (most recent call last):
        telegrad.errors.DecodeError: worker 'a' cannot read the arguments of builtins:len ...
    """


class DuplicateNameError(TelegradError, ValueError):
    """A name, rank or codec is already taken by another living worker, or by another object.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("a"):
        ...     rpc.publish("weights", [1.0])
        ...     rpc.publish("weights", [2.0])
        Traceback (most recent call last):
        telegrad.errors.DuplicateNameError: something is published as 'weights' on ...
    """


class CollectiveMismatchError(TelegradError, ValueError):
    """The members of a group called different collectives.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step() -> None:
        ...     rank = collectives.init_process_group().rank
        ...     collectives.all_reduce(np.zeros(2 + rank))  # shapes differ
        >>> try:
        ...     with Cluster(2) as cluster:
        ...         cluster.run(step)
        ... except CollectiveMismatchError:
        ...     print("the arrays have different shapes")
        the arrays have different shapes
    """


class ScheduleError(TelegradError, ValueError):
    """A pipeline's schedule cannot be run: the table is not whole, or its workers wait in a circle.

    Example:
        >>> from telegrad.parallel.pipeline import make_schedule
        >>> make_schedule("zb-v", places=4, micro_batches=8, stages=4)
        Traceback (most recent call last):
        telegrad.errors.ScheduleError: the schedule 'zb-v' takes 8 stages on 4 places (given: 4)
    """
