"""A member says what only another one may say: nothing changes, and little of it is kept.

The table of docs/security.md lists who may send what. Every kind that not any member may send is
forged here, about work of two honest workers that is under way.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import collectives, dist_autograd, rpc
from telegrad.autograd import Tensor, tensor
from telegrad.collectives.messages import (
    GroupKey,
    OperationId,
    OperationMessage,
    Signature,
    pack_call,
)
from telegrad.dist_autograd.ids import make_context_id, write_context_id
from telegrad.dist_autograd.seams import Container
from telegrad.errors import CallTimeoutError, DecodeError, PoolExhaustedError
from telegrad.nn import Linear
from telegrad.parallel import Pipeline
from telegrad.parallel.pipeline.mailbox import AGAIN_HEAD, CARRY, END, Mailboxes, Recording, Track
from telegrad.rpc.rref.numbers import SeenNumbers
from telegrad.rpc.rref.protocol import (
    ForkId,
    Freed,
    OwnerTable,
    RRefId,
    Send,
)
from telegrad.rpc.rref.table import RRefRegistry
from telegrad.rpc.seams import current_agent, reference_of
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, encode, encode_exception, write_body
from tests.faults.garbage import Spoiler, known_kinds

GUIDE = Path(__file__).parents[2] / "docs" / "security.md"
# Kinds that have no handler of their own in the inbox: they are messages about calls.
OF_CALLS = {
    "rpc.reply", "rpc.error", "rpc.admit", "rpc.ask", "rpc.withdraw", "rpc.cancel", "rpc.expire",
    "rpc.where",
}  # fmt: skip
ANYBODY = "any member"
MOST = 50  # Limits.served_calls_per_peer
MANY = 200
TRAINER, SERVER, MALLORY = range(3)


def table() -> dict[str, str]:
    """From whom each kind is accepted, as the guide says."""
    _, _, section = GUIDE.read_text().partition("\n## Who may say what\n")
    found: dict[str, str] = {}
    for line in section.partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            kinds, accepted = line.split("|")[1:3]
            found |= dict.fromkeys(re.findall(r"`([\w.]+)`", kinds), accepted.strip())
    return found


def test_the_table_lists_every_kind() -> None:
    assert set(table()) == {*known_kinds(), *OF_CALLS}


# -- forgeries, each about the work of `Work` -----------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    limits = rpc.Limits(served_calls_per_peer=MOST)
    with Cluster(3, options=rpc.RpcOptions(limits=limits)) as cluster:
        yield cluster


class Gates:
    """What the server's functions wait for."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Semaphore(0)


gates: list[Gates] = []


def wait_for_gate() -> str:
    gates[-1].reached.release()
    assert gates[-1].open.wait(60)
    return "the server's"


def count_slowly() -> Iterator[int]:
    yield 0
    wait_for_gate()
    yield 1


def double(x: Tensor) -> Tensor:
    return x * 2.0


def first_of(output: Tensor) -> Tensor:
    return output[0, 0]


def infos() -> list[WorkerInfo]:
    return sorted(rpc.get_worker_infos(), key=lambda each: each.rank)


def operation_of(key: GroupKey, number: int) -> bytes:
    call = Signature(operation="all_reduce", op="SUM", dtype="float64", shape=(2,))
    return OperationMessage(key, OperationId(number), pack_call(call), 0).pack()


def number_of(pipe: Pipeline) -> int:
    """Returns the number that messages of a pipeline carry."""
    return pipe._places.members[0].id.pipeline


