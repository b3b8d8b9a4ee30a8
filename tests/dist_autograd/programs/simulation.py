"""Workers in memory that run one pass over a random program.

Every message, graph step, late event and fault goes into one bag from which a seeded generator
draws, so any order may happen.

Roots of other workers are asked for first, as `remote_roots` does. A pass that is recorded leaves a
pair of functions for each message of gradients, as `functions` does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from telegrad.dist_autograd import pass_protocol as protocol
from telegrad.dist_autograd.pass_protocol import Cut, FunctionKey, PassProtocol, Peer, Phase
from telegrad.errors import AutogradError, CallTimeoutError, WorkerLostError
from tests.dist_autograd.programs.simulated_programs import (
    PRIME,
    Program,
    SimNode,
    Value,
    local_gradients,
)

Slots = tuple[int | None, ...]


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


@dataclass
class Message:
    """All that one worker says to another about the pass at one time."""

    claims: tuple[int, ...] | None = None
    gradients: list[tuple[int, Slots]] = field(default_factory=list)
    nones: list[int] = field(default_factory=list)
    begun: bool = False
    cause: BaseException | None = None
    function: SimNode | None = None


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
        self.lost: dict[Peer, BaseException] = {}
        self.fed: Counter[FunctionKey] = Counter()
        self.claims: set[FunctionKey] = set()
        self.replies = 0
        self.begins = 0
        self.said: dict[Peer, Message] = {}  # what waits to be sent to a peer
        self.asked: set[int] = set()  # at the starter: owners of roots that have not answered
        self.given_up = False

    def start(self) -> None:
        """At the starter: asks for the roots of other workers, then enters."""
        program, simulation = self.simulation.program, self.simulation
        roots = list(program.roots)
        missing = len(program.remote_roots)
        self.asked = {node.worker for node, _ in program.remote_roots}
        for owner in self.asked:
            if simulation.infos[owner] in self.lost:
                self.give_up(self.lost[simulation.infos[owner]])
                return

        def answered(send: SimNode) -> None:
            nonlocal missing
            if self.given_up:
                return
            roots.append((self._received(send), 0))
            missing -= 1
            if not missing:
                self.asked.clear()
                self.enter(roots)

        def asked(owner: SimWorker, value: Value) -> None:
            send = owner.sent(self.index, (value,))
            simulation.send(owner, self.info, lambda _: answered(send))

        for value in program.remote_roots:
            peer = simulation.infos[value[0].worker]
            simulation.send(self, peer, lambda owner, value=value: asked(owner, value))  # type: ignore[misc]
        if not missing:
            self.enter(roots)

    def give_up(self, cause: BaseException) -> None:
        """At the starter, before the pass: a root will not be there."""
        self.given_up = True
        self.asked.clear()
        self.simulation.ended(cause)

    def sent(self, peer: int, values: tuple[Value, ...]) -> SimNode:
        self.simulation.program.messages += 1
        message = self.simulation.program.messages
        send = SimNode("send", self.index, values, outputs=1, peer=peer, message=message)
        self.recorded.append(send)
        return send

    def _received(self, send: SimNode) -> SimNode:
        node = SimNode("receive", self.index, pair=send, peer=send.worker, message=send.message)
        self.recorded.append(node)
        return node

    def say(self, peer: Peer) -> Message:
        """Returns the message to fill, which leaves later: together with what comes meanwhile."""
        message = self.said.get(peer)
        if message is None:
            message = self.said[peer] = Message()
            self.simulation.later(self, lambda: self.send_said(peer))
        return message

    def send_said(self, peer: Peer) -> None:
        message = self.said.pop(peer)
        if self.simulation.program.creates and message.gradients:
            message.function = self.sent(self.simulation.infos.index(peer), ())
        self.simulation.send(self, peer, lambda w: w.on_message(self.info, message))

    def on_message(self, peer: Peer, message: Message) -> None:
        if message.claims is not None:
            if self.machine.phase is Phase.IDLE:
                self.enter([], peer, frozenset(dict(message.gradients)))
            self.perform(self.machine.begin(peer, message.claims))
        if message.function is not None:
            self._received(message.function)
        if message.gradients or message.nones:
            self.perform(self.machine.answer(peer, message.gradients, message.nones))
        if message.begun:
            self.perform(self.machine.begun(peer, message.cause))

    def enter(
        self,
        roots: list[Value],
        begun_by: Peer | None = None,
        answered: frozenset[int] = frozenset(),
    ) -> None:
        sends: dict[Peer, list[int]] = {}
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
        self.perform(self.machine.enter(cut, begun_by, answered))
        self.simulation.spared += begun_by is not None and begun_by not in self.said
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
        for node, slots in resolved:
            self.perform(self.machine.resolve((infos[node.peer], node.message), slots))
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
                self.say(peer).claims = claims
            case protocol.Reply(peer, cause):
                self.replies += 1
                message = self.say(peer)
                message.begun, message.cause = True, cause
            case protocol.Answer(peer, gradients, nones):
                message = self.say(peer)
                message.gradients += gradients
                message.nones += nones
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

    def on_lost(self, peer: Peer, cause: BaseException) -> None:
        self.lost[peer] = cause
        if self.simulation.infos.index(peer) in self.asked:
            self.give_up(cause)
        self.perform(self.machine.lost(peer, cause))


class Simulation:
    """One pass over one program, in an order that the generator draws."""

    def __init__(self, program: Program, rng: random.Random, faults: Faults | None = None) -> None:
        self.program = program
        self.rng = rng
        self.infos = [100 + i for i in range(program.workers)]
        self.workers = [SimWorker(self, i) for i in range(program.workers)]
        self.alive = set(range(program.workers))
        self.faults = faults or Faults()
        self.causes: list[BaseException] = []
        self.ends: list[BaseException | None] = []
        self.spared = 0  # begins to peers that had begun and answered
        # (sender or None, receiver, what happens there)
        self.bag: list[tuple[int, int, Callable[[], None]]] = []

    def send(self, sender: SimWorker, peer: Peer, action: Callable[[SimWorker], None]) -> None:
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
        self.later(starter, starter.start)
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
        if starter.machine.phase is not Phase.IDLE and not self.ends:
            cause = CallTimeoutError("the deadline passed")
            self.causes.append(cause)
            starter.perform(starter.machine.abort(cause, at_once=True))
        elif starter.asked:
            cause = CallTimeoutError("the deadline passed before the roots were there")
            self.causes.append(cause)
            starter.give_up(cause)

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
