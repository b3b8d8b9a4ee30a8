"""Roots with gradients of their own, and roots that live on several workers, in one pass."""

from __future__ import annotations

import contextvars
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Function, FunctionContext, Tensor, tensor
from telegrad.errors import (
    AutogradError,
    CallTimeoutError,
    ContextError,
    OwnerLostError,
    WorkerLostError,
)
from telegrad.rpc import seams
from telegrad.rpc.seams import current_agent
from telegrad.testing import Cluster, leaks
from telegrad.types import Array
from tests.dist_autograd.layers import Layer, X
from tests.faults.remote_code import entered, hold, release

GIVEN = np.random.default_rng(2).normal(size=(5, 4))


def layers_there() -> list[rpc.RRef[Layer]]:
    return [rpc.remote(f"worker{r}", Layer, (r,)) for r in range(3)]


def equal(found: list[Array | None], expected: list[Any], times: float = 1.0) -> None:
    for actual, exact in zip(found, expected, strict=True):
        assert actual is not None
        np.testing.assert_allclose(actual, times * exact.data, rtol=1e-10)


def expected_of_all() -> list[Any]:
    """Of x and three weights: a chain of three layers, each with its output as a root."""
    x, layers = tensor(X, requires_grad=True), [Layer(r) for r in range(3)]
    value, total = x, (x * x).sum()
    for factor, layer in enumerate(layers):
        value = layer.forward(value)
        total = total + (value * GIVEN).sum() * (factor + 1.0)
    total.backward()
    return [x.grad, *(layer.weight.grad for layer in layers)]


# -- the sum over all roots, wherever they are ---------------------------------------------------------


def chain(x: Tensor, layers: list[rpc.RRef[Layer]]) -> list[rpc.RRef[Any]]:
    """Each layer works on what the one before has made, which stays there."""
    values: list[rpc.RRef[Any]] = []
    for layer in layers:
        values.append(layer.remote().forward(values[-1] if values else x))
    return values


def roots_everywhere(passes: int = 2) -> None:
    x, layers = tensor(X, requires_grad=True), layers_there()
    with dist_autograd.context() as context_id:
        roots: list[Any] = [(x * x).sum(), *chain(x, layers)]
        given = [None, GIVEN, tensor(2 * GIVEN), 3 * GIVEN]
        for times in range(1, passes + 1):
            dist_autograd.backward(context_id, roots, given, retain_graph=times < passes)
            found: list[Array | None] = [dist_autograd.get_gradients(context_id)[x].data]
            found += [layer.rpc_sync().gradient(context_id) for layer in layers]
            equal(found, expected_of_all(), times)
    assert x.grad is None


def test_roots_on_all_workers(cluster: Cluster) -> None:
    cluster.call(0, roots_everywhere)


def asked_by_a_callee(context_id: int, roots: list[Any], given: list[Any]) -> None:
    dist_autograd.backward(context_id, roots, given)


def roots_of_others() -> None:
    """Who runs it has no part in the program; one root is named twice."""
    x, layers = tensor(X, requires_grad=True), layers_there()
    with dist_autograd.context() as context_id:
        values = [rpc.RRef(x), *chain(x, layers[:2])]
        rpc.rpc_sync(
            "worker2", asked_by_a_callee, (context_id, [*values, values[2]], [X, X, GIVEN, X])
        )
        found = dist_autograd.get_gradients(context_id)[x].data
    y = tensor(X, requires_grad=True)
    middle = Layer(0).forward(y)
    last = Layer(1).forward(middle)
    (y * X + middle * X + last * (GIVEN + X)).sum().backward()
    assert y.grad is not None
    np.testing.assert_allclose(found, y.grad.data, rtol=1e-10)


def test_a_worker_with_no_part_in_it_may_start(cluster: Cluster) -> None:
    cluster.call(0, roots_of_others)


def gradients_of_one() -> None:
    """One root that is no scalar: here, received, at another worker by three ways to ask."""
    layer = rpc.remote("worker1", Layer, (1,))
    y = tensor(X, requires_grad=True)
    (Layer(1).forward(y) * GIVEN).sum().backward()
    for ask in ("received", "rref", "list", "owner", "here"):
        x = tensor(X, requires_grad=True)
        with dist_autograd.context() as context_id:
            if ask in ("received", "here"):
                at = Layer(1) if ask == "here" else layer.rpc_sync()
                dist_autograd.backward(context_id, [at.forward(x)], [GIVEN.tolist()])
            elif ask == "rref":
                layer.remote().forward(x).backward(context_id, gradient=GIVEN)
            elif ask == "list":
                dist_autograd.backward(context_id, [layer.remote().forward(x)], [tensor(GIVEN)])
            else:
                rpc.rpc_sync("worker1", asks_with_gradient, (layer, x, context_id))
            equal([dist_autograd.get_gradients(context_id)[x].data], [y.grad])


def asks_with_gradient(layer: rpc.RRef[Layer], x: Tensor, context_id: int) -> None:
    layer.remote().forward(x).backward(context_id, gradient=tensor(GIVEN))


def test_the_gradient_of_one_root(cluster: Cluster) -> None:
    cluster.call(0, gradients_of_one)