def forgeries(
    kind: str, key: GroupKey, context_id: int, rref: RRefId, fork: ForkId, pipeline: int
) -> Iterable[tuple[int, Any]]:
    """Yields (rank of the victim, body) of what is forged under a kind."""
    numbers = range(1, 40)
    group = [key.members, key.epoch]
    lie = encode_exception(ValueError("a lie"))
    match kind:
        case "autograd.release":
            body = {"context": write_context_id(context_id), "lowest": 2**39}
            yield from ((TRAINER, body), (SERVER, body))
        case "rref.fork_request" | "rref.user_delete":
            yield SERVER, [list(rref), list(fork)]
        case "rref.child_accept":
            yield from ((victim, [list(fork)]) for victim in (TRAINER, SERVER))
        case "rref.fork_confirm":
            yield TRAINER, [list(fork), False, True]
        case "rref.creation_abandon":
            yield from ((SERVER, [*rref[:2], rref.number + n]) for n in range(3))
        case "rref.held":
            yield SERVER, [list(rref), "a lie"]
        case "rpc.reply" | "rpc.error" | "rpc.admit" | "rpc.item":
            yield from ((TRAINER, n) for n in numbers)
        case "rpc.ask" | "rpc.more":
            yield from ((SERVER, [n, 1]) for n in numbers)
        case "rpc.withdraw" | "rpc.cancel" | "rpc.expire" | "rpc.where":
            yield from ((SERVER, n) for n in numbers)
        case "collectives.abort":
            yield from ((victim, [group, 0, lie]) for victim in (TRAINER, SERVER))
        case "collectives.left":
            yield from ((victim, [group, 0, [], []]) for victim in (TRAINER, SERVER))
        case (
            "collectives.push" | "collectives.entered" | "collectives.refused" | "collectives.ready"
        ):
            yield from ((victim, operation_of(key, 1)) for victim in (TRAINER, SERVER))
        case "pipeline.carry":
            yield TRAINER, [pipeline, 0, 1, "B", 0, 0, "", 0, [np.full((4, 2), 9.0, np.float32)]]
            yield SERVER, [pipeline, 1, 1, "F", 1, 0, "", 0, [np.full((4, 2), 9.0, np.float32)]]
        case "pipeline.again":
            yield from ((SERVER, AGAIN_HEAD.pack(pipeline, 1, n, 0, 1)) for n in numbers)
        case "pipeline.end":
            yield from (([TRAINER, SERVER][k], [pipeline, k, n]) for k in (0, 1) for n in numbers)


def forge(
    kinds: list[str], key: GroupKey, context_id: int, rref: RRefId, fork: ForkId, pipeline: int
) -> list[str]:
    """Runs at mallory; returns the kinds that it forged."""
    agent, members = current_agent(), infos()
    for _ in range(50):  # so that the numbers of its own calls are others than those forged
        assert rpc.rpc_sync("worker1", abs, (-1,)) == 1
    forged = []
    for kind in kinds:
        for victim, body in forgeries(kind, key, context_id, rref, fork, pipeline):
            forged.append(kind)
            reply = kind in {"rpc.reply", "rpc.error"}
            envelope = write_body(kind, "a lie" if reply else body, reply=reply)
            if isinstance(body, bytes):
                envelope.document = body
            envelope.call = body if reply else 0
            if kind == "rpc.item":
                envelope.headers["stream"] = encode([body, 1, 8]).document
            agent.messages.post_envelope(members[victim], envelope)
    for victim in (TRAINER, SERVER):  # what was posted before this call was heard before it
        assert rpc.rpc_sync(members[victim].name, abs, (-1,)) == 1
    return sorted(set(forged))


