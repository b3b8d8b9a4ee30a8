"""From measurements to words: what a doctor makes of given pairs, and how a report reads."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from telegrad.doctor.facts import (
    Address,
    DoctorPair,
    DoctorWorker,
    Speed,
    of_plain,
    pair_of,
    rounds,
)
from telegrad.doctor.judgement import DoctorProblem, judge
from telegrad.doctor.report import DoctorReport
from telegrad.transport import Dial
from telegrad.types import WorkerInfo
from tests.repeated import on_examples

VERSIONS = {"telegrad": "1.0", "python": "3.11.9", "numpy": "2.2.1"}
QUICK = Speed(0.0003, 1e9, 1e9)


def worker(rank: int, host: str, **changes: object) -> DoctorWorker:
    """Worker `w<rank>` on a host "a", "b", ..., whose address ends in 1, 2, ..."""
    number = ord(host) - ord("a") + 1
    made = DoctorWorker(
        info=WorkerInfo(f"w{rank}", rank, 1000 + rank),
        host=host,
        host_id=host,
        endpoints=(f"grpcs://10.0.0.{number}:{4000 + rank}",),
        addresses=(Address(f"10.0.0.{number}", "eth0", 1500, 1000),),
        versions=VERSIONS,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def reached(to: DoctorWorker, transport: str = "grpcs", *, opened: bool = True) -> Dial:
    end = to.endpoints[0] if to.endpoints else ""
    return Dial("reached", "", to.endpoints, transport, opened, end)


def failed(to: DoctorWorker, ended: str, words: str = "", *, transport: str = "") -> Dial:
    return Dial(ended, words or f"{ended} words", to.endpoints, transport)


def both(one: DoctorWorker, other: DoctorWorker, speed: Speed = QUICK) -> DoctorPair:
    return pair_of(one, other, reached(other), reached(one, opened=False), speed)


def kinds(found: Sequence[DoctorProblem]) -> list[str]:
    return [each.kind for each in found]


def test_nothing_is_wrong_with_a_job_in_which_all_reach_all() -> None:
    workers = [worker(0, "a"), worker(1, "a"), worker(2, "b")]
    pairs = [both(one, other) for i, one in enumerate(workers) for other in workers[i + 1 :]]
    assert judge(workers, pairs) == ((), ())


@pytest.mark.parametrize(
    ("ended", "cause"),
    [("silent", "a firewall there drops it"), ("refused", "a firewall there rejects it")],
)
def test_a_firewall_is_told_with_direction_and_port(ended: str, cause: str) -> None:
    """b lets nothing in; what a calls there goes over the session that b has opened."""
    a, b = worker(0, "a"), worker(1, "b")
    there = failed(b, ended, transport="grpcs")
    pair = pair_of(a, b, there, reached(a), QUICK)
    (problem,), notes = judge([a, b], [pair])
    assert not notes
    assert pair.ok
    assert pair.opened_by == "w1"
    assert problem.kind == "cannot reach"
    assert problem.workers == ("w0", "w1")
    assert "from a (10.0.0.1) to b (10.0.0.2)" in problem.words
    assert "grpcs://10.0.0.2:4001" in problem.words
    assert "calls there work over what w1 has opened itself" in problem.words
    for said in (
        cause,
        "now: 4001",
        "RpcOptions(port='29501-29599')",
        "ufw allow proto tcp from 10.0.0.1 to any port 29501:29599",
        "RpcOptions(port=None)",
    ):
        assert said in problem.remedy


def test_the_same_firewall_between_two_hosts_is_told_once() -> None:
    workers = [worker(0, "a"), worker(1, "a"), worker(2, "b"), worker(3, "b")]
    pairs = [both(workers[0], workers[1]), both(workers[2], workers[3])]
    pairs += [
        pair_of(one, other, failed(other, "silent"), failed(one, "silent"), Speed())
        for one in workers[:2]
        for other in workers[2:]
    ]
    problems, _ = judge(workers, pairs)
    assert kinds(problems) == ["cannot reach", "cannot reach"]  # one for each direction
    assert "w0 to w2, w0 to w3, w1 to w2, w1 to w3" in problems[0].words
    assert not any(pair.ok for pair in pairs[2:])
    assert all("cannot reach" in pair.words for pair in pairs[2:])


@pytest.mark.parametrize("socket", [(), ("local://0b/tmp/x/s",)])
def test_loopback_told_to_another_host_is_named_and_not_called_a_firewall(
    socket: tuple[str, ...],
) -> None:
    """A Unix socket, which workers list before it, is as useless there."""
    a = worker(0, "a")
    b = worker(1, "b", endpoints=(*socket, "grpc://127.0.0.1:4001"))
    pair = pair_of(a, b, failed(b, "refused", transport="grpcs"), reached(a), QUICK)
    (problem,), _ = judge([a, b], [pair])
    assert problem.kind == "loopback advertised"
    told = ", ".join(b.endpoints)
    assert f"worker 'w1' on b tells the others to dial {told}" in problem.words
    assert "advertise=ADDRESS" in problem.remedy
    assert "10.0.0.2" in problem.remedy


def test_a_worker_that_has_only_a_unix_socket_needs_a_port_for_other_hosts() -> None:
    a, b = worker(0, "a"), worker(1, "b", endpoints=("local://0b/tmp/x/s",))
    pair = pair_of(a, b, failed(b, "broke", transport="grpcs"), reached(a), QUICK)
    (problem,), _ = judge([a, b], [pair])
    assert problem.kind == "loopback advertised"
    assert "tells the others to dial local://0b/tmp/x/s, which from another host" in problem.words
    assert problem.remedy.endswith("leave RpcOptions(bind='unix') out")


def test_no_route_lists_the_addresses_of_both() -> None:
    a, b = worker(0, "a"), worker(1, "b")
    pair = pair_of(a, b, failed(b, "no route"), reached(a, opened=True), QUICK)
    (problem,), _ = judge([a, b], [pair])
    assert "a (10.0.0.1) has no route to 10.0.0.2" in problem.remedy
    assert "10.0.0.1 (eth0, 1000 Mbit/s)" in problem.remedy


def test_what_is_turned_away_says_what_the_handshake_said() -> None:
    a, b = worker(0, "a"), worker(1, "b")
    words = "the certificate is for 'other', not for 'w1'"
    pair = pair_of(a, b, failed(b, "turned away", words), reached(a), QUICK)
    (problem,), _ = judge([a, b], [pair])
    assert problem.kind == "turned away"
    assert words in problem.words


def test_two_that_do_not_listen_are_a_note_with_advice() -> None:
    a = worker(0, "a")
    b, c = (worker(rank, host, listens=False, endpoints=()) for rank, host in ((1, "b"), (2, "c")))
    pairs = [
        pair_of(a, b, Dial(transport="grpcs"), reached(a), QUICK),
        pair_of(a, c, Dial(transport="grpcs"), reached(a), QUICK),
        pair_of(b, c, Dial(), Dial(), Speed()),
    ]
    problems, (note,) = judge([a, b, c], pairs)
    assert problems == ()
    assert note.kind == "outbound only"
    assert note.words.startswith("w1 and w2 cannot call each other")
    assert "w0" in note.remedy
    assert "'w1' does not listen and is called over the session that it opened" in pairs[0].why
    assert not pairs[2].ok


def test_one_link_far_slower_than_the_others_is_the_wrong_network() -> None:
    more = Address("192.168.7.3", "ib0", 9000, 0)
    workers = [worker(0, "a"), worker(1, "b"), worker(2, "c")]
    workers[2] = dataclasses.replace(workers[2], addresses=(*workers[2].addresses, more))
    slow = Speed(0.0003, 1e8, 9e8)  # its slower direction counts
    pairs = [both(workers[0], workers[1]), both(workers[0], workers[2], slow)]
    pairs.append(both(workers[1], workers[2]))
    (problem,), _ = judge(workers, pairs)
    assert problem.kind == "slow link"
    assert problem.workers == ("w0", "w2")
    assert "100 MB/s, between the other hosts 1000 MB/s" in problem.words
    assert "grpcs://10.0.0.3:4002" in problem.words
    for said in ("192.168.7.3 (ib0)", "--master-addr", "bind", "advertise"):
        assert said in problem.remedy


def test_a_host_of_which_all_links_are_slow_is_told_once() -> None:
    workers = [worker(0, "a"), worker(1, "b"), worker(2, "c"), worker(3, "d")]
    slow = Speed(0.0003, 1e6, 2e6)
    pairs = [
        both(one, other, slow if workers[2] in (one, other) else QUICK)
        for i, one in enumerate(workers)
        for other in workers[i + 1 :]
    ]
    (problem,), _ = judge(workers, pairs)
    assert problem.workers == ("w0", "w2", "w1", "w3")
    assert problem.words.startswith("c (10.0.0.3) moves 1 MB/s at best with any other host")
    assert "the others 1000 MB/s" in problem.words
    assert problem.remedy == (
        "there is no other address to choose (c (10.0.0.3) has 10.0.0.3 (eth0, 1000 Mbit/s)): look "
        "at cable, switch and what else uses the link"
    )


def test_a_host_with_links_to_slow_hosts_alone_is_not_told_again() -> None:
    """Of the third host only the links to the two slow ones were measured in time."""
    workers = [worker(rank, host) for rank, host in enumerate("abcdefghijk")]
    slow, unmeasured = Speed(0.0003, 1e6, 2e6), Speed(0.0003, words="the time was over")
    pairs = [
        both(one, other, slow if i < 2 else unmeasured if i == 2 else QUICK)
        for i, one in enumerate(workers)
        for other in workers[i + 1 :]
    ]
    problems, _ = judge(workers, pairs)
    told = [each.words for each in problems if each.kind == "slow link"]
    assert [words[0] for words in told] == ["a", "b"]


def test_twice_the_time_is_no_fault_and_neither_is_what_one_host_measures_of_itself() -> None:
    workers = [worker(0, "a"), worker(1, "b"), worker(2, "c"), worker(3, "c")]
    half, slow = Speed(0.0003, 4e8, 4e8), Speed(0.0003, 2e7, 2e7)
    pairs = [
        both(one, other, half if other is workers[2] else QUICK)
        for i, one in enumerate(workers)
        for other in workers[i + 1 :]
    ]
    pairs[-1] = both(workers[2], workers[3], slow)
    assert judge(workers, pairs) == ((), ())


def test_the_one_link_of_two_hosts_is_noted_below_100_megabit() -> None:
    a, b = worker(0, "a"), worker(1, "b")
    _, (note,) = judge([a, b], [both(a, b, Speed(0.0003, 1e6, 2e6))])
    assert note.kind == "slow link"
    assert "1 MB/s" in note.words


@pytest.mark.parametrize("scheme", ["grpcs", "tcps"])
def test_a_faster_interface_left_aside_is_noted(scheme: str) -> None:
    """Also where a session has moved from gRPC to a socket of its own, which is the usual case."""
    a = worker(0, "a")
    b = worker(1, "b")
    fast = Address("192.168.7.2", "ib0", 1500, 100_000)
    b = dataclasses.replace(b, addresses=(*b.addresses, fast))
    there = Dial("reached", "", b.endpoints, scheme, True, f"{scheme}://10.0.0.2:4101")
    pair = pair_of(a, b, there, reached(a, scheme, opened=False), QUICK)
    problems, (note,) = judge([a, b], [pair])
    assert not problems
    assert note.kind == "other interface"
    assert "192.168.7.2 (ib0, 100000 Mbit/s)" in note.words


def test_packets_of_different_sizes_are_noted() -> None:
    a = worker(0, "a")
    b = worker(1, "b", addresses=(Address("10.0.0.2", "eth0", 9000, 1000),))
    _, (note,) = judge([a, b], [both(a, b)])
    assert note.kind == "packet sizes"
    assert "1500, 9000" in note.words
    assert "mtu 1500" in note.remedy


def test_a_job_of_one_host_that_leaves_loopback_is_noted_and_one_of_two_is_not() -> None:
    a, b, c = worker(0, "a"), worker(1, "a"), worker(2, "b")
    _, (note,) = judge([a, b], [both(a, b)])
    assert note.kind == "detour"
    assert "is encrypted" in note.words
    assert "bind='unix'" in note.remedy
    assert judge([a, b, c], [both(a, b), both(a, c), both(b, c)]) == ((), ())


@pytest.mark.parametrize("end", ["grpc://127.0.0.1:4001", "tcp://[::1]:4001", "local://0a/tmp/s"])
def test_a_job_of_one_host_that_stays_on_loopback_is_no_detour(end: str) -> None:
    a, b = worker(0, "a"), worker(1, "a")
    there = Dial("reached", "", b.endpoints, end.partition(":")[0], True, end)
    assert judge([a, b], [pair_of(a, b, there, reached(a), QUICK)]) == ((), ())


def test_other_versions_of_telegrad_are_wrong_and_patch_levels_of_others_are_not() -> None:
    a = worker(0, "a")
    b = worker(1, "b", versions=VERSIONS | {"telegrad": "1.1"})
    (problem,), notes = judge([a, b], [both(a, b)])
    assert problem.kind == "versions"
    assert "1.0 on w0, 1.1 on w1" in problem.words
    assert "pip install 'telegrad==1.1'" in problem.remedy
    assert not notes
    c = worker(1, "b", versions=VERSIONS | {"python": "3.11.2", "numpy": "2.3.0"})
    problems, (note,) = judge([a, c], [both(a, c)])
    assert not problems
    assert "numpy" in note.words


def test_a_worker_that_says_nothing_is_told_once_and_its_pairs_are_rows() -> None:
    a = worker(0, "a")
    b = DoctorWorker(info=WorkerInfo("w1", 1, 1001), silence="no answer within 3 s")
    silent = failed(worker(1, "b"), "silent")
    pair = pair_of(a, b, silent, Dial(words="'w1' did not say"), Speed())
    problems, _ = judge([a, b], [pair])
    assert kinds(problems) == ["silent worker", "cannot reach"]
    assert "no answer within 3 s" in problems[0].words
    assert not pair.ok


@pytest.mark.parametrize("listens", [True, False])
def test_a_dead_worker_is_one_problem_however_many_have_lost_it(listens: bool) -> None:
    a, b = worker(0, "a"), worker(1, "a")
    dead = DoctorWorker(info=WorkerInfo("w2", 2, 1002), silence="nobody there", listens=listens)
    lost = Dial("broke", "nobody there", loss="nobody there")
    awaited = Dial(words="it does not listen, and has not come by itself")
    there = lost if listens else awaited
    pairs = [both(a, b), *(pair_of(each, dead, there, Dial(), Speed()) for each in (a, b))]
    problems, notes = judge([a, b, dead], pairs)
    assert kinds(problems) == ["silent worker"]
    assert not notes
    lost_words = "lost to each other: 'w0' says: nobody there"
    assert pairs[1].words == (lost_words if listens else f"'w0' says of 'w2': {awaited.words}")
    assert "3 workers on 1 host, 1 of them not heard" in str(
        DoctorReport((a, b, dead), tuple(pairs), problems, notes)
    )


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("grpc://127.0.0.1:4001", "its process is stopped"),
        ("local://0a1b/run/x/s", "its process is stopped"),
        ("grpcs://10.0.0.2:4001", "its process is stopped or busy, a firewall there drops it"),
    ],
)
def test_who_is_stopped_is_not_taken_for_a_firewall_alone(end: str, said: str) -> None:
    """It says nothing of its host; who is dialled over loopback is on the dialler's own."""
    a, b = worker(0, "a"), DoctorWorker(info=WorkerInfo("w1", 1, 1001), silence="no answer")
    there = Dial("silent", "no answer within 3 s", (end,))
    problems, _ = judge([a, b], [pair_of(a, b, there, Dial(), Speed())])
    assert kinds(problems) == ["silent worker", "cannot reach"]
    assert said in problems[1].remedy
    assert ("ufw" in problems[1].remedy) is end.startswith("grpcs")


