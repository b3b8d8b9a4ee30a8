"""Unix sockets without gRPC: who may connect, who uses the descriptor, and for how long."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from telegrad.transport import (
    Carrier,
    CarrierClosedError,
    LocalTransport,
    find_local,
    self_signed_tls,
)
from telegrad.transport.sockets import socket_listener
from telegrad.transport.sockets import unix as module
from telegrad.transport.sockets.message_socket import DirectSocket
from tests.transport.socket_pairs import unix_pair
from tests.transport.workers import SECONDS, ManualClock, floor_of, wait_until

T = TypeVar("T")


def pair() -> tuple[DirectSocket, DirectSocket]:
    one, other = unix_pair()
    return DirectSocket(one), DirectSocket(other)


def run(body: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(SECONDS):
            return await body()

    return asyncio.run(limited())


def path_of(endpoint: str) -> str:
    return "/" + endpoint.removeprefix("local://").partition("/")[2]


def test_each_role_is_one_thread_s() -> None:
    one, other = pair()
    assert one.begin_reading()
    assert not one.begin_reading()
    assert one.begin_writing()
    assert not one.begin_writing(wait=False)
    one.end_reading()
    one.end_writing()
    assert one.begin_reading()
    one.end_reading()
    one.end()
    other.end()


@pytest.mark.parametrize("role", ["reading", "writing"])
def test_the_descriptor_is_closed_behind_the_last_role(role: str) -> None:
    one, other = pair()
    assert getattr(one, f"begin_{role}")()
    one.end()
    assert one.fileno() >= 0
    getattr(one, f"end_{role}")()
    assert one.fileno() < 0
    assert not one.begin_reading()
    assert not one.begin_writing()
    with pytest.raises(CarrierClosedError, match="closed"):
        other.take()
    other.end()


def test_the_other_end_is_told() -> None:
    one, other = pair()
    one.put(b"last")
    one.end()
    assert other.take() == b"last"
    with pytest.raises(CarrierClosedError, match="closed the socket"):
        other.take()
    with pytest.raises(CarrierClosedError, match="ended"):
        other.put(b"x" * 2**20)
    other.end()


async def ignore(carrier: Carrier) -> None:
    await carrier.close()


def test_a_socket_that_nobody_else_can_reach(tmp_path: Path) -> None:
    transport = LocalTransport(f"unix://{tmp_path}")

    async def body() -> None:
        listener = await transport.listen(ignore)
        directory = os.path.dirname(path_of(listener.endpoint))
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        await (await transport.dial(listener.endpoint)).close()
        os.chmod(directory, 0o755)
        with pytest.raises(ConnectionError, match="others may use"):
            await transport.dial(listener.endpoint)
        await listener.close()
        await listener.close()
        assert os.listdir(tmp_path) == []
        with pytest.raises(ConnectionRefusedError, match="nobody listens"):
            await transport.dial(listener.endpoint)

    run(body)


def test_another_host_is_not_dialled(tmp_path: Path) -> None:
    transport = LocalTransport(f"unix://{tmp_path}")
    assert not transport.reaches("local://0123456789abcdef/tmp/x/s")

    async def body() -> None:
        with pytest.raises(ConnectionError, match="on another host"):
            await transport.dial("local://0123456789abcdef/tmp/x/s")

    run(body)


def test_another_user_is_refused_by_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel says of the other end decides, not what the file system lets in."""
    transport = LocalTransport(f"unix://{tmp_path}")
    came: list[Carrier] = []

    async def accept(carrier: Carrier) -> None:
        came.append(carrier)

    async def body() -> None:
        listener = await transport.listen(accept)
        monkeypatch.setattr(module, "_is_own", lambda connected: False)
        with pytest.raises(ConnectionError, match="another user listens"):
            await transport.dial(listener.endpoint)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(path_of(listener.endpoint))
            stranger.settimeout(SECONDS)
            assert await asyncio.to_thread(stranger.recv, 1) == b""
        await listener.close()

    run(body)
    assert came == []


