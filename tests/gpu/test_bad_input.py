"""What GPUs cannot do is an error in words on the host, before anything is launched or written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import arrays, kernels, nn, optim, rpc
from telegrad import collectives as dist
from telegrad.arrays import batched_product
from telegrad.errors import DecodeError, InvalidUseError, RemoteError
from telegrad.parallel import (
    DistributedDataParallel,
    ErrorFeedback,
    GradientBucket,
    allreduce_hook,
    int8_compress_hook,
)
from telegrad.testing import Cluster
from tests.gpu.comparison import host, normal
from tests.gpu.stand_in.stand_in_memory import (
    DEVICE,
    OutOfMemoryError,
    full_after,
    unreadable,
)


@pytest.fixture
def xp(stand_in_alone: Any) -> Any:
    return stand_in_alone


# -- machines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "cudaErrorInsufficientDriver: CUDA driver version is insufficient",
            r"needs a driver for CUDA 13.0.*knows CUDA 12.4.*telegrad\[cuda12x\]",
        ),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "'cuda' cannot be used: .*NoDev"),
    ],
)
def test_a_driver_that_is_too_old_or_finds_no_gpu(
    xp: Any, monkeypatch: pytest.MonkeyPatch, error: str, words: str
) -> None:
    def fail() -> int:
        raise RuntimeError(error)

    monkeypatch.setattr(xp.cuda.runtime, "getDeviceCount", fail)
    monkeypatch.setattr(xp.cuda.runtime, "driverGetVersion", lambda: 12040)
    with pytest.raises(InvalidUseError, match=words):
        nn.Linear(2, 2).to("cuda")


def test_a_gpu_that_is_not_there(xp: Any) -> None:
    with pytest.raises(InvalidUseError, match="no device 'cuda:3': this process sees 1 GPUs"):
        tg.tensor([1.0], device="cuda:3")


# -- arrays ----------------------------------------------------------------------------------------


def misaligned(xp: Any, dtype: Any = np.float32, shape: Any = (8,), by: int = 1) -> Any:
    """Returns an array that begins some bytes after a multiple of its items' size."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    octets = xp.zeros(size + by, np.uint8)
    octets.array = octets.array[by:].view(dtype).reshape(shape)
    return octets


@pytest.mark.parametrize("take", [tg.as_tensor, tg.tensor, tg.Tensor, nn.Parameter])
def test_a_misaligned_array_is_no_tensor(xp: Any, take: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="array of float32 on a GPU is misaligned.*multiples of 4"):
        take(misaligned(xp))


def test_bytes_may_lie_anywhere(xp: Any) -> None:
    assert tg.as_tensor(misaligned(xp, np.uint8)).shape == (8,)


def test_a_misaligned_array_is_launched_by_no_kernel(xp: Any) -> None:
    with pytest.raises(ValueError, match="gradient of .* is misaligned: its address 0x"):
        kernels.gelu_slope(xp.zeros(8, np.float32), misaligned(xp))


