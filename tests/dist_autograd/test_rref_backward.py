"""`RRef.backward`: any holder starts the pass, wherever the value lives; it ends for everyone."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, no_grad, tensor
from telegrad.dist_autograd.seams import Container
from telegrad.errors import (
    AutogradError,
    BlockingCallError,
    CallCancelledError,
    CallTimeoutError,
    ContextError,
    OwnerLostError,
    WorkerLostError,
)
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster, leaks, no_leaked_references
from telegrad.types import Array
from tests.dist_autograd.layers import Layer, X
from tests.faults.remote_code import entered, gate, hold, release, vector
from tests.patience import with_more_time


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that last."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


def expected() -> list[Array]:
    """The gradients of x, of the layer that makes the loss, of the one behind it: all local."""
    x, head, tail = tensor(X, requires_grad=True), Layer(1), Layer(2)
    y = tail.forward(head.forward(x))
    (y * y).sum().backward()
    found = [leaf.grad for leaf in (x, head.weight, tail.weight)]
    return [each.data for each in found if each is not None]


def equal_to_local(found: list[Array | None]) -> None:
    for actual, local in zip(found, expected(), strict=True):
        assert actual is not None
        np.testing.assert_allclose(actual, local, rtol=1e-10)


Ask = Callable[[rpc.RRef[Tensor], int], None]


def train(owner: str, tail_owner: str, ask: Ask) -> None:
    """Makes a loss on one worker that depends on all, and has `ask` run backward from it."""
    head, tail = rpc.remote(owner, Layer, (1,)), rpc.remote(tail_owner, Layer, (2,))
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = head.remote().loss(x, tail)
        ask(loss, context_id)
        found: list[Array | None] = [dist_autograd.get_gradients(context_id)[x].data]
        found += [layer.rpc_sync().gradient(context_id) for layer in (head, tail)]
    equal_to_local(found)
    assert x.grad is None


# -- who asks --------------------------------------------------------------------------------------


def by_its_creator(loss: rpc.RRef[Tensor], context_id: int) -> None:
    loss.backward(context_id)


def by_its_owner(loss: rpc.RRef[Tensor], context_id: int) -> None:
    rpc.rpc_sync(loss.owner(), asks, (loss, context_id))


def by_another(loss: rpc.RRef[Tensor], context_id: int) -> None:
    rpc.rpc_sync("worker2", asks, (loss, context_id))


def as_the_only_root(loss: rpc.RRef[Tensor], context_id: int) -> None:
    dist_autograd.backward(context_id, [loss])


def from_a_loop(loss: rpc.RRef[Tensor], context_id: int) -> None:
    rpc.rpc_sync("worker2", asks_on_a_loop, (loss, context_id))


def asks(loss: rpc.RRef[Tensor], context_id: int) -> None:
    loss.backward(context_id)


async def asks_on_a_loop(loss: rpc.RRef[Tensor], context_id: int) -> None:
    with pytest.raises(BlockingCallError, match="rpc.to_thread"):
        loss.backward(context_id)
    await rpc.to_thread(loss.backward, context_id)


ASKS = [by_its_creator, by_its_owner, by_another, as_the_only_root, from_a_loop]


@pytest.mark.few(2)
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("owner", ["worker0", "worker1"])
def test_gradients_equal_local_ones_whoever_asks(cluster: Cluster, owner: str, ask: Ask) -> None:
    """The loss is made on the worker that asked for it, or on another one."""
    with no_leaked_references(cluster):
        cluster.call(0, train, owner, "worker2", ask)


def under_no_grad(loss: rpc.RRef[Tensor], context_id: int) -> None:
    with no_grad():
        loss.backward(context_id)


def test_under_no_grad(cluster: Cluster) -> None:
    cluster.call(0, train, "worker1", "worker2", under_no_grad)


def sum_of_own() -> Tensor:
    return vector().sum()


# -- without a context -----------------------------------------------------------------------------


def without_a_context() -> None:
    x = vector()
    loss = rpc.RRef((x * x).sum())
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [0.0, 4.0, 8.0]
    rpc.rpc_sync("worker1", asks_without_a_context, (loss,))
    for value, error in (("text", TypeError), (x, AutogradError), (tensor(1.0), AutogradError)):
        with pytest.raises(error, match="value of this RRef at 'worker0'"):
            rpc.RRef(value).backward()


def asks_without_a_context(loss: rpc.RRef[Tensor]) -> None:
    words = r"'worker0' and not 'worker1'; write rref.backward\(context_id\) inside"
    with pytest.raises(ContextError, match=words):
        loss.backward()


def test_without_a_context_it_is_the_owners_alone(cluster: Cluster) -> None:
    cluster.call(0, without_a_context)


def held_loss(name: str) -> Tensor:
    hold(name)
    return sum_of_own()


def waits_for_an_own_creation(name: str) -> None:
    made = rpc.remote("worker0", held_loss, (name,))
    entered(name)
    with pytest.raises(CallTimeoutError, match="still being created"):
        made.backward(timeout=0.01)
    release(name)
    made.backward()


def test_without_a_context_it_waits_for_the_value(cluster: Cluster, name: str) -> None:
    cluster.call(0, waits_for_an_own_creation, name)


# -- errors, deadlines, losses ---------------------------------------------------------------------


def loss_that_is_held(x: Tensor, name: str, tail: rpc.RRef[Layer]) -> Tensor:
    """Backwards it stops, before it goes on to the worker behind it."""

    def hook(gradient: Tensor) -> None:
        hold(name)

    y: Tensor = tail.rpc_sync().forward(x)
    y.register_hook(hook)
    return (y * 1.0).sum()


class Step:
    """A holder in the middle of `RRef.backward`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.x = tensor(X, requires_grad=True)
        self.tail = rpc.remote("worker2", Layer, (2,))

    def loss(self) -> rpc.RRef[Tensor]:
        return rpc.remote("worker1", loss_that_is_held, (self.x, self.name, self.tail))

    def check_nothing_is_kept(self, context_id: int) -> None:
        """The pass was aborted here, and behind the owner."""
        assert dist_autograd.get_gradients(context_id) == {}
        assert self.tail.rpc_sync().gradient(context_id) is None

    def check_goes_on(self, context_id: int) -> None:
        """The context is whole: what does not need the owner of the loss goes on in it."""
        again = self.tail.rpc_sync().forward(self.x).sum()
        dist_autograd.backward(context_id, [again], timeout=20.0)
        assert self.tail.rpc_sync().gradient(context_id) is not None