def test_workers_of_one_host_choose_it_and_others_do_not_try() -> None:
    """An endpoint of another host stands first, and the peer is reached all the same."""
    with floor_of("local") as floor:
        alice, bob = floor.worker("alice"), floor.worker("bob")
        elsewhere = "local://0123456789abcdef/tmp/x/s"
        alice.exchange.connect(bob.info, (elsewhere, *bob.endpoints))
        alice.send(bob, 1)


@pytest.mark.parametrize(
    ("wanted", "certified", "lacking", "why"),
    [
        (False, False, False, "leaves Unix sockets out"),
        (True, True, False, "certificates"),
        (True, False, True, "needs Linux's epoll and eventfd"),
    ],
)
def test_why_it_is_not_chosen(
    wanted: bool,
    certified: bool,
    lacking: bool,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line in the log; an error where nothing else is to listen."""
    if lacking:
        monkeypatch.delattr(os, "eventfd")
    tls = self_signed_tls() if certified else None
    with caplog.at_level("INFO"):
        assert find_local(tls, wanted=wanted) == []
    assert why in caplog.text
    with pytest.raises(ValueError, match=rf"bind='unix' is refused, .*{why}.*; leave bind out"):
        find_local(tls, wanted=wanted, bind="unix")


def test_what_a_killed_process_left_is_taken_away_by_the_next(tmp_path: Path) -> None:
    """A socket that refuses, and is not new; nothing else is touched."""
    transport = LocalTransport(f"unix://{tmp_path}")

    def leave(name: str, *, old: bool) -> socket.socket:
        directory = tmp_path / name
        directory.mkdir(mode=0o700)
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(directory / "s"))
        if old:
            os.utime(directory, (1.0, 1.0))
        return made

    (tmp_path / "telegrad-empty").mkdir(mode=0o700)
    for name, old in (("telegrad-dead", True), ("telegrad-new", False), ("other-dead", True)):
        leave(name, old=old).close()
    living = leave("telegrad-living", old=True)
    living.listen()

    async def body() -> None:
        await (await transport.listen(ignore)).close()

    run(body)
    found = {each.name for each in tmp_path.iterdir()}
    assert found == {"telegrad-empty", "telegrad-new", "telegrad-living", "other-dead"}
    living.setblocking(False)
    with pytest.raises(BlockingIOError):  # nobody has knocked
        living.accept()
    living.close()


def test_a_listener_goes_on_when_it_could_not_take_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transport = LocalTransport(f"unix://{tmp_path}")
    monkeypatch.setattr(socket_listener, "PAUSE_SECONDS", 0.0)

    tries: list[socket.socket] = []

    class Full(socket.socket):
        """A listening socket whose process has no descriptor left, once."""

        def accept(self) -> tuple[socket.socket, Any]:
            tries.append(self)
            if len(tries) == 1:
                raise OSError(24, "Too many open files")
            return super().accept()

    taken = asyncio.Event()

    async def accept(carrier: Carrier) -> None:
        taken.set()
        await carrier.close()

    async def body() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Full)
            listener = await transport.listen(accept)
        carrier = await transport.dial(listener.endpoint)
        await taken.wait()
        assert len(tries) == 2
        await carrier.close()
        await listener.close()

    run(body)
    assert f"`ulimit -n` allows process {os.getpid()} here" in caplog.text


def test_a_process_without_descriptors_names_the_limit_to_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task of the transport failed, and both ends waited for their time-out."""

    def none_left() -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(select, "epoll", none_left)
    with floor_of("local") as floor:
        alice, bob = floor.pair()
        alice.post(bob, 1)
        for worker in (alice, bob):
            reason = worker.recorder.wait_lost().reason
            assert f"`ulimit -n` allows process {os.getpid()} here" in reason
            assert "firewall" not in reason


def test_a_dial_without_descriptors_names_the_limit_and_blames_no_firewall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def none_left(_: str) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    clock = ManualClock()
    with floor_of("local") as floor:
        alice, bob = floor.worker("alice", clock=clock), floor.worker("bob", clock=clock)
        alice.knows(bob)
        monkeypatch.setattr(module, "_connect", none_left)
        alice.post(bob, 1)
        wait_until("a dial", lambda: "ulimit" in alice.exchange.unconnected(bob.info))
        assert "firewall" not in alice.exchange.unconnected(bob.info)
