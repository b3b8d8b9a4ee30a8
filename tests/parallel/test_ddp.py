"""Gradients on every rank equal those of one process on the whole batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad import dist_autograd, rpc
from telegrad.autograd import Tensor, is_row_sparse, no_grad, tensor
from telegrad.errors import (
    AutogradError,
    BlockingCallError,
    CollectiveMismatchError,
    WorkerLostError,
)
from telegrad.nn import BatchNorm1d, Embedding, Linear, Module, Parameter, Sequential
from telegrad.optim import SGD
from telegrad.parallel import DistributedDataParallel
from telegrad.parallel.ddp import describe, first_difference
from telegrad.testing import Cluster
from telegrad.types import Array

N = 3
CLUSTER_SIZE = N
X = np.random.default_rng(0).normal(size=(12, 4))
RELATIVE = 1e-10


class Net(Module):
    """Two layers, a scale that is not trained, a parameter that nothing uses, and a buffer."""

    scale: Tensor

    def __init__(self, seed: int, dtype: Any = np.float64) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.first = Linear(4, 8, dtype=dtype, rng=rng)
        self.second = Linear(8, 4, dtype=dtype, rng=rng)
        self.factor = Parameter(np.full(4, 1.5, dtype), requires_grad=False)
        self.unused = Parameter(np.ones(3, dtype))
        self.register_buffer("scale", tensor(np.full(4, seed, dtype)))

    def forward(self, x: Any) -> Tensor:
        hidden: Any = np.tanh(self.first(x))
        return self.second(hidden) * self.factor


def loss_of(outputs: Any) -> Tensor:
    return cast("Tensor", (outputs * outputs).mean())


def part(rank: int, n: int = N) -> Tensor:
    return tensor(X[rank::n])


def gradients(module: Module) -> dict[str, Array | None]:
    return {name: None if p.grad is None else p.grad.data for name, p in module.named_parameters()}


def close(actual: dict[str, Any], expected: dict[str, Any], factor: float = 1.0) -> None:
    assert {name for name in actual if actual[name] is not None} == {
        name for name in expected if expected[name] is not None
    }
    for name, value in actual.items():
        if value is not None:
            np.testing.assert_allclose(value, factor * expected[name], RELATIVE, err_msg=name)


def alone(seed: int = 0) -> dict[str, Array | None]:
    """The gradients of one process on the whole batch."""
    net = Net(seed)
    loss_of(net(tensor(X))).backward()
    return gradients(net)


def wrap(
    bucket_bytes: int = 200, *, broadcast_buffers: bool = True
) -> tuple[DistributedDataParallel, int]:
    """Returns a module that starts differently on each rank, and the rank."""
    dist.init_process_group()
    rank = dist.get_rank()
    model = DistributedDataParallel(
        Net(rank), bucket_bytes=bucket_bytes, broadcast_buffers=broadcast_buffers
    )
    return model, rank


# -- equality ----------------------------------------------------------------------------------


def one_backward(bucket_bytes: int) -> dict[str, Array | None]:
    model, rank = wrap(bucket_bytes)
    loss_of(model(part(rank))).backward()
    close(gradients(model), alone())
    return gradients(model)


@pytest.mark.parametrize("bucket_bytes", [1, 200, 2**20])
def test_gradients_equal_those_of_one_process(cluster: Cluster, bucket_bytes: int) -> None:
    found = cluster.run(one_backward, bucket_bytes)
    for name, value in found[0].items():
        for other in found[1:]:
            assert (value is None) == (other[name] is None)
            assert value is None or value.tobytes() == cast("Array", other[name]).tobytes()


_sent: list[Array] = []


def take(array: Array) -> None:
    _sent.append(array)


def send_gradients() -> None:
    """Rank 0 sends a gradient to rank 1, which keeps it over the next backward."""
    rank = dist.init_process_group().rank
    model = DistributedDataParallel(Linear(200, 200))
    (weight,) = (p for p in model.module.parameters() if p.ndim == 2)
    values = []
    for scale in (1.0, 2.0):
        model.zero_grad()
        (model(np.full((1, 200), scale, np.float32)).sum()).backward()
        assert weight.grad is not None
        values.append(weight.grad.data.copy())
        if rank == 0:
            rpc.rpc_sync(1, take, (weight.grad.data,))
        dist.barrier()
    if rank == 1:
        for found, value in zip(_sent, values, strict=True):
            np.testing.assert_array_equal(found, value)
    dist.barrier()


@pytest.mark.long
def test_a_gradient_that_was_sent_keeps_its_values() -> None:
    """The memory of a bucket is shared for reductions alone: a call sends a copy."""
    with Cluster(2, processes=True) as cluster:
        cluster.run(send_gradients)


def in_a_group_of_two() -> None:
    dist.init_process_group()
    rank = dist.get_rank()
    group = dist.new_group([2, 0])
    if rank == 1:
        with pytest.raises(ValueError, match="no member"):
            DistributedDataParallel(Net(0), process_group=group)
        return
    model = DistributedDataParallel(Net(rank), process_group=group)
    place = group.rank
    loss_of(model(part(place, 2))).backward()
    close(gradients(model), alone(2))  # the first rank of the group is 2


def test_a_group_of_some_ranks(cluster: Cluster) -> None:
    cluster.run(in_a_group_of_two)


# -- in a distributed context ------------------------------------------------------------------


def found_in(context_id: int, module: Module) -> dict[str, Array | None]:
    found = dist_autograd.get_gradients(context_id)
    return {name: found[p].data if p in found else None for name, p in module.named_parameters()}


def in_a_context() -> None:
    model, rank = wrap()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [loss_of(model(part(rank)))])
        close(found_in(context_id, model), alone())
        dist_autograd.backward(context_id, [loss_of(model(part(rank)))])
        close(found_in(context_id, model), alone(), 2.0)
    assert all(value is None for value in gradients(model).values())
    with dist_autograd.context() as context_id:
        with model.no_sync():
            dist_autograd.backward(context_id, [loss_of(model(part(rank)[:2]))])
        dist_autograd.backward(context_id, [loss_of(model(part(rank)[2:]))])
        close(found_in(context_id, model), alone(), 2.0)


def test_gradients_in_a_context_are_averaged(cluster: Cluster) -> None:
    cluster.run(in_a_context)


class Head(Module):
    """The part of a model that lives on another worker, for each rank one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear(4, 4, dtype=np.float64, rng=np.random.default_rng(9))

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", np.tanh(self.linear(x)))

    def gradients(self, context_id: int) -> dict[str, Array | None]:
        return found_in(context_id, self)


