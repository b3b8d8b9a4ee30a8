"""A module that lives on another worker computes, trains and is saved as one of this process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, no_grad, tensor
from telegrad.errors import BlockingCallError, UnknownWorkerError, WorkerLostError
from telegrad.nn import Linear, Module, Parameter, ReLU, Sequential
from telegrad.optim import SGD
from telegrad.parallel import DistributedOptimizer, RemoteModule, parameter_rrefs
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.conftest import ROOT, Programs

X = np.random.default_rng(0).normal(size=(5, 4))


class Head(Module):
    """Two layers, a buffer, and a word about the mode."""

    scale: Tensor

    def __init__(self, seed: int, n: int = 4, *, scale: float = 1.0) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.layers = Sequential(
            Linear(n, n, dtype=np.float64, rng=rng), Linear(n, 3, dtype=np.float64, rng=rng)
        )
        self.register_buffer("scale", tensor(np.array(scale)))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", np.tanh(self.layers(x)) * self.scale)

    def modes(self) -> list[bool]:
        return [module.training for module in self.modules()]


class Refuses(Module):
    def __init__(self) -> None:
        raise ValueError("no such shape")


class Slow(Module):
    """Its forward is a coroutine."""

    async def forward(self, x: Tensor) -> Tensor:
        return await rpc.to_thread(np.negative, x)


class Failing(Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError("out of range")


class Model(Module):
    """A part here and a part on another worker."""

    def __init__(self, to: str) -> None:
        super().__init__()
        self.first = Linear(4, 4, dtype=np.float64, rng=np.random.default_rng(7))
        self.head = RemoteModule(to, Head, (3,))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.head(np.tanh(self.first(x))))


class LocalModel(Module):
    """The same in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Linear(4, 4, dtype=np.float64, rng=np.random.default_rng(7))
        self.head = Head(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(cast("Tensor", np.tanh(self.first(x))))


def on_trainer(cluster: Cluster, func: Callable[..., Any], *args: Any) -> Any:
    return cluster.call(0, func, *args)


def without_gradients(cluster: Cluster, func: Callable[[], Any]) -> Any:
    """As `on_trainer`, for programs that compute outside of an autograd context."""

    def run() -> Any:
        with no_grad():
            return func()

    return cluster.call(0, run)


def assert_equal_state(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, err_msg=name)


# -- computing --------------------------------------------------------------------------------


def test_forward_runs_where_the_module_lives(cluster: Cluster) -> None:
    def run() -> None:
        head = RemoteModule("worker1", Head, (3,), {"scale": 2.0})
        expected = Head(3, scale=2.0)(tensor(X)).data
        assert head.get_module_rref().owner_name() == "worker1"
        np.testing.assert_array_equal(head(tensor(X)).data, expected)
        np.testing.assert_array_equal(head.forward(tensor(X)).data, expected)
        np.testing.assert_array_equal(head.forward(x=tensor(X)).data, expected)
        np.testing.assert_array_equal(head.forward_async(tensor(X)).wait().data, expected)
        assert "worker1" in repr(head)
        assert "Head" in repr(head)
        for to in (0, rpc.get_worker_info(), 2):
            np.testing.assert_array_equal(
                RemoteModule(to, Head, [3])(tensor(X)).data, Head(3)(tensor(X)).data
            )

    without_gradients(cluster, run)


def test_forward_may_be_a_coroutine_and_may_raise(cluster: Cluster) -> None:
    def run() -> None:
        np.testing.assert_array_equal(RemoteModule(1, Slow)(tensor(X)).data, -X)
        failing = RemoteModule(1, Failing)
        with pytest.raises(ArithmeticError, match="out of range"):
            failing(tensor(X))
        with pytest.raises(ArithmeticError, match="out of range"):
            failing.forward_async(tensor(X)).wait()

    without_gradients(cluster, run)


async def use_on_the_loop(head: RemoteModule) -> Any:
    """Runs on the user loop, where nothing may block."""
    for blocking in (
        lambda: head(tensor(X)),
        lambda: RemoteModule(1, Head, (3,)),
        lambda: RemoteModule.from_rref(head.get_module_rref()),
        head.eval,
        head.state_dict,
    ):
        with pytest.raises(BlockingCallError):
            blocking()
    return (await head.forward_async(tensor(X))).data


def test_on_a_loop_of_telegrads_only_what_does_not_block(cluster: Cluster) -> None:
    def run() -> None:
        head = RemoteModule(1, Head, (3,))
        found = rpc.rpc_sync(2, use_on_the_loop, (head,))
        np.testing.assert_array_equal(found, Head(3)(tensor(X)).data)

    without_gradients(cluster, run)


# -- gradients --------------------------------------------------------------------------------


def test_a_step_through_a_remote_module_is_a_local_step(cluster: Cluster) -> None:
    """The model is split over two workers, and every number is that of one process."""
    local = LocalModel()
    inputs = tensor(X, requires_grad=True)
    local_optimizer = SGD(local.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        local.zero_grad()
        inputs.grad = None
        loss = (local(inputs) ** 2).sum()
        loss.backward()
        local_optimizer.step()
        losses.append(loss.item())

    def run() -> tuple[list[float], Any, dict[str, Any]]:
        model = Model("worker2")
        optimizer = DistributedOptimizer(SGD, parameter_rrefs(model), lr=0.1)
        x = tensor(X, requires_grad=True)
        found = []
        for _ in range(3):
            with dist_autograd.context() as context_id:
                loss = (model(x) ** 2).sum()
                dist_autograd.backward(context_id, [loss])
                gradient = dist_autograd.get_gradients(context_id)[x].data
                optimizer.step(context_id)
            found.append(loss.item())
        return found, gradient, model.state_dict()

    found, gradient, state = on_trainer(cluster, run)
    assert inputs.grad is not None
    np.testing.assert_allclose(found, losses, rtol=1e-10)
    np.testing.assert_allclose(gradient, inputs.grad.data, rtol=1e-10)
    assert_equal_state(state, local.state_dict())


# -- what is there ----------------------------------------------------------------------------


def test_train_and_eval_are_honoured_and_send_no_module(cluster: Cluster) -> None:
    def run() -> None:
        head = RemoteModule(1, Head, (3,))
        proxy = head.get_module_rref().rpc_sync()
        assert head.training
        modes: list[tuple[Callable[[], RemoteModule], bool]] = [
            (lambda: head.train(False), False),
            (head.train, True),
            (head.eval, False),
            (lambda: head.train(True), True),
        ]
        received = []
        for _ in range(3):  # the least counts: beats come in between
            before = rpc.statistics().bytes_received
            for set_mode, expected in modes:
                assert set_mode() is head
                assert head.training is expected
            received.append(rpc.statistics().bytes_received - before)
        # A module of 4 * 4 + 4 + 4 * 3 + 3 numbers would be 280 bytes and more, four times.
        assert min(received) < 4 * 200, received
        for set_mode, expected in ((head.eval, False), (head.train, True)):
            set_mode()
            assert proxy.modes() == [expected] * 4

    on_trainer(cluster, run)


def test_a_remote_part_is_frozen_with_the_whole(cluster: Cluster) -> None:
    def run() -> None:
        model = Model("worker1")
        assert model.requires_grad_(False) is model
        assert model.head(tensor(X)).requires_grad is False
        assert model.head.requires_grad_() is model.head
        with dist_autograd.context():
            assert model.head(tensor(X)).requires_grad

    on_trainer(cluster, run)


def test_state_goes_there_and_back(cluster: Cluster) -> None:
    def run() -> None:
        head = RemoteModule(1, Head, (3,))
        assert_equal_state(head.state_dict(), Head(3).state_dict())
        assert head.state_shapes() == Head(3).state_shapes()
        other = Head(9, scale=4.0).state_dict()
        head.load_state_dict(other)
        assert_equal_state(head.state_dict(), other)
        head.load_state_dict({"scale": tensor(np.array(5.0)), "more": X}, strict=False)
        assert head.state_dict()["scale"] == 5.0
        missing = {name: array for name, array in other.items() if name != "scale"}
        with pytest.raises(ValueError, match="missing scale"):
            head.load_state_dict(missing)
        with pytest.raises(ValueError, match="unexpected more"):
            head.load_state_dict({**other, "more": X})
        with pytest.raises(ValueError, match=r"scale has shape \(5, 4\), \(\) needed"):
            head.load_state_dict({**other, "scale": X})
        assert head.state_dict()["scale"] == 5.0  # nothing changed

    on_trainer(cluster, run)


def test_the_state_of_a_model_holds_that_of_its_remote_part(cluster: Cluster) -> None:
    def run() -> None:
        model, local = Model("worker1"), LocalModel()
        assert sorted(model.state_dict()) == sorted(local.state_dict())
        for parameter in local.parameters():
            parameter.data = parameter.data + 1.0
        changed = local.state_dict()
        model.load_state_dict(changed)
        found = model.state_dict()
        assert_equal_state({name: found[name] for name in changed}, changed)
        with pytest.raises(ValueError, match=r"head\.layers\.0\.weight has shape"):
            model.load_state_dict({**changed, "head.layers.0.weight": X})
        with pytest.raises(ValueError, match=r"missing first\.bias"):
            model.load_state_dict({n: x for n, x in changed.items() if n != "first.bias"})

    on_trainer(cluster, run)


def test_references_to_all_parameters_wherever_they_live(cluster: Cluster) -> None:
    def run() -> None:
        model = Model("worker1")
        references = parameter_rrefs(model)
        assert [each.owner_name() for each in references] == ["worker0"] * 2 + ["worker1"] * 4
        assert len(list(model.parameters())) == 2  # those of this process
        for there in (model.head, model.head.get_module_rref()):
            owners = [each.owner_name() for each in parameter_rrefs(there)]
            assert owners == ["worker1"] * 4
        own = Head(3)
        for given in (own, rpc.RRef(own)):
            pairs = zip(parameter_rrefs(given), own.parameters(), strict=True)
            assert all(rref.local_value() is parameter for rref, parameter in pairs)
        with pytest.raises(TypeError, match="a Module or an RRef of one"):
            parameter_rrefs(cast("Any", [own]))
        with pytest.raises(TypeError, match="is to list, not to a Module"):
            parameter_rrefs(rpc.remote("worker1", list))

    on_trainer(cluster, run)


def test_a_remote_module_inside_a_remote_module(cluster: Cluster) -> None:
    def run() -> None:
        outer = RemoteModule("worker1", Model, ("worker2",))
        np.testing.assert_allclose(outer(tensor(X)).data, LocalModel()(tensor(X)).data, rtol=1e-12)
        owners = [each.owner_name() for each in outer.remote_parameters()]
        assert owners == ["worker1"] * 2 + ["worker2"] * 4
        assert sorted(outer.state_dict()) == sorted(LocalModel().state_dict())
        changed = {name: array + 1.0 for name, array in outer.state_dict().items()}
        outer.load_state_dict(changed)
        assert_equal_state(outer.state_dict(), changed)
        outer.eval()
        head = rpc.rpc_sync("worker1", head_of, (outer.get_module_rref(),))
        assert not any(head.get_module_rref().rpc_sync().modes())

    without_gradients(cluster, run)


def head_of(model: rpc.RRef[Model]) -> RemoteModule:
    return model.local_value().head


def test_the_gradients_there_are_cleared_and_the_arrays_moved(cluster: Cluster) -> None:
    def run() -> None:
        head = RemoteModule(1, Head, (3,))
        reference = head.get_module_rref()
        assert rpc.rpc_sync(1, backward_there, (reference,)) == 4
        head.zero_grad()
        assert rpc.rpc_sync(1, count_gradients, (reference,)) == 0
        assert head.to("cpu") is head
        with pytest.raises(ValueError, match="tpu"):
            head.to("tpu")

    on_trainer(cluster, run)


def backward_there(head: rpc.RRef[Head]) -> int:
    (head.local_value()(tensor(X)) ** 2).sum().backward()
    return count_gradients(head)


def count_gradients(head: rpc.RRef[Head]) -> int:
    return sum(each.grad is not None for each in head.local_value().parameters())


# -- handles ----------------------------------------------------------------------------------


def make_head() -> Head:
    head = Head(3)
    head.eval()
    return head


def test_a_handle_on_a_module_that_lives_already(cluster: Cluster) -> None:
    def run() -> None:
        reference = rpc.remote("worker1", make_head)
        head, second = RemoteModule.from_rref(reference), RemoteModule.from_rref(reference)
        assert not head.training  # as it is there
        head.load_state_dict(Head(5).state_dict())
        assert_equal_state(second.state_dict(), Head(5).state_dict())
        own = RemoteModule.from_rref(rpc.RRef(Head(3)))
        np.testing.assert_array_equal(own(tensor(X)).data, Head(3)(tensor(X)).data)

    without_gradients(cluster, run)


def shift(head: RemoteModule) -> RemoteModule:
    """Changes the module through a handle that was sent here, and sends that back."""
    head.load_state_dict({"scale": np.array(7.0)}, strict=False)
    return head


def test_a_handle_may_be_sent(cluster: Cluster) -> None:
    def run() -> None:
        head = RemoteModule("worker1", Head, (3,), timeout=30.0)
        for to in ("worker1", "worker2", "worker0"):
            back = rpc.rpc_sync(to, shift, (head,))
            assert isinstance(back, RemoteModule)
            assert back is not head
            assert back.state_dict()["scale"] == 7.0
        assert rpc.rpc_sync(2, lists_handles, ([head, {"a": head}],)) == 2

    on_trainer(cluster, run)


def lists_handles(nested: list[Any]) -> int:
    return sum(isinstance(each, RemoteModule) for each in (nested[0], nested[1]["a"]))


def owned_here() -> int:
    return rpc.statistics().owned_rrefs


def test_the_owner_lets_go_with_the_last_handle(cluster: Cluster) -> None:
    def make() -> None:
        head = RemoteModule("worker1", Head, (3,))
        parameters = head.remote_parameters()
        model = Model("worker1")
        optimizer = DistributedOptimizer(SGD, [*parameters, *parameter_rrefs(model)], lr=0.1)
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [head(model(tensor(X))[:, :1] * np.ones(4)).sum()])
            optimizer.step(context_id)
        assert rpc.rpc_sync("worker1", owned_here) > 0

    on_trainer(cluster, make)
    wait_until_gone("RRef", lambda: [n for n in cluster.run(owned_here) if n], within=20.0)


# -- what cannot be ---------------------------------------------------------------------------


def test_what_needs_the_parameters_here_says_what_to_write(cluster: Cluster) -> None:
    def run() -> None:
        head = RemoteModule(1, Head, (3,))
        wrong: list[tuple[Callable[[], object], str]] = [
            (head.parameters, r"remote_parameters\(\)"),
            (head.named_parameters, r"remote_parameters\(\)"),
            (head.buffers, r"state_dict\(\)"),
            (head.named_buffers, r"state_dict\(\)"),
            (lambda: head.register_buffer("b", tensor(X)), "the module's own class"),
            (lambda: head.add_module("m", ReLU()), "the module's own class"),
            (lambda: setattr(head, "weight", Parameter(X)), "the module's own class"),
            (lambda: SGD(head.parameters(), lr=0.1), "'worker1'"),
        ]
        for call, advice in wrong:
            with pytest.raises(TypeError, match=advice):
                call()

    on_trainer(cluster, run)


def test_a_handle_is_not_copied_and_says_so(cluster: Cluster) -> None:
    """A shallow copy was another handle that nobody counted; pickle spoke of an RRef."""

    def run() -> None:
        head = RemoteModule(1, Head, (3,))
        for copies in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"a RemoteModule is .*get_module_rref\(\)"):
                copies(head)

    on_trainer(cluster, run)


