"""Each worker's part in an examination: it describes itself, dials its peers, measures a session.

     doctor's worker                a worker                        its peer
     rpc.doctor {ask: facts}  ───▶  addresses, versions
     rpc.doctor {ask: reach}  ───▶  dials, posts nothing      ────▶ a hello
     rpc.doctor {ask: speed}  ───▶  rpc.doctor.echo           ────▶ answers at once
                              ◀───  round trip, bandwidth     ◀────
     rpc.doctor {for: other}  ───▶  passes it on, if the doctor's worker cannot reach the other

These are protocol messages: they pass no user policy, and none of the user's code runs. A worker
posts to a peer only over a session that is up. A message to an unreachable peer would cause that
peer to be given up.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import platform
import socket
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from telegrad.doctor.facts import MOST_TEXT, Address, DoctorWorker, Speed
from telegrad.errors import (
    CallTimeoutError,
    DecodeError,
    PoolExhaustedError,
    TelegradError,
    WorkerLostError,
)
from telegrad.rendezvous import JoinedJob
from telegrad.transport import (
    Dial,
    Interface,
    cores,
    dial_peers,
    interfaces,
    own_endpoints,
    read_host_id,
)
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, escaped

if TYPE_CHECKING:
    from telegrad.rpc.seams import AgentCore

ASK = "rpc.doctor"
ECHO = "rpc.doctor.echo"

WARM_UPS = 2  # round trips that do not count: the first wakes threads
TRIPS = 11  # whose median counts; on loopback all of them take 5 ms
# The arrays to send, one after the other as long as the next one will not be slow: 8 MiB take 8 ms
# at 1 GB/s, long enough to tell 1 Gbit/s from 10. The first opens the lanes and does not count,
# unless the link is so slow that they make no difference.
SIZES = (1 << 17, 1 << 17, 1 << 20, 1 << 23)
SLOW_SECONDS = 0.5  # 128 KiB at 2 Mbit/s
LONGEST_SECONDS = 1.0  # allowed for the next array, as estimated from the last one
MOST_PEERS = 10_000  # that one message may name
# The most questions at the same time, of all other workers together, and the longest time for one:
# each takes a thread. A doctor asks every worker one at a time, and 64 through a worker that
# reaches those that it cannot reach itself.
MOST_QUESTIONS = 128
LONGEST_QUESTION = 60.0

# A larger answer is not read: reading 50 MB takes so long that the doctor itself seems dead.
ANSWER_BYTES = 1 << 20
BYTES_PER_PEER = 1 << 14

PACKAGES = ("telegrad", "numpy", "grpcio", "msgpack", "protobuf", "cryptography")
INTERFACES = Path("/sys/class/net")


@final
class DoctorProbe:
    """For the library: one worker's part in an examination.

    Args:
        agent: This worker's agent.
    """

    def __init__(self, agent: AgentCore) -> None:
        self._agent = agent
        self._me = agent.info
        self._permits = threading.BoundedSemaphore(MOST_QUESTIONS)
        agent.inbox.register(ASK, self._on_ask)
        agent.inbox.register(ECHO, self._on_echo)

    @cached_property
    def _zeros(self) -> npt.NDArray[np.uint8]:
        """The only data that is ever sent, however much is requested.

        Made for the first question: 8 MiB that most agents never need take 5 ms to clear.
        """
        zeros = np.zeros(SIZES[-1], np.uint8)
        zeros.setflags(write=False)
        return zeros

    # For the doctor's worker and its questions: in threads, with bounded times.

    def ask(self, worker: WorkerInfo, body: Mapping[str, Any], limit: float) -> Any:
        """Asks this worker, or one with which a session is up; blocks.

        Raises:
            TelegradError: The worker does not answer in time, is lost, or could not do it.
        """
        if worker == self._me:
            return self._answered(body)
        most = ANSWER_BYTES + BYTES_PER_PEER * len(body.get("body", body).get("peers", ()))
        ask = self._agent.messages.request
        return ask(worker, ASK, dict(body), timeout=limit, most=most).wait()

    def facts(self) -> dict[str, Any]:
        """Returns this worker's description of itself, a `DoctorWorker` as plain data."""
        agent = self._agent
        job = agent.attachments.find(JoinedJob)  # none for an agent that was built without a job
        described = DoctorWorker(
            info=self._me,
            host=socket.gethostname(),
            host_id=_host_id(),
            endpoints=own_endpoints(agent.exchange),
            listens=agent.options.listens,
            addresses=tuple(map(_address, interfaces())),
            versions=versions(),
            cores=cores(),
            insecure=agent.options.insecure,
            coordinator="" if job is None else job.coordinator_endpoint,
        )
        return asdict(described)

    def reach(self, peers: Sequence[WorkerInfo], limit: float) -> list[Dial]:
        """Dials peers, all at the same time; blocks for at most `limit` seconds."""
        return dial_peers(self._agent.exchange, peers, limit)

    def speed(self, peer: WorkerInfo, limit: float) -> Speed:
        """Measures the session with a peer, which must be up; blocks for about `limit` seconds."""
        end, found = time.monotonic() + limit, Speed()
        try:
            trips = [self._echo(peer, 0, 0, end) for _ in range(WARM_UPS + TRIPS)]
            found = Speed(trip := statistics.median(trips[WARM_UPS:]))
            found = Speed(trip, self._rate(peer, trip, end, back=False))
            return Speed(trip, found.there, self._rate(peer, trip, end, back=True))
        except TelegradError as error:
            what = "" if found.round_trip is None else f"an array of {SIZES[0] >> 10} KiB: "
            return replace(found, words=what + in_words(error))

    # Measuring.

    def _rate(self, peer: WorkerInfo, round_trip: float, end: float, *, back: bool) -> float:
        """Returns bytes a second in one direction.

        Raises:
            TelegradError: Not one array that counts arrived in time.
        """
        best = 0.0
        for i, size in enumerate(SIZES):
            try:
                took = self._echo(peer, 0 if back else size, size if back else 0, end)
            except TelegradError:
                if best:
                    break
                raise
            if i > 0 or took > SLOW_SECONDS:
                best = max(best, size / max(took - round_trip, took / 2))
            following = SIZES[min(i + 1, len(SIZES) - 1)]
            if best and took * following / size > LONGEST_SECONDS:
                break
        return best

    def _echo(self, peer: WorkerInfo, there: int, back: int, end: float) -> float:
        """Sends and receives these numbers of bytes; returns the seconds that it took.

        Raises:
            TelegradError: There was no answer in time.
        """
        left = max(end - time.monotonic(), 0.001)
        body = {"bytes": back, "data": self._zeros[:there] if there else None}
        began = time.monotonic()
        self._agent.messages.request(peer, ECHO, body, timeout=left).wait()
        return time.monotonic() - began

    # Handlers, on the loop.

    def _on_echo(self, peer: WorkerInfo, envelope: Envelope) -> None:
        if envelope.buffers:  # only their arrival counts
            self._agent.messages.reply(peer, envelope)
            return
        body = self._agent.messages.read(envelope)
        size = body.get("bytes") if isinstance(body, dict) else None
        if type(size) is not int or not 0 <= size <= SIZES[-1]:
            raise DecodeError("an echo does not say how many bytes it wants")
        # Not copied: a peer that asks often and takes nothing must not fill memory here.
        buffers = [self._zeros[:size].data] if size else ()
        self._agent.messages.reply(peer, envelope, buffers=buffers)

    def _on_ask(self, peer: WorkerInfo, envelope: Envelope) -> None:
        if self._permits.acquire(blocking=False):
            self._agent.pool.submit(self._reply_ask, peer, envelope)
            return
        words = f"{self._me.name!r} answers {MOST_QUESTIONS} questions of doctors; ask it later"
        self._agent.messages.reply_error(peer, envelope, PoolExhaustedError(words))

    def _reply_ask(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Answers a question; in the pool, because it waits."""
        answer: Any = None
        failure: Exception | None = None
        try:
            answer = self._answered(self._agent.messages.read(envelope))
        except Exception as error:  # a remote handler: the asking worker must get the error
            failure = error
        self._permits.release()  # before the reply: whoever has it may ask again at once
        if failure is None:
            self._agent.messages.reply(peer, envelope, answer)
        else:
            self._agent.messages.reply_error(peer, envelope, failure)

    def _answered(self, body: Any) -> Any:
        if not isinstance(body, Mapping) or not isinstance(limit := body.get("limit"), float):
            raise DecodeError("a doctor does not say how long it waits")
        if not 0 < limit < math.inf:
            raise DecodeError(f"a doctor does not wait for {limit:g} s")
        limit = min(limit, LONGEST_QUESTION)
        match body.get("ask"):
            case "facts":
                return self.facts()
            case "reach":
                peers = [self._worker(each) for each in body["peers"][:MOST_PEERS]]
                return [asdict(each) for each in self.reach(peers, limit)]
            case "speed":
                return asdict(self.speed(self._worker(body["peer"]), limit))
            case "forward":
                return self.ask(self._worker(body["for"]), body["body"], limit)
            case what:
                raise DecodeError(f"a doctor asks for {what!r:.40}, which is not known here")

    def _worker(self, plain: Any) -> WorkerInfo:
        """Returns the worker that a message names; it may be lost.

        Raises:
            UnknownWorkerError: There is no such worker.
        """
        name, rank, incarnation = plain
        return self._agent.members.find(WorkerInfo(str(name), int(rank), int(incarnation)))


def in_words(error: TelegradError) -> str:
    """Returns the reason for a missing answer, short enough for a row of a report."""
    if isinstance(error, CallTimeoutError):
        return f"no answer within {error.elapsed:.3g} s"
    reason = error.reason if isinstance(error, WorkerLostError) else ""
    return escaped(reason or str(error), most=MOST_TEXT)


def _address(found: Interface) -> Address:
    return Address(
        found.address, found.name, _number_of(found.name, "mtu"), _number_of(found.name, "speed")
    )


def _number_of(interface: str, what: str) -> int:
    """Returns a number that the kernel states for an interface; 0 if it states none."""
    try:
        return max(0, int((INTERFACES / interface / what).read_text()))
    except (OSError, ValueError):
        return 0


def _host_id() -> str:
    """Returns a text that is equal for processes with the same loopback, and for no others."""
    try:
        return read_host_id()
    except OSError:  # not on Linux
        return socket.gethostname()


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that workers should have in common."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
