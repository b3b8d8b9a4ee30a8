"""Verbs that the exception of a signal handler leaves at any moment, as Ctrl-C and alarms do.

The handler raises where Python calls it, so the moments are drawn: a trace function that raises
does so where no handler could. The program is one worker; `note` and the like are called on another.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np

from telegrad import rpc
from telegrad.critical import interrupts

SECONDS = 20.0  # far more than any call needs, also where the machine is busy
BIG = np.zeros(40_000)  # bytes that leave by a lane, or shared memory

Verb = Callable[[], object]


class Left(BaseException):
    """Is raised by the handler."""


class Kept:
    """The value of an RRef."""

    def get(self) -> int:
        return 7


def note(what: Any) -> Any:
    return what


def numbers(n: int) -> Iterator[int]:
    yield from range(n)


def use_rref() -> None:
    rref = rpc.remote(1, Kept)
    assert rref.rpc_sync().get() == 7
    rref.release()
    assert rpc.remote(1, note, (3,)).to_here() == 3


VERBS: dict[str, Verb] = {
    "rpc_sync": lambda: rpc.rpc_sync(1, note, (1,)),
    "rpc_async": lambda: rpc.rpc_async(1, note, (1,)).wait(),
    "many": lambda: rpc.wait_all([rpc.rpc_async(1, note, (1,)) for _ in range(20)]),
    "gather": lambda: rpc.gather([(1, note, (1,)), (1, note, (2,))]).wait(),
    "big": lambda: rpc.rpc_sync(1, note, (BIG,)),
    "rref": use_rref,
    "stream": lambda: list(rpc.stream(1, numbers, (3,))),
}


class Alarm:
    """Raises in a verb, at moments that are drawn.

    Attributes:
        hits: How often it did.
        where: The place of the last one.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._armed = False
        self.hits = 0
        self.where = ""
        signal.signal(signal.SIGALRM, self._handle)

    def run(self, verb: Verb, longest: float) -> None:
        """Runs a verb and raises after at most so many seconds, unless it is done by then."""
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._random.uniform(5e-6, longest))
            verb()
            self._armed = False
        except Left:
            self.hits += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number
        if self._armed:  # else the verb was done just now
            self._armed = False
            self.where = str(frame)
            raise Left


def seconds_of(verb: Verb) -> float:
    began = time.monotonic()
    for _ in range(20):
        verb()
    return (time.monotonic() - began) / 20


def main(seed: int, times: int, direct: str) -> None:
    """Is one worker of two: how often each verb is left, and `RpcOptions.direct`."""
    way: Any = {"True": True, "False": False}.get(direct, direct)
    agent = rpc.init_rpc(options=rpc.RpcOptions(direct=way))
    if agent.rank == 0:
        alarm = Alarm(seed)
        for name, verb in VERBS.items():
            longest = 1.2 * seconds_of(verb)
            for _ in range(times):
                alarm.run(verb, longest)
                assert not interrupts(), alarm.where
                try:
                    assert rpc.rpc_sync(1, note, (2,), timeout=SECONDS) == 2
                except Exception as error:
                    raise AssertionError(f"{name}, left at {alarm.where}") from error
        assert alarm.hits > times
        sys.stdout.write(f"{alarm.hits} exceptions\n")
    rpc.shutdown()


if __name__ == "__main__":
    from tests.rpc.promises import left_code  # by its name: the calls name its functions so

    left_code.main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