def part_behind_an_rpc() -> None:
    model, rank = wrap()
    tail = DistributedDataParallel(Linear(4, 4, dtype=np.float64, rng=np.random.default_rng(rank)))
    head = rpc.remote((rank + 1) % N, Head)
    for _ in range(2):
        with dist_autograd.context() as context_id:
            hidden = head.rpc_sync().forward(model(part(rank)))
            dist_autograd.backward(context_id, [loss_of(tail(hidden))])
            found = found_in(context_id, model)
            found_tail = found_in(context_id, tail)
            of_head = head.rpc_sync().gradients(context_id)
    net, last = Net(0), Linear(4, 4, dtype=np.float64, rng=np.random.default_rng(0))
    loss_of(last(Head()(net(tensor(X))))).backward()
    close(found, gradients(net))
    close(found_tail, gradients(last))
    own = Head()
    loss_of(last(own(net(part(rank))))).backward()
    close(of_head, gradients(own))  # not a part of the model that is averaged
    dist.barrier()


def test_a_part_of_the_model_may_be_behind_a_call(cluster: Cluster) -> None:
    cluster.run(part_behind_an_rpc)


# -- the wrapper -------------------------------------------------------------------------------


def as_a_module() -> None:
    model, _ = wrap()
    net = model.module
    assert isinstance(net, Net)
    assert list(model.state_dict()) == list(Net(0).state_dict())
    assert [id(p) for p in model.parameters()] == [id(p) for p in net.parameters()]
    for name, array in Net(0).state_dict().items():  # everything is rank 0's
        assert array.tobytes() == model.state_dict()[name].tobytes()
    assert net.scale.data.tolist() == [0.0] * 4
    other = Net(5)
    other.load_state_dict(model.state_dict())
    model.load_state_dict(other.state_dict())
    model.eval()
    assert [model.training, net.training] == [False, False]
    assert not net.first.training
    whole = Sequential(model)
    assert list(whole.state_dict()) == [f"0.{name}" for name in net.state_dict()]
    whole.train()
    assert [model.training, net.training] == [True, True]
    assert repr(model).startswith("DistributedDataParallel(\n  (module): Net(\n    (first): Linear")


