"""Which worker is lost while a program runs, and when."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from telegrad import rpc
from telegrad.autograd import Tensor
from tests.dist_autograd.programs.random_programs import Path

__all__ = ["LIMIT", "Doom", "doomed", "lost_call", "lost_calls"]

LIMIT = 20.0  # seconds


@dataclass
class Doom:
    """When a worker is lost: at its n-th served call, or when a gradient comes there.

    Attributes:
        rank: Who.
        at_call: Which of the calls that it serves is its last one; 0 for none.
        in_backward: Whether it is lost while a gradient is computed there.
        reached: Set when it is to be killed.
        done: Set when it was.
    """

    rank: int
    at_call: int = 0
    in_backward: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    served: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards at_call and served

    def on_call(self) -> None:
        """Has the worker that serves this call lost, if it is time."""
        if rpc.get_worker_info().rank != self.rank:
            return
        with self.lock:
            self.served += 1
            now = self.served == self.at_call
            if now:
                self.reached.set()
        if now:
            self.done.wait(LIMIT)

    def calls_are_over(self) -> None:
        """Has no call that comes now be the last one: it would be one that was given up."""
        with self.lock:
            self.at_call = 0

    def on_values(self, values: list[Tensor]) -> None:
        """Has it lost when a gradient comes to one of these."""
        if self.in_backward and rpc.get_worker_info().rank == self.rank:
            for each in values:
                if each.requires_grad:
                    each.register_hook(lambda gradient: self.die())

    def die(self) -> None:
        """Has it killed now; returns when it is."""
        self.reached.set()
        self.done.wait(LIMIT)


doomed: list[Doom] = []  # one, while a test kills a worker
lost_calls: set[Path] = set()


def lost_call(path: Path, error: BaseException) -> list[Tensor]:
    """Goes on without a call, where a worker was to be lost."""
    if not doomed:
        raise error
    lost_calls.add(path)
    return []
