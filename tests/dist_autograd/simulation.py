"""Random programs over workers in memory, and the local program that they must agree with.

A program is made once, in one order, as a graph of linear nodes over the integers modulo a prime,
so that gradients are exact. Then one pass runs over it: every message, graph step, late event and
fault goes into one bag from which a seeded generator draws, so any order may happen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from telegrad.dist_autograd import pass_protocol as protocol
from telegrad.dist_autograd.pass_protocol import Cut, FunctionKey, PassProtocol, Phase
from telegrad.errors import AutogradError, CallTimeoutError, WorkerLostError
from telegrad.types import WorkerInfo

PRIME = 1_000_003
Slots = tuple[int | None, ...]


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
    starter: int = 0


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
        return self.program

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
    for root in program.roots:
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


class LocalGraph:
    """One worker's half of a pass: counts dependencies, lets none pass through."""

    def __init__(self, roots: list[Value], sends: list[SimNode]) -> None:
        self.leaves: dict[SimNode, int] = {}
        self.slots: dict[SimNode, list[int | None]] = {}
        self.missing: Counter[SimNode] = Counter()
        self.ready: list[SimNode] = []
        self.sends = {(node.peer, node.message): node for node in sends}
        self.reached: set[SimNode] = set()
        stack = [node for node, _ in roots] + sends
        while stack:
            node = stack.pop()
            if node in self.reached:
                continue
            self.reached.add(node)
            for source, _ in node.inputs:
                self.missing[source] += 1
                stack.append(source)
        for node, output in roots:
            self._add(node, output, 1)
        self.waiting = len(self.reached)
        self.ready += [n for n in self.reached if n.kind != "send" and not self.missing[n]]

    def feed(self, node: SimNode, slots: Slots | None) -> None:
        if slots is not None:
            self.slots[node] = list(slots)
        assert not self.missing[node], "a send function has no node above it"
        self.ready.append(node)

    def _add(self, node: SimNode, output: int, gradient: int) -> None:
        slots = self.slots.setdefault(node, [None] * node.outputs)
        slots[output] = ((slots[output] or 0) + gradient) % PRIME

    def run(self) -> list[tuple[SimNode, Slots | None]]:
        """Works until dry; returns the receive functions it came to. Raises what a node raises."""
        resolved: list[tuple[SimNode, Slots | None]] = []
        while self.ready:
            node = self.ready.pop()
            self.waiting -= 1
            slots = self.slots.get(node)
            if node.fails and slots is not None:
                raise AutogradError("the rule of a node raised")
            if node.kind == "receive":
                resolved.append((node, None if slots is None else tuple(slots)))
            elif node.kind == "leaf" and slots is not None:
                assert slots[0] is not None
                self.leaves[node] = slots[0]
            for i, (source, output) in enumerate(node.inputs):
                self._pass_on(node, i, slots, source, output)
        return resolved

    def _pass_on(
        self, node: SimNode, i: int, slots: list[int | None] | None, source: SimNode, output: int
    ) -> None:
        if slots is not None:
            gradient = slots[i] if node.kind == "send" else slots[0]
            if gradient is not None:
                weight = node.weights[i] if node.kind == "op" else 1
                self._add(source, output, gradient * weight)
        self.missing[source] -= 1
        if not self.missing[source]:
            self.ready.append(source)


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a run, and how soon."""

    lost: frozenset[int] = frozenset()
    deadline: bool = False


class SimWorker:
    """Drives one PassProtocol as the engine does."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self.simulation = simulation
        self.index = index
        self.recorded = list(simulation.program.recorded[index])
        self.info = simulation.infos[index]
        starter = simulation.infos[simulation.program.starter]
        self.machine: PassProtocol[Slots] = PassProtocol(self.info, starter)
        self.graph: LocalGraph | None = None
        self.gradients: dict[SimNode, int] | None = None
        self.lost: dict[WorkerInfo, BaseException] = {}
        self.fed: Counter[FunctionKey] = Counter()
        self.claims: set[FunctionKey] = set()
        self.replies = 0
        self.begins = 0

    def enter(self, roots: list[Value]) -> None:
        sends: dict[WorkerInfo, list[int]] = {}
        send_nodes = [node for node in self.recorded if node.kind == "send"]
        infos = self.simulation.infos
        for node in send_nodes:
            sends.setdefault(infos[node.peer], []).append(node.message)
        receives = [node for node in self.recorded if node.kind == "receive"]
        self.graph = LocalGraph(roots, send_nodes)
        self.gradients = self.graph.leaves
        cut = Cut(
            {peer: tuple(numbers) for peer, numbers in sends.items()},
            frozenset((infos[node.peer], node.message) for node in receives),
            frozenset(
                (infos[node.peer], node.message) for node in receives if node in self.graph.reached
            ),
            dict(self.lost),
        )
        self.claims = {(peer, n) for peer, numbers in cut.sends.items() for n in numbers}
        self.perform(self.machine.enter(cut))
        self.simulation.later(self, self.run_graph)

    def run_graph(self) -> None:
        if self.graph is None or self.machine.phase is Phase.ABORTED:
            return
        try:
            resolved = self.graph.run()
        except AutogradError as error:
            self.simulation.causes.append(error)
            self.perform(self.machine.abort(error))
            return
        infos = self.simulation.infos
        keyed = [((infos[node.peer], node.message), slots) for node, slots in resolved]
        self.perform(self.machine.resolve(keyed))
        if self.is_dry():
            self.perform(self.machine.finished())

    def is_dry(self) -> bool:
        return self.graph is not None and not self.graph.waiting

    def perform(self, actions: list[protocol.Action[Slots]]) -> None:
        for action in actions:
            self._perform(action)

    def _perform(self, action: protocol.Action[Slots]) -> None:
        simulation = self.simulation
        match action:
            case protocol.Begin(peer, claims):
                self.begins += 1
                simulation.send(self, peer, lambda w: w.on_begin(self, claims))
            case protocol.Reply(peer, _, cause):
                self.replies += 1
                simulation.send(self, peer, lambda w: w.perform(w.machine.begun(self.info, cause)))
            case protocol.Answer(peer, gradients, nones):
                simulation.send(
                    self, peer, lambda w: w.perform(w.machine.answer(self.info, gradients, nones))
                )
            case protocol.Abort(peer, first):
                source = (self.info, "abort")
                simulation.send(self, peer, lambda w: w.perform(w.machine.abort(first, source)))
            case protocol.Confirm(peer, _):
                simulation.send(self, peer, lambda w: w.perform(w.machine.confirmed(self.info)))
            case protocol.Feed(key, gradient):
                assert self.graph is not None
                self.fed[key] += 1
                self.graph.feed(self.graph.sends[simulation.infos.index(key[0]), key[1]], gradient)
                simulation.later(self, self.run_graph)
            case protocol.Drop():
                self.graph = None
                self.gradients = None
            case protocol.End(cause):
                simulation.ended(cause)

    def on_begin(self, sender: SimWorker, claims: tuple[int, ...]) -> None:
        if not self.machine.entered:
            self.enter([])
        self.perform(self.machine.begin(sender.info, claims, "begin"))

    def on_lost(self, peer: WorkerInfo, cause: BaseException) -> None:
        self.lost[peer] = cause
        self.perform(self.machine.lost(peer, cause))


