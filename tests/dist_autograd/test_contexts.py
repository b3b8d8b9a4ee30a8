"""Contexts are released everywhere, and nothing late revives them."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.dist_autograd import container as containers
from telegrad.dist_autograd.context import Context, ambient_context
from telegrad.dist_autograd.functions import Functions, SendFunction
from telegrad.dist_autograd.ids import write_context_id
from telegrad.dist_autograd.interceptor import NAME, AutogradInterceptor
from telegrad.dist_autograd.messages import PassId
from telegrad.dist_autograd.pass_gradients import PassGradients
from telegrad.dist_autograd.seams import Container
from telegrad.errors import ContextError, WorkerLostError
from telegrad.rpc.seams import CallRecord, Message, current_agent
from telegrad.testing import Cluster, FaultPlan
from telegrad.testing.leaks import wait_until_gone
from telegrad.types import WorkerInfo


def container() -> Container:
    return current_agent().attachments[Container]


def open_contexts() -> int:
    return len(container())


def none_left(cluster: Cluster) -> None:
    def left() -> list[str]:
        counts = cluster.run(open_contexts)
        return [f"{count} on {r}" for r, count in zip(cluster.living, counts, strict=True) if count]

    wait_until_gone("contexts", left)


def double(x: Tensor) -> Tensor:
    return x * 2.0


def relay(x: Tensor, *names: str) -> Tensor:
    return rpc.rpc_sync(names[0], relay, [x, *names[1:]]) if names else double(x)


def vector() -> Tensor:
    return tensor(np.arange(3.0), requires_grad=True)


def along_a_chain() -> None:
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", relay, (vector(), "worker2", "worker1")).sum()
        dist_autograd.backward(context_id, [loss])
        assert rpc.rpc_sync("worker2", open_contexts) == 1
    assert open_contexts() == 0


def test_leaving_releases_along_the_peers_that_were_touched(cluster: Cluster) -> None:
    cluster.call(0, along_a_chain)
    none_left(cluster)


def after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), dist_autograd.context():
        rpc.rpc_sync("worker1", double, (vector(),))
        raise ZeroDivisionError
    assert open_contexts() == 0


def test_an_exception_releases_too(cluster: Cluster) -> None:
    cluster.call(0, after_an_error)
    none_left(cluster)


def recorded_cuts() -> list[str]:
    gc.collect()
    found = [str(each) for each in gc.get_objects() if type(each) is Functions]
    return found[2:]  # two workers have the context, and each one table of it


def passes_in_one_context() -> None:
    x = vector()
    with dist_autograd.context() as context_id:
        for _ in range(3):
            loss = rpc.rpc_sync("worker1", double, (x,)).sum()
            dist_autograd.backward(context_id, [loss])
        wait_until_gone("cuts", recorded_cuts)


def test_a_pass_that_has_ended_keeps_no_cut(cluster: Cluster) -> None:
    """Else a context's n passes would keep n tables of all that was recorded before them."""
    cluster.call(0, passes_in_one_context)


def ambient() -> int | None:
    return ambient_context()


left_behind: SimpleQueue[Callable[[], int | None]] = SimpleQueue()


def leave_something() -> None:

    copied = contextvars.copy_context()
    left_behind.put(lambda: copied.run(ambient))


def nothing_is_inherited() -> None:
    with dist_autograd.context():
        rpc.rpc_sync("worker1", leave_something)
        leave_something()
        assert left_behind.get(timeout=20)() is None  # the served call has ended
        own = left_behind.get(timeout=20)
        assert own() is not None
    assert own() is None


def test_what_is_left_behind_inherits_no_context(cluster: Cluster) -> None:
    cluster.call(0, nothing_is_inherited)


go_on = threading.Event()


def slow_relay(x: Tensor) -> Tensor:
    go_on.wait(40)
    return rpc.rpc_sync("worker2", double, (x,))


def leave_early() -> rpc.Future[Tensor]:
    with dist_autograd.context():
        return rpc.rpc_async("worker1", slow_relay, (vector(),))