def test_the_wrapper_has_the_names_of_the_module(cluster: Cluster) -> None:
    cluster.run(as_a_module)


def bad_arguments() -> None:
    dist.init_process_group()
    frozen = Linear(2, 2)
    for parameter in frozen.parameters():
        parameter.requires_grad = False
    with pytest.raises(TypeError, match="wraps a Module of this process, not list"):
        DistributedDataParallel(cast("Any", [1]))
    with pytest.raises(ValueError, match="no parameter of Linear needs a gradient"):
        DistributedDataParallel(frozen)
    for bucket_bytes in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="bucket_bytes must be a positive number of bytes"):
            DistributedDataParallel(Linear(2, 2), bucket_bytes=cast("int", bucket_bytes))
    with pytest.raises(TypeError, match="broadcast_buffers must be True or False, not 1"):
        DistributedDataParallel(Linear(2, 2), broadcast_buffers=cast("bool", 1))


def test_arguments_are_checked_before_anything_is_sent(cluster: Cluster) -> None:
    cluster.call(0, bad_arguments)


# -- sparse gradients --------------------------------------------------------------------------


class Words(Module):
    """A large table, of which a batch uses few rows, below a layer."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.table = Embedding(2000, 4, sparse=sparse, dtype=np.float64, rng=rng)
        self.layer = Linear(4, 4, dtype=np.float64, rng=rng)

    def forward(self, words: Array) -> Tensor:
        return self.layer(self.table(words))


WORDS = np.random.default_rng(1).integers(0, 50, size=(12, 3))


def tables() -> tuple[Array, int]:
    """Returns the table after five steps, and the bytes that this rank sent for one."""
    dist.init_process_group()
    model = DistributedDataParallel(Words(sparse=True))
    optimizer = SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        before = dist.world_group().statistics().bytes_sent
        loss_of(model(WORDS[dist.get_rank() :: N])).backward()
        sent = dist.world_group().statistics().bytes_sent - before
        table = cast("Words", model.module).table.weight
        assert is_row_sparse(table.grad)
        optimizer.step()
    return table.data, sent


def test_sparse_gradients_travel_as_rows(cluster: Cluster) -> None:
    alone = Words(sparse=True)
    optimizer = SGD(alone.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(alone(WORDS)).backward()
        optimizer.step()
    found = cluster.run(tables)
    assert len({table.tobytes() for table, _ in found}) == 1
    np.testing.assert_allclose(found[0][0], alone.table.weight.data, RELATIVE)
    rows = 12 * 3  # at most, for a batch; the layer has 20 parameters
    assert all(sent <= (N - 1) * (rows * (4 + 1) + 40) * 8 for _, sent in found)


# -- buffers -----------------------------------------------------------------------------------


class Normalised(Module):
    """A layer behind a BatchNorm, whose running statistics depend on the rank's own inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = BatchNorm1d(4, dtype=np.float64)
        self.layer = Linear(4, 4, dtype=np.float64, rng=np.random.default_rng(0))

    def forward(self, x: Any) -> Tensor:
        return self.layer(self.norm(x))


def statistics_of(model: Module) -> bytes:
    return b"".join(buffer.data.tobytes() for buffer in model.buffers())


