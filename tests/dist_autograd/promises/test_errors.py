"""What a user may do wrong, and the words that tell them; nothing hangs and nothing stays."""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, no_grad, tensor
from telegrad.dist_autograd.messages import ABORT, PASS
from telegrad.errors import (
    AutogradError,
    BlockingCallError,
    ContextError,
    ContextMismatchError,
    DecodeError,
    NotInitializedError,
)
from telegrad.rpc.pool.inbox import MOST_GARBAGE_TOLD, Inbox
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster


def double(x: Tensor) -> Tensor:
    return x * 2.0


def vector() -> Tensor:
    return tensor(np.arange(3.0), requires_grad=True)


# -- roots and contexts --------------------------------------------------------------------------


def bad_contexts() -> None:
    loss = vector().sum()
    for verb in (dist_autograd.get_gradients, lambda c: dist_autograd.backward(c, [loss])):
        with pytest.raises(
            ContextError, match="'worker0' knows no autograd context 77.*with dist_autograd.context"
        ):
            verb(77)
        for context_id in ("77", True, 7.0, None):
            with pytest.raises(TypeError, match="context_id must be"):
                verb(context_id)  # type: ignore[arg-type]
        with dist_autograd.context() as context_id:
            pass
        with pytest.raises(
            ContextError,
            match=f"context {context_id} was released on worker 'worker0'.*inside its `with",
        ):
            verb(context_id)
        rpc.rpc_sync("worker1", told_of_it, (context_id,))


def told_of_it(context_id: int) -> None:
    with pytest.raises(ContextError, match="knows no autograd context"):
        dist_autograd.get_gradients(context_id)  # this worker was never called inside


def test_unknown_and_released_contexts(cluster: Cluster) -> None:
    cluster.call(0, bad_contexts)


def test_without_an_agent() -> None:
    with pytest.raises(NotInitializedError), dist_autograd.context():
        pass
    with pytest.raises(NotInitializedError):
        dist_autograd.get_gradients(1)


def open_another() -> None:
    with dist_autograd.context():
        pass


def nested_contexts() -> None:
    with dist_autograd.context() as context_id:
        with pytest.raises(ContextError, match=f"inside autograd context {context_id} already"):
            open_another()
        with pytest.raises(ContextError, match=f"inside autograd context {context_id} already"):
            rpc.rpc_sync("worker1", open_another)
        dist_autograd.get_gradients(context_id)
    open_another()


def test_contexts_do_not_nest(cluster: Cluster) -> None:
    cluster.call(0, nested_contexts)


# -- graphs that leave the process, or the context -----------------------------------------------


def local_backward() -> None:
    x = vector()
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", double, (x,)).sum()
        with pytest.raises(
            AutogradError, match=r"'worker1'.*dist_autograd.backward\(context_id, \[loss\]\)"
        ):
            loss.backward()
        assert x.grad is None
        dist_autograd.backward(context_id, [loss])
        assert dist_autograd.get_gradients(context_id)[x].data.tolist() == [2.0] * 3


def test_local_backward_across_workers(cluster: Cluster) -> None:
    cluster.call(0, local_backward)


def of_another_context() -> None:
    x = vector()
    with dist_autograd.context() as first:
        kept = rpc.rpc_sync("worker1", double, (x,))
        assert first
    with dist_autograd.context() as second:
        loss = (kept * rpc.rpc_sync("worker1", double, (x,))).sum()
        with pytest.raises(
            ContextMismatchError,
            match=f"received from 'worker1' in context {first}.*receive it inside .*detach",
        ):
            dist_autograd.backward(second, [loss])
        assert dist_autograd.get_gradients(second) == {}


def test_a_value_of_another_context(cluster: Cluster) -> None:
    cluster.call(0, of_another_context)


def outside() -> None:
    x = vector()
    for _ in range(2):
        with pytest.warns(UserWarning, match="outside of an autograd context") as caught:
            result = call_double(x)
        assert caught[0].filename == __file__
        assert not result.requires_grad
        with (
            dist_autograd.context() as context_id,
            pytest.raises(
                AutogradError, match=r"roots\[0\] needs no gradient.*outside the context"
            ),
        ):
            dist_autograd.backward(context_id, [result.sum()])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            call_double(x)
    assert len(seen) == 1  # once for the line that calls
    call_double(x.detach())
    with no_grad():
        call_double(x)


def call_double(x: Tensor) -> Tensor:
    return rpc.rpc_sync("worker1", double, (x,))


def test_outside_of_a_context_is_a_warning(cluster: Cluster) -> None:
    cluster.call(0, outside)


