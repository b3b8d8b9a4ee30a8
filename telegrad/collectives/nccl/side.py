"""The GPUs of one group at one member: the choice of a way, and the ends of NCCL's kernels.

    turn ─▶ all ranks say which GPU has their arrays ─┬─ each another one ─▶ NCCL's kernel starts
                                                      ├─ all the same one ─▶ CUDA IPC (`one_gpu`)
                                                      └─ all else ─▶ the operation runs on the host

That round of messages also compares the calls. So a kernel is enqueued once every rank is known to
have entered the same operation, and waits for the others' work alone, not for their programs. If a
rank is lost after that, or a deadline passes, the kernel may wait for ever: `ncclCommAbort` ends
it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, final

import numpy as np

from telegrad.arrays import (
    IDENTITY_CHARACTERS,
    UNIQUE_ID_BYTES,
    Communicator,
    Moment,
    gpu_identities,
    has_nccl,
    is_cupy,
    new_unique_id,
)
from telegrad.collectives.algorithms import dissemination
from telegrad.collectives.backends import MessageBackend
from telegrad.collectives.failure import check_alive
from telegrad.collectives.link import Link
from telegrad.collectives.messages import ANY
from telegrad.collectives.nccl.backend import NcclBackend
from telegrad.collectives.nccl.one_gpu import Meet, OneGpu, OneGpuBackend
from telegrad.collectives.on_device import OnDevice
from telegrad.collectives.operation import Call, Group, Operation
from telegrad.collectives.shared_memory.room import PartMeeting
from telegrad.critical import critical
from telegrad.errors import CallTimeoutError, InvalidUseError
from telegrad.types import Array

T = TypeVar("T")

# Between two looks at kernels that run. A look takes some microseconds, and an error that nobody
# waits for is found no later than this.
LOOK_SECONDS = 0.5

# The place of a rank's arrays, as it tells the others: the identity of a GPU, and if the rank has
# NCCL; or this one.
WITH_NCCL, WITHOUT_NCCL = b"+", b"-"
ON_HOST = b" " * (IDENTITY_CHARACTERS + 1)

_logger = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class _Running:
    """An operation that NCCL runs.

    Attributes:
        operation: The operation.
        ends_at: The time of its deadline.
        moment: The moment at which the GPU has run it; None until it is enqueued.
    """

    operation: Operation[Any]
    ends_at: float
    moment: Moment | None = None

    @property
    def sequence(self) -> int:
        return self.operation.slot.id.sequence

    @property
    def done(self) -> bool:
        return self.moment is not None and self.moment.passed

    def expired(self) -> CallTimeoutError:
        """Returns the error that the GPU has not run it in time."""
        return CallTimeoutError(
            f"{self.operation} was entered by all ranks, and their GPUs have not run it in time; "
            "give a longer timeout=, or math.inf",
            function="collectives",
            phase="waiting",
        )


@final
class _Order:
    """The order in which messages from one rank to another are enqueued, the same on both.

    Only the message whose turn it is lets the next one come.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._next = 0
        self._waiting: set[Operation[Any]] = set()

    def new_number(self) -> int:
        """Returns the number of a message, from 0."""
        return next(self._numbers)

    async def turn(self, operation: Operation[Any], number: int) -> None:
        """Waits until all messages before that of a number are enqueued."""
        self._waiting.add(operation)
        try:
            await operation.until(lambda: self._next == number or None)
        finally:
            self._waiting.discard(operation)

    def take_next(self) -> None:
        """Lets the next message be enqueued."""
        self._next += 1
        for each in list(self._waiting):
            each.look()


