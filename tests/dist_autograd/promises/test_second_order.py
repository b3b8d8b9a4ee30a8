"""Gradients of gradients through calls equal those of the same program on one worker."""

from __future__ import annotations

import random
import weakref
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.dist_autograd.seams import Container
from telegrad.errors import AutogradError, BlockingCallError, ContextError
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.dist_autograd.promises.second_order import (
    SIZE,
    Part,
    Step,
    leaves_of,
    local,
    penalty_on,
    random_steps,
    run_steps,
)

X = np.random.default_rng(3).normal(size=SIZE)


def parts_there() -> list[rpc.RRef[Part]]:
    return [rpc.remote(f"worker{r}", Part, (r,)) for r in range(3)]


def equal(found: list[Any], expected: list[Array], seed: object = None) -> None:
    for actual, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, exact, rtol=1e-10, atol=1e-12, err_msg=f"seed {seed}")


# -- a penalty on gradients: A -> B -> C, and back -----------------------------------------------------


def penalty_by_grad(steps: list[Step], seed: int) -> None:
    """On the gradients of the leaves that are here, which `grad` returns."""
    parts, leaves = parts_there(), leaves_of(seed)
    with dist_autograd.context() as context_id:
        value = run_steps(steps, parts, leaves)
        gradients = dist_autograd.grad(
            context_id, value, leaves, create_graph=True, allow_unused=True
        )
        kept = [part.rpc_sync().array(context_id) for part in parts]
        equal(kept, [np.zeros(SIZE)] * 3)  # nothing is kept by grad, nowhere
        assert dist_autograd.get_gradients(context_id) == {}
        loss = value + penalty_on([g for g in gradients if g is not None])
        dist_autograd.backward(context_id, [loss])
        found = dist_autograd.get_gradients(context_id)
        all_found = [found[x].data if x in found else np.zeros(SIZE) for x in leaves]
        all_found += [part.rpc_sync().array(context_id) for part in parts]

    here, own = [Part(i) for i in range(3)], leaves_of(seed)
    value = run_steps(steps, here, own)
    gradients = tg.grad(value, own, create_graph=True, allow_unused=True)
    (value + penalty_on([g for g in gradients if g is not None])).backward()
    weights = [part.weight for part in here]
    expected = [np.zeros(SIZE) if t.grad is None else t.grad.data for t in (*own, *weights)]
    equal(all_found, expected, seed)


def penalty_in_the_context(steps: list[Step], seed: int) -> None:
    """On the gradients of all leaves, each where it is: roots on all workers, in one pass."""
    first, second = local(steps, 3, seed)
    parts, leaves = parts_there(), leaves_of(seed)
    with dist_autograd.context() as context_id:
        value = run_steps(steps, parts, leaves)
        dist_autograd.backward(context_id, [value], create_graph=True)
        found = dist_autograd.get_gradients(context_id)
        mine = [found[x] if x in found else tensor(np.zeros(SIZE)) for x in leaves]
        there = [part.rpc_sync().gradient(context_id) for part in parts]
        equal([g.data for g in (*mine, *there)], first, seed)

        roots: list[Any] = [
            penalty_on(mine),
            *(part.remote().penalty(context_id) for part in parts),
        ]
        needed = [root for root, g in zip(roots, [mine[0] + mine[1], *there], strict=True)
                  if g.requires_grad]  # fmt: skip
        if needed:
            dist_autograd.backward(context_id, needed)
        found = dist_autograd.get_gradients(context_id)
        total = [found[x].data if x in found else np.zeros(SIZE) for x in leaves]
        total += [part.rpc_sync().array(context_id) for part in parts]
        equal(total, [a + b for a, b in zip(first, second, strict=True)], seed)


def random_programs(first: int, count: int) -> None:
    for seed in range(first, first + count):
        steps = random_steps(random.Random(seed), 3)
        penalty_by_grad(steps, seed)
        penalty_in_the_context(steps, seed)


@pytest.mark.long
def test_penalties_of_random_programs(cluster: Cluster) -> None:
    cluster.call(0, random_programs, 0, 6)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_penalties_of_many_random_programs(cluster: Cluster) -> None:
    for first in (6, *range(1000, 1300, 20)):
        cluster.call(0, random_programs, first, 20)


A_B_C = [Step("tanh", (0, 1, 2), 0, 1), Step("softened", (1, 2, 0), 2, 0)]


def orders(context_id: int | None, parts: list[Any]) -> list[Array]:
    leaf = tensor(X, requires_grad=True)
    value, found = run_steps(A_B_C, parts, [leaf, leaf * 2.0]), []
    for _ in range(3):
        if context_id is None:
            (slope,) = tg.grad(value, leaf, create_graph=True)
        else:
            (slope,) = dist_autograd.grad(context_id, value, leaf, create_graph=True)
        found.append(slope.data)
        value = (slope * slope).sum()
    return found


def three_orders() -> None:
    with dist_autograd.context() as context_id:
        found = orders(context_id, parts_there())
    equal(found, orders(None, [Part(i) for i in range(3)]))


def test_third_order(cluster: Cluster) -> None:
    cluster.call(0, three_orders)


# -- grad ----------------------------------------------------------------------------------------------


