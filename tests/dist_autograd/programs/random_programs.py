"""Random programs of calls between living workers, and the same programs on one worker.

A program is a tree of values: a body has steps, a step computes or calls other workers, and a call
has a body that runs at its callee. `run_body` reads it, as a generator that is asked for the results
of calls, so the same lines run here in one process, in threads, and in tasks of an event loop.

    values of a body: what it was given, the leaves of its worker, then what its steps came to
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import numpy as np

from telegrad.autograd import Tensor, no_grad, tensor
from telegrad.types import Array

__all__ = [
    "ARRIVES",
    "ASKED",
    "LEAVES",
    "LOSSES",
    "Body",
    "Call",
    "Cut",
    "Gradients",
    "Program",
    "ProgramDrawer",
    "local_gradients",
    "make_leaves",
    "run_body",
    "total",
]

LEAVES = 2  # of each worker
LENGTH = 3  # of each vector
DEPTH = 3  # of calls inside calls: A, B, C, A

# What becomes of a call.
ARRIVES, RAISES, CANCELLED, TIMES_OUT, UNREAD, NO_GRAD = (
    "arrives",
    "raises",
    "is cancelled",
    "times out",
    "is not read",
    "is made under no_grad",
)
FATES = (*[ARRIVES] * 7, RAISES, CANCELLED, TIMES_OUT, UNREAD, NO_GRAD)
FORMS = (
    "sync",
    "async",
    "remote",
    "async_execution",
    "async def",
    "method",
    "stream",
    "async stream",
)
# How gradients are asked for: of scalar losses; of results and with gradients of their own; of a loss
# that another worker has; of losses of which others have some.
LOSSES, GIVEN, ASKED, SPREAD = "losses", "gradients are given", "another is asked", "spread"
ROOTS = (LOSSES, LOSSES, GIVEN, ASKED, SPREAD)
PACKINGS = ("list", "tuple", "dict", "dataclass", "references")

Path: TypeAlias = tuple[int, ...]
"""Where in a program a call is."""
Gradients: TypeAlias = dict[tuple[int, int], Array]
"""By rank and number of the leaf."""


@dataclass(frozen=True)
class Combine:
    """Computes one value of others; the last ones have the lowest numbers."""

    inputs: tuple[int, ...]
    times: int


@dataclass(frozen=True)
class Call:
    """A call with its body, which has the arguments for its first values."""

    form: str
    fate: str
    packing: str
    callee: int
    further: int  # the worker to which an async_execution function hands it on
    arguments: tuple[int, ...]
    read: int  # items of a stream that are read, at most
    body: Body


@dataclass(frozen=True)
class Together:
    """Calls that are under way at the same time."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Body:
    """Steps, and which of all values are handed back."""

    steps: tuple[Combine | Together, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """What one worker runs in one context, and how it asks for gradients.

    Attributes:
        origin: The rank that opens the context.
        task: Whether it runs on the event loop of that worker, not in a thread.
        body: Its results are differentiated.
        passes: How many backwards go over the one graph.
        roots: How it asks for gradients: one of ROOTS.
        asked: The rank that gets results for it.
    """

    origin: int
    task: bool
    body: Body
    passes: int
    roots: str
    asked: int


Asked: TypeAlias = list[tuple[Path, Call, list[Tensor]]]
Running: TypeAlias = Generator[Asked, list[list[Tensor]], list[Tensor]]


def run_body(body: Body, path: Path, given: Iterable[Tensor], leaves: Sequence[Tensor]) -> Running:
    """Runs a body; is sent the results of the calls that it yields, and returns its own."""
    values = [*given, *leaves]

    def picked(numbers: Iterable[int]) -> list[Tensor]:
        return [values[-1 - number % len(values)] for number in numbers]

    for i, step in enumerate(body.steps):
        if isinstance(step, Combine):
            values.append(combined(picked(step.inputs), picked((step.times,))[0]))
            continue
        asked = [((*path, i, j), call, picked(call.arguments)) for j, call in enumerate(step.calls)]
        for results in (yield asked):
            values += results
    return picked(body.results)


def combined(terms: list[Tensor], factor: Tensor) -> Tensor:
    """Returns a bounded value, whose rule needs the values that it was made of."""
    return cast("Tensor", np.tanh(0.7 * sum(terms[1:], start=terms[0]) + terms[0] * factor))


def total(values: list[Tensor]) -> list[Tensor]:
    """Returns the losses of a program: of each result that needs a gradient, or of none."""
    return [(value * value + value).sum() for value in values if value.requires_grad]


def make_leaves(rank: int) -> list[Tensor]:
    """Returns the leaves of a worker; the same numbers wherever they are made."""
    rng = np.random.default_rng(rank)
    return [tensor(rng.normal(size=LENGTH), requires_grad=True) for _ in range(LEAVES)]


# -- the same on one worker ------------------------------------------------------------------------


@dataclass
class Cut:
    """What was lost when a worker was.

    Attributes:
        lost: Its rank; -1 for none.
        failed: The calls that ended with its loss.
        reached: Whether a gradient came to what that worker had sent to others.
    """

    lost: int = -1
    failed: set[Path] = field(default_factory=set)
    reached: bool = False


class Alone:
    """Runs a program in this thread; every worker's leaves are here."""

    def __init__(self, workers: int, cut: Cut) -> None:
        self.leaves = [make_leaves(rank) for rank in range(workers)]
        self._cut = cut

    def run(self, rank: int, body: Body, path: Path, given: list[Tensor]) -> list[Tensor]:
        running = run_body(body, path, given, self.leaves[rank])
        try:
            asked = next(running)
            while True:
                asked = running.send([self._call(rank, *each) for each in asked])
        except StopIteration as end:
            return cast("list[Tensor]", end.value)

    def _call(self, rank: int, path: Path, call: Call, arguments: list[Tensor]) -> list[Tensor]:
        if call.fate not in (ARRIVES, NO_GRAD) or path in self._cut.failed:
            return []
        with no_grad() if call.fate == NO_GRAD else nullcontext():
            results = self._served(rank, path, call, arguments)
        if "stream" in call.form:
            results = results[: call.read]
        if call.fate == NO_GRAD:
            return [each.detach() for each in results]
        return self.sent(results, call.callee, rank)

    def _served(self, rank: int, path: Path, call: Call, arguments: list[Tensor]) -> list[Tensor]:
        given = self.sent(arguments, rank, call.callee)
        if call.form != "async_execution":
            return self.run(call.callee, call.body, path, given)
        own = [each * self.leaves[call.callee][0] for each in given]
        own = self.sent(own, call.callee, call.further)
        results = self.run(call.further, call.body, path, own)
        return [2.0 * each for each in self.sent(results, call.further, call.callee)]

    def sent(self, values: list[Tensor], sender: int, receiver: int) -> list[Tensor]:
        """Returns values as they arrive; notes gradients of those that a lost worker sent."""
        if sender != self._cut.lost or receiver == sender:
            return values
        arrived = [each * 1.0 for each in values]
        for each in arrived:
            if each.requires_grad:
                each.register_hook(self._note)
        return arrived

    def _note(self, gradient: Tensor) -> None:
        del gradient
        self._cut.reached = True


def local_gradients(workers: int, program: Program, cut: Cut | None = None) -> Gradients:
    """Returns the gradients of a program on one worker; those that none reached are missing."""
    alone = Alone(workers, cut or Cut())
    values = alone.run(program.origin, program.body, (), [])
    if program.roots == ASKED:
        values = alone.sent(values, program.origin, program.asked)
    for loss in total(values):
        for _ in range(program.passes):
            loss.backward(retain_graph=True)
    return {
        (rank, i): leaf.grad.data
        for rank, leaves in enumerate(alone.leaves)
        for i, leaf in enumerate(leaves)
        if leaf.grad is not None
    }


# -- how programs are drawn ------------------------------------------------------------------------


class ProgramDrawer:
    """Draws programs over some workers.

    Args:
        workers: How many.
        seed: The same one gives the same programs.
        calls: How many calls a program has, about.
        fates: What may become of one.
    """

    def __init__(self, workers: int, seed: int, calls: int, fates: Sequence[str] = FATES) -> None:
        self._rng = random.Random(f"{workers} {seed} {calls}")
        self._workers = workers
        self._most = calls
        self._left = calls
        self._fates = fates

    def program(self) -> Program:
        """Returns another program."""
        self._left = self._most
        return Program(
            origin=self._rank(),
            task=self._rng.random() < 0.4,
            body=self._body(0),
            passes=self._rng.choice((1, 1, 2)),
            roots=self._rng.choice(ROOTS),
            asked=self._rank(),
        )

    def _body(self, depth: int) -> Body:
        steps: list[Combine | Together] = []
        while self._left and (depth == 0 or len(steps) < self._rng.randint(0, 2)):
            if depth >= DEPTH or self._rng.random() < 0.4:
                steps.append(self._combine())
            else:
                steps.append(self._together(depth))
        steps.append(self._combine())
        return Body(tuple(steps), self._numbers(1 if depth == 0 else 0, 3))

    def _combine(self) -> Combine:
        return Combine(self._numbers(1, 3), self._number())

    def _together(self, depth: int) -> Together:
        count = min(self._left, self._rng.choice((1, 1, 2, 3)))
        self._left -= count
        return Together(tuple(self._call(depth) for _ in range(count)))

    def _call(self, depth: int) -> Call:
        fate = self._rng.choice(self._fates)
        packings = (
            PACKINGS[:-1] if fate == NO_GRAD else PACKINGS
        )  # an own RRef's value is the value
        return Call(
            form=self._rng.choice(FORMS),
            fate=fate,
            packing=self._rng.choice(packings),
            callee=self._rank(),
            further=self._rank(),
            arguments=self._numbers(0, 3),
            read=self._rng.randint(0, 3),
            body=self._body(depth + 1),
        )

    def _rank(self) -> int:
        return self._rng.randrange(self._workers)

    def _number(self) -> int:
        return self._rng.choice((0, 0, 0, 1, 1, 2, 3, 4, 5))

    def _numbers(self, least: int, most: int) -> tuple[int, ...]:
        return tuple(self._number() for _ in range(self._rng.randint(least, most)))