@final
class NcclSide:
    """The communicators of one group at one member, made when they are needed.

    There is one for each set of GPUs that the arrays of an operation lie on. Messages from one rank
    to another have communicators of their own.

    Args:
        pair: The sender and the receiver of messages, as ranks of the group; None for operations of
            all members.
    """

    def __init__(self, group: Group, pair: tuple[int, int] | None = None) -> None:
        self._group = group
        self._pair = pair
        self._order = _Order()
        self._one_gpu = OneGpu(group)
        self._lock = threading.Lock()  # guards all below
        self._pairs: dict[tuple[int, int], NcclSide] = {}
        self._communicators: dict[tuple[bytes, ...], Communicator] = {}
        self._running: deque[_Running] = deque()
        self._identities: Sequence[bytes] | None = None
        self._watched = False
        self._warned = False
        self._over = False  # no communicator is made any more
        self._since: int | None = None  # the first operation that is over

    # -- the choice ------------------------------------------------------------------------------

    def route(self, call: Call[T], on_device: OnDevice[T]) -> Call[T]:
        """Returns a call that all ranks make here or on the host, as they find together."""
        place = _place_of(on_device.arrays)
        said = ON_HOST if place is None else self._identity(place.number)
        if call.channel is not None:
            return replace(call, run=partial(self._run_message, call, on_device, place, said))

        async def run(link: Link) -> T:
            assert isinstance(link, Operation)
            await self._group.sharing.turn(link)
            found = await tell_places(link, said, on_device.heard)
            return await self._run(call, on_device, place, found, link)

        return replace(call, run=run)

    async def _run_message(
        self, call: Call[T], on_device: OnDevice[T], place: Moment | None, said: bytes, link: Link
    ) -> T:
        """Sends or receives an array where both ends find that it can go, in their order."""
        assert isinstance(link, Operation)
        assert call.channel is not None
        sender = await link.sender() if call.channel[0] == ANY else call.channel[0]
        with critical.section, self._lock:
            pair = sender, call.channel[1]
            side = self._pairs.setdefault(pair, NcclSide(self._group, pair))
        found, number = await self._agree(link, pair, said, side._order)
        if number < 0:
            return await self._run_on_host(call, place, link)
        await side._order.turn(link, number)
        value: T = await side._run(call, on_device, place, found, link)
        side._order.take_next()
        return value

    async def _agree(
        self, link: Link, pair: tuple[int, int], said: bytes, order: _Order
    ) -> tuple[list[bytes], int]:
        """Returns the places of both ends, and the number of the message; -1 for the host.

        The receiver gives the numbers. Both ends then know that the other one has entered, and have
        one order, whatever the tags and the order of their calls.
        """
        sender, receiver = pair
        if link.rank == sender:
            link.send(receiver, said)
            answer = memoryview(await link.receive(receiver)).tobytes()
            number = int.from_bytes(answer[len(said) :], "little", signed=True)
            return [said, answer[: len(said)]], number
        found = [memoryview(await link.receive(sender)).tobytes(), said]
        possible = _on_one_gpu(found) or self._possible(found, pair)
        number = order.new_number() if possible else -1
        link.send(sender, said + number.to_bytes(8, "little", signed=True))
        return found, number

    def _identity(self, number: int) -> bytes:
        with critical.section, self._lock:
            if self._identities is None:
                has = WITH_NCCL if has_nccl() else WITHOUT_NCCL
                self._identities = [each.encode() + has for each in gpu_identities()]
            return self._identities[number]

    def _possible(self, found: Sequence[bytes], ranks: Sequence[int]) -> bool:
        """Returns True if NCCL can connect the places of some ranks; warns once if it cannot."""
        if ON_HOST in found:
            return False
        lacking = [r for r, each in zip(ranks, found, strict=True) if each[-1:] == WITHOUT_NCCL]
        if lacking:
            why = f"{self._group.describe(lacking[0])} has no NCCL"
        elif len({each[:-1] for each in found}) < len(found):
            why = f"{self._sharers(found, ranks)} share one GPU, which NCCL refuses"
        else:
            return True
        self._warn(why)
        return False

    def _sharers(self, found: Sequence[bytes], ranks: Sequence[int]) -> str:
        """Returns the names of ranks that share a GPU."""
        gpus = [each[:-1] for each in found]
        twice = next(each for each in gpus if gpus.count(each) > 1)
        names = [self._group.describe(ranks[i]) for i, each in enumerate(gpus) if each == twice]
        return " and ".join(names)

    def _warn(self, why: str) -> None:
        """Logs, once, that arrays go by the host."""
        if not self._warned:
            self._warned = True
            words = "group %r: arrays on GPUs go through host memory, since %s"
            self._group.submit(_logger.warning, words, self._group.name, why)

    async def _run_on_host(self, call: Call[T], place: Moment | None, link: Link) -> T:
        if place is not None:
            with place.current():
                for each in call.staged:
                    each.stage()
        return await call.run(link)

    async def _run(
        self,
        call: Call[T],
        on_device: OnDevice[T],
        place: Moment | None,
        found: Sequence[bytes],
        link: Operation[T],
    ) -> T:
        """Runs an operation the way that the places of all its ranks allow."""
        ranks = range(link.size) if self._pair is None else self._pair
        if place is not None and _on_one_gpu(found):
            meeting = link if self._pair is None else PartMeeting(link, self._pair)
            makers = range(link.size) if self._pair is None else (0,)  # the sender
            blocks = await self._one_gpu.share(meeting, found[0][:-1].decode(), place, makers)
            if not isinstance(blocks, str):
                if self._pair is None:
                    meet: Meet = (await self._group.sharing.enter(link)).barrier
                else:
                    meet = partial(dissemination.barrier, meeting)
                return await on_device.run(OneGpuBackend(link, blocks, place, meet), link.call_of)
            self._warn(f"{self._sharers(found, ranks)} share one GPU, and {blocks}")
        elif place is not None and on_device.by_nccl and self._possible(found, ranks):
            return await self._run_by_nccl(on_device, place, found, link)
        return await self._run_on_host(call, place, link)

    # -- NCCL ------------------------------------------------------------------------------------

    async def _run_by_nccl(
        self, on_device: OnDevice[T], place: Moment, found: Sequence[bytes], operation: Operation[T]
    ) -> T:
        running = _Running(operation, time.monotonic() + operation.seconds_left)
        with critical.section, self._lock:
            while self._running and self._running[0].done:
                self._running.popleft()
            self._running.append(running)
        self._watch()
        communicator = await self._connected(operation, tuple(found), place.number)
        try:
            backend = NcclBackend(operation, communicator, place)
            value = await on_device.run(backend, operation.call_of)
            running.moment = operation.enqueued = communicator.now()
        except RuntimeError as error:
            await operation.until(lambda: True)  # raises the cause if the group is over
            raise _failed(str(operation), error) from error
        return value

    async def _connected(
        self, operation: Operation[Any], key: tuple[bytes, ...], number: int
    ) -> Communicator:
        """Returns the communicator of some GPUs; the first time, all ranks make it."""
        with critical.section, self._lock:
            known = self._communicators.get(key)
        if known is not None:
            return known
        ranks = range(operation.size) if self._pair is None else self._pair
        rank = ranks.index(operation.rank)
        flat = np.zeros(UNIQUE_ID_BYTES, np.uint8)
        try:
            if rank == 0:
                flat[:] = np.frombuffer(new_unique_id(), np.uint8)
        except RuntimeError as error:
            raise _failed(str(operation), error) from error
        if self._pair is None:
            await MessageBackend(operation).broadcast(flat, 0)
        elif rank == 0:
            operation.send(ranks[1], flat.tobytes())
        else:
            flat[:] = np.frombuffer(await operation.receive(ranks[0]), np.uint8)
        made: list[Communicator | Exception] = []

        def connect() -> None:
            found: Communicator | Exception
            try:
                found = Communicator(len(ranks), flat.tobytes(), rank, number)
            except Exception as error:  # at the top of a thread
                found = error
            with critical.section, self._lock:
                late = self._over
                if isinstance(found, Communicator) and not late:
                    self._communicators[key] = found
                made.append(found)
            if isinstance(found, Communicator) and late:
                found.abort()
            operation.look()

        # A thread of its own: nothing ends NCCL's wait for a rank that does not come.
        threading.Thread(target=connect, daemon=True, name="telegrad-nccl").start()
        await operation.until(lambda: made or None)
        outcome = made[0]
        if isinstance(outcome, Exception):
            raise _failed(str(operation), outcome) from outcome
        return outcome

    # -- the end of kernels ----------------------------------------------------------------------

    def finish(self, operation: Operation[Any]) -> None:
        """Blocks until the GPU has run an operation; raises the cause if it was aborted."""
        assert operation.enqueued is not None
        operation.enqueued.wait()
        channel = operation.slot.id.channel
        with critical.section, self._lock:
            side = self if channel is None else self._pairs[channel[0], channel[1]]
        if side._over:
            with critical.section, self._group.state_lock:
                # The group does not tell an operation that has run its algorithm.
                failure = operation.failure or self._group.failure_of(operation.slot.id)
                check_alive(failure, operation)

    def end(self, since: int) -> None:
        """Ends the kernels of all operations from number `since` on; never waits."""
        for each in self._of_messages():
            each.end(0)
        if since == 0:
            self._one_gpu.close()
        else:  # earlier operations may still need it
            self._one_gpu.release()
        with critical.section, self._lock:
            self._since = since
            idle = not (self._running or self._communicators)
            self._over = self._over or (idle and since == 0)
        if not idle:
            self._group.submit(self._abort)

    def end_messages(self, other: int) -> None:
        """Ends the kernels of all messages from and to a rank; never waits."""
        for each in self._of_messages(other):
            each.end(0)

    def on_left(self, other: int) -> None:
        """Keeps no memory open that a rank which has left shares; never waits.

        Operations that are over there may not be over here, and open it again.
        """
        for each in (self, *self._of_messages(other)):
            each._one_gpu.release()

    def _of_messages(self, other: int | None = None) -> list[NcclSide]:
        with critical.section, self._lock:
            return [x for pair, x in self._pairs.items() if other is None or other in pair]

    def close(self) -> None:
        """Waits for the kernels that run, and frees the communicators."""
        for side in self._of_messages():
            side.close()
        with critical.section, self._lock:
            moments = [each.moment for each in self._running if each.moment is not None]
        for moment in moments:
            moment.wait()
        self._one_gpu.close()
        with critical.section, self._lock:
            self._over = True
            communicators = list(self._communicators.values())
            self._communicators.clear()
        for each in communicators:
            each.destroy()

    def _abort(self) -> None:
        """Aborts the communicators if a kernel may wait for ever, and none is still wanted.

        Operations run in turn: if one that is over has a kernel, all earlier ones have theirs.
        """
        with critical.section, self._lock:
            since = self._since
            if since is None:
                return
            waiting = [each.sequence for each in self._running if not each.done]
            if since and (not waiting or waiting[0] < since):
                return  # `_look` comes again while there are kernels
            self._over = True
            communicators = list(self._communicators.values())
            self._communicators.clear()
            self._running.clear()
        for each in communicators:
            each.abort()

    def _watch(self) -> None:
        with critical.section, self._lock:
            if self._watched:
                return
            self._watched = True
        self._group.after(LOOK_SECONDS, lambda: self._group.submit(self._look))

    def _look(self) -> None:
        """Ends the group if a kernel has failed or is overdue."""
        with critical.section, self._lock:
            self._watched = False
            self._running = deque(each for each in self._running if not each.done)
            running = list(self._running)
            communicators = list(self._communicators.values())
        if not running:
            return
        first = running[0]
        try:
            for each in communicators:
                each.check()
        except RuntimeError as error:
            self._group.give_up(first.operation, _failed(str(first.operation), error))
        overdue = [each for each in running if time.monotonic() >= each.ends_at]
        if overdue:
            self._group.give_up(overdue[0].operation, overdue[0].expired())
        self._abort()
        self._watch()