def with_respect_to_results() -> None:
    """Of what was computed here, of what was received, of a tree; outputs on other workers."""
    part = rpc.remote("worker1", Part, (1,))
    with dist_autograd.context() as context_id:
        x = tensor(X, requires_grad=True)
        hidden = x * 2.0
        received = part.rpc_sync().step("tanh", [], hidden, x)
        end = rpc.remote("worker2", Part, (2,)).remote().step("product", [], received, x)
        given = np.array([1.0, -1.0, 2.0])
        found = dist_autograd.grad(
            context_id, [end, received], {"a": hidden, "b": [received, x]}, [given, 2 * given]
        )
        assert dist_autograd.get_gradients(context_id) == {}
    y = tensor(X, requires_grad=True)
    inner = y * 2.0
    middle = Part(1).step("tanh", [], inner, y)
    last = Part(2).step("product", [], middle, y)
    exact = tg.grad([last, middle], {"a": inner, "b": [middle, y]}, [given, 2 * given])
    equal([found["a"].data, *(g.data for g in found["b"])],
          [exact["a"].data, *(g.data for g in exact["b"])])  # fmt: skip


def test_grad_of_results_received_and_remote(cluster: Cluster) -> None:
    cluster.call(0, with_respect_to_results)


def errors_of_grad() -> None:
    part = rpc.remote("worker1", Part, (1,))
    x, other = tensor(X, requires_grad=True), tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        value = part.rpc_sync().step("tanh", [], x, x).sum()
        with pytest.raises(AutogradError, match=r"no gradient reached inputs \[1\]"):
            dist_autograd.grad(context_id, value, [x, other], retain_graph=True)
        found = dist_autograd.grad(
            context_id, value, [x, other], allow_unused=True, retain_graph=True
        )
        assert found[1] is None
        with pytest.raises(AutogradError, match="RRef to one at 'worker1'"):
            dist_autograd.grad(context_id, value, part)
        with pytest.raises(AutogradError, match="input 0 of shape .* needs no gradient"):
            dist_autograd.grad(context_id, value, tensor(1.0))
        with pytest.raises(AutogradError, match="1 roots were given 2 gradients"):
            dist_autograd.grad(context_id, [value], x, [None, None])
        rpc.rpc_sync("worker1", on_the_user_loop, (context_id, x))
        dist_autograd.grad(context_id, value, x)
        with pytest.raises(AutogradError, match="freed"):
            dist_autograd.grad(context_id, value, x)
    with pytest.raises(ContextError, match="was released"):
        dist_autograd.grad(context_id, value, x)


async def on_the_user_loop(context_id: int, x: Tensor) -> None:
    words = r"await rpc.to_thread\(dist_autograd.grad, context_id, outputs, inputs\)"
    with pytest.raises(BlockingCallError, match=words):
        dist_autograd.grad(context_id, (x * x).sum(), x)


def test_what_grad_refuses(cluster: Cluster) -> None:
    cluster.call(0, errors_of_grad)


def many_grads() -> None:
    """A context that stays open keeps no gradients of those that were handed back."""
    part, x = rpc.remote("worker1", Part, (1,)), tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        value = part.rpc_sync().step("tanh", [], x, x).sum()
        alive = []
        for _ in range(3):
            (slope,) = dist_autograd.grad(context_id, value, x, retain_graph=True)
            alive.append(weakref.ref(slope))
            del slope
        container = current_agent().attachments[Container]
        found = container.passes(container.find(context_id))
        assert [each.take_captured() for each in found] == [{}, {}, {}]
        assert [each() for each in alive] == [None, None, None]


def test_grad_keeps_nothing(cluster: Cluster) -> None:
    cluster.call(0, many_grads)


# -- create_graph keeps what it should -----------------------------------------------------------------


def sums_of_passes() -> None:
    """Of a recorded pass and one that is not: the sum has a graph."""
    part = rpc.remote("worker1", Part, (1,))
    x = tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        value = part.rpc_sync().step("tanh", [], x, x).sum()
        dist_autograd.backward(context_id, [value], create_graph=True)
        dist_autograd.backward(context_id, [value], retain_graph=True)
        dist_autograd.backward(context_id, [x.sum()])
        total = dist_autograd.get_gradients(context_id)[x]
        (again,) = dist_autograd.grad(context_id, value, x, retain_graph=True)
        np.testing.assert_allclose(total.data, 2 * again.data + 1.0, rtol=1e-12)
        assert total.requires_grad
        (found,) = dist_autograd.grad(context_id, total.sum(), x)
    y = tensor(X, requires_grad=True)
    (slope,) = tg.grad(Part(1).step("tanh", [], y, y).sum(), y, create_graph=True)
    (exact,) = tg.grad(slope.sum(), y)
    np.testing.assert_allclose(found.data, exact.data, rtol=1e-10)


def test_recorded_and_other_passes_add_up(cluster: Cluster) -> None:
    cluster.call(0, sums_of_passes)


def recorded_root_gradient() -> None:
    """The gradient that a root is given may itself be differentiated, at an RRef's owner too."""
    part = rpc.remote("worker1", Part, (1,))
    for alone in (True, False):
        x, v = tensor(X, requires_grad=True), tensor(X * X, requires_grad=True)
        with dist_autograd.context() as context_id:
            end = part.remote().step("tanh", [], x, x)
            roots: list[Any] = [end] if alone else [end, x.sum()]
            given = [v] if alone else [v, None]
            dist_autograd.backward(context_id, roots, given, create_graph=True)
            product = dist_autograd.get_gradients(context_id)[x]
            found = dist_autograd.grad(context_id, product.sum(), [x, v])
        y, w = tensor(X, requires_grad=True), tensor(X * X, requires_grad=True)
        (exact,) = tg.grad(Part(1).step("tanh", [], y, y), y, w, create_graph=True)
        expected = tg.grad(exact.sum(), [y, w])
        equal([g.data for g in found], [g.data for g in expected])


def test_the_gradient_of_a_root_is_recorded(cluster: Cluster) -> None:
    cluster.call(0, recorded_root_gradient)