@pytest.mark.parametrize("loss", ["", "silent for 10 s"])
def test_a_pair_that_nothing_explains_is_told_as_it_is(loss: str) -> None:
    a, b = worker(0, "a"), worker(1, "b")
    there = dataclasses.replace(reached(b), loss=loss)
    pair = pair_of(a, b, there, reached(a, opened=False), Speed(words="no answer within 4 s"))
    (problem,), _ = judge([a, b], [pair])
    assert problem.kind == ("no session" if loss else "not measured")
    assert (loss or "no answer within 4 s") in problem.words
    assert ("start it again" in problem.remedy) is bool(loss)


def test_who_is_lost_to_another_is_not_called_unreachable() -> None:
    """Its dial ended in the loss, which is for good, whatever the network does."""
    a, b = worker(0, "a"), worker(1, "b")
    there = dataclasses.replace(failed(b, "broke"), loss="silent for 10 s")
    (problem,), _ = judge([a, b], [pair_of(a, b, there, Dial(words="lost"), Speed())])
    assert problem.kind == "no session"
    assert "silent for 10 s" in problem.words


def test_why_a_session_runs_over_what_it_does() -> None:
    a, b = worker(0, "a"), worker(1, "a")

    def why(transport: str, certificate: tuple[str, ...] | None = None, **changes: object) -> str:
        to = worker(1, "a", **changes)
        reach = dataclasses.replace(reached(to, transport), certificate=certificate)
        return pair_of(a, to, reach, reached(a, opened=False), QUICK).why

    assert "'w1' listens beyond loopback" in why("grpcs")
    assert "certificates of the job's own authority" in why("grpcs", ("w1",))
    assert "loopback" in why("grpc")
    assert "insecure=True" in why("grpc", insecure=True)
    assert "one user on one host" in why("local")
    assert b.name == "w1"