def test_nobody_speaks_for_another(cluster: Cluster) -> None:
    """All honest work that is under way while everything is forged ends as if nothing had been."""
    gates.append(Gates())
    kinds = [kind for kind, accepted in table().items() if accepted != ANYBODY]

    groups: dict[int, collectives.ProcessGroup] = {}

    def make_group() -> None:
        groups[rpc.get_worker_info().rank] = collectives.new_group([TRAINER, SERVER])

    def reduce() -> list[float]:
        rank, total = rpc.get_worker_info().rank, np.ones(2)
        if rank != MALLORY:
            collectives.all_reduce(total, group=groups[rank])
        return [float(each) for each in total]

    def train() -> None:
        gate = gates[-1]
        stages = [("worker0", Linear, (3, 2)), ("worker1", Linear, (2, 1))]
        pipe = Pipeline(stages, num_microbatches=1, loss=first_of)
        with dist_autograd.context() as context_id:
            x = tensor(np.ones(3), requires_grad=True)
            doubled = rpc.rpc_sync("worker1", double, (x,))
            held = rpc.remote("worker1", wait_for_gate)
            reference = reference_of(held)
            assert reference.fork is not None
            waiting = rpc.rpc_async("worker1", wait_for_gate)
            items = iter(rpc.stream("worker1", count_slowly))
            assert next(items) == 0
            for _ in range(3):
                assert gate.reached.acquire(timeout=60)
            about = groups[TRAINER].key, context_id, reference.rref, reference.fork, number_of(pipe)
            try:
                assert cluster.call(MALLORY, forge, kinds, *about) == sorted(kinds)
            finally:
                gate.open.set()
            assert waiting.wait() == held.to_here() == "the server's"
            assert list(items) == [1]
            dist_autograd.backward(context_id, [doubled.sum()])
            (gradient,) = dist_autograd.get_gradients(context_id).values()
            assert gradient.tolist() == [2.0, 2.0, 2.0]
            assert rpc.remote("worker1", abs, (-2,)).to_here() == 2
        inputs = np.ones((4, 3), np.float32)
        assert pipe.step(inputs) == pytest.approx(pipe.forward(inputs).data[0, 0])
        with dist_autograd.context() as later:  # the forger said that none is open below 2 ** 39
            doubled = rpc.rpc_sync("worker1", double, (x,))
            dist_autograd.backward(later, [doubled.sum()])
            assert dist_autograd.get_gradients(later)[x].tolist() == [2.0, 2.0, 2.0]

    cluster.run(make_group)
    cluster.call(TRAINER, train)
    assert cluster.run(reduce) == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]


def test_what_stands_beside_a_request_is_about_its_sender_alone(cluster: Cluster) -> None:
    """A creation, or an RRef, in the name of another one: its ids were used up for that one."""

    def attack() -> list[str]:
        agent, (trainer, server, me) = current_agent(), infos()
        spoiler = Spoiler()
        agent.codec.add(spoiler)
        at, by, i = server.incarnation, trainer.incarnation, me.incarnation
        owner = [server.name, server.rank, at]
        lies: list[dict[str, object]] = [
            {"creation": [at, i, 0, at, by, by, 0]},
            {"creation": [at, i, 1]},
            {"creation": [at, by, 0, at, by, by, 0]},
            {"forks": [[0, [at, by, 0], [at, by, at, 0], owner, "str", False]]},
            {"forks": [[0, [by, by, 0], [by, by, at, 0], owner, "str", False]]},
        ]
        ends = []
        for lie in lies:
            spoiler.replaces = "rref", lie
            with pytest.raises(Exception) as caught:
                rpc.remote("worker1", abs, (-1,)).to_here()
            ends.append(type(caught.value).__name__)
        spoiler.replaces = None
        return ends

    def create() -> None:
        made = rpc.remote("worker1", abs, (-2,))
        assert made.to_here() == 2
        assert rpc.rpc_sync("worker1", read, (made,)) == 2
        kept = rpc.rpc_sync("worker1", keep)
        assert kept.to_here() == "kept"

    assert set(cluster.call(MALLORY, attack)) == {"DecodeError"}
    cluster.call(TRAINER, create)


def read(rref: rpc.RRef[int]) -> int:
    return rref.to_here()


def keep() -> rpc.RRef[str]:
    return rpc.RRef("kept")


# -- members of a pipeline -----------------------------------------------------------------------


def fill_mailbox(pipeline: int) -> None:
    """Runs at a stage: hands the other one what is too early, and what it does not take."""
    agent, (trainer, *_) = current_agent(), infos()
    array = np.ones((4, 2), np.float32)
    for number in range(2, MANY):
        name, track = str(number), number << 32
        for step, batch, key in ((number, 0, ""), (2, 0, name), (2, number, ""), (2, 0, "")):
            body = [pipeline, 0, step, "B", 0, batch, key, track, [array]]
            agent.messages.post(trainer, CARRY, body)
            agent.messages.post(trainer, CARRY, [*body[:7], 0, [array]])
        agent.messages.post(trainer, END, [pipeline, 0, number])
    assert rpc.rpc_sync(trainer.name, abs, (-1,)) == 1  # it has heard all of it