async def tell_places(link: Link, said: bytes, all_calls: bool) -> list[bytes]:
    """Tells all ranks the place of this rank's arrays, and returns those of all, by rank.

    Every rank is then known to have made a call that fits. With `all_calls`, each has all calls.
    """
    own = np.frombuffer(said, np.uint8)
    found = await MessageBackend(link).all_gather(own, lambda _: own.shape, heard=all_calls)
    return [each.tobytes() for each in found]


def _place_of(arrays: Sequence[Array]) -> Moment | None:
    """Returns this moment on the GPU that has all arrays; None unless one has."""
    if not arrays or not all(map(is_cupy, arrays)):
        return None
    devices: list[Any] = [each.device for each in arrays]
    numbers = {int(each.id) for each in devices}
    return Moment(numbers.pop()) if len(numbers) == 1 else None


def _on_one_gpu(found: Sequence[bytes]) -> bool:
    """Returns True if several ranks have their arrays on one GPU, all of them on the same."""
    gpus = {each[:-1] for each in found}
    return len(found) > 1 and len(gpus) == 1 and ON_HOST not in found


def _failed(what: str, error: Exception) -> InvalidUseError:
    return InvalidUseError(
        f"NCCL has failed in {what}: {error}; run it with NCCL_DEBUG=INFO to see why, or make the "
        'group with backend="host"'
    )
