"""One end of the memory of GPUs that two processes share, without the other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import msgpack
import numpy as np
import pytest

from telegrad import arrays
from telegrad.errors import DecodeError
from telegrad.transport.channels.device_memory import (
    DEVICE_BOUNDS,
    DeviceSlabs,
    DeviceStream,
    Hold,
    told_of,
)
from telegrad.transport.channels.shared_memory import SlabPool, SlabStream
from telegrad.wire import SHADOW_BYTES, Mode, describe, mode_of, place_by, rebuild, set_mode
from tests.gpu.sharing import wait_until
from tests.gpu.stand_in.stand_in_memory import allocated
from tests.gpu.watch import Watch

SIZE = 20_000


class End:
    """The sender's end; the peer's part is played by the test."""

    def __init__(self, watch: Watch, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.watch = watch
        self.pool = SlabPool(clock)
        self.devices = DeviceSlabs(clock)
        told = told_of(arrays.gpu_identities())
        stream = self.devices.open(told, told, SlabStream(self.pool, mock.Mock()).take)
        assert stream is not None
        self.stream: DeviceStream = stream

    def posted(self, array: Any) -> memoryview:
        shadow = self.stream.shadow(array)
        assert shadow is not None
        return shadow

    def free(self) -> None:
        """Has both pools look at what was freed."""
        self.pool.tick()
        self.devices.tick()

    def out(self) -> int:
        self.free()
        return self.watch.out_bytes

    def shadow(self, array: Any) -> memoryview | None:  # as `wire.Memory`
        return self.stream.shadow(array)

    def take(self, size: int) -> None:
        del size

    def works(self) -> None:
        """Has the peer say that it could open memory of the GPU."""
        self.stream.tried(Hold(self.stream, 0, None, trial=True), Mode.OPENED)


def octets(shadow: memoryview) -> Any:
    return np.frombuffer(shadow, np.uint8)


def source(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=SIZE)


@pytest.fixture
def end(xp: Any, watch: Watch) -> End:
    return End(watch)


def test_the_first_is_for_trial_and_others_wait_for_its_answer(end: End, xp: Any) -> None:
    first = end.posted(xp.asarray(source()))
    assert mode_of(octets(first)) is Mode.BOTH
    assert bytes(first[:-SHADOW_BYTES]) == source().tobytes()
    assert end.stream.shadow(xp.asarray(source(1))) is None
    del first  # nobody has answered: it never left
    end.free()
    second = end.posted(xp.asarray(source(1)))
    assert mode_of(octets(second)) is Mode.BOTH


def test_nothing_is_written_to_the_host_afterwards(end: End, xp: Any) -> None:
    end.works()
    shadow = end.posted(xp.asarray(source()))
    assert mode_of(octets(shadow)) is Mode.THERE
    assert not octets(shadow)[:-SHADOW_BYTES].any()
    assert end.out() == 8 * SIZE
    del shadow
    end.free()
    assert end.out() == 0


def test_what_is_not_lent_holds_its_bytes(end: End, xp: Any) -> None:
    end.works()
    shadow, other = end.posted(xp.asarray(source())), memoryview(bytearray(100_000))
    end.stream.settle(shadow.toreadonly())
    end.stream.settle(other)
    assert mode_of(octets(shadow)) is Mode.HERE
    assert bytes(shadow[:-SHADOW_BYTES]) == source().tobytes()
    assert other.tobytes() == bytes(100_000)


def test_the_end_of_the_stream(xp: Any, watch: Watch) -> None:
    now = [0.0]
    end = End(watch, lambda: now[0])
    end.works()
    shadows = [end.posted(xp.asarray(source(i))) for i in range(3)]
    end.stream.close()
    for i, shadow in enumerate(shadows):
        assert mode_of(octets(shadow)) is Mode.HERE
        assert bytes(shadow[:-SHADOW_BYTES]) == source(i).tobytes()
    assert end.stream.shadow(xp.asarray(source())) is None
    assert (watch.retired, watch.slabs) == (1, 0)
    now[0] = DEVICE_BOUNDS.idle_seconds - 1
    end.devices.tick()
    assert watch.retired == 1  # who has it open may look for a while
    now[0] = DEVICE_BOUNDS.idle_seconds + 1
    end.devices.tick()
    wait_until("it is freed", lambda: watch.retired == 0)


def test_the_stream_ends_while_an_array_is_copied(
    end: End, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    end.works()
    fill = arrays.DeviceMemory.fill

    def slow(memory: Any, offset: int, array: Any) -> None:
        fill(memory, offset, array)
        end.stream.close()

    monkeypatch.setattr(arrays.DeviceMemory, "fill", slow)
    shadow = end.posted(xp.asarray(source()))
    assert mode_of(octets(shadow)) is Mode.HERE
    assert bytes(shadow[:-SHADOW_BYTES]) == source().tobytes()


def test_a_copy_that_fails_leaves_nothing(
    end: End, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(arrays.DeviceMemory, "fill", broken)
    with pytest.raises(KeyboardInterrupt):
        end.stream.shadow(xp.asarray(source()))
    end.free()
    assert end.out() == 0
    assert end.pool.ledger.idle_bytes > 0  # no block is held


def test_no_room(end: End, xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> int:
        raise RuntimeError("cudaErrorMemoryAllocation: out of memory")

    array = xp.asarray(source())
    with monkeypatch.context() as patched:
        patched.setattr(xp.cuda.runtime, "malloc", full)
        assert end.stream.shadow(array) is None
    with monkeypatch.context() as patched:
        patched.setattr(end.stream, "_take", lambda size, beside: None)
        assert end.stream.shadow(array) is None
    assert end.out() == 0
    assert end.stream.shadow(array) is not None


def test_an_idle_slab_is_freed(xp: Any, watch: Watch) -> None:
    now = [0.0]
    end = End(watch, lambda: now[0])
    end.works()
    shadow = end.posted(xp.asarray(source()))
    del shadow
    assert end.out() == 0
    assert watch.slabs == 1
    now[0] = DEVICE_BOUNDS.idle_seconds + 1
    end.devices.tick()
    wait_until("it is freed", lambda: watch.slabs == 0)


def test_a_place_of_which_the_mode_is_garbage(end: End, xp: Any) -> None:
    end.works()
    metadata, (buffer,) = describe([xp.asarray(source())], memory=end)  # type: ignore[arg-type]
    assert isinstance(buffer, memoryview)
    for mode, words in ((Mode.THERE, "this worker does not"), (Mode.GONE, "which failed")):
        set_mode(octets(buffer), mode)
        with pytest.raises(DecodeError, match=words):
            rebuild(metadata, [buffer])
    octets(buffer)[-SHADOW_BYTES] = 77
    with pytest.raises(DecodeError, match="which failed"):
        rebuild(metadata, [buffer])
    set_mode(octets(buffer), Mode.HERE)
    (arrived,) = rebuild(metadata, [buffer])
    assert isinstance(arrived, xp.ndarray)


def test_memory_that_is_not_there(end: End, xp: Any) -> None:
    """A process cannot open its own; a handle may be garbage, and a place outside of its memory."""
    end.works()
    metadata, (buffer,) = describe([xp.asarray(source())], memory=end)  # type: ignore[arg-type]
    assert isinstance(buffer, memoryview)
    for start, garbage in ((0, b""), (17, bytes(range(64))), (89, b"\xff" * 8), (1, b"\xff" * 16)):
        octets(buffer)[len(buffer) - SHADOW_BYTES + start :][: len(garbage)] = list(garbage)
        with pytest.raises(DecodeError):
            rebuild(metadata, [buffer], land=end.devices.land)
    assert end.devices.mappings.count == 0


@pytest.mark.parametrize(
    ("meta", "size"),
    [
        (["shadow", ["<f8", "C", 2]], 16),
        (["shadow", ["<f8", "C", 2]], 16 + SHADOW_BYTES + 1),
        (["shadow", ["<f8", "C", 2]], 0),
        (["shadow", "garbage"], 16 + SHADOW_BYTES),
        (["shadow", ["<f8", "C", 2**62]], 16 + SHADOW_BYTES),
        (["shade", ["<f8", "C", 2]], 16 + SHADOW_BYTES),
    ],
)
@pytest.mark.parametrize("tag", ["cupy", "cuda:1", "cpu"])
def test_a_shadow_that_is_none(tag: str, meta: Any, size: int, end: End) -> None:
    for line in ([tag, meta, 1], ["tensor", [tag, meta], 1]):
        with pytest.raises(DecodeError):
            rebuild(msgpack.packb([line]), [bytearray(size)], land=end.devices.land)


def test_a_shadow_for_host_memory_says_so(end: End, xp: Any) -> None:
    end.works()
    metadata, (buffer,) = describe([xp.ones(SIZE)], place_by({0: "cpu"}), end)  # type: ignore[arg-type]
    assert msgpack.unpackb(metadata)[0][0] == "cpu"
    assert isinstance(buffer, memoryview)
    end.stream.settle(buffer)
    (arrived,) = rebuild(metadata, [buffer])
    assert type(arrived) is np.ndarray
    assert (arrived == 1.0).all()


def test_gpus_that_only_one_of_them_sees(three_gpus: Any) -> None:
    devices, mine = DeviceSlabs(lambda: 0.0), told_of(["a", "b", "c"])
    asked: list[int] = []

    def take(size: int, beside: Hold) -> None:
        asked.append(beside.number)  # and there is no room

    assert devices.open(mine, told_of(["x"]), take) is None
    assert devices.open(mine, (), take) is None
    assert devices.open((), mine, take) is None
    shared = devices.open(mine, told_of(["c", "a"]), take)
    assert shared is not None
    for number in range(3):
        there = arrays.to_device(np.ones(SIZE), f"cuda:{number}")
        assert shared.shadow(there) is None
    assert asked == [0, 2]


def test_it_frees_what_it_made(xp: Any) -> None:
    if "stand_in" not in str(xp.__file__):
        pytest.skip("the stand-in counts what is allocated")
    before = allocated()
    memory: Any = arrays.DeviceMemory(0, 2**21)
    there = xp.arange(10.0)
    memory.fill(800, there)
    back = np.empty(80, np.uint8)
    memory.read(800, back)
    assert back.view(np.float64).tolist() == list(range(10))
    del memory
    assert allocated() == before