def normalised(broadcast_buffers: bool) -> tuple[bytes, bytes]:
    """Returns the running statistics before and after the module has shared them."""
    dist.init_process_group()
    rank = dist.get_rank()
    model = DistributedDataParallel(Normalised(), broadcast_buffers=broadcast_buffers)
    for _ in range(3):
        loss_of(model(part(rank))).backward()
    own = statistics_of(model)
    before = dist.world_group().statistics().operations
    with model.no_sync():
        model(part(rank) * 2.0)  # changes nobody else's
    with no_grad():
        model(part(rank))
    model.eval()
    model(part(rank))
    model.train()
    loss_of(model(part(0))).backward()  # all see the same batch, after they share rank 0's
    buffers, gradients = 2, 1  # messages: one of each dtype of a buffer, and one bucket
    used = dist.world_group().statistics().operations - before
    assert used == gradients + buffers * broadcast_buffers
    return own, statistics_of(model)


def test_running_statistics_are_those_of_the_first_rank(cluster: Cluster) -> None:
    own, shared = zip(*cluster.run(normalised, True), strict=True)
    assert len(set(own)) == N  # each has added its own last batch
    assert len(set(shared)) == 1


def test_buffers_may_be_left_to_each_rank(cluster: Cluster) -> None:
    _, kept = zip(*cluster.run(normalised, False), strict=True)
    assert len(set(kept)) == N


def alone_in_a_forward() -> str:
    """Rank 2 runs one forward less, and is named."""
    model, rank = wrap()
    model(part(rank))
    if rank == 2:
        dist.destroy_process_group()
        return "left"
    with pytest.raises(CollectiveMismatchError) as caught:
        model(part(rank))
    return str(caught.value)


def test_a_rank_with_one_forward_less_is_named(cluster: Cluster) -> None:
    for error in cluster.run(alone_in_a_forward)[:2]:
        assert "DistributedDataParallel forward 2, bucket 0" in error
        assert "rank 2 ('worker2') left the group" in error


class OnTheLoop:
    def __init__(self) -> None:
        self.model, self.rank = wrap()

    async def forward(self) -> None:
        self.model(part(self.rank))

    async def forward_in_a_thread(self) -> None:
        await rpc.to_thread(self.model, part(self.rank))


def forward_on_the_loop() -> None:
    there = [rpc.remote(r, OnTheLoop) for r in range(N)]
    with pytest.raises(BlockingCallError, match=r"await rpc.to_thread\(model, inputs\)"):
        there[1].rpc_async().forward().wait()
    rpc.wait_all([each.rpc_async().forward_in_a_thread() for each in there])


def test_a_forward_that_shares_buffers_on_a_loop_is_refused(cluster: Cluster) -> None:
    cluster.call(0, forward_on_the_loop)


# -- ranks that differ -------------------------------------------------------------------------


def linear(out: int = 4, dtype: Any = np.float32) -> Module:
    return Sequential(Linear(4, 4, rng=np.random.default_rng(0)), Linear(4, out, dtype=dtype))


def one_frozen(rank: int) -> Module:
    module = linear()
    list(module.parameters())[3].requires_grad = rank != 1
    return module


