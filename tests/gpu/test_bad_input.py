"""What GPUs cannot do is an error in words on the host, before anything is launched or written."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import arrays, kernels, nn, optim, rpc
from telegrad.arrays import batched_product
from telegrad.errors import DecodeError, InvalidUseError, RemoteError
from telegrad.testing import Cluster
from tests.gpu.comparison import host, normal
from tests.gpu.stand_in_memory import DEVICE, OutOfMemoryError, full_after, unreadable


@pytest.fixture
def xp(stand_in_alone: Any) -> Any:
    return stand_in_alone


# -- machines --------------------------------------------------------------------------------------


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InvalidUseError, match=r"'cuda:0' needs CuPy.*telegrad\[cuda13x\]"):
        tg.tensor([1.0], device="cuda:0")


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


def misaligned(xp: Any, dtype: Any = np.float32, size: int = 8) -> Any:
    """Returns an array that begins one byte after a multiple of its items' size."""
    octets = xp.zeros((size + 1) * np.dtype(dtype).itemsize, np.uint8)
    octets.array = octets.array[1:][: size * np.dtype(dtype).itemsize].view(dtype)
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


def test_an_array_of_the_host_for_a_kernel(xp: Any) -> None:
    with pytest.raises(ValueError, match="gradient of .* is in host memory; move it"):
        kernels.gelu_slope(xp.zeros(8, np.float32), np.zeros(8, np.float32))


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


@pytest.mark.parametrize(
    "run",
    [
        lambda x: kernels.softmax(x),
        lambda x: kernels.log_softmax(x),
        lambda x: kernels.gelu(x),
        lambda x: kernels.gelu_slope(x),
        lambda x: nn.functional.layer_norm(tg.as_tensor(x), x.shape[-1:]),
        lambda x: nn.functional.rms_norm(tg.as_tensor(x), x.shape[-1:]),
        lambda x: nn.functional.dropout(tg.as_tensor(x), 0.5),
    ],
)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
def test_empty_arrays_stay_empty(xp: Any, run: Callable[[Any], Any], shape: Any) -> None:
    x = np.zeros(shape, np.float32)
    wanted, found = run(x), run(xp.asarray(x))
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype


def test_attention_to_no_keys(xp: Any) -> None:
    x = xp.zeros((2, 0, 4), np.float32)
    with pytest.raises(ValueError, match=r"one key, and key has the shape \(2, 0, 4\)"):
        nn.functional.scaled_dot_product_attention(x, x, x)


def test_a_loss_of_no_labels(xp: Any) -> None:
    logits = tg.tensor(xp.zeros((0, 4), np.float32), requires_grad=True)
    with pytest.raises(ValueError, match="the mean of no losses is not defined"):
        nn.functional.cross_entropy(logits, xp.zeros(0, np.int64))


def test_labels_that_are_no_class(xp: Any) -> None:
    logits = tg.tensor(xp.zeros((2, 4), np.float32), requires_grad=True)
    loss = nn.functional.cross_entropy(logits, xp.asarray(np.array([1, 4])))
    with pytest.raises(ValueError, match="labels from .* to 4 with logits for 4 classes"):
        loss.item()


def test_arrays_on_two_devices(three_gpus: Any) -> None:
    one, other = (tg.tensor([1.0, 2.0], device=f"cuda:{i}") for i in (0, 2))
    with pytest.raises(ValueError, match=r"different devices \(cuda:0, cuda:2\); move one"):
        one + other


# -- a GPU without memory left --------------------------------------------------------------------

X, Y = normal(0, 6, 4, dtype=np.float32), np.arange(6) % 3


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
    failed = 0
    for left in itertools.count():
        before = training.state()
        try:
            with full_after(left):
                training.optimizer.step()
        except OutOfMemoryError:
            failed += 1
            assert training.state() == before
        else:
            break
    assert failed > 3
    assert training.state() == whole.state()


def test_training_goes_on_once_there_is_memory(xp: Any) -> None:
    training, whole = Training(MAKERS[1]), Training(MAKERS[1])
    failed = 0
    for _ in range(3):
        whole.step()
        for left in itertools.count():
            before = training.state()
            try:
                with full_after(left):
                    training.step()
            except OutOfMemoryError:
                failed += 1
                assert training.state() == before
            else:
                break
    assert failed > 30
    assert training.state() == whole.state()


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
