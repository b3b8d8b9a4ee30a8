"""Ranks that call different things, or leave: an error on every one, with both sides' values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.collectives import failure
from telegrad.collectives.groups.groups import TIMEOUT, WARN_AFTER
from telegrad.testing import Cluster, leaks
from telegrad.types import Array
from tests.collectives import remote_code
from tests.collectives.remote_code import LARGE
from tests.conftest import Programs
from tests.patience import with_more_time

# What each of three ranks calls, one after the other; and what the error must say.
DISAGREEMENTS: dict[str, tuple[Sequence[Sequence[str]], Sequence[str]]] = {
    "a step more": (
        [["barrier", "all_gather"], ["barrier", "barrier"], ["barrier", "all_gather"]],
        ["operation 2 of group 'world'", "all_gather(dtype=float64, shape=(3,))", "barrier()"],
    ),
    "both large": (
        [[f"all_reduce {LARGE}"], [f"all_reduce {2 * LARGE}"], [f"all_reduce {LARGE}"]],
        [f"shape=({LARGE},)", f"shape=({2 * LARGE},)"],
    ),
}


def check_disagreement(
    cluster: Cluster, ranks: Sequence[Sequence[str]], words: Sequence[str]
) -> None:
    for r, said in enumerate(cluster.run(remote_code.disagree, ranks)):
        first, later, after = said
        assert first.startswith("CollectiveMismatchError: "), (r, said)
        for word in [*words, " rank ", "('worker", "all ranks must call the same operations"]:
            assert word in first, (r, word, first)
        assert later.startswith("CollectiveMismatchError: barrier() on group 'world' on rank")
        assert "is refused, since the group is over: operation" in later
        assert "make a new group with new_group()" in later
        assert after == f"{len(ranks)}.0"


@pytest.mark.parametrize("kind", DISAGREEMENTS)
def test_disagreement(kind: str) -> None:
    with Cluster(3) as cluster:
        check_disagreement(cluster, *DISAGREEMENTS[kind])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("most", "one", "words"),
    [
        ("all_reduce", "all_reduce dtype=float32", ["dtype=float64", "dtype=float32"]),
        ("all_reduce", f"all_reduce {LARGE}", ["shape=(3,)", f"shape=({LARGE},)"]),
        (f"all_reduce {LARGE}", f"all_reduce {2 * LARGE}", [f"shape=({LARGE},)"]),
        ("all_gather", "all_gather int64", ["all_gather(dtype=float64", "all_gather(dtype=int64"]),
    ],
)
def test_disagreement_of_one_among_many(most: str, one: str, words: list[str]) -> None:
    """The others hear of it, though most of them exchange nothing with that rank."""
    with Cluster(9) as cluster:
        check_disagreement(cluster, [[most]] * 4 + [[one]] + [[most]] * 4, words)


@pytest.mark.parametrize("kind", ["small", "large"])
def test_messages_that_do_not_fit(kind: str) -> None:
    with Cluster(3) as cluster:
        said = cluster.run(remote_code.wrong_message, kind)
    sent, received, other = said
    words = [
        "rank 0 ('worker0') called send(dtype=float64",
        "rank 1 ('worker1') called recv(dtype=",
    ]
    assert received[0].startswith("CollectiveMismatchError: ")
    for each in (*sent, *received, *other):
        if each == "nothing":  # a small message is sent before anyone can tell
            assert each is sent[0]
            assert kind == "small"
            continue
        assert all(word in each for word in words), each


ENDS_EARLY = """
import numpy as np
from telegrad import collectives as dist, rpc

group = dist.init_process_group()
try:
    for step in range(4 if group.rank == 1 else 5):
        dist.all_reduce(np.ones(3))
    print("took part in", step + 1)
except ValueError as error:
    print(type(error).__name__, error, sep=": ")