@pytest.mark.filterwarnings("ignore:a Tensor that needs a gradient")
def test_a_late_call_does_not_revive_a_context(cluster: Cluster) -> None:
    go_on.clear()
    future = cluster.call(0, leave_early)
    none_left(cluster)
    go_on.set()
    assert not future.wait(20).requires_grad
    none_left(cluster)


def open_and_stay() -> None:
    context = dist_autograd.context()
    context.__enter__()
    rpc.rpc_sync("worker1", relay, (vector(), "worker2"))


def test_a_context_of_a_lost_creator_is_released(cluster: Cluster) -> None:
    cluster.call(0, open_and_stay)
    assert cluster.call(2, open_contexts) == 1
    cluster.kill(0)
    none_left(cluster)


# -- a worker that is lost between the creator and others ------------------------------------------


def open_along(name: str, *names: str) -> None:
    """Keeps a context open, which some hear of through others alone, until it is told to leave."""
    told, left = threading.Event(), threading.Event()
    leaving[name] = (told, left)
    with dist_autograd.context():
        rpc.rpc_sync(names[0], relay, [vector(), *names[1:]])
        opened[name].set()
        assert told.wait(20)
    left.set()


leaving: dict[str, tuple[threading.Event, threading.Event]] = {}
opened: defaultdict[str, threading.Event] = defaultdict(threading.Event)


@pytest.fixture
def opener() -> Iterator[Callable[..., tuple[threading.Event, threading.Event]]]:
    """Opens a context in a thread, and returns what has it left, and what says that it is."""
    with ThreadPoolExecutor(4) as pool:

        def start(cluster: Cluster, *names: str) -> tuple[threading.Event, threading.Event]:
            name = f"{len(leaving)}"
            pool.submit(cluster.call, 0, open_along, name, *names)
            assert opened[name].wait(20)
            return leaving[name]

        yield start


Opener = Callable[..., tuple[threading.Event, threading.Event]]


@pytest.mark.parametrize("lost", [1, 2], ids=["the first", "behind the first"])
def test_a_context_whose_way_is_lost_while_it_is_open(opener: Opener, lost: int) -> None:
    """The creator never called worker2 or worker3, and who did is gone."""
    with Cluster(4) as cluster:
        told, _ = opener(cluster, "worker1", "worker2", "worker3")
        assert cluster.call(3, open_contexts) == 1
        cluster.kill(lost)
        told.set()
        none_left(cluster)


def test_a_release_that_a_lost_worker_does_not_hand_on(opener: Opener) -> None:
    """It is on its way to worker1 when that is lost; another context stays open meanwhile."""
    with Cluster(3, faults=FaultPlan()) as cluster:
        first, first_left = opener(cluster, "worker1", "worker2")
        second, _ = opener(cluster, "worker1", "worker2")
        assert cluster.call(2, open_contexts) == 2
        cluster.network.partition("worker0", "worker1")
        first.set()
        assert first_left.wait(20)
        assert cluster.call(2, open_contexts) == 2
        cluster.kill(1)
        wait_until_gone("the first", lambda: ["2"] if cluster.call(2, open_contexts) == 2 else [])
        second.set()
        none_left(cluster)


# -- a release beside what else goes on -----------------------------------------------------------


def pass_during_a_release() -> None:
    mine = container()
    refused: list[int] = []
    close = Container._close

    def closing(self: Container, dropped: Any, *rest: Any, **named: Any) -> None:
        with pytest.raises(ContextError):
            self.new_pass(context)  # of a thread that had found the context before
        refused.append(context.id)
        close(self, dropped, *rest, **named)

    with pytest.MonkeyPatch.context() as patch, dist_autograd.context() as context_id:
        context = mine.find(context_id)
        patch.setattr(Container, "_close", closing)
        mine.release(context_id)
    assert refused == [context_id]


def test_no_pass_is_added_to_a_context_that_was_taken_out(cluster: Cluster) -> None:
    """It was in no table, so that no reply of a peer found it."""
    cluster.call(0, pass_during_a_release)