def test_a_report_reads_as_matrices_pairs_and_words() -> None:
    a, b, c = worker(0, "a"), worker(1, "b"), worker(2, "c")
    certificate = dataclasses.replace(reached(b), certificate=("w1",))
    pairs = [
        pair_of(a, b, certificate, reached(a, opened=False), Speed(0.00025, 1e9, 5e8)),
        pair_of(a, c, failed(c, "silent"), failed(a, "silent"), Speed()),
        both(b, c),
    ]
    report = DoctorReport((a, b, c), tuple(pairs), *judge([a, b, c], pairs))
    assert not report.ok
    text = str(report)
    lines = text.splitlines()
    assert lines[0] == "3 workers on 3 hosts"
    assert "  0 w0     -  0.25  none" in lines
    assert "  0 w0     -  1000  none" in lines
    assert "  1 w1   500     -  1000" in lines
    assert "in the certificates: w1 is w1" in text
    assert "2 problems" in lines
    assert "to mend it: a firewall there drops it" in text
    assert max(map(len, lines)) <= 100
    assert report.pair("w1", "w0") is pairs[0]
    with pytest.raises(LookupError, match="no pair of 'w0' and 'nobody'"):
        report.pair("w0", "nobody")


def test_a_report_of_one_worker_has_no_matrix() -> None:
    assert str(DoctorReport((worker(0, "a"),), ())).endswith("nothing is wrong")