def test_a_stage_of_a_pipeline_fills_no_mailbox_and_ends_no_step(cluster: Cluster) -> None:
    def train() -> None:
        stages = [("worker0", Linear, (3, 2)), ("worker1", Linear, (2, 1))]
        pipe = Pipeline(stages, num_microbatches=1, loss=first_of)
        inputs = np.ones((4, 3), np.float32)
        loss = pipe.step(inputs)
        cluster.call(SERVER, fill_mailbox, number_of(pipe))
        assert len(current_agent().attachments[Mailboxes]) <= 2  # one a step
        for _ in range(3):
            assert pipe.step(inputs) == pytest.approx(loss)

    cluster.call(TRAINER, train)


def test_a_stage_tells_of_no_track_of_another_one() -> None:
    recording = Recording(0, [OWNER, CHILD])
    track = Track("F", 0, "", (("<f4", (4, 2)),))
    recording.hear(CHILD, (1 << 32) + 1, track)
    assert recording.find(CHILD, (1 << 32) + 1) == track
    for number in (1, 1 << 33, -1):
        with pytest.raises(DecodeError, match="not on the sender"):
            recording.hear(CHILD, number, track)


# -- ids that nobody has seen ---------------------------------------------------------------------

OWNER, CHILD = WorkerInfo("owner", 0, 7), WorkerInfo("child", 1, 8)


def test_an_owner_keeps_little_of_what_it_has_never_seen() -> None:
    owner = OwnerTable(OWNER, MOST)
    for number in range(4 * MOST):
        fork = ForkId(7, number, 8, 2 * number)
        answer, *_ = owner.fork_request(RRefId(7, number, 2 * number), fork, CHILD)
        assert isinstance(answer, Send)
        assert getattr(answer.message, "known") == (number < MOST)  # noqa: B009 - of a union
    assert len(owner) == owner.forks == MOST
    for number in range(MOST):  # as they end, there is room again
        rref, fork = RRefId(7, number, 2 * number), ForkId(7, number, 8, 2 * number)
        assert owner.user_delete(rref, fork) == [Freed(rref)]
    for number in range(10 * MOST, 11 * MOST):
        owner.fork_request(RRefId(7, 9, number), ForkId(7, 9, 8, number), CHILD)
    assert len(owner) == MOST
    for number in range(10 * MOST, 11 * MOST):  # and as they are created
        owner.create(RRefId(7, 9, number), ForkId(7, 9, 9, number), WorkerInfo("creator", 2, 9))
    owner.fork_request(RRefId(7, 9, 0), ForkId(7, 9, 8, 0), CHILD)
    assert len(owner) == MOST + 1


def test_an_owner_remembers_the_last_references_that_ended_unseen() -> None:
    owner = OwnerTable(OWNER, MOST)
    for number in range(4 * MOST):
        assert owner.user_delete(RRefId(7, 8, number), ForkId(7, 8, 8, number)) == []
    counted = []
    for number in range(4 * MOST):
        before = owner.forks
        owner.create(RRefId(7, 8, number), ForkId(7, 8, 8, number), CHILD)
        counted.append(owner.forks > before)
    assert counted == [True] * 3 * MOST + [False] * MOST


def test_numbers_with_gaps_and_invented_workers_take_little_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("telegrad.rpc.rref.numbers.MOST_GAPS", 30)
    monkeypatch.setattr("telegrad.rpc.rref.numbers.MOST_OTHERS", 10)
    seen = SeenNumbers()
    taken = [seen.take(1, other, 0) for other in range(20)]
    assert taken == [True] * 10 + [False] * 10
    assert all(seen.take(1, 0, number) for number in range(2, 400, 2))
    gaps = [number for number in range(1, 400, 2) if not seen.contains(1, 0, number)]
    assert 0 < len(gaps) <= 40  # those below were closed
    assert seen.take(2, 0, 1)
    seen.forget(1)
    assert seen.take(1, 0, 0)


