"""Random programs over workers, and the local program that they must agree with.

A program is made once, in one order, as a graph of linear nodes over the integers modulo a prime,
so that gradients are exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

PRIME = 1_000_003


@dataclass(eq=False)
class SimNode:
    """A leaf, a linear operation, a send function or a receive function."""

    kind: str
    worker: int
    inputs: tuple[tuple[SimNode, int], ...] = ()
    weights: tuple[int, ...] = ()
    outputs: int = 1
    pair: SimNode | None = None  # of a receive function, its send function
    peer: int = -1
    message: int = -1
    fails: bool = False


Value = tuple[SimNode, int]


@dataclass
class Program:
    """What was recorded before backward, and what will be recorded meanwhile."""

    workers: int
    recorded: list[list[SimNode]]
    late: list[list[SimNode]] = field(default_factory=list)  # each list in order, on its own
    roots: list[Value] = field(default_factory=list)
    remote_roots: list[Value] = field(default_factory=list)  # of workers that are not the starter
    starter: int = 0
    creates: bool = False  # whether the pass is recorded
    messages: int = 0  # the last autograd message id


class ProgramMaker:
    """Makes a random program: nested calls, results unused, lost or late."""

    def __init__(self, rng: random.Random, workers: int) -> None:
        self.rng = rng
        self.program = Program(workers, [[] for _ in range(workers)])
        self.leaves = [[self._add(SimNode("leaf", w)) for _ in range(2)] for w in range(workers)]
        self.messages = 0
        self.budget = rng.randint(4, 30)

    def _add(self, node: SimNode, into: list[SimNode] | None = None) -> SimNode:
        (self.program.recorded[node.worker] if into is None else into).append(node)
        return node

    def make(self) -> Program:
        starter = self.rng.randrange(self.program.workers)
        values = self._body(starter, [], 0)
        self.program.starter = starter
        used = tuple(value for value in values if self.rng.random() < 0.6) or (values[-1],)
        weights = tuple(self.rng.randint(1, 50) for _ in used)
        loss = self._add(SimNode("op", starter, used, weights))
        self.program.roots = [(loss, 0), *self.rng.sample(values, self.rng.randint(0, 1))]
        self.program.remote_roots = self._remote_roots(starter)
        if self.program.remote_roots and self.rng.random() < 0.5:
            self.program.roots = []
        self.program.creates = self.rng.random() < 0.3
        self.program.messages = self.messages
        return self.program

    def _remote_roots(self, starter: int) -> list[Value]:
        found = [
            (node, 0)
            for nodes in self.program.recorded
            for node in nodes
            if node.worker != starter and node.kind != "send"
        ]
        count = self.rng.choices([0, 1, 2, 3], [4, 2, 2, 1])[0]
        return self.rng.sample(found, min(count, len(found)))

    def _body(self, worker: int, given: list[Value], depth: int) -> list[Value]:
        values = [*given, (self.rng.choice(self.leaves[worker]), 0)]
        for _ in range(self.rng.randint(3, 7) if depth == 0 else self.rng.randint(1, 3)):
            self.budget -= 1
            if self.rng.random() < 0.75 * 0.6**depth and self.budget > 0:
                values += self._call(worker, values, depth)
            else:
                values.append(self._combine(worker, values))
        return values

    def _combine(
        self, worker: int, values: list[Value], into: list[SimNode] | None = None
    ) -> Value:
        inputs = (values[-1], *self.rng.choices(values[-6:], k=self.rng.randint(0, 3)))
        weights = tuple(self.rng.randint(1, 50) for _ in inputs)
        return self._add(SimNode("op", worker, inputs, weights), into), 0

    def _call(self, caller: int, values: list[Value], depth: int) -> list[Value]:
        callee = self.rng.randrange(self.program.workers)
        arguments = self._some(values)
        fate = self.rng.choices(["arrives", "lost", "late"], [16, 1, 1])[0]
        received: list[Value] = []
        if arguments:
            send = self._send(caller, callee, arguments)
            if fate == "arrives":
                received = self._receive(send)
            elif fate == "late":
                self._served_late(send, depth)
        if fate != "arrives":
            return []
        inside = self._body(callee, received, depth + 1)[-4:]
        results = self._some(inside)
        if not results:
            return []
        reply = self._send(callee, caller, results)
        fate = self.rng.choices(["arrives", "lost", "late"], [16, 1, 1])[0]
        if fate == "late":
            self._served_late(reply, depth)
        return self._receive(reply) if fate == "arrives" else []

    def _some(self, values: list[Value]) -> list[Value]:
        count = self.rng.choices([0, 1, 2, 3], [1, 6, 4, 2])[0]
        return self.rng.sample(values[-5:], min(count, len(values[-5:])))

    def _send(
        self, worker: int, peer: int, values: list[Value], into: list[SimNode] | None = None
    ) -> SimNode:
        self.messages += 1
        node = SimNode("send", worker, tuple(values), outputs=len(values), peer=peer)
        node.message = self.messages
        return self._add(node, into)

    def _receive(self, send: SimNode, into: list[SimNode] | None = None) -> list[Value]:
        node = SimNode("receive", send.peer, outputs=send.outputs, pair=send, peer=send.worker)
        node.message = send.message
        self._add(node, into)
        return [(node, i) for i in range(node.outputs)]

    def _served_late(self, send: SimNode, depth: int) -> None:
        """The message is received while the pass runs, and perhaps more is sent from there."""
        late: list[SimNode] = []
        values = self._receive(send, late)
        values.append(self._combine(send.peer, values, late))
        if self.rng.random() < 0.6 and depth < 5:
            target = self.rng.randrange(self.program.workers)
            further = self._send(send.peer, target, values[-1:], late)
            if self.rng.random() < 0.6:
                self._receive(further, late)
        self.program.late.append(late)


def local_gradients(program: Program) -> dict[SimNode, int]:
    """The gradients of the same program in one process."""
    order: list[SimNode] = []
    seen: set[SimNode] = set()

    def visit(node: SimNode) -> None:
        if node not in seen:
            seen.add(node)
            for source, _ in _sources(node):
                visit(source)
            order.append(node)

    gradients: dict[Value, int] = {}
    for root in [*program.roots, *program.remote_roots]:
        visit(root[0])
        gradients[root] = gradients.get(root, 0) + 1
    for node in reversed(order):
        for i, value in enumerate(_sources(node)):
            output = i if node.kind == "receive" else 0
            if (node, output) in gradients:
                weight = node.weights[i] if node.kind == "op" else 1
                if node.kind == "receive":
                    gradient = gradients[node, output]
                else:
                    gradient = gradients[node, 0] * weight
                gradients[value] = (gradients.get(value, 0) + gradient) % PRIME
    return {
        node: gradients[node, 0] for node in order if node.kind == "leaf" if (node, 0) in gradients
    }


def _sources(node: SimNode) -> tuple[Value, ...]:
    """Where the gradients of a node go: those of a receive function to what was sent."""
    if node.kind == "receive":
        assert node.pair is not None
        return node.pair.inputs
    return node.inputs