class Simulation:
    """One pass over one program, in an order that the generator draws."""

    def __init__(self, program: Program, rng: random.Random, faults: Faults | None = None) -> None:
        self.program = program
        self.rng = rng
        self.infos = [WorkerInfo(f"w{i}", i, 100 + i) for i in range(program.workers)]
        self.workers = [SimWorker(self, i) for i in range(program.workers)]
        self.alive = set(range(program.workers))
        self.faults = faults or Faults()
        self.causes: list[BaseException] = []
        self.ends: list[BaseException | None] = []
        # (sender or None, receiver, what happens there)
        self.bag: list[tuple[int, int, Callable[[], None]]] = []

    def send(
        self, sender: SimWorker, peer: WorkerInfo, action: Callable[[SimWorker], None]
    ) -> None:
        receiver = self.workers[self.infos.index(peer)]
        self.bag.append((sender.index, receiver.index, lambda: action(receiver)))

    def later(self, worker: SimWorker, action: Callable[[], None]) -> None:
        self.bag.append((worker.index, worker.index, action))

    def ended(self, cause: BaseException | None) -> None:
        self.ends.append(cause)
        losses = self.faults.lost or self.faults.deadline
        if not losses:
            allowed = {Phase.IDLE, Phase.DONE if cause is None else Phase.ABORTED}
            for worker in self.workers:
                assert worker.machine.phase in allowed, (worker.info, worker.machine.phase)
        if cause is None:
            for i in self.alive - self.faults.lost:
                assert self.workers[i].machine.phase in (Phase.IDLE, Phase.DONE)

    def run(self) -> BaseException | None:
        """Runs the pass to its end; returns its cause. Asserts what the protocol promises."""
        starter = self.workers[self.program.starter]
        for nodes in self.program.late:
            self._later_nodes(nodes)
        for i in self.faults.lost:
            self.bag.append((i, i, lambda i=i: self._lose(i)))  # type: ignore[misc]
        self.later(starter, lambda: starter.enter(self.program.roots))
        if self.faults.deadline:
            self.later(starter, lambda: self._expire(starter))
        steps = 0
        while self.bag:
            steps += 1
            assert steps < 100_000, "the pass goes on for ever"
            i = self.rng.randrange(len(self.bag))
            self.bag[i], self.bag[-1] = self.bag[-1], self.bag[i]
            _, receiver, action = self.bag.pop()
            if receiver in self.alive:
                action()
        if self.program.starter not in self.alive:
            self._check_without_starter()
            return WorkerLostError("the starter is lost")
        assert len(self.ends) == 1, f"the pass ended {len(self.ends)} times"
        self._check(self.ends[0])
        return self.ends[0]

    def _later_nodes(self, nodes: list[SimNode]) -> None:
        if nodes:
            worker = self.workers[nodes[0].worker]

            def record() -> None:
                worker.recorded.append(nodes[0])
                self._later_nodes(nodes[1:])

            self.later(worker, record)

    def _expire(self, starter: SimWorker) -> None:
        if starter.machine.entered and not self.ends:
            cause = CallTimeoutError("the deadline passed")
            self.causes.append(cause)
            starter.perform(starter.machine.abort(cause, at_once=True))

    def _lose(self, index: int) -> None:
        """Some of what is on its way from the lost worker arrives, before its loss is known."""
        self.alive.discard(index)
        kept: list[tuple[int, int, Callable[[], None]]] = []
        arriving: dict[int, list[Callable[[], None]]] = {i: [] for i in self.alive}
        for sender, receiver, action in self.bag:
            if sender == index and receiver != index:
                if receiver in self.alive and self.rng.random() < 0.5:
                    arriving[receiver].append(action)
            elif receiver != index:
                kept.append((sender, receiver, action))
        self.bag[:] = kept
        for receiver, actions in arriving.items():
            self._deliver_then_lose(receiver, index, actions)

    def _deliver_then_lose(
        self, receiver: int, lost: int, actions: list[Callable[[], None]]
    ) -> None:
        worker = self.workers[receiver]

        def step() -> None:
            if actions:
                actions.pop()()
                self._deliver_then_lose(receiver, lost, actions)
            else:
                cause = WorkerLostError(f"w{lost} is lost", worker=f"w{lost}")
                self.causes.append(cause)
                worker.on_lost(self.infos[lost], cause)

        self.later(worker, step)

    def _check(self, cause: BaseException | None) -> None:
        if cause is not None:
            assert any(cause is known for known in self.causes), f"an unknown cause: {cause!r}"
        expected = local_gradients(self.program)
        for i in sorted(self.alive):
            worker = self.workers[i]
            assert not any(count > 1 for count in worker.fed.values()), "a send was answered twice"
            if cause is not None:
                assert not worker.gradients, f"{worker.info} kept gradients of a failed pass"
                continue
            mine = {node: g for node, g in expected.items() if node.worker == i}
            assert (worker.gradients or {}) == mine, (worker.info, worker.gradients, mine)
            assert set(worker.fed) == worker.claims, "a claimed send was not answered"
        if cause is None and not self.faults.lost:
            begins = sum(worker.begins for worker in self.workers)
            assert begins == sum(worker.replies for worker in self.workers)

    def _check_without_starter(self) -> None:
        for i in self.alive:
            worker = self.workers[i]
            assert worker.machine.phase in (Phase.IDLE, Phase.ABORTED), worker.machine.phase
            assert not worker.gradients