class Foreign:
    """An array of another library, which says where it lies."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def test_memory_of_the_host_that_is_said_to_be_a_gpus(xp: Any) -> None:
    foreign = Foreign(xp.ones(3))
    tg.as_tensor(foreign)
    with (
        unreadable(foreign.__cuda_array_interface__["data"][0], kind=0),
        pytest.raises(ValueError, match="a Foreign says .* in host memory that no GPU reads"),
    ):
        tg.as_tensor(foreign)


def test_memory_of_a_gpu_that_the_current_one_does_not_read(xp: Any) -> None:
    foreign = Foreign(xp.ones(3))
    with unreadable(foreign.__cuda_array_interface__["data"][0], kind=DEVICE):
        assert host(tg.as_tensor(foreign)).tolist() == [1.0] * 3


WINDOWS = kernels.Windows((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))
SGD = kernels.StepRule("sgd_step", (), 0.0, (0.1, 0.0, 1.0, 0, 0), counts=False)


def attention(**given: Any) -> None:
    q, k, v, bias = (given[name] for name in ("q", "k", "v", "bias"))
    kernels.attention_forward(q, k, v, bias, 0.5)


def attention_gradients(**given: Any) -> None:
    q, k, v, bias, g = (given[name] for name in ("q", "k", "v", "bias", "g"))
    kernels.attention_backward(g, g, g[..., :1], (q, k, v), bias, 0.5)


def recurrence(kind: str, **given: Any) -> None:
    states = tuple(given[each] for each in "hc" if each in given)
    biases = given["b_ih"], given["b_hh"]
    kernels.recurrence_forward(kind, given["x"], states, given["w_ih"], given["w_hh"], *biases)


CELLS = {"x": (2, 3, 4), "h": (3, 5)}
OPERANDS: dict[str, tuple[Callable[..., object], dict[str, tuple[int, ...]]]] = {
    "attention": (attention, dict.fromkeys("qkv", (2, 3, 4)) | {"bias": (3, 3)}),
    "attention_backward": (
        attention_gradients,
        dict.fromkeys("qkvg", (2, 3, 4)) | {"bias": (3, 3)},
    ),
    "lstm": (
        lambda **given: recurrence("lstm", **given),
        {**CELLS, "c": (3, 5), "w_ih": (20, 4), "w_hh": (20, 5), "b_ih": (20,), "b_hh": (20,)},
    ),
    "gru": (
        lambda **given: recurrence("gru", **given),
        {**CELLS, "w_ih": (15, 4), "w_hh": (15, 5), "b_ih": (15,), "b_hh": (15,)},
    ),
    "conv2d": (
        lambda x, weight, bias: kernels.conv2d(x, weight, bias, windows=WINDOWS),
        {"x": (2, 3, 5, 5), "weight": (4, 3, 2, 2), "bias": (4,)},
    ),
    "conv2d_weight": (
        lambda gradient, x: kernels.conv2d_weight(gradient, x, windows=WINDOWS, into=(4, 3, 2, 2)),
        {"gradient": (2, 4, 4, 4), "x": (2, 3, 5, 5)},
    ),
    "conv2d_input": (
        lambda gradient, weight: kernels.conv2d_input(
            gradient, weight, windows=WINDOWS, into=(2, 3, 5, 5)
        ),
        {"gradient": (2, 4, 4, 4), "weight": (4, 3, 2, 2)},
    ),
}


@pytest.mark.parametrize(
    ("name", "parameter"),
    [(name, each) for name, (_, shapes) in OPERANDS.items() for each in shapes],
)
def test_operands_of_products(three_gpus: Any, name: str, parameter: str) -> None:
    """cuBLAS takes addresses: one that the GPU cannot read would end all work of the process."""
    run, shapes = OPERANDS[name]
    given = {each: three_gpus.ones(shape, np.float32) for each, shape in shapes.items()}
    run(**given)
    with three_gpus.cuda.Device(2):
        there = three_gpus.ones(shapes[parameter], np.float32)
    for wrong, words in [
        (there, rf"\b{parameter}\b.* of {name} are on different devices \(cuda:\d, cuda:\d\)"),
        (np.ones(shapes[parameter], np.float32), rf"^{parameter} of {name} is in host memory"),
        (
            misaligned(three_gpus, shape=shapes[parameter]),
            rf"^{parameter} of {name} is misaligned: its address 0x",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            run(**{**given, parameter: wrong})


TABLES: dict[str, Callable[..., object]] = {
    "flatten": lambda arrays: kernels.flatten(arrays, scale=0.5),
    "copies": kernels.flatten,
    "norm": kernels.joint_norm,
    "step": lambda arrays: kernels.plan_step(SGD, arrays, arrays, [], arrays),
}


@pytest.mark.parametrize("name", TABLES)
def test_arrays_of_a_table(xp: Any, name: str) -> None:
    good, run = xp.ones(8, np.float32), TABLES[name]
    run([good, good])
    with pytest.raises(ValueError, match="array 1 of arrays is misaligned: its address 0x"):
        run([good, misaligned(xp)])
    with pytest.raises(ValueError, match=r"is in host memory|on different devices \(cpu, cuda:0\)"):
        run([good, np.ones(8, np.float32)])


def test_complex_numbers_of_a_table_that_are_no_words_of_8_bytes(xp: Any) -> None:
    good = xp.ones(8, np.complex64)
    with pytest.raises(ValueError, match="array 1 of arrays is misaligned: .* multiple of 8 bytes"):
        kernels.flatten([good, misaligned(xp, np.complex64, by=4)])


def test_norms_of_arrays_on_two_devices(three_gpus: Any) -> None:
    with three_gpus.cuda.Device(2):
        there = three_gpus.ones(3)
    with pytest.raises(ValueError, match=r"a joint norm of arrays on different devices"):
        kernels.joint_norm([three_gpus.ones(3), there])


@pytest.mark.parametrize("turned", [False, True])
def test_sizes_of_32_bits_for_cublas(
    xp: Any, monkeypatch: pytest.MonkeyPatch, *, turned: bool
) -> None:
    a, b = xp.ones((3, 2, 5), np.float32), xp.ones((3, 5, 6), np.float32)
    monkeypatch.setattr(arrays.products, "MOST", 6)
    batched_product(a, b)
    monkeypatch.setattr(arrays.products, "MOST", 5)
    if turned:
        a, b = b.swapaxes(-1, -2), a.swapaxes(-1, -2)
    name = "a" if turned else "b"
    with pytest.raises(ValueError, match=rf"^{name} of a product has shape .* at most 5 rows"):
        batched_product(a, b)


def test_attention_to_no_keys(xp: Any) -> None:
    x = xp.zeros((2, 0, 4), np.float32)
    with pytest.raises(ValueError, match=r"one key, and key has the shape \(2, 0, 4\)"):
        nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("function", [np.add, np.divmod, np.matmul])
def test_arrays_on_two_devices(three_gpus: Any, function: Any) -> None:
    one, other = (tg.tensor([1.0, 2.0], device=f"cuda:{i}") for i in (0, 2))
    with pytest.raises(ValueError, match=r"different devices \(cuda:0, cuda:2\); move one"):
        function(one, other)


# -- a GPU without memory left --------------------------------------------------------------------

X, Y = normal(0, 6, 4, dtype=np.float32), np.arange(6) % 3


def notes(error: BaseException, words: str) -> list[str]:
    """Returns what notes of an error say at the place of the group of a pattern."""
    found = (re.search(words, note) for note in getattr(error, "__notes__", []))
    return [each[1] for each in found if each is not None]


class Training:
    """A small net and its optimizer, the same each time."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        rng = np.random.default_rng(0)
        self.net = nn.Sequential(nn.Linear(4, 5, rng=rng), nn.GELU(), nn.Linear(5, 3, rng=rng))
        self.net.to("cuda")
        first, *others = self.net.parameters()
        self.optimizer = make([{"params": [first]}, {"params": others, "lr": 0.02}])

    def gradients(self) -> None:
        self.optimizer.zero_grad()
        x, y = (tg.tensor(each, device="cuda") for each in (X, Y))
        nn.functional.cross_entropy(self.net(x), y).backward()

    def step(self) -> None:
        self.gradients()
        self.optimizer.step()

    def state(self) -> list[bytes]:
        parameters = self.net.parameters()
        kept = self.optimizer.state_dict()["state"]
        values = [each[name] for _, each in sorted(kept.items()) for name in sorted(each)]
        return [np.asarray(host(x)).tobytes() for x in (*parameters, *values)]