def with_a(kind: str, part: Any) -> Module:
    module = Module()
    if kind == "buffer":
        module.register_buffer("mean", part)
    else:
        module.add_module(kind, part)
    return module


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda r: linear(5 if r == 2 else 4),
            "parameter '1.weight' has shape (4, 4) on rank 0 and (5, 4) on rank 2",
        ),
        (
            lambda r: linear(dtype=np.float64 if r == 2 else np.float32),
            "parameter '1.weight' has dtype float32 on rank 0 and float64 on rank 2",
        ),
        (
            lambda r: Sequential(*([Linear(4, 4)] + [Linear(4, 4)] * (r == 1))),
            "parameter '1.weight' is on rank 1 and not on rank 0",
        ),
        (
            lambda r: with_a("right" if r == 1 else "left", Linear(4, 4)),
            "number 0 is parameter 'left.weight' on rank 0 and parameter 'right.weight' on rank 1",
        ),
        (one_frozen, "parameter '1.bias' has requires_grad True on rank 0 and False on rank 1"),
        (
            lambda r: Words(sparse=r == 1),
            "parameter 'table.weight' has sparse False on rank 0 and True on rank 1",
        ),
        (
            lambda r: with_a("buffer", tensor(np.zeros(r // 2 + 1))),
            "buffer 'mean' has shape (1,) on rank 0 and (2,) on rank 2",
        ),
    ],
)
def test_the_first_difference_between_modules_is_named(
    make: Callable[[int], Module], words: str
) -> None:
    found = [describe(make(r), 8) for r in range(N)]
    assert first_difference(found, range(N)) == words


def another_option(options: list[dict[str, Any]], words: str) -> None:
    rank = dist.init_process_group().rank
    with pytest.raises(CollectiveMismatchError, match=words):
        DistributedDataParallel(linear(), **options[rank])


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("bucket_bytes", [8, 9, 8], "bucket_bytes is 8 on rank 0 and 9 on rank 1"),
        (
            "broadcast_buffers",
            [True, False, True],
            "broadcast_buffers is True on rank 0 and False on rank 1",
        ),
    ],
)
def test_every_rank_raises_where_ranks_differ(
    cluster: Cluster, name: str, values: list[Any], words: str
) -> None:
    cluster.run(another_option, [{name: value} for value in values], words)


def uneven(broadcast_buffers: bool) -> str:
    """Rank 2 has one batch less, and goes on to what comes after training."""
    model, rank = wrap(broadcast_buffers=broadcast_buffers)
    with pytest.raises(CollectiveMismatchError) as caught:
        for _ in range(3 if rank == 2 else 4):
            model.zero_grad()
            loss_of(model(part(rank))).backward()
        dist.all_reduce(np.zeros(3))
    assert rank == 2 or all(value is None for value in gradients(model).values())
    return str(caught.value)


@pytest.mark.parametrize("broadcast_buffers", [False, True])
def test_a_rank_with_one_batch_less_that_goes_on_is_named(
    cluster: Cluster, broadcast_buffers: bool
) -> None:
    what = "forward 4" if broadcast_buffers else "backward 4"
    for r, error in enumerate(cluster.run(uneven, broadcast_buffers)):  # also on rank 2
        assert f"DistributedDataParallel {what}, bucket 0" in error
        assert "different numbers of inputs need `with model.join():`" in error, r
        assert "rank 2 ('worker2') called all_reduce(op=SUM, dtype=float64, shape=(3,))" in error


# -- modules that change after they were wrapped -------------------------------------------------


def unfreeze(net: Net, _: int) -> None:
    net.factor.requires_grad_()


def freeze(net: Net, _: int) -> None:
    net.first.weight.requires_grad_(False)


def replace(net: Net, seed: int) -> None:
    rng = np.random.default_rng(seed)
    net.second.weight = Parameter(rng.normal(size=net.second.weight.shape))


def replace_all(net: Net, seed: int) -> None:
    rng = np.random.default_rng(seed)
    net.first, net.second = (Linear(*n, dtype=np.float64, rng=rng) for n in ((4, 8), (8, 4)))
    net.unused = Parameter(np.ones(3))


def add(net: Net, seed: int) -> None:
    rng = np.random.default_rng(seed)
    net.second = Sequential(net.second, Linear(4, 4, dtype=np.float64, rng=rng))  # type: ignore[assignment]


def remove(net: Net, _: int) -> None:
    net.first.bias = None


CHANGES = [unfreeze, freeze, replace, replace_all, add, remove]


def backward_through(net: Any, inputs: Tensor, *, in_context: bool) -> dict[str, Any]:
    """The gradients of one backward, by name."""
    if not in_context:
        net.zero_grad()
        loss_of(net(inputs)).backward()
        return gradients(net)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [loss_of(net(inputs))])
        found = dist_autograd.get_gradients(context_id)
        return {name: found[p].data for name, p in net.named_parameters() if p in found}


