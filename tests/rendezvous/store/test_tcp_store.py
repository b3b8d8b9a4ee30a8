"""A TCP store that a program starts by itself, without an agent."""

from __future__ import annotations

import math
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from telegrad.errors import AuthenticationError, RendezvousError
from telegrad.rendezvous import TCPStore
from telegrad.rendezvous.tcp import find_endpoint
from tests.conftest import Programs

TOKEN = "a token that only the tests use"

WORK = """
import sys
from telegrad.rendezvous import TCPStore
with TCPStore.connect(sys.argv[1]) as store:
    while (task := store.queue_pop("tasks", timeout=30.0)) != b"end":
        store.append("done", task)
"""


def test_processes_share_a_queue(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELEGRAD_TOKEN", TOKEN)
    with TCPStore.serve() as store:
        place = store.endpoint.removeprefix("grpc://")
        script = programs.script(WORK)
        started = [programs.start(["python", script, place]) for _ in range(2)]
        for i in range(10):
            store.queue_push("tasks", b"%d" % i)
        for _ in started:
            store.queue_push("tasks", b"end")
        for program in started:
            program.wait()
        assert sorted(store.get("done")) == sorted(b"0123456789")


def test_a_client_proves_the_token_and_names_the_job() -> None:
    with TCPStore.serve(token=TOKEN, job="mine") as store:
        with pytest.raises(AuthenticationError):
            TCPStore.connect(store.endpoint, token=TOKEN + "!", job="mine")
        with pytest.raises(RendezvousError, match="mine"):
            TCPStore.connect(store.endpoint, token=TOKEN)
        with pytest.raises(AuthenticationError, match="too short"):
            TCPStore.connect(store.endpoint, token="short")
        store.set("k", b"v")
        with TCPStore.connect(store.endpoint, token=TOKEN, job="mine") as client:
            assert client.endpoint == store.endpoint
            assert client.get("k", timeout=10.0) == b"v"


def test_all_clients_end_with_the_server() -> None:
    with ThreadPoolExecutor(4) as pool:
        with TCPStore.serve(token=TOKEN) as store:
            client, own = TCPStore.connect(store.endpoint, token=TOKEN), store.clone()
            assert own.endpoint == store.endpoint
            waiting: list[Future[object]] = [
                pool.submit(own.get, "never", math.inf),
                pool.submit(client.get, "never", math.inf),
                pool.submit(client.multi_get, ["k", "never"], math.inf),
                pool.submit(client.queue_pop, "never", True, math.inf),
            ]
            own.set("k", b"")
            assert client.check(["k"])
        for future in waiting:
            with pytest.raises(RendezvousError, match="the coordinator is lost"):
                future.result(20)
        for call in (client.clone, client.num_keys):
            with pytest.raises(RendezvousError, match="the coordinator is lost"):
                call()
        client.close()
        own.close()
    with pytest.raises(ConnectionError):
        TCPStore.connect(store.endpoint, token=TOKEN, timeout=5.0)


def test_a_port_in_use_and_an_address_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        TCPStore.serve(port=taken.getsockname()[1], token=TOKEN)
    with pytest.raises(RendezvousError, match="is no address of this machine"):
        TCPStore.serve("192.0.2.1", token=TOKEN)


def test_others_dial_the_address_that_is_advertised() -> None:
    with TCPStore.serve("0.0.0.0", token=TOKEN, advertise="127.0.0.1") as store:
        assert store.endpoint.startswith("grpcs://127.0.0.1:")
        with TCPStore.connect(store.endpoint, token=TOKEN) as client:
            client.set("k", b"v")
        assert store.get("k") == b"v"


@pytest.mark.parametrize("place", ["127.0.0.1", "::1", "[::1]"])
def test_a_place_without_a_port_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="names no port; write 'host:port'"):
        find_endpoint(place)


def test_places() -> None:
    assert find_endpoint("[::1]:4000") == "grpc://[::1]:4000"
    assert find_endpoint("localhost:4000") == "grpc://localhost:4000"
    assert find_endpoint("grpcs://h:1") == "grpcs://h:1"


def test_the_token_of_the_user_is_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("TELEGRAD_TOKEN", "TELEGRAD_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with TCPStore.serve() as store, TCPStore.connect(store.endpoint) as client:
        assert client.add("n", 1) == 1
    assert (tmp_path / ".config" / "telegrad" / "token").exists()