def without_a_context() -> None:
    x = tensor(X, requires_grad=True)
    rpc.RRef(x * X).backward(gradient=GIVEN, create_graph=True)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.data, GIVEN * X)


def test_without_a_context(cluster: Cluster) -> None:
    cluster.call(0, without_a_context)


# -- what it costs -------------------------------------------------------------------------------------


def is_there(value: rpc.RRef[Any]) -> None:
    value.local_value()


def counted_passes() -> None:
    layer, x = rpc.remote("worker1", Layer, (1,)), tensor(X, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = layer.rpc_sync().forward(x).sum()
        sent.clear()
        dist_autograd.backward(context_id, [loss], retain_graph=True)
        assert sent == {"autograd.pass": 2}
        sent.clear()
        (slope,) = dist_autograd.grad(context_id, loss, x, create_graph=True)
        assert sent == {"autograd.pass": 2}
    assert slope.requires_grad
    with dist_autograd.context() as context_id:
        value = layer.remote().forward(x)
        rpc.rpc_sync("worker1", is_there, (value,))
        sent.clear()
        dist_autograd.backward(context_id, [x.sum(), value], [None, GIVEN])
        assert sent == {"autograd.pass": 2, "autograd.root": 1}


sent: Counter[str] = Counter()


def test_messages_of_a_pass(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, method in (
        (seams.Messages, "post"),
        (seams.Messages, "request"),
        (seams.Calling, "send"),
    ):
        genuine = getattr(part, method)

        def counting(self: Any, to: Any, kind: str, *rest: Any, _of: Any = genuine, **by: Any) -> Any:  # fmt: skip
            if kind.startswith("autograd."):
                sent[kind] += 1
            return _of(self, to, kind, *rest, **by)

        monkeypatch.setattr(part, method, counting)
    cluster.call(0, counted_passes)


# -- what a user may do wrong ----------------------------------------------------------------------------


def echo(value: Any) -> Any:
    return value


def bad_roots() -> None:
    x = tensor(X, requires_grad=True)
    loss = x.sum()
    with dist_autograd.context() as context_id:
        there = rpc.remote("worker1", Layer, (1,)).remote().forward(x)
        text, constant = (rpc.remote("worker1", echo, (value,)) for value in ("text", tensor(1.0)))
        bad: list[tuple[Any, Any, type[Exception], str]] = [
            ([loss, text], None, TypeError, "value of this RRef at 'worker1' must be a Tensor"),
            ([loss, constant], None, AutogradError, "needs no gradient"),
            (
                [loss, there],
                None,
                AutogradError,
                r"has shape \(5, 4\), and a root must be a scalar",
            ),
            ([loss, there], [None, X[0]], AutogradError, r"of shape \(5, 4\) has shape \(4,\)"),
            (
                [loss, rpc.RRef("text")],
                None,
                TypeError,
                r"roots\[1\], .* must be a Tensor, not str",
            ),
            ([x, there], [None, X], AutogradError, r"roots\[0\] has shape \(5, 4\)"),
            ([loss], [X], AutogradError, r"of shape \(\) has shape \(5, 4\)"),
            ([loss, there], [None], AutogradError, "2 roots were given 1 gradients"),
            ([loss], True, TypeError, "gradients must be a list with one for each root, not bool"),
            ([there], [X[0]], AutogradError, r"of shape \(5, 4\) has shape \(4,\)"),
            ([loss, 1.0], None, TypeError, r"roots\[1\] must be a Tensor, not float"),
            (loss, None, TypeError, r"write dist_autograd.backward\(context_id, \[loss\]\)"),
            ([], None, AutogradError, "at least one root"),
            ([loss, tensor(1.0)], None, AutogradError, r"roots\[1\] needs no gradient"),
        ]
        for roots, given, error, words in bad:
            with pytest.raises(error, match=words):
                dist_autograd.backward(context_id, roots, given)
        for timeout in (0, -1):
            for root in (loss, there):
                with pytest.raises(ValueError, match="timeout must be above 0"):
                    dist_autograd.backward(context_id, [root], [None], timeout=timeout)
        assert dist_autograd.get_gradients(context_id) == {}
        dist_autograd.backward(context_id, [loss, there], [None, X])
        assert x in dist_autograd.get_gradients(context_id)


def test_bad_roots(cluster: Cluster) -> None:
    cluster.call(0, bad_roots)


def fails() -> Any:
    raise ZeroDivisionError("no value")


def bad_owners(name: str) -> None:
    x = tensor(X, requires_grad=True)
    unheard = rpc.remote("worker1", Layer, (1,)).remote().forward(tensor(X))
    with dist_autograd.context() as context_id:
        with pytest.raises(ZeroDivisionError, match="no value"):
            dist_autograd.backward(context_id, [x.sum(), rpc.remote("worker2", fails)])
        outside, agent = contextvars.Context(), current_agent()
        words = "'worker1' knows no autograd context.*first call made to it inside"
        with pytest.raises(ContextError, match=words):
            outside.run(asks_outside, agent, context_id, [x.sum(), unheard], [None, X])
        for owner in ("worker0", "worker1"):
            late = rpc.remote(owner, held_sum, (x, f"{name} {owner}"))
            with pytest.raises(CallTimeoutError):
                dist_autograd.backward(context_id, [x.sum(), late], timeout=0.05)
            assert dist_autograd.get_gradients(context_id) == {}
            release(f"{name} {owner}")
        dist_autograd.backward(context_id, [x.sum(), late])  # it waits for what is being made
        np.testing.assert_allclose(dist_autograd.get_gradients(context_id)[x].data, 2.0)


def asks_outside(
    agent: seams.AgentCore, context_id: int, roots: list[Any], given: list[Any]
) -> None:
    with seams.use_agent(agent):
        dist_autograd.backward(context_id, roots, given)


def held_sum(x: Tensor, name: str) -> Tensor:
    hold(name)
    return x.sum()


def test_roots_that_are_not_there(cluster: Cluster, name: str) -> None:
    cluster.call(0, bad_owners, name)


class FailsBackwards(Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: FunctionContext, gradient: Any) -> Any:
        raise ZeroDivisionError("a rule failed")


def fails_backwards(x: Tensor) -> Tensor:
    y: Tensor = FailsBackwards.apply(x)
    return y.sum()


def a_rule_fails() -> None:
    x, layers = tensor(X, requires_grad=True), layers_there()
    with dist_autograd.context() as context_id:
        bad, good = rpc.remote("worker2", fails_backwards, (x,)), chain(x, layers[:2])
        for verb in (backward, grad_of_x):
            with pytest.raises(ZeroDivisionError, match="a rule failed") as caught:
                verb(context_id, [*good, bad], x)
            assert any("'worker2'" in note for note in caught.value.__notes__)
        for layer in layers:
            assert layer.rpc_sync().gradient(context_id) is None
        assert dist_autograd.get_gradients(context_id) == {}
        backward(context_id, good, x)
        assert layers[0].rpc_sync().gradient(context_id) is not None


def backward(context_id: int, roots: list[Any], x: Tensor) -> None:
    given = [GIVEN, GIVEN, None][: len(roots)]
    dist_autograd.backward(context_id, roots, given, create_graph=True)


def grad_of_x(context_id: int, roots: list[Any], x: Tensor) -> None:
    given = [GIVEN, GIVEN, None][: len(roots)]
    dist_autograd.grad(context_id, roots, x, given, create_graph=True)


def test_a_rule_that_raises(cluster: Cluster) -> None:
    cluster.call(0, a_rule_fails)


def knows_that_it_is_lost(name: str) -> None:
    leaks.wait_until_gone(
        "workers", lambda: [info.name for info in rpc.get_worker_infos() if info.name == name]
    )


def loses_an_owner(name: str) -> str:
    x, layers = tensor(X, requires_grad=True), layers_there()[:2]
    with dist_autograd.context() as context_id:
        roots = [*chain(x, layers), rpc.remote("worker2", held_sum, (x, name))]
        with pytest.raises(OwnerLostError, match="'worker2'"):
            backward(context_id, roots, x)
        assert dist_autograd.get_gradients(context_id) == {}
        rpc.rpc_sync("worker1", knows_that_it_is_lost, ("worker2",))
        with pytest.raises(OwnerLostError, match="'worker2'"):
            backward(context_id, roots, x)
        backward(context_id, roots[:2], x)
        found = [layer.rpc_sync().gradient(context_id) for layer in layers]
        assert all(each is not None for each in found)
    return "the next step works"


def test_the_owner_of_a_root_is_killed(name: str) -> None:
    with Cluster(3) as cluster, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(cluster.call, 0, loses_an_owner, name)
        cluster.call(2, entered, name)
        cluster.kill(2)
        assert asked.result() == "the next step works"


def held_backwards(x: Tensor, name: str) -> Tensor:
    def hook(gradient: Tensor) -> None:
        hold(name)

    y = x * 1.0
    y.register_hook(hook)
    return y.sum()


def loses_a_worker(name: str, verb: str) -> str:
    x, layers = tensor(X, requires_grad=True), layers_there()[:2]
    with dist_autograd.context() as context_id:
        roots = [*chain(x, layers), rpc.remote("worker2", held_backwards, (x, name))]
        with pytest.raises(WorkerLostError, match="'worker2'"):
            (backward if verb == "backward" else grad_of_x)(context_id, roots, x)
        assert dist_autograd.get_gradients(context_id) == {}
        rpc.rpc_sync("worker1", knows_that_it_is_lost, ("worker2",))
        assert layers[0].rpc_sync().gradient(context_id) is None
        backward(context_id, chain(x, layers), x)
        assert layers[0].rpc_sync().gradient(context_id) is not None
    return "the next step works"


@pytest.mark.parametrize("verb", ["backward", "grad"])
def test_an_owner_is_killed_in_the_middle_of_a_recorded_pass(name: str, verb: str) -> None:
    with Cluster(3) as cluster, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(cluster.call, 0, loses_a_worker, name, verb)
        cluster.call(2, entered, name)
        cluster.kill(2)
        assert asked.result() == "the next step works"
