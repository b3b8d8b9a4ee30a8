"""Runs two workers of a peer on two hosts: network namespaces, joined by veth pairs and a bridge.

The namespaces are those of tests/hosts. To programs each looks like a machine of its own: it has its
own loopback, its own Unix sockets in the abstract namespace, and its own boot
id, by which telegrad and torch tell whether they share a machine's memory. What travels goes over
TCP.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from machine import ROOT, python_of
from programs import ENVIRONMENT, PEERS, outcome
from rounds import Report, Start

__all__ = ["VARIANTS", "CannotError", "two_hosts"]

# telegrad otherwise than it comes: without encryption, as torch is, and with all calls over gRPC.
VARIANTS = {
    "telegrad-plain": ["--insecure"],
    "telegrad-grpc": ["--no-direct"],
}
PORT = 29500  # a host has all its ports for itself
PROGRAM_SECONDS = 120.0
END_SECONDS = 15.0  # for the callee, once its caller has ended


class CannotError(RuntimeError):
    """Hosts cannot be made here; says why."""


@contextlib.contextmanager
def two_hosts(rate: str = "") -> Iterator[Start]:
    """Makes two hosts; gives what runs a peer's program on both, the caller on the first.

    Args:
        rate: The rate of the link between them, `1gbit` or less; "" for no limit.

    Raises:
        CannotError: This machine or this user cannot make them.
    """
    sys.path.insert(0, str(ROOT))
    try:
        import pytest  # noqa: PLC0415 - of the tests' environment, and of no other

        from tests.hosts.namespaces import Hosts  # noqa: PLC0415
    except ImportError as error:
        raise CannotError(f"the tests' environment makes them ({error}); run make bench") from error
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(Hosts.made(2))
            if rate:
                hosts.limit(1, rate, burst="128kb", queue="1mb")
        except pytest.skip.Exception as reason:
            raise CannotError(str(reason)) from None

        def start(peer: str, program: str, arguments: Sequence[str]) -> Report:
            def begin(r: int) -> subprocess.Popen[str]:
                return _begin([*hosts.on(r), *_words(peer, program, arguments, r, meet)])

            meet = f"tcp://{hosts.address(0)}:{PORT}"
            return _outcome(begin(1), begin(0))

        os.environ["TELEGRAD_TOKEN"] = secrets.token_hex(16)
        yield start


def _words(
    peer: str, program: str, arguments: Sequence[str], rank: int, meet: str
) -> list[str | Path]:
    how = VARIANTS.get(peer, [])
    python = python_of("telegrad" if how else peer)
    place = ["--rank", str(rank), "--meet", meet, *how]
    insecure = "--insecure" in how  # a worker has a token, or none at all
    alone = ["env", "-u", "TELEGRAD_TOKEN"] if insecure else []
    return [*alone, python, PEERS / program, *arguments, *place]


def _begin(words: Sequence[str | Path]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _outcome(callee: subprocess.Popen[str], caller: subprocess.Popen[str]) -> Report:
    try:
        output, errors = caller.communicate(timeout=PROGRAM_SECONDS)
        reported = outcome(caller.returncode, output, errors)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, errors = callee.communicate(timeout=END_SECONDS)
            if callee.returncode and "error" in reported:
                reported["error"] += f"; the callee: {outcome(1, '', errors)['error']}"
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {PROGRAM_SECONDS:g} s"}
    finally:
        for process in (caller, callee):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return reported