def is_aborted(context_id: int) -> None:
    """Returns when every pass of the context is aborted at this worker."""

    def others() -> list[str]:
        container = current_agent().attachments[Container]
        context = container.get(context_id)
        passes = [] if context is None else container.passes(context)
        left = [repr(each.id) for each in passes if each.running or each.gradients.complete]
        return left if passes else ["a pass"]

    leaks.wait_until_gone("passes", others)


def late(name: str, timeout: float) -> None:
    step = Step(name)
    with dist_autograd.context() as context_id:
        loss = step.loss()
        with pytest.raises(
            CallTimeoutError, match=r"backward was not done after .*'worker1'"
        ) as caught:
            loss.backward(context_id, timeout=timeout)
        assert gate(f"{name} entered").is_set(), "the pass was over before it had come there"
        assert "left no gradients" in str(caught.value)
        rpc.rpc_sync("worker1", is_aborted, (context_id,))
        release(name)
        step.check_nothing_is_kept(context_id)
        step.check_goes_on(context_id)


def test_a_deadline_aborts_the_pass(cluster: Cluster, name: str) -> None:
    with_more_time(lambda limit: cluster.call(0, late, f"{name} {limit}", limit), 0.5, 3.0, 15.0)


def has_no_time(owner: str, name: str) -> None:
    """The deadline is over before the owner is asked for a value that is not there yet."""
    with dist_autograd.context() as context_id:
        loss = rpc.remote(owner, held_loss, (name,))
        with pytest.raises(CallTimeoutError):
            loss.backward(context_id, timeout=1e-12)
        assert dist_autograd.get_gradients(context_id) == {}
        release(name)


@pytest.mark.parametrize("owner", ["worker0", "worker1"])
def test_a_deadline_that_is_over_at_once_is_a_timeout(
    cluster: Cluster, name: str, owner: str
) -> None:
    cluster.call(0, has_no_time, owner, name)