def backward_after_a_change(change: Callable[[Net, int], None], in_context: bool) -> None:
    model, rank = wrap()
    whole, net = Net(0), cast("Net", model.module)
    for _ in range(2):  # so that the order of the buckets was known
        backward_through(model, part(rank), in_context=in_context)
    change(net, rank)  # other values on each rank
    change(whole, 0)
    for _ in range(2):
        found = backward_through(model, part(rank), in_context=in_context)
        close(found, backward_through(whole, tensor(X), in_context=in_context))
        close(net.state_dict(), whole.state_dict())


@pytest.mark.few(2)
@pytest.mark.parametrize("in_context", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_on_every_rank_is_taken_in(
    cluster: Cluster, change: Callable[[Net, int], None], in_context: bool
) -> None:
    """A parameter that was unfrozen, replaced or added kept its own gradient on each rank."""
    cluster.run(backward_after_a_change, change, in_context)


def change_one_rank(change: Callable[[Net, int], None]) -> str:
    model, rank = wrap(broadcast_buffers=False)
    loss_of(model(part(rank))).backward()
    if rank == 1:
        change(cast("Net", model.module), 0)
    with pytest.raises(CollectiveMismatchError) as caught:
        loss_of(model(part(rank))).backward()
    return str(caught.value)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unfreeze, "parameter 'factor' was added or unfrozen"),
        (freeze, "parameter 'first.weight' was removed or frozen"),
        (replace, "parameter 'second.weight' was added"),  # new, so rank 1 asks for its values
        (add, "parameter 'second.1.weight' was added"),
        (remove, "parameter 'first.bias' was removed or frozen"),
    ],
)
def test_a_change_on_one_rank_raises_on_every_rank_with_its_name(
    cluster: Cluster, change: Callable[[Net, int], None], words: str
) -> None:
    for error in cluster.run(change_one_rank, change):
        assert words in error
        assert "rank 1" in error


def change_differently() -> str:
    model, rank = wrap(broadcast_buffers=False)
    net = cast("Net", model.module)
    loss_of(model(part(rank))).backward()
    (net.factor if rank == 1 else net.first.weight).requires_grad_(rank == 1)
    with pytest.raises(CollectiveMismatchError) as caught:
        loss_of(model(part(rank))).backward()
    return str(caught.value)


def test_different_changes_raise_on_every_rank(cluster: Cluster) -> None:
    for error in cluster.run(change_differently):
        assert "'factor' was added or unfrozen" in error
        assert "'first.weight' was removed or frozen" in error


def new_values_without_a_forward() -> str:
    model, rank = wrap()
    replace(cast("Net", model.module), rank)
    model.eval()  # such a forward may be of one rank, so it takes no values
    with pytest.raises(CollectiveMismatchError) as caught:
        loss_of(model(part(rank))).backward()
    return str(caught.value)


def test_new_parameters_that_differ_raise_on_every_rank(cluster: Cluster) -> None:
    for error in cluster.run(new_values_without_a_forward):
        assert "parameter 'second.weight' has values" in error


def add_a_buffer(on: Sequence[int]) -> str:
    model, rank = wrap()
    model(part(rank))
    if rank in on:
        model.module.register_buffer("more", tensor([float(rank)]))
    try:
        loss_of(model(part(rank))).backward()
    except CollectiveMismatchError as error:
        return str(error)
    return f"{model.module.state_dict()['more'].item()}"


def test_a_buffer_that_was_added_is_the_first_ranks(cluster: Cluster) -> None:
    assert cluster.run(add_a_buffer, range(N)) == ["0.0"] * N


def test_a_buffer_that_was_added_on_one_rank_is_named_on_every_rank(cluster: Cluster) -> None:
    for error in cluster.run(add_a_buffer, [2]):
        assert "buffer 'more' was added" in error