def test_what_is_no_module_is_refused(cluster: Cluster) -> None:
    def run() -> None:
        for wrong in (make_head, list, "Head", Head(3)):
            with pytest.raises(TypeError, match="module_class must be a subclass"):
                RemoteModule(1, cast("Any", wrong))
        with pytest.raises(TypeError, match="takes an RRef of a Module, not Head"):
            RemoteModule.from_rref(cast("Any", Head(3)))
        with pytest.raises(TypeError, match="to list, not to a Module"):
            RemoteModule.from_rref(rpc.remote(1, list))
        with pytest.raises(ValueError, match="no such shape"):
            RemoteModule(1, Refuses)
        with pytest.raises(TypeError, match="args must be a tuple or list"):
            RemoteModule(1, Head, cast("Any", 3))
        with pytest.raises(UnknownWorkerError, match=r"no device in it; write 'worker1', and"):
            RemoteModule("worker1/cuda:0", Head, (3,))
        with pytest.raises(UnknownWorkerError, match="no device in it; write 1, and"):
            RemoteModule("rank:1/cpu", Head, (3,))
        with pytest.raises(ValueError, match="timeout"):
            RemoteModule(1, Head, (3,), timeout=0.0)

    on_trainer(cluster, run)


def test_a_lost_owner_is_an_error_of_every_method() -> None:
    with Cluster(2, options=rpc.RpcOptions(timeout=20.0)) as cluster:
        held: list[RemoteModule] = []

        def make() -> None:
            held.append(RemoteModule(1, Head, (3,)))

        cluster.call(0, make)
        cluster.kill(1)

        def use() -> None:
            head = held.pop()
            for method in (
                lambda: head(tensor(X)),
                head.eval,
                head.state_dict,
                lambda: head.load_state_dict({}, strict=False),
                head.remote_parameters,
                head.zero_grad,
            ):
                with pytest.raises(WorkerLostError):
                    method()
            assert head.training  # what was not done there is not said here

        cluster.call(0, use)


@pytest.mark.parametrize("steps", [3, pytest.param(None, marks=pytest.mark.long)])
def test_the_program_of_the_guide_runs(programs: Programs, steps: int | None) -> None:
    """After few steps the loss is not as small as it promises yet."""
    text = (ROOT / "docs" / "remote-module.md").read_text()
    code, _, rest = text.partition("```python\n")[2].partition("```\n")
    promised = rest.partition("$ python program.py\n")[2].split("\n")[0].strip()
    if steps is not None:
        code, promised = code.replace("range(300)", f"range({steps})"), f"False {promised[5:]}"
    output = programs.run(
        ["python", programs.script(code)], env={"TELEGRAD_TOKEN": "x" * 32}, preload=[]
    )
    assert output.strip() == promised