MAKERS = [
    lambda groups: optim.SGD(groups, lr=0.01, momentum=0.9),
    lambda groups: optim.AdamW(groups, lr=0.01),
    lambda groups: optim.Adagrad(groups, lr=0.01),
]


@pytest.mark.few(1)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("first", [True, False])
def test_a_step_without_memory_writes_nothing(
    xp: Any, make: Callable[[Any], Any], *, first: bool
) -> None:
    def begun() -> Training:
        training = Training(make)
        if not first:
            training.step()
        training.gradients()
        return training

    training, whole = begun(), begun()
    whole.optimizer.step()
    named: list[str] = []
    for left in itertools.count():
        before = training.state()
        try:
            with full_after(left):
                training.optimizer.step()
        except OutOfMemoryError as error:
            named += notes(error, r"step of parameter (.*); no parameter was stepped")
            assert len(named) == left + 1
            assert training.state() == before
        else:
            break
    one_by_one = [f"{i} of shape {p.shape}" for i, p in enumerate(training.optimizer.params)]
    assert {*one_by_one} <= {*named}
    assert {*named} <= {*one_by_one, ", ".join(one_by_one[1:])}
    assert training.state() == whole.state()


class OneByOne(optim.Optimizer):
    """An optimizer without a kernel."""

    def update(self, parameter: Any, gradient: Any, state: Any, **_: Any) -> Any:
        return parameter - gradient, state


def test_an_optimizer_without_a_kernel_names_the_parameter(xp: Any) -> None:
    first, second = (tg.tensor([1.0, 2.0], device="cuda", requires_grad=True) for _ in range(2))
    optimizer = OneByOne([first, second])
    first.grad = second.grad = tg.tensor([1.0, 1.0], device="cuda")
    with full_after(1), pytest.raises(MemoryError) as caught:
        optimizer.step()
    (named,) = notes(caught.value, r"OneByOne's step of parameter (.*); parameters before it were")
    assert named == "1 of shape (2,)"
    assert [host(x).tolist() for x in (first, second)] == [[0.0, 1.0], [1.0, 2.0]]