def join_after_a_change(change: Callable[[Net, int], None]) -> dict[str, Array]:
    model, rank = wrap()
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with model.join():
        for _ in range(2):
            model.zero_grad()
            loss_of(model(part(rank))).backward()
            optimizer.step()
    change(cast("Net", model.module), rank)
    with model.join():
        for _ in range(rank):  # rank 0 has no inputs
            model.zero_grad()
            loss_of(model(part(rank))).backward()
    return model.state_dict()


@pytest.mark.few(1)
@pytest.mark.parametrize("change", CHANGES)
def test_a_rank_without_inputs_takes_a_change_in(
    cluster: Cluster, change: Callable[[Net, int], None]
) -> None:
    first, *others = cluster.run(join_after_a_change, change)
    for other in others:
        for name, array in first.items():
            np.testing.assert_array_equal(array, other[name])


def part_of_a_model() -> None:
    """Half of the module is taken out and trained on one rank alone."""
    model, rank = wrap()
    net = cast("Net", model.module)
    loss_of(model(part(rank))).backward()
    taken, net.second = net.second, Linear(8, 4, dtype=np.float64)
    if rank == 1:
        (taken(np.ones((1, 8))).sum()).backward()
    loss_of(model(part(rank))).backward()


def test_a_parameter_that_has_left_the_module_is_its_holders_alone(cluster: Cluster) -> None:
    cluster.run(part_of_a_model)


# -- failures ----------------------------------------------------------------------------------


def fail(_: Tensor) -> None:
    raise ArithmeticError("no gradient today")


def failing_rule() -> None:
    model, rank = wrap(1)
    loss_of(model(part(rank))).backward()
    net = cast("Net", model.module)
    handle = net.first.weight.register_hook(fail) if rank == 1 else None
    with pytest.raises(ArithmeticError, match="no gradient today"):
        loss_of(model(part(rank))).backward()
    assert all(value is None for value in gradients(model).values())
    with pytest.raises(
        AutogradError, match="out of step with the other ranks since its backward 2"
    ):
        loss_of(model(part(rank))).backward()
    if handle is not None:
        handle.remove()
    again = DistributedDataParallel(net, process_group=dist.new_group(range(N)))
    loss_of(again(part(rank))).backward()
    close(gradients(again), alone())


def test_a_rule_that_raises_on_one_rank_raises_on_every(cluster: Cluster) -> None:
    cluster.run(failing_rule)


ROUNDS = 30  # in each round another rank had a chance of one in six to be too late


def failing_at_once() -> None:
    """Rank 0 fails while others may still be in the constructor, which it has left."""
    dist.init_process_group()
    for _ in range(ROUNDS):
        group = dist.new_group(range(N))
        net = Net(0)
        model = DistributedDataParallel(net, process_group=group, bucket_bytes=8)
        if group.rank == 0:
            net.second.weight.register_hook(fail)
        with pytest.raises(ArithmeticError, match="no gradient today"):
            loss_of(model(part(group.rank))).backward()


@pytest.mark.long
def test_a_failure_does_not_touch_the_constructor_before_it(cluster: Cluster) -> None:
    cluster.run(failing_at_once)


def recorded_everywhere() -> None:
    model, rank = wrap()
    for _ in range(2):
        with pytest.raises(AutogradError, match="create_graph=True does not go through"):
            loss_of(model(part(rank))).backward(create_graph=True)
        assert all(value is None for value in gradients(model).values())
    with model.no_sync():
        loss_of(model(part(rank))).backward(create_graph=True)
    with pytest.raises(AutogradError, match="before the next backward outside"):
        loss_of(model(part(rank))).backward()
    with dist_autograd.context() as context_id:
        with pytest.raises(AutogradError, match="create_graph=True does not go through"):
            dist_autograd.backward(context_id, [loss_of(model(part(rank)))], create_graph=True)
    loss_of(model(part(rank))).backward()  # the ranks are in step, and so is the group of all
    close(gradients(model), alone())
    dist.barrier()


def test_create_graph_on_every_rank_is_refused_before_anything_is_started(cluster: Cluster) -> None:
    cluster.run(recorded_everywhere)