def inherits_a_deadline(name: str, limit: float) -> None:
    step = Step(name)
    with dist_autograd.context() as context_id:
        loss = step.loss()
        with pytest.raises(CallTimeoutError, match="asks"):
            rpc.rpc_sync("worker2", asks, (loss, context_id), timeout=limit)
        assert gate(f"{name} entered").is_set(), "the pass was over before it had come there"
        rpc.rpc_sync("worker1", is_aborted, (context_id,))
        release(name)
        step.check_nothing_is_kept(context_id)


def test_the_deadline_of_the_served_call_bounds_it(cluster: Cluster, name: str) -> None:
    with_more_time(
        lambda limit: cluster.call(0, inherits_a_deadline, f"{name} {limit}", limit), 0.5, 3.0, 15.0
    )


def cancels(name: str) -> None:
    step = Step(name)
    with dist_autograd.context() as context_id:
        call = rpc.rpc_async("worker2", asks, (step.loss(), context_id))
        entered(name)
        assert call.cancel()
        with pytest.raises(CallCancelledError):
            call.wait()
        rpc.rpc_sync("worker1", is_aborted, (context_id,))
        release(name)
        step.check_nothing_is_kept(context_id)
        step.check_goes_on(context_id)


def test_a_cancelled_call_takes_its_pass_along(cluster: Cluster, name: str) -> None:
    cluster.call(0, cancels, name)


def released_while_it_runs(name: str) -> None:
    step, pool = Step(name), ThreadPoolExecutor(1)
    with pool:
        with dist_autograd.context() as context_id:
            loss = step.loss()
            asked = pool.submit(contextvars.copy_context().run, loss.backward, context_id)
            entered(name)
        with pytest.raises(ContextError, match="released"):
            asked.result()
    release(name)


def test_a_context_released_while_the_pass_runs(cluster: Cluster, name: str) -> None:
    cluster.call(0, released_while_it_runs, name)


def knows_that_it_is_lost(name: str) -> None:
    """Returns when this worker, too, has given up another one."""
    leaks.wait_until_gone(
        "workers", lambda: [info.name for info in rpc.get_worker_infos() if info.name == name]
    )


def loses_the_owner(name: str) -> str:
    step = Step(name)
    with dist_autograd.context() as context_id:
        loss = step.loss()
        with pytest.raises(OwnerLostError, match="'worker1'") as caught:
            loss.backward(context_id)
        assert "repeat the step in a new context" in caught.value.__notes__[-1]
        rpc.rpc_sync("worker2", knows_that_it_is_lost, ("worker1",))
        step.check_nothing_is_kept(context_id)
        step.check_goes_on(context_id)
        with pytest.raises(OwnerLostError, match="'worker1'"):
            loss.backward(context_id)
    return caught.value.worker


def test_the_owner_is_killed_in_the_middle(pool: ThreadPoolExecutor, name: str) -> None:
    with Cluster(3) as cluster:
        asked = pool.submit(cluster.call, 0, loses_the_owner, name)
        cluster.call(1, entered, name)
        cluster.kill(1)
        assert asked.result() == "worker1"


def loses_another(name: str) -> str:
    step = Step(name)
    with dist_autograd.context() as context_id:
        loss = step.loss()
        with pytest.raises(WorkerLostError, match="'worker2'") as caught:
            loss.backward(context_id)
        assert not isinstance(caught.value, OwnerLostError)
        assert "started on worker 'worker0', was aborted" in "".join(caught.value.__notes__)
        assert dist_autograd.get_gradients(context_id) == {}
    return caught.value.worker


def test_another_worker_is_killed_in_the_middle(pool: ThreadPoolExecutor, name: str) -> None:
    with Cluster(3) as cluster:
        asked = pool.submit(cluster.call, 0, loses_another, name)
        cluster.call(1, entered, name)
        cluster.kill(2)
        assert asked.result() == "worker2"
        cluster.call(1, release, name)


def nothing_is_served() -> None:
    serving = current_agent().serving
    leaks.wait_until_gone("calls", lambda: [call.record.function for call in serving.calls()])


def test_who_asks_is_killed_in_the_middle(pool: ThreadPoolExecutor, name: str) -> None:
    """Nobody waits any more, so the owner does not either."""
    with Cluster(3) as cluster:
        asked = pool.submit(cluster.call, 0, loses_the_owner, name)
        cluster.call(1, entered, name)
        cluster.kill(0)
        cluster.call(1, nothing_is_served)
        cluster.call(1, release, name)
        assert isinstance(asked.exception(), WorkerLostError)
