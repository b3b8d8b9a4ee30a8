"""One conformance suite over every store."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from telegrad.errors import RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous import (
    Coordinator,
    FileStore,
    MemoryStore,
    PrefixStore,
    Store,
    TCPStore,
)
from telegrad.transport import GrpcTransport, InprocNetwork, InprocTransport, Transport

TOKEN = b"a token that only the tests use"


@pytest.fixture(params=["memory", "inproc", "grpc", "file", "prefix of memory", "prefix of file"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens one more handle of one and the same table."""
    with ExitStack() as stack:
        if request.param.endswith("memory"):
            store = MemoryStore()
            stack.callback(store.close)
            yield lambda: PrefixStore("p", store) if "prefix" in request.param else store
            return
        if request.param.endswith("file"):

            def open_file() -> Store:
                found = FileStore(tmp_path / "store")
                stack.callback(found.close)
                return PrefixStore("p", found) if "prefix" in request.param else found

            yield open_file
            return
        network = InprocNetwork()

        def transports() -> list[Transport]:
            return [InprocTransport(network) if request.param == "inproc" else GrpcTransport()]

        coordinator = Coordinator(transports(), job="test", token=TOKEN)
        endpoint = coordinator.start()[0]
        stack.callback(coordinator.close)

        def connect() -> Store:
            client = TCPStore.connect(
                endpoint, job="test", token=TOKEN, transports=transports(), timeout=10.0
            )
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture
def store(open_store: Callable[[], Store]) -> Store:
    return open_store()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def test_set_and_get(store: Store) -> None:
    store.set("k", b"v\x00\xff")
    assert store.get("k", timeout=5.0) == b"v\x00\xff"
    store.set("k", b"")
    assert store.get("k") == b""


def test_handles_share_one_table(open_store: Callable[[], Store]) -> None:
    open_store().set("k", b"v")
    assert open_store().get("k", timeout=5.0) == b"v"


def test_get_waits_until_set(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    reader, writer = open_store(), open_store()
    waiting: Future[bytes] = pool.submit(reader.get, "late", math.inf)
    writer.set("other", b"")
    writer.set("late", b"v")
    assert waiting.result(10) == b"v"


def test_wait_for_several(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    store = open_store()
    store.set("a", b"")
    waiting = pool.submit(open_store().wait, ["a", "b", "c"], 30.0)
    store.set("b", b"")
    store.set("c", b"")
    assert waiting.result(10) is None
    store.wait([], timeout=5.0)


def test_a_wait_ends_at_its_deadline_with_words(store: Store) -> None:
    with pytest.raises(
        RendezvousTimeoutError, match=r"key '(p/)?never' was not set within 0\.02 s; ch"
    ):
        store.get("never", timeout=0.02)
    store.set("there", b"")
    with pytest.raises(RendezvousTimeoutError, match="never'") as caught:
        store.wait(["there", "never"], timeout=0.02)
    assert any(key.endswith("never") for key in caught.value.missing)
    store.set("never", b"v")
    assert store.get("never", timeout=5.0) == b"v"


@pytest.mark.parametrize("timeout", [0, -1.0, math.nan])
def test_no_time_is_refused(store: Store, timeout: float) -> None:
    with pytest.raises(ValueError, match=r"timeout must be above 0 .* write math\.inf"):
        store.get("k", timeout=timeout)


def test_counters(store: Store) -> None:
    assert store.add("n", 1) == 1
    assert store.add("n", 41) == 42
    assert store.add("n", -50) == -8
    assert store.get("n") == b"-8"
    assert store.add("zero", 0) == 0
    store.set("text", b"abc")
    with pytest.raises(ValueError, match="the store key '(p/)?text' holds no number"):
        store.add("text", 1)


def test_counting_is_atomic(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    stores = [open_store() for _ in range(4)]
    counts = list(pool.map(lambda i: stores[i % 4].add("n", 1), range(80)))
    assert sorted(counts) == list(range(1, 81))


def test_compare_set(store: Store) -> None:
    assert store.compare_set("k", b"no", b"x") == b""
    assert store.compare_set("k", b"", b"first") == b"first"
    assert store.compare_set("k", b"", b"second") == b"first"
    assert store.compare_set("k", b"first", b"second") == b"second"


def test_only_one_wins_a_race(open_store: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    stores = [open_store() for _ in range(4)]
    seen = set(pool.map(lambda i: stores[i].compare_set("leader", b"", b"%d" % i), range(4)))
    assert len(seen) == 1


def test_delete_and_count(store: Store) -> None:
    store.set("a", b"1")
    store.add("b", 1)
    assert store.num_keys() == 2
    assert store.delete("a")
    assert not store.delete("a")
    assert store.num_keys() == 1
    assert store.num_keys("b") == 1
    assert store.num_keys("a") == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.set(3, b""), r"key must be a str \(got int\)"),
        (lambda s: s.set("", b""), "must not be empty"),
        (lambda s: s.set("k" * 1001, b""), r"may have 1000 characters \(got 1001: 'kkkk"),
        (lambda s: s.wait(["k" * 1001]), "may have 1000 characters"),
        (lambda s: s.set("k", "text"), r"value must be bytes \(got str\); encode it"),
        (lambda s: s.add("k", 1.5), r"add takes an int \(got float\)"),
        (lambda s: s.wait("k"), r"write \['k'\]"),
        (lambda s: s.compare_set("k", None, b""), "value must be bytes"),
        (lambda s: s.num_keys(3), r"prefix must be a str \(got int\)"),
    ],
)
def test_bad_arguments(store: Store, call: Callable[[object], object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call(store)


def test_close_ends_waits(store: Store, pool: ThreadPoolExecutor) -> None:
    waiting = [pool.submit(store.get, f"never{i}", math.inf) for i in range(3)]
    store.close()
    for future in waiting:
        with pytest.raises(RendezvousError, match="closed"):
            future.result(10)
    with pytest.raises(RendezvousError, match="closed"):
        store.set("k", b"")
    store.close()


@pytest.mark.parametrize("kind", ["inproc", "grpc"])
def test_the_loss_of_the_host_ends_waits(kind: str, pool: ThreadPoolExecutor) -> None:
    network = InprocNetwork()

    def transports() -> list[Transport]:
        return [InprocTransport(network) if kind == "inproc" else GrpcTransport()]

    coordinator = Coordinator(transports(), job="test", token=TOKEN)
    endpoint = coordinator.start()[0]
    store = TCPStore.connect(endpoint, job="test", token=TOKEN, transports=transports())
    waiting = pool.submit(store.get, "never", math.inf)
    store.set("k", b"v")
    coordinator.close()
    with pytest.raises(RendezvousError, match="the coordinator is lost"):
        waiting.result(10)
    with pytest.raises(RendezvousError, match="the coordinator is lost"):
        store.num_keys()
    store.close()


def test_a_wait_given_up_leaves_no_watcher() -> None:
    store = MemoryStore()
    values: list[object] = []
    unwatch = store.watch(["k"], values.append)
    unwatch()
    store.set("k", b"")
    assert values == []
    store.watch(["k"], values.append)
    assert values == [[b""]]
    store.close()


def test_memory_store_serves_threads_at_once() -> None:
    store = MemoryStore()
    barrier = threading.Barrier(4)

    def count() -> None:
        barrier.wait(10)
        for _ in range(100):
            store.add("n", 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("n") == b"400"