def test_of_many_pairs_only_those_with_trouble_are_listed() -> None:
    workers = [worker(rank, "a") for rank in range(12)]
    pairs = [both(one, other) for i, one in enumerate(workers) for other in workers[i + 1 :]]
    pairs[0] = dataclasses.replace(pairs[0], words="it limps")
    text = str(DoctorReport(tuple(workers), tuple(pairs)))
    assert "it limps" in text
    assert "65 more pairs, with which nothing is wrong" in text
    assert text.count("opened by") == 1


def test_words_of_workers_steer_no_terminal() -> None:
    a, b = worker(0, "a"), worker(1, "b")
    pair = dataclasses.replace(both(a, b), words="\x1b[2J\x07\u202e it limps")
    text = str(DoctorReport((a, b), (pair,)))
    assert "\\x1b[2J\\x07\\u202e it limps" in text
    assert text.replace("\n", "").isprintable()


def test_a_report_goes_through_json() -> None:
    a, b = worker(0, "a"), worker(1, "b")
    report = DoctorReport((a, b), (both(a, b),), *judge([a, b], [both(a, b)]))
    plain = report.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["ok"] is True
    assert plain["workers"][0]["name"] == "w0"
    assert plain["pairs"][0]["reach"]["ended"] == "reached"


def test_what_workers_tell_each_other_survives_the_way() -> None:
    told = worker(3, "b")
    sent = json.loads(json.dumps(dataclasses.asdict(told)))
    assert of_plain(DoctorWorker, sent, info=told.info) == told
    reach = dataclasses.replace(reached(told), certificate=("w3", "w3.example"))
    assert of_plain(Dial, json.loads(json.dumps(dataclasses.asdict(reach)))) == reach
    speed = Speed(0.1, None, 2.0, "late")
    assert of_plain(Speed, json.loads(json.dumps(dataclasses.asdict(speed)))) == speed
    assert speed.turned == Speed(0.1, 2.0, None, "late")