async def vector_softly() -> Tensor:
    return vector()


def two_vectors() -> Iterator[Tensor]:
    yield vector()
    yield vector()


async def two_vectors_softly() -> AsyncIterator[Tensor]:
    yield vector()


class Makes:
    def vector(self) -> Tensor:
        return vector()

    def __call__(self) -> Tensor:
        return vector()


def values_from_outside() -> None:
    """Of functions, methods, a class' instance and generators."""
    made = rpc.remote("worker1", Makes)
    for _ in range(2):
        rpc.rpc_sync("worker1", vector)
        rpc.rpc_sync("worker1", vector_softly)
        made.rpc_sync().vector()
        made.rpc_sync()()
        rpc.remote("worker1", vector).to_here()  # no line of a function sends it: no warning
        list(rpc.stream("worker1", two_vectors))
        list(rpc.stream("worker1", two_vectors_softly))


def test_a_value_from_outside_of_a_context_warns_at_the_function_that_returned_it(
    cluster: Cluster,
) -> None:
    """There is nothing of the function on the stack any more: the lines were those of a thread."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        cluster.call(0, values_from_outside)
    functions = (
        vector,
        vector_softly,
        Makes.vector,
        Makes.__call__,
        two_vectors,
        two_vectors_softly,
    )
    lines = sorted(each.__code__.co_firstlineno for each in functions)  # once for each of them
    assert sorted(each.lineno for each in seen) == lines
    assert {each.filename for each in seen} == {__file__}


# -- event loops and garbage -----------------------------------------------------------------------


async def backward_on_the_loop(context_id: int, x: Tensor) -> int:
    loss = (x * x).sum()
    with pytest.raises(BlockingCallError, match="to_thread"):
        dist_autograd.backward(context_id, [loss])
    await rpc.to_thread(dist_autograd.backward, context_id, [loss])
    return 1


async def context_on_the_loop() -> int:
    x = vector()
    async with dist_autograd.context() as context_id:
        y = await rpc.rpc_async("worker2", double, (x,))
        await rpc.to_thread(dist_autograd.backward, context_id, [y.sum()])
        return len(dist_autograd.get_gradients(context_id))


def on_the_loop() -> None:
    x = vector()
    with dist_autograd.context() as context_id:
        assert rpc.rpc_sync("worker1", backward_on_the_loop, (context_id, x)) == 1
        assert len(dist_autograd.get_gradients(context_id)) == 1
    assert rpc.rpc_sync("worker1", context_on_the_loop) == 1


def test_backward_on_the_user_loop(cluster: Cluster) -> None:
    cluster.call(0, on_the_loop)


def test_a_log_tells_of_so_many_garbage_messages_and_no_more(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages about passes count with all others of their sender."""

    def send_garbage() -> None:
        agent = current_agent()
        peer = agent.members.find("worker1")
        for _ in range(MOST_GARBAGE_TOLD):
            for kind in (ABORT, PASS):
                agent.messages.post(peer, kind, "garbage")
        asked = [agent.messages.request(peer, PASS, "garbage") for _ in range(10)]
        for each in asked:
            with pytest.raises(DecodeError):
                each.wait(20.0)
        with pytest.raises(DecodeError):
            agent.messages.request(peer, "no.such.kind").wait(20.0)

    with caplog.at_level(logging.WARNING, "telegrad"):
        cluster.call(0, send_garbage)
    told = [each.getMessage() for each in caplog.records if "garbage" in each.getMessage()]
    assert 0 < len(told) <= MOST_GARBAGE_TOLD
    assert all("from 'worker0' is garbage" in words for words in told)


def large_gradient() -> None:
    x = tensor(np.zeros(2**18), requires_grad=True)
    for words in (r"no memory for \d+ bytes of autograd.pass", ""):
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync("worker1", double, (x,)).sum()
            if words:
                with pytest.raises(MemoryError, match=words):
                    dist_autograd.backward(context_id, [loss])
            else:
                dist_autograd.backward(context_id, [loss])
                assert dist_autograd.get_gradients(context_id)[x][0] == 2.0


def test_a_gradient_without_memory_fails_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that sent it was lost."""
    lacking = [PASS]

    def memory(_: Inbox, kind: str, size: int) -> memoryview | None:
        if kind in lacking:
            lacking.remove(kind)
            raise MemoryError
        return None

    monkeypatch.setattr(Inbox, "memory", memory)
    with Cluster(2) as cluster:
        cluster.call(0, large_gradient)