def test_a_fetch_that_is_given_up_leaves_nothing(cluster: Cluster) -> None:
    """Of values that nobody has created, which a member made up."""

    def fetch() -> None:
        agent, (_, server, me) = current_agent(), infos()
        for kind, more in (
            ("rref.fetch", {}),
            ("rref.read", {"method": "real", "args": [], "kwargs": {}}),
        ):
            payload = {"rref": [server.incarnation, me.incarnation, 77], **more}
            asked = agent.calling.send(server, kind, payload, function="a guess", timeout=0.05)
            with pytest.raises(CallTimeoutError):
                asked.wait()

    def owned() -> list[str]:
        count, _ = cluster.call(SERVER, lambda: current_agent().attachments[RRefRegistry].counts())
        return [f"{count} values"] if count else []

    cluster.call(MALLORY, fetch)
    wait_until_gone("values", owned)


def test_a_reference_with_an_invented_owner_is_refused_and_forgotten(cluster: Cluster) -> None:
    def attack() -> None:
        agent, (_, server, me) = current_agent(), infos()
        spoiler = Spoiler()
        agent.codec.add(spoiler)
        at, i, nobody = server.incarnation, me.incarnation, 2**50
        owner, fork = ["nobody", 9, nobody], [nobody, i, at, 0]
        lie = {"forks": [[0, [nobody, i, 0], fork, owner, "str", False]]}
        spoiler.replaces = "rref", lie
        with pytest.raises(Exception, match="not at its owner"):
            rpc.rpc_sync("worker1", read, (rpc.RRef(1),))
        spoiler.replaces = None

    def used() -> list[str]:
        _, count = cluster.call(SERVER, lambda: current_agent().attachments[RRefRegistry].counts())
        return [f"{count} references"] if count else []

    cluster.call(MALLORY, attack)
    wait_until_gone("references", used)


def test_contexts_and_passes_that_one_member_opens_have_an_end(cluster: Cluster) -> None:
    def attack() -> int:
        agent, (_, server, me) = current_agent(), infos()
        spoiler = Spoiler()
        agent.codec.add(spoiler)
        opened = 0
        with pytest.raises(PoolExhaustedError, match=f"{MOST} autograd contexts .* 'worker2'"):
            for number in range(2 * MOST):
                context = write_context_id(make_context_id(me.incarnation, 1000 + number))
                spoiler.replaces = "dist_autograd", [True, *context]
                opened += rpc.rpc_sync("worker1", abs, (-1,))
        spoiler.replaces = None
        for number in range(2 * MOST):
            context = write_context_id(make_context_id(me.incarnation, 1000))
            lie = {"pass": [*context, me.name, me.rank, me.incarnation, number]}
            agent.messages.post(server, "autograd.abort", {**lie, "cause": None})
        return opened

    def train() -> None:
        with dist_autograd.context() as context_id:
            x = tensor(np.ones(1), requires_grad=True)
            dist_autograd.backward(context_id, [rpc.rpc_sync("worker1", double, (x,)).sum()])
            assert dist_autograd.get_gradients(context_id)[x].tolist() == [2.0]

    assert cluster.call(MALLORY, attack) == MOST
    assert cluster.call(SERVER, lambda: len(current_agent().attachments[Container])) == MOST
    cluster.call(TRAINER, train)


def test_messages_for_groups_that_nobody_made_have_an_end(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def attack() -> None:
        agent, (_, server, _) = current_agent(), infos()
        for number in range(2 * MOST):
            push = operation_of(GroupKey("no group", 0), number)
            agent.messages.post_envelope(server, Envelope("collectives.push", document=push))
        form = [2**40, 0, "no group", [1, 2], 0, [], None, "", None]
        agent.messages.post(server, "collectives.form", form)
        assert rpc.rpc_sync("worker1", abs, (-1,)) == 1

    def told() -> list[str]:
        words = (f"{MOST} messages of that worker wait", f"forms group {2**40}")
        return [each for each in words if each not in caplog.text]

    cluster.call(MALLORY, attack)
    wait_until_gone("words that the log does not have", told)