class Listening:
    """In the place of a pass that waits for others."""

    id, running, waiting = PassId("worker0", 0, 1, 7), False, True

    def __init__(self) -> None:
        self.told: SimpleQueue[str] = SimpleQueue()
        self.gradients = PassGradients(list)

    def lose(self, peer: WorkerInfo, error: BaseException) -> None:
        self.told.put("lose")

    def abort(self, cause: BaseException, *, at_once: bool) -> None:
        assert at_once
        self.told.put("give_up")


def told_after_a_release(verb: str) -> None:
    mine, listening = container(), Listening()
    context_id = mine.create()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(containers, "PassRunner", lambda *_: listening)
        mine.new_pass(mine.find(context_id))
    mine.release(context_id)
    if verb == "lose":
        mine.on_lost(WorkerInfo("lost", 9, 99), WorkerLostError("it is lost", worker="lost"))
    else:
        mine._give_up(WorkerLostError("it is lost", worker="lost"))
    assert listening.told.get(timeout=20.0) == verb
    listening.waiting = False


@pytest.mark.parametrize("verb", ["lose", "give_up"])
def test_a_pass_that_waits_is_told_after_its_context_is_released(
    cluster: Cluster, verb: str
) -> None:
    cluster.call(0, told_after_a_release, verb)


class Heirloom:
    """Is told of its end, and then asks for what the container guards."""

    def __init__(self, ended: list[bool], mine: Container) -> None:
        self.ended, self.mine = ended, mine

    def __del__(self) -> None:
        asked = threading.Thread(target=self.mine.create)  # not the test itself would hang
        asked.daemon = True
        asked.start()
        asked.join(5.0)
        self.ended.append(asked.is_alive())


def heirlooms() -> list[bool]:
    mine = container()
    stuck: list[bool] = []
    context_id = mine.create()
    mine.find(context_id).recorded.sends[1, 3] = cast("SendFunction", Heirloom(stuck, mine))
    mine.release(context_id)
    return stuck


def test_what_a_context_kept_ends_under_no_lock(cluster: Cluster) -> None:
    assert cluster.call(0, heirlooms) == [False]


# -- the interceptor by itself -------------------------------------------------------------------


def messages_by_hand() -> None:
    mine = container()
    interceptor = AutogradInterceptor(mine)
    peer = rpc.get_worker_info("worker1")
    with dist_autograd.context() as context_id:
        context = mine.find(context_id)
        message = Message(peer, False, CallRecord("f"), [vector(), 5, tensor(1.0)])
        interceptor.outgoing(message)
        assert message.headers == {NAME: [True, *write_context_id(context_id), 1, 0]}
        assert recorded(context) == (1, 0)
        interceptor.undelivered(message)
        assert recorded(context) == (0, 0)

        reply = Message(peer, True, message.call, [tensor([1.0])], {})
        reply.headers[NAME] = [9, 0]
        interceptor.incoming(reply)
        (received,) = reply.externals
        assert isinstance(received, Tensor)
        assert received.requires_grad
        assert recorded(context) == (0, 1)
        reply.externals = []
        interceptor.undelivered(reply)
        assert recorded(context) == (0, 0)


def recorded(context: Context) -> tuple[int, int]:
    functions = context.functions()
    return len(functions.sends), len(functions.receives)


def test_what_is_not_delivered_is_forgotten(cluster: Cluster) -> None:
    cluster.call(0, messages_by_hand)


def test_a_gradient_is_there_while_another_is_added_to_it() -> None:
    n = 10**6  # NumPy lets other threads run while it adds so many
    leaf = tensor(np.zeros(n), requires_grad=True)
    gradients, over = PassGradients(list), threading.Event()
    gradients(leaf, np.ones(n))
    missing = []

    def read() -> None:
        while not over.is_set():
            missing.append(gradients.get(leaf) is None)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for _ in range(30):
            gradients(leaf, np.ones(n))
        over.set()
        reading.result()
    assert not any(missing)