def failing_in_a_context() -> None:
    model, rank = wrap(1)
    if rank == 1:
        cast("Net", model.module).first.weight.register_hook(fail)
    with dist_autograd.context() as context_id:
        with pytest.raises(ArithmeticError, match="no gradient today"):
            dist_autograd.backward(context_id, [loss_of(model(part(rank)))])
        assert not dist_autograd.get_gradients(context_id)


def test_a_failure_in_a_context_leaves_no_gradients(cluster: Cluster) -> None:
    cluster.run(failing_in_a_context)


def losing_a_rank(in_context: bool, gate: threading.Barrier) -> str:
    """Rank 2 never comes to its second backward."""
    model, rank = wrap(1, broadcast_buffers=False)
    loss_of(model(part(rank))).backward()
    model.zero_grad()
    gate.wait(30.0)  # all have ended the first
    if rank == 2:
        return "killed"
    loss = loss_of(model(part(rank)))
    with dist_autograd.context() as context_id, pytest.raises(WorkerLostError) as caught:
        if in_context:
            dist_autograd.backward(context_id, [loss])
        else:
            loss.backward()
    assert all(value is None for value in gradients(model).values())
    return str(caught.value)


@pytest.mark.parametrize("in_context", [False, True])
def test_a_rank_that_is_lost_in_the_middle(cluster: Cluster, in_context: bool) -> None:
    gate = threading.Barrier(N + 1)

    def kill() -> None:
        gate.wait(30.0)
        cluster.kill(2)

    thread = threading.Thread(target=kill)
    thread.start()
    for error in cluster.run(losing_a_rank, in_context, gate)[:2]:
        assert "worker2" in error
    thread.join()


class Trainer:
    """Serves, and trains when it is told."""

    def __init__(self) -> None:
        self.model, self.rank = wrap(broadcast_buffers=False)

    async def on_the_loop(self) -> None:
        loss_of(self.model(part(self.rank))).backward()

    async def beside_the_loop(self) -> None:
        self.model.zero_grad()
        await rpc.to_thread(loss_of(self.model(part(self.rank))).backward)

    def check(self) -> None:
        close(gradients(self.model), alone())


def told_by_one() -> None:
    trainers = [rpc.remote(r, Trainer) for r in range(N)]
    for trainer in trainers:
        with pytest.raises(BlockingCallError, match=r"await rpc.to_thread\(loss.backward\)"):
            trainer.rpc_async().on_the_loop().wait()
    rpc.wait_all([trainer.rpc_async().beside_the_loop() for trainer in trainers])
    rpc.wait_all([trainer.rpc_async().check() for trainer in trainers])


def test_backward_on_a_loop_is_refused(cluster: Cluster) -> None:
    cluster.call(0, told_by_one)


class ContextTrainer(Trainer):
    """Takes part in a pass that another worker starts."""

    def loss(self) -> Tensor:
        return loss_of(self.model(part(self.rank)))

    def reference(self) -> rpc.RRef[DistributedDataParallel]:
        return rpc.RRef(self.model)

    def check_in(self, context_id: int) -> None:
        close(found_in(context_id, self.model), alone())


def one_pass_of_all() -> None:
    trainers = [rpc.remote(r, ContextTrainer) for r in range(N)]
    with dist_autograd.context() as context_id:
        losses = rpc.wait_all([trainer.rpc_async().loss() for trainer in trainers])
        dist_autograd.backward(context_id, losses)
        for trainer in trainers:
            trainer.rpc_sync().check_in(context_id)
    models = [trainer.rpc_sync().reference() for trainer in trainers]
    with dist_autograd.context() as context_id:
        outputs = [models[r].rpc_sync().forward(part(r)) for r in range(N)]
        dist_autograd.backward(context_id, [loss_of(output) for output in outputs])
        for trainer in trainers:
            trainer.rpc_sync().check_in(context_id)


def test_one_pass_may_run_through_every_rank(cluster: Cluster) -> None:
    """Each rank's part of the pass waits for the reduction, and so for the others, in no thread."""
    cluster.call(0, one_pass_of_all)