ANYTHING: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["grpc://[", "grpcs://10.0.0.1:4000", "10.0.0.1", "fe80::1%eth0", "\x1b\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
ADDRESSES = st.fixed_dictionaries(
    {
        "address": st.sampled_from(["10.0.0.1", "fd00::1", "x"]),
        "interface": st.text(max_size=5),
        "mtu": st.integers(-1, 2**70),
        "megabits": st.integers(-1, 2**70),
    }
)


def flat(plain: Any) -> Iterator[Any]:
    """Yields what lies in dicts and lists."""
    if isinstance(plain, dict):
        plain = [*plain, *plain.values()]
    if isinstance(plain, (list, tuple)):
        for each in plain:
            yield from flat(each)
    else:
        yield plain


def read_from(cls: Any, honest: Any, data: st.DataObject, **known: Any) -> Any:
    """Reads an answer of which some fields were replaced; returns the honest one if refused."""
    sent = json.loads(json.dumps(dataclasses.asdict(honest)))
    for name in data.draw(st.sets(st.sampled_from(sorted(sent)), max_size=2)):
        sent[name] = data.draw(ANYTHING)
    if "addresses" in sent and data.draw(st.booleans()):
        sent["addresses"] = [data.draw(ADDRESSES)]
    try:
        return of_plain(cls, sent, **known)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return honest


@on_examples(st.data())
def test_whatever_a_worker_sends_is_refused_or_becomes_printable(data: st.DataObject) -> None:
    a, b = worker(0, "a"), worker(1, "b")
    liar = read_from(DoctorWorker, b, data, info=b.info, silence="")
    dial, speed = read_from(Dial, reached(b), data), read_from(Speed, QUICK, data)
    pair = pair_of(a, liar, dial, reached(a, opened=False), speed)
    report = DoctorReport((a, liar), (pair,), *judge([a, liar], [pair]))
    assert str(report).replace("\n", "").isprintable()
    assert all(str(each).isprintable() for each in flat(dataclasses.asdict(report)))
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("hosts", ["aaaa", "abcd", "aabb", "aabbccc"])
def test_a_round_measures_each_pair_once_and_no_host_beside_itself(hosts: str) -> None:
    names = [f"{host}{i}" for i, host in enumerate(hosts)]
    pairs = list(itertools.combinations(names, 2))
    found = rounds(pairs, lambda name: name[0])
    assert sorted(pair for each in found for pair in each) == sorted(pairs)
    for each in found:
        busy = [host for one, other in each for host in {one[0], other[0]}]
        assert len(busy) == len(set(busy))
    if len(set(hosts)) == len(hosts):
        assert len(found) < len(pairs)