def test_what_finds_no_memory_is_named(xp: Any) -> None:
    """In the forward and in the backward, in kernels and in CuPy's functions."""

    def run(x: Any, y: Any) -> None:
        nn.functional.cross_entropy(nn.functional.gelu(x * 2.0), y).backward()

    x = tg.tensor(X, device="cuda", requires_grad=True)
    y = tg.tensor(Y, device="cuda")
    run(x, y)
    forward, backward = set(), set()
    for left in itertools.count():
        try:
            with full_after(left):
                run(x, y)
        except OutOfMemoryError as error:
            here = notes(error, r"no memory was left in '(\w+)'")
            there = notes(error, r"no memory was left in the backward of '(\w+)'")
            assert here or there
            forward |= {*here}
            backward |= {*there}
        else:
            break
    assert forward >= {"multiply", "gelu", "backward"}
    assert backward >= {"multiply", "gelu", "mean_cross_entropy"}


def bucket_without_memory(xp: Any, hook: Any) -> set[str]:
    """Returns the buckets that are named while memory runs out at each place of a backward."""
    rank = dist.init_process_group().rank
    net = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3))
    net.to("cuda")
    x, named = tg.tensor(X, device="cuda"), set()
    for left in itertools.count():
        group = dist.new_group([rank])  # an operation that finds no memory ends its group
        model = DistributedDataParallel(net, process_group=group, bucket_bytes=100)
        if hook is not None:
            model.register_comm_hook(ErrorFeedback(), hook)
        loss = np.sum(model(x))
        try:
            with full_after(left):
                loss.backward()
        except OutOfMemoryError as error:
            named |= {*notes(error, r"memory was left for (.* bucket \d), which has the gradients")}
            assert all(parameter.grad is None for parameter in net.parameters())
        else:
            break
    assert all(parameter.grad is not None for parameter in net.parameters())
    return named


@pytest.mark.long
@pytest.mark.parametrize("hook", [None, int8_compress_hook])
def test_a_bucket_that_finds_no_memory_is_named(xp: Any, hook: Any) -> None:
    with Cluster(1) as cluster:
        (named,) = cluster.run(bucket_without_memory, xp, hook)
    assert named == {f"DistributedDataParallel backward 1, bucket {b}" for b in range(2)}


def both_without_memory(xp: Any) -> str:
    """One rank has no memory for its bucket; both fail, and go on with a new group."""
    rank = dist.init_process_group().rank
    net = nn.Linear(4, 5, rng=np.random.default_rng(0)).to("cuda")
    model = DistributedDataParallel(net)
    if rank == 1:
        model.register_comm_hook(None, use_all_for)
    else:
        model.register_comm_hook(None, allreduce_hook)
    x = tg.tensor(X, device="cuda")
    with pytest.raises(MemoryError) as caught:
        np.sum(model(x)).backward()
    assert all(parameter.grad is None for parameter in net.parameters())
    model = DistributedDataParallel(net, process_group=dist.new_group([0, 1]))
    np.sum(model(x)).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    return " ".join(caught.value.__notes__)


def use_all_for(state: Any, bucket: GradientBucket) -> Any:
    raise OutOfMemoryError(512, 0)


def test_ranks_go_on_after_one_has_found_no_memory(xp: Any) -> None:
    with Cluster(2) as cluster:
        for said in cluster.run(both_without_memory, xp):
            assert "no memory was left for DistributedDataParallel backward 1, bucket 0" in said


def use_all(x: Any) -> Any:
    with full_after(0):
        return x + x


def calls_without_memory(xp: Any) -> None:
    x = xp.ones(3)
    with pytest.raises((MemoryError, RemoteError), match="Out of memory allocating 512 bytes"):
        rpc.rpc_sync("worker1", use_all, (x,))
    assert host(rpc.rpc_sync("worker1", np.add, (x, x))).tolist() == [2.0] * 3


def arguments_without_memory(xp: Any) -> None:
    x = xp.ones(3)
    words = r"'worker1' cannot read the arguments of numpy.add .*external 0.*OutOfMemoryError"
    with full_after(0), pytest.raises(DecodeError, match=words):
        rpc.rpc_sync("worker1", np.add, (x, 1.0))
    assert host(rpc.rpc_sync("worker1", np.add, (x, x))).tolist() == [2.0] * 3


@pytest.mark.parametrize("program", [calls_without_memory, arguments_without_memory])
def test_a_worker_without_memory_lives(xp: Any, program: Callable[[Any], None]) -> None:
    with Cluster(2) as cluster:
        cluster.call(0, program, xp)
