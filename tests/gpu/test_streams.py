"""The order of work on streams, and the waits of the host: counted on the stand-in.

The stand-in reports a use of an array that is not ordered after its last write, on any stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pytest

import telegrad as tg
from telegrad import collectives, dist_autograd, nn, optim, rpc
from telegrad.autograd import Function, Tensor
from telegrad.kernels import mean_quantized, quantize
from telegrad.parallel import (
    CommHook,
    DistributedDataParallel,
    DistributedOptimizer,
    ErrorFeedback,
    Pipeline,
    allreduce_hook,
    bfloat16_compress_hook,
    float16_compress_hook,
    int8_compress_hook,
    parameter_rrefs,
    top_k_compress_hook,
)
from telegrad.testing import Cluster
from tests.gpu.comparison import host, normal
from tests.gpu.stand_in.stand_in_streams import watched


def test_the_stand_in_reports_a_use_that_is_not_ordered(stand_in_alone: Any) -> None:
    xp = stand_in_alone
    one, other = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
    with watched() as seen:
        with one:
            x = xp.asarray(np.ones(3)) * 2.0
            written = one.record()
        with other:
            x + 1.0
        assert len(seen.races) == 1
        other.wait_event(written)
        with other:
            y = x + 1.0
        y.get()  # on the null stream, which waits for neither
    assert [race.partition(" uses")[0] for race in seen.races] == [
        f"stream {other.ptr}",
        "stream 0",
    ]
    assert seen.waits == ["get"]


def test_the_stand_in_reports_memory_that_is_freed_too_early(stand_in_alone: Any) -> None:
    xp = stand_in_alone
    stream = xp.cuda.Stream(non_blocking=True)
    with watched() as seen:
        for ordered in (False, True):
            x = xp.asarray(np.ones(3))
            stream.wait_event(xp.cuda.Stream.null.record())
            with stream:
                x + 1.0
            if ordered:
                xp.cuda.Stream.null.wait_event(stream.record())
            del x
            assert len(seen.races) == 1, "the first alone"
    assert "gets memory back" in seen.races[0]


@pytest.mark.parametrize("waits", ["stream", "event", "host"])
def test_the_stand_in_knows_what_a_wait_orders(stand_in_alone: Any, waits: str) -> None:
    xp = stand_in_alone
    one, other = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
    with watched() as seen:
        with one:
            x = xp.asarray(np.ones(3))
        event = one.record()
        match waits:
            case "stream":
                one.synchronize()
            case "event":
                other.wait_event(event)
            case _:
                event.synchronize()
        with other:
            x * 2.0
        one.wait_event(other.record())
        del x
    assert not seen.races
    assert len(seen.waits) == (waits != "event")


def test_the_stand_in_takes_a_kernel_for_work_of_its_stream(stand_in_alone: Any) -> None:
    """An event after a kernel that wrote to no new array did not stand for it."""
    xp = stand_in_alone
    stream = xp.cuda.Stream(non_blocking=True)
    numbers, rest = xp.asarray(X.reshape(-1)), xp.zeros(X.size, np.float32)
    with watched() as seen:
        for ordered in (True, False):
            packed = quantize(numbers, rest)
            stream.wait_event(xp.cuda.Stream.null.record())
            rows = packed.reshape(1, -1)
            with stream:
                mean_quantized(rows, numbers)
            if ordered:
                xp.cuda.Stream.null.wait_event(stream.record())
            del packed, rows
            assert len(seen.races) == (not ordered)


# -- no wait inside a training step --------------------------------------------------------------

X = normal(3, 6, 4).astype(np.float32)
LABELS = np.array([0, 1, 2, -100, 1, 0])
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda params: optim.Adam(params, lr=0.01, weight_decay=0.1),
    "AdamW": lambda params: optim.AdamW(params, lr=0.01, amsgrad=True),
    "RMSprop": lambda params: optim.RMSprop(params, lr=0.01, momentum=0.5),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.1, lr_decay=0.1),
}


def network(device: str) -> nn.Module:
    rng = np.random.default_rng(0)
    layers = nn.Linear(4, 8, rng=rng), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3, rng=rng)
    return nn.Sequential(*layers).to(device)


def train(
    kind: str, device: str, steps: int = 3, scale: optim.LossScale | None = None, bad: int = -1
) -> nn.Module:
    model = network(device)
    optimizer = OPTIMIZERS[kind](model.parameters())
    schedule = optim.CosineAnnealingLR(optimizer, 10)
    x, labels = tg.tensor(X, device=device), tg.tensor(LABELS, device=device)
    with watched() as seen:
        for t in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), labels)
            if scale is None:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
            else:
                scale.scale(loss * (np.inf if t == bad else 1.0)).backward()
                scale.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scale.step(optimizer)
                scale.update()
            if t != bad:
                schedule.step()
    assert not seen.waits
    assert not seen.races
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_training_step_does_not_wait(xp: Any, kind: str) -> None:
    expected = train(kind, "cpu").state_dict()
    for name, parameter in train(kind, "cuda").named_parameters():
        np.testing.assert_allclose(host(parameter.data), host(expected[name]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.few(1)
def test_a_step_that_overflows_changes_nothing_and_does_not_wait(
    xp: Any, kind: str, bad: int
) -> None:
    scale = optim.LossScale(2.0**10, interval=2)
    with np.errstate(invalid="ignore", over="ignore"):
        model = train(kind, "cuda", 4, scale, bad)
    expected = train(kind, "cpu", 3).state_dict()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(host(parameter.data), host(expected[name]), rtol=1e-3, atol=1e-4)
    plain = optim.LossScale(2.0**10, interval=2)
    for t in range(4):
        plain.update(overflow=t == bad)
    assert scale.state_dict() == plain.state_dict()


@pytest.mark.parametrize("stray", [3, -1])
def test_a_label_that_is_no_class_is_an_error_at_the_next_wait(xp: Any, stray: int) -> None:
    labels = np.array([0, stray, -100])
    logits = tg.tensor(X[:3, :3], device="cuda", requires_grad=True)
    loss = nn.functional.cross_entropy(logits, tg.tensor(labels, device="cuda"))
    loss.backward()
    low, high = min(stray, 0), max(stray, 0)
    with pytest.raises(ValueError, match=f"labels from {low} to {high} with logits for 3") as found:
        loss.item()
    assert found.value.__notes__ == ["found by cuda:0 in work that was started before this call"]
    kept = nn.functional.cross_entropy(X[:1, :3], np.array([0]))
    np.testing.assert_allclose(loss.item(), kept.item(), rtol=1e-6)  # and that is told once
    gradient = logits.grad
    assert gradient is not None
    assert not host(gradient.data)[1:].any()


def test_the_next_loss_tells_of_it_if_nobody_waits(xp: Any) -> None:
    logits, labels = tg.tensor(X, device="cuda"), tg.tensor([0, 4, 4, 4, 1, 4], device="cuda")
    nn.functional.cross_entropy(logits, labels)
    xp.cuda.get_current_stream().synchronize()  # a GPU may need its time
    with pytest.raises(ValueError, match="labels from 0 to 4 with logits for 4 classes"):
        nn.functional.cross_entropy(logits, labels)


# -- the streams of a backward pass --------------------------------------------------------------


class Seen(Function):
    """Returns its argument; notes the streams in which its backward runs."""

    streams: ClassVar[dict[str, list[Any]]] = {}

    @staticmethod
    def forward(ctx: Any, x: Any, name: str) -> Any:
        ctx.name = name
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        streams = Seen.streams.setdefault(ctx.name, [])
        streams.append(sys.modules["cupy"].cuda.get_current_stream())
        return gradient * 1.0, None


@pytest.fixture
def streams(stand_in_alone: Any) -> Iterator[list[Any]]:
    """Streams that nothing else waits for, in a process of one GPU."""
    Seen.streams = {}
    made = [stand_in_alone.cuda.Stream(non_blocking=True) for _ in range(3)]
    yield made
    for stream in (*made, stand_in_alone.cuda.Stream.null):
        stream.synchronize()  # what a worker that has ended still held is freed in a later test


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_a_backward_runs_on_the_stream_of_its_forward(
    streams: list[Any], retain: bool, captured: bool
) -> None:
    w = tg.tensor(X, device="cuda", requires_grad=True)
    with watched() as seen:
        with streams[0]:
            loss = (Seen.apply(np.tanh(w), "local") * w).sum()
        with streams[1]:
            if captured:
                (gradient,) = tg.grad(loss, [w], retain_graph=retain)
            else:
                loss.backward(retain_graph=retain)
                gradient = w.grad
            found = gradient.data * 2.0
        del loss
    assert Seen.streams == {"local": [streams[0]]}
    assert not seen.races
    assert not seen.waits
    streams[1].synchronize()
    plain = tg.tensor(X, requires_grad=True)
    (np.tanh(plain) * plain).sum().backward()
    assert plain.grad is not None
    np.testing.assert_allclose(host(found), 2 * plain.grad.data, rtol=1e-5)


@pytest.mark.parametrize("retain", [False, True])
def test_a_backward_from_a_loss_on_the_host_runs_on_the_stream_of_its_forward(
    streams: list[Any], retain: bool
) -> None:
    w = tg.tensor(X, device="cuda", requires_grad=True)
    with watched() as seen:
        with streams[0]:
            loss = (Seen.apply(np.tanh(w), "local") * w).sum().to("cpu") * 2.0
        with streams[1]:
            loss.backward(retain_graph=retain)
            assert w.grad is not None
            w.grad.data * 2.0
        del loss
    assert Seen.streams == {"local": [streams[0]]}
    assert not seen.races


class Failing(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        raise ArithmeticError("no gradient")


def test_a_backward_that_fails_gives_back_memory_of_other_streams_in_order(
    streams: list[Any],
) -> None:
    w = tg.tensor(X, device="cuda", requires_grad=True)
    with watched() as seen:
        with streams[0]:
            one: Any = np.exp(w)
        with streams[1]:
            other: Any = np.exp(Failing.apply(w) * w)
        for stream in streams[:2]:
            streams[2].wait_event(stream.record())
        with streams[2]:
            seed = other.data * 1.0  # lent by this stream; used by that of the pass
            product: Any = (one * other).sum()
        with streams[0], pytest.raises(ArithmeticError, match="no gradient"):
            tg.autograd.backward([one, other, product], [seed, seed, None])
        del one, other, product, seed
    assert not seen.races
    assert not seen.waits


def test_memory_of_other_streams_is_kept_until_they_wait_for_the_pass(streams: list[Any]) -> None:
    w = tg.tensor(X, device="cuda", requires_grad=True)
    with watched() as seen:
        with streams[0]:
            one = np.exp(w) * w
        with streams[1]:
            other = np.exp(w) * w
        for stream in streams[:2]:
            streams[2].wait_event(stream.record())
        with streams[2]:
            tg.autograd.backward([one.sum(), other.sum()])
        del one, other
    assert not seen.races
    assert not seen.waits


def test_each_stream_of_an_autocast_block_casts_parameters_itself(streams: list[Any]) -> None:
    layer = nn.Linear(4, 3, rng=np.random.default_rng(0)).to("cuda")
    x = tg.tensor(X, device="cuda")
    made = []
    with watched() as seen, nn.autocast("float16"):
        for stream in streams[:2] * 2:
            with stream:
                made.append(layer(x))
    assert not seen.races
    assert {each.dtype for each in made} == {np.dtype(np.float16)}


STREAMS: dict[str, Any] = {}


def head_on_its_own_stream(x: Tensor) -> Tensor:
    with STREAMS["head"]:
        return Seen.apply(np.tanh(x * HEAD), "head") * 2.0  # type: ignore[no-any-return]


HEAD: Any = None


def split(create_graph: bool) -> Any:
    w = tg.tensor(X, device="cuda", requires_grad=True)
    with dist_autograd.context() as context_id:
        with STREAMS["stem"]:
            h = Seen.apply(w * 3.0, "stem")
            y = rpc.rpc_sync("worker1", head_on_its_own_stream, (h,))
            loss = (Seen.apply(y, "loss") * y).sum()
        with STREAMS["reader"]:
            dist_autograd.backward(context_id, [loss], create_graph=create_graph)
            found: Any = dist_autograd.get_gradients(context_id)[w]
            found = (found.data if create_graph else found) * 1.0
    STREAMS["reader"].synchronize()
    return host(found)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_from_another_worker_runs_on_the_stream_of_its_tensors(
    streams: list[Any], create_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STREAMS, "stem", streams[0])
    monkeypatch.setitem(STREAMS, "head", streams[1])
    monkeypatch.setitem(STREAMS, "reader", streams[2])
    head = tg.tensor(X * 0.5, device="cuda", requires_grad=True)
    monkeypatch.setattr(sys.modules[__name__], "HEAD", head)
    with Cluster(2) as cluster, watched() as seen:
        found = cluster.call(0, split, create_graph)
    assert Seen.streams == {"loss": [streams[0]], "head": [streams[1]], "stem": [streams[0]]}
    assert not seen.races
    w = tg.tensor(X, requires_grad=True)
    y: Any = np.tanh(w * 3.0 * (X * 0.5)) * 2.0
    (y * y).sum().backward()
    assert w.grad is not None
    np.testing.assert_allclose(found, w.grad.data, rtol=1e-4, atol=1e-5)


def behind_the_null_stream(name: str) -> Any:
    """A stream whose next work comes after that of optimizers, which step on the null stream."""
    stream = STREAMS[name]
    stream.wait_event(sys.modules["cupy"].cuda.Stream.null.record())
    return stream


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, rng=np.random.default_rng(1)).to("cuda")

    def forward(self, x: Tensor) -> Tensor:
        with behind_the_null_stream("head") as stream:
            y: Tensor = self.linear(np.tanh(x))
        sys.modules["cupy"].cuda.Stream.null.wait_event(stream.record())  # it gets x's memory back
        return y


def train_split(steps: int) -> list[Any]:
    stem = nn.Linear(4, 4, rng=np.random.default_rng(0)).to("cuda")
    tail = rpc.remote("worker1", Tail)
    rrefs = [*parameter_rrefs(stem), *parameter_rrefs(tail)]
    optimizer = DistributedOptimizer(optim.Adam, rrefs, lr=0.1)
    x, labels = tg.tensor(X, device="cuda"), tg.tensor(LABELS, device="cuda")
    losses = []
    for _ in range(steps):
        with dist_autograd.context() as context_id:
            with behind_the_null_stream("stem"):
                scores = tail.rpc_sync().forward(stem(x))
                loss = nn.functional.cross_entropy(scores, labels)
                dist_autograd.backward(context_id, [loss])
                losses.append(loss.item())
            optimizer.step(context_id)
            del loss, scores
    return losses


def test_training_over_workers_on_streams(
    streams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STREAMS, "stem", streams[0])
    monkeypatch.setitem(STREAMS, "head", streams[1])
    with Cluster(2) as cluster, watched() as seen:
        losses = cluster.call(0, train_split, 4)
    assert not seen.races
    stem, tail = (
        nn.Linear(4, 4, rng=np.random.default_rng(0)),
        nn.Linear(4, 3, rng=np.random.default_rng(1)),
    )
    optimizer = optim.Adam([*stem.parameters(), *tail.parameters()], lr=0.1)
    expected = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(tail(np.tanh(stem(X))), LABELS)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


class Mean(nn.Module):
    """A stage of its own; on the GPU, in the null stream."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1, rng=np.random.default_rng(0))
        self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).mean()