rpc.shutdown()
"""


# -- leaving -----------------------------------------------------------------------------------


def check_left(said: list[str], count: int) -> None:
    first, later = said
    assert first.startswith("CollectiveMismatchError: all_reduce("), first
    assert f"rank 1 ('worker1') left the group after {count} operations" in first
    assert f"number {count + 1} of group 'world'" in first
    assert "every rank must call the same ones" in first
    assert later.startswith("CollectiveMismatchError: barrier() on group 'world'"), later
    assert "is refused" in later


@pytest.mark.parametrize("how", ["destroy", "async"])
def test_a_rank_that_leaves_one_operation_early_is_named(how: str) -> None:
    with Cluster(3) as cluster:
        said = cluster.run(remote_code.leaves_early, 1, 4, how)
    for r in (0, 2):
        check_left(said[r], 4)
    assert said[1][0].startswith("NotInitializedError: no process group on worker 'worker1'")


@pytest.mark.long
def test_a_program_that_ends_one_operation_early_is_named(programs: Programs) -> None:
    outputs = [each.wait() for each in programs.ranks(programs.script(ENDS_EARLY), 3)]
    for r in (0, 2):
        assert "CollectiveMismatchError: all_reduce(" in outputs[r], outputs[r]
        assert "rank 1 ('worker1') left the group after 4 operations" in outputs[r]
    assert "took part in 4" in outputs[1]


def test_what_was_sent_before_leaving_arrives() -> None:
    with Cluster(2) as cluster:
        sent, received = cluster.run(remote_code.leaves_after_sending)
    assert sent == []
    assert received[0] == "[1. 1. 1.]"
    assert received[1].startswith("CollectiveMismatchError: recv(")
    assert "rank 0 ('worker0') left the group" in received[1]


def test_what_was_taken_before_the_receiver_left_is_sent() -> None:
    """A send whose message was taken was refused when `left` came before its thread went on."""
    with Cluster(2) as cluster:
        sent, received = cluster.run(remote_code.leaves_after_taking)
    assert received == ["[1. 1. 1.]"]
    assert sent[0] == "nothing"
    assert sent[1].startswith("CollectiveMismatchError: send(")
    assert "rank 1 ('worker1') left the group" in sent[1]


def test_a_group_is_made_again_after_leaving() -> None:
    with Cluster(2) as cluster:
        assert cluster.run(remote_code.leaves_and_returns) == [[2.0, 2.0]] * 2


# -- being late --------------------------------------------------------------------------------


def test_a_deadline_names_who_is_missing_on_every_rank() -> None:
    """Whoever came to its deadline while another one had not begun would name that one, too."""
    with_more_time(check_deadline, 0.5, 4.0, 12.0)


def check_deadline(limit: float) -> None:
    with Cluster(3) as cluster:
        said = cluster.run(remote_code.comes_late, 0, limit)
    for r, (first, later) in enumerate(said):
        assert first.startswith("CallTimeoutError: " if r else "nothing"), first
        assert later.startswith("CallTimeoutError: barrier() on group 'world'"), later
        for words in (first, later) if r else (later,):
            assert f"took longer than {limit:g} s: not entered by rank 0 ('worker0');" in words
            assert "give a longer timeout=, or math.inf" in words


def test_a_deadline_of_new_group_names_who_is_missing() -> None:
    with_more_time(check_deadline_of_new_group, 0.5, 4.0, 12.0)


def check_deadline_of_new_group(limit: float) -> None:
    with Cluster(3) as cluster:
        said = cluster.run(remote_code.forms_late, 1, limit)
    for r in (0, 2):
        assert said[r].startswith("CallTimeoutError: new_group([0, 1, 2]) on rank"), said[r]
        assert f"took longer than {limit:g} s: not called by rank 1 ('worker1');" in said[r]
    assert said[1].startswith("CallTimeoutError: new_group([0, 1, 2]) on rank")


def test_a_wait_for_a_work_may_end_before_the_work() -> None:
    with Cluster(2) as cluster:
        words, value = cluster.run(remote_code.waits_shortly)[0]
    assert words.startswith("CallTimeoutError: all_reduce(")
    assert "it goes on, and may be waited for again" in words
    assert value == "2.0"


# Operations of all ranks, in each of which the others wait for rank 1.
OF_ALL = [
    "all_reduce",
    "barrier",
    "recv from 1",
    "broadcast 0",
    "gather to 0",
    "scatter from 0",
    "coalesced",
    "all_gather_object",
    "gather_object to 0",
]
FORMED = ["group", "subgroups", "split", "shrunk"]


@pytest.mark.few(3)
@pytest.mark.parametrize("what", [*OF_ALL, *FORMED])
def test_a_late_rank_is_named_once(caplog: pytest.LogCaptureFixture, what: str) -> None:
    """The ranks that wait warn sooner here than by default."""
    caplog.set_level(logging.WARNING, "telegrad.collectives")
    with_more_time(lambda warn_after: check_warning(caplog, what, warn_after), 0.1, 1.0, 6.0)


def check_warning(caplog: pytest.LogCaptureFixture, what: str, warn_after: float) -> None:
    caplog.clear()
    with Cluster(3) as cluster:
        with ThreadPoolExecutor(2) as pool:
            waiting = [
                pool.submit(cluster.call, r, remote_code.waits_long, what, warn_after)
                for r in (0, 2)
            ]
            leaks.wait_until_gone(
                "ranks that have not warned",
                lambda: [r for r in (0, 2) if f"on rank {r} " not in caplog.text],
                within=20.0,
            )
            cluster.call(1, remote_code.waits_long, what, warn_after)
            for each in waiting:
                each.result()
    missing = "not called by" if what in FORMED else "not entered by"
    for r in (0, 2):
        (record,) = [each for each in caplog.messages if f"on rank {r} " in each]
        assert record.removesuffix(" with tag 0").endswith(f"{missing} rank 1 ('worker1')"), record
        assert " waits for " in record


def test_by_default_a_rank_that_is_late_by_30_s_is_named_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(failure, "time", SimpleNamespace(monotonic=lambda: now))
    clock = failure.Clock(TIMEOUT, WARN_AFTER)
    warned = []
    while (due := clock.due()) is not failure.Due.EXPIRE:
        if due is failure.Due.NOTHING:
            now += clock.next()
        elif due is failure.Due.WARN:
            warned.append(now)
    assert len(warned) == 1
    assert warned[0] < 30.0
    assert now == TIMEOUT


# -- wrong arguments ---------------------------------------------------------------------------


def read_only() -> Array:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


verbs: Any = dist
THREE = [np.zeros(1)] * 3
# How rank 1 calls the verb, and how the others do.
MISTAKES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "all_reduce": (lambda: verbs.all_reduce("x"), lambda: dist.all_reduce(np.zeros(3))),
    "reduce": (lambda: dist.reduce(read_only(), 1), lambda: dist.reduce(np.zeros(3), 1)),
    "broadcast": (lambda: dist.broadcast(np.zeros(3), 7), lambda: dist.broadcast(np.zeros(3), 0)),
    "all_gather": (lambda: verbs.all_gather(None), lambda: dist.all_gather(np.zeros(3))),
    "scatter": (
        lambda: dist.scatter(np.zeros(1), THREE[:2], 1),
        lambda: dist.scatter(np.zeros(1), None, 1),
    ),
    "all_to_all": (lambda: dist.all_to_all(THREE[:1]), lambda: dist.all_to_all(THREE)),
    "reduce_scatter": (
        lambda: dist.reduce_scatter([]),
        lambda: dist.reduce_scatter(THREE, async_op=True).wait(),
    ),
    "scatter_object_list": (
        lambda: dist.scatter_object_list([1], 1),
        lambda: dist.scatter_object_list(None, 1),
    ),
    "barrier": (lambda: dist.barrier(timeout=-1.0), dist.barrier),
    "monitored_barrier": (lambda: dist.monitored_barrier(timeout=-1.0), dist.monitored_barrier),
}


def one_makes_a_mistake(verb: str) -> tuple[str, str]:
    r = remote_code.begin()
    wrong, right = MISTAKES[verb]
    return remote_code.refusal(wrong if r == 1 else right), remote_code.refusal(dist.barrier)


@pytest.mark.few(2)
@pytest.mark.parametrize("verb", MISTAKES)
def test_wrong_arguments_on_one_rank_are_an_error_on_all(verb: str) -> None:
    """The others waited for that rank until their deadline."""
    with Cluster(3) as cluster:
        said = cluster.run(one_makes_a_mistake, verb)
    own = said[1][0].split("\n")[0]
    assert own.startswith(("TypeError: ", "ValueError: "))
    for words in (*said[0], said[1][1], *said[2]):
        assert own in words
        assert f"raised by the arguments of {verb}() of group 'world' on rank 1" in words


def all_make_a_mistake(verb: str) -> float:
    remote_code.begin()
    wrong, _ = MISTAKES[verb]
    for _ in range(2):
        remote_code.refusal(wrong)
    total = np.ones(1)
    dist.all_reduce(total)
    return total.item()


@pytest.mark.parametrize("verb", ["all_reduce", "barrier"])
def test_a_mistake_that_all_ranks_make_spares_the_group(verb: str) -> None:
    with Cluster(3) as cluster:
        assert cluster.run(all_make_a_mistake, verb) == [3.0] * 3


# -- wrong arguments of messages between two ranks ---------------------------------------------

MANY = np.zeros(LARGE)
# How rank 1 calls the verb, and how rank 0 does, which waits for it.
WRONG_MESSAGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "send": (lambda: verbs.send("x", 0), lambda: dist.recv(np.zeros(3), 1)),
    "send, to recv from any": (lambda: verbs.send("x", 0), lambda: dist.recv(np.zeros(3))),
    "send, of no rank": (lambda: dist.send(np.zeros(3), 7), lambda: dist.recv(np.zeros(3), 1)),
    "send, of no tag": (
        lambda: dist.send(np.zeros(3), 0, tag=-1),
        lambda: dist.recv(np.zeros(3), 1),
    ),
    "send, with a tag": (
        lambda: verbs.send("x", 0, tag=5),
        lambda: dist.recv(np.zeros(3), 1, tag=5),
    ),
    "isend": (lambda: verbs.isend(None, 0), lambda: dist.irecv(np.zeros(3), 1).wait()),
    "recv": (lambda: dist.recv(read_only(), 0), lambda: dist.send(MANY, 1)),
    "recv, from any": (lambda: dist.recv(read_only()), lambda: dist.send(MANY, 1)),
    "irecv": (lambda: dist.irecv(MANY, 0, timeout=0.0), lambda: dist.isend(MANY, 1).wait()),
    "send_object_list": (
        lambda: verbs.send_object_list("x", 0),
        lambda: dist.recv_object_list([None], 1),
    ),
    "recv_object_list": (
        lambda: verbs.recv_object_list((), 0),
        lambda: dist.send_object_list([MANY], 1),
    ),
    "isend, in a batch": (
        lambda: dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, MANY, 2), dist.P2POp(dist.isend, verbs.ReduceOp, 0)]
        ),
        lambda: dist.recv(np.zeros(3), 1),
    ),
    "irecv, in a batch": (
        lambda: dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, MANY, 0), dist.P2POp(dist.isend, MANY, 9)]
        ),
        lambda: dist.send(MANY, 1),
    ),
}


def one_message_is_wrong(kind: str) -> tuple[str, str]:
    r = remote_code.begin()
    wrong, right = WRONG_MESSAGES[kind]
    said = "" if r == 2 else remote_code.refusal(wrong if r else right)
    return said, remote_code.refusal(lambda: dist.recv(np.zeros(1), (r + 1) % 3))


def test_a_batch_without_its_list_is_refused_as_by_any_function() -> None:
    with pytest.raises(TypeError, match="p2p_op_list"):
        dist.batch_isend_irecv()  # type: ignore[call-arg]


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", WRONG_MESSAGES)
def test_wrong_arguments_of_a_message_are_an_error_on_all(kind: str) -> None:
    """The other end waited for its timeout."""
    with Cluster(3) as cluster:
        said = cluster.run(one_message_is_wrong, kind)
    own = said[1][0].split("\n")[0]
    assert own.startswith(("TypeError: ", "ValueError: "))
    for words in (*said[0], said[1][1], said[2][1]):
        assert own in words
        verb = kind.partition(",")[0]
        assert f"raised by the arguments of {verb}() of group 'world' on rank 1" in words


def both_ends_are_wrong() -> str:
    r = remote_code.begin()
    if r == 0:
        return remote_code.refusal(lambda: verbs.send("x", 1))
    assert remote_code.refusal(lambda: verbs.recv("x", 0)).startswith("TypeError: recv")
    return remote_code.refusal(lambda: dist.recv(np.zeros(1), 0))


def test_a_refused_recv_leaves_the_error_of_a_refused_send_to_the_next_one() -> None:
    with Cluster(2) as cluster:
        sent, received = cluster.run(both_ends_are_wrong)
    assert sent.startswith("TypeError: send")
    assert received.startswith(sent)


# -- wrong arguments of new groups -------------------------------------------------------------

# How rank 1 calls the verb, and how the others do.
WRONG_GROUPS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "new_group, of a rank twice": (
        lambda: dist.new_group([0, 1, 1]),
        lambda: dist.new_group([0, 1, 2]),
    ),
    "new_group, of no list": (lambda: verbs.new_group(3), lambda: dist.new_group([0, 1, 2])),
    "new_group, of a timeout": (
        lambda: dist.new_group([0, 1, 2], timeout=-1.0),
        lambda: dist.new_group([0, 1, 2]),
    ),
    "new_group, of a backend": (
        lambda: dist.new_group([0, 1, 2], backend="gloo"),
        lambda: dist.new_group([0, 1, 2]),
    ),
    "new_subgroups": (lambda: dist.new_subgroups(2), lambda: dist.new_subgroups(3)),
    "new_subgroups_by_enumeration": (
        lambda: dist.new_subgroups_by_enumeration([[0, 1], [1, 2]]),
        lambda: dist.new_subgroups_by_enumeration([[0, 1, 2]]),
    ),
    "split_group": (
        lambda: dist.split_group(None, [[0, 1, 2, 3]]),
        lambda: dist.split_group(None, [[0, 1, 2]]),
    ),
    "shrink_group": (
        lambda: dist.shrink_group(ranks_to_exclude=[1]),
        dist.shrink_group,
    ),
}


def one_group_is_wrong(kind: str, late: bool) -> tuple[str, list[int]]:
    """Returns what a rank got, and what it gathers in the group that all make afterwards."""
    r = remote_code.begin()
    if late and r == 0:
        dist.recv(np.zeros(1), 1)
    wrong, right = WRONG_GROUPS[kind]
    said = remote_code.refusal(wrong if r == 1 else right)
    if late and r == 1:
        dist.send(np.zeros(1), 0)
    group = dist.new_group([0, 1, 2])
    return said, [int(each) for each in dist.all_gather(np.array(r), group=group)]


@pytest.mark.few(4)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", WRONG_GROUPS)
def test_wrong_arguments_of_a_new_group_are_an_error_on_all(kind: str, late: bool) -> None:
    """The others waited for that rank until their timeout."""
    with Cluster(3) as cluster:
        said = cluster.run(one_group_is_wrong, kind, late)
    own = said[1][0].split("\n")[0]
    assert not own.startswith(("nothing", "CallTimeoutError", "CollectiveMismatchError"))
    verb = kind.partition(",")[0]
    for r in (0, 2):
        assert said[r][0].startswith(own), said[r][0]
        assert f"raised by the arguments of {verb}() on rank 1 ('worker1')" in said[r][0]
    assert [gathered for _, gathered in said] == [[0, 1, 2]] * 3


def all_groups_are_wrong(kind: str) -> list[int]:
    r = remote_code.begin()
    for _ in range(2):
        remote_code.refusal(WRONG_GROUPS[kind][0])
    group = dist.new_group([0, 1, 2])
    return [int(each) for each in dist.all_gather(np.array(r), group=group)]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [each for each in WRONG_GROUPS if each != "shrink_group"])
def test_a_mistake_in_a_new_group_that_all_ranks_make_is_over_with_it(kind: str) -> None:
    with Cluster(3) as cluster:
        assert cluster.run(all_groups_are_wrong, kind) == [[0, 1, 2]] * 3