def step_of_a_pipeline(device: str) -> float:
    pipe = Pipeline([("worker0", Mean, (device,))], num_microbatches=2)
    with STREAMS["stem"] if device == "cuda" else nullcontext():
        return pipe.step(tg.tensor(X, device=device) * 2.0)


def test_a_stage_of_the_driver_gets_inputs_that_are_complete(
    streams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STREAMS, "stem", streams[0])
    with Cluster(1) as cluster:
        expected = cluster.call(0, step_of_a_pipeline, "cpu")
        with watched() as seen:
            found = cluster.call(0, step_of_a_pipeline, "cuda")
    assert not seen.races
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# -- collectives ---------------------------------------------------------------------------------


def doubling_hook(state: Any, bucket: Any) -> Any:
    def average(done: Any) -> Any:
        buffer = bucket.buffer
        buffer *= 2.0
        return buffer

    return allreduce_hook(state, bucket).then(average)


def train_with_uneven_inputs(hook: CommHook | None, device: str) -> list[Any]:
    collectives.init_process_group()
    rank = collectives.get_rank()
    with STREAMS[f"rank {rank}"] if device == "cuda" else nullcontext():
        table = nn.Embedding(5, 4, sparse=True, rng=np.random.default_rng(2)).to(device)
        linear = nn.Linear(4, 8, rng=np.random.default_rng(0)).to(device)
        model = DistributedDataParallel(nn.Sequential(table, linear), bucket_bytes=64)
        if hook is not None:
            rests = hook in (int8_compress_hook, top_k_compress_hook)
            model.register_comm_hook(ErrorFeedback() if rests else None, hook)
        inputs = tg.tensor(np.array([[0, 1], [2, rank]]), device=device)
        found = []
        with model.join(divide_by_initial_world_size=False):
            for _ in range(1 + rank):
                for parameter in model.parameters():
                    parameter.grad = None
                np.tanh(model(inputs)).sum().backward()
                of_rows: Any = table.weight.grad
                gradients: list[Any] = [parameter.grad for parameter in linear.parameters()]
                gradients.append(of_rows.to_dense())
                found = [2.0 * (g.data if isinstance(g, Tensor) else g) for g in gradients]
        return [host(each) for each in found]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "hook",
    [
        None,
        allreduce_hook,
        float16_compress_hook,
        bfloat16_compress_hook,
        int8_compress_hook,
        top_k_compress_hook,
        doubling_hook,
    ],
)
def test_averages_are_computed_on_the_stream_of_the_backward(
    streams: list[Any], monkeypatch: pytest.MonkeyPatch, hook: CommHook | None
) -> None:
    for rank in range(2):
        monkeypatch.setitem(STREAMS, f"rank {rank}", streams[rank])
    with Cluster(2) as cluster, watched() as seen:
        found = cluster.run(train_with_uneven_inputs, hook, "cuda")
    assert not seen.races
    with Cluster(2) as cluster:
        expected = cluster.run(train_with_uneven_inputs, hook, "cpu")
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
