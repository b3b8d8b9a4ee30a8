"""Problems in a job's network with their remedies, derived from the measurements. Pure.

A problem keeps workers from communicating, or will do so one day; a note is about something that
only costs time. One problem between the same two hosts is reported once, with all its pairs.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from telegrad.doctor.facts import (
    Address,
    DoctorPair,
    DoctorWorker,
    host_in,
    is_loopback_endpoint,
    is_own_endpoint,
    port_in,
)
from telegrad.transport import Dial

__all__ = ["DoctorProblem", "judge", "suspects"]

# One link between hosts is suspect below this share of the median of the others: full and half
# duplex, or two switches, differ by two; a wrong network by ten (gloo#335: by ninety).
SUSPECT_SHARE = 0.2
# An interface that is not used is worth a note if it is this many times faster than the chosen one.
FASTER_INTERFACE = 4.0
# Between hosts, in bytes a second: slower links delay training. 100 Mbit/s.
SLOW_LINK = 12.5e6
MOST_NAMED = 4  # pairs, in one sentence

NAMED_BY = "--master-addr, RpcOptions(bind=...) or RpcOptions(advertise=...)"
LOOK = "look at cable, switch and what else uses the link"

_ByName: TypeAlias = Mapping[str, DoctorWorker]
# The dialler, the dialled worker, the result of the dial, and the pair.
_Row: TypeAlias = tuple[DoctorWorker, DoctorWorker, Dial, DoctorPair]


@final
@dataclass(frozen=True, slots=True)
class DoctorProblem:
    """A problem, or something that costs time.

    Attributes:
        kind: A name for programs: `silent worker`, `loopback advertised`, `cannot reach`,
            `turned away`, `no session`, `not measured`, `slow link`, `versions`, `outbound only`,
            `other interface`, `packet sizes`, `detour`.
        workers: The names of the workers that have it.
        words: The description of the problem.
        remedy: The way to fix it.

    Example:
        >>> remedy = "put them on one host"
        >>> problem = DoctorProblem("slow link", ("a", "b"), "a and b are far apart", remedy)
        >>> problem.kind, problem.remedy
        ('slow link', 'put them on one host')
    """

    kind: str
    workers: tuple[str, ...]
    words: str
    remedy: str


def judge(
    workers: Sequence[DoctorWorker], pairs: Sequence[DoctorPair]
) -> tuple[list[DoctorProblem], list[DoctorProblem]]:
    """Returns the problems; and notes on things that only cost time, or are as somebody wanted."""
    known = {each.name: each for each in workers}
    explained: set[tuple[str, str]] = set()
    silent = list(_silent(workers))
    problems = [
        *silent,
        *_loopback(known, pairs, explained),
        *_unreached(known, pairs, explained),
        *_unexplained(known, pairs, explained, {each.workers[0] for each in silent}),
        *_suspect(known, pairs),
        *_versions(workers, "telegrad"),
    ]
    notes = [
        *_outbound(pairs, known),
        *_slow(known, pairs, {name for each in problems for name in each.workers}),
        *_interfaces(known, pairs),
        *_packet_sizes(known, pairs),
        *_detours(workers, known, pairs),
        *_versions(workers, "python"),
        *_versions(workers, "numpy"),
    ]
    return problems, notes


# -- problems ------------------------------------------------------------------------------------


def _silent(workers: Sequence[DoctorWorker]) -> Iterator[DoctorProblem]:
    # Two workers that do not listen cannot reach each other, but must reach one that does.
    listeners = any(each.listens and not each.silence for each in workers)
    for each in workers:
        if each.silence and (each.listens or listeners):
            yield DoctorProblem(
                "silent worker",
                (each.name,),
                f"worker {each.name!r} could not be asked: {each.silence}",
                "look whether its process lives and its log; if it is busy in C code, or stopped, "
                "it answers nobody; if it lives, call the doctor there too: it sees the other side",
            )


def _loopback(
    known: _ByName, pairs: Sequence[DoctorPair], explained: set[tuple[str, str]]
) -> Iterator[DoctorProblem]:
    """Finds workers that tell other hosts to dial only addresses that lead nowhere from there.

    These are addresses of loopback, and the Unix socket that a worker lists before or instead of
    them.
    """
    told: dict[str, list[str]] = defaultdict(list)
    for dialler, listener, reach, pair in _dials(known, pairs):
        ends = reach.endpoints or listener.endpoints
        local = bool(ends) and all(map(is_own_endpoint, ends))
        if local and not pair.same_host and listener.host_id and dialler.host_id:
            told[listener.name].append(dialler.name)
            explained.add((dialler.name, listener.name))
    for name, diallers in told.items():
        worker = known[name]
        without_port = not any(map(host_in, worker.endpoints))
        yield DoctorProblem(
            "loopback advertised",
            (name, *diallers),
            f"worker {name!r} on {worker.host} tells the others to dial "
            f"{_listed(worker.endpoints)}, which from another host leads nowhere "
            f"({_listed(diallers)} cannot reach it)",
            "it has no TCP port, which workers of other hosts need: leave RpcOptions(bind='unix') "
            "out"
            if without_port
            else "give it RpcOptions(bind='0.0.0.0', advertise=ADDRESS) with an address of its "
            f"host ({_addresses(worker)}), or name the coordinator by such an address instead of "
            "loopback (--master-addr, MASTER_ADDR), and leave bind out",
        )


def _unreached(
    known: _ByName, pairs: Sequence[DoctorPair], explained: set[tuple[str, str]]
) -> Iterator[DoctorProblem]:
    """Finds failed dials, grouped by the dialled host and by the way in which they failed."""
    groups: dict[tuple[str, bool, str, str], list[_Row]] = defaultdict(list)
    for dialler, listener, reach, pair in _dials(known, pairs):
        if reach.failed and not reach.loss and (dialler.name, listener.name) not in explained:
            words = reach.words if reach.ended == "turned away" else ""
            here = pair.same_host or all(map(is_own_endpoint, reach.endpoints or ("",)))
            groups[_host(listener), here, reach.ended, words].append(
                (dialler, listener, reach, pair)
            )
            explained.add((dialler.name, listener.name))
    for (_, same_host, ended, _), rows in groups.items():
        yield _unreached_problem(ended, rows, same_host=same_host)


def _unreached_problem(ended: str, rows: Sequence[_Row], *, same_host: bool) -> DoctorProblem:
    _, listener, first, _ = rows[0]
    ends = list(dict.fromkeys(end for _, _, reach, _ in rows for end in reach.endpoints))
    ways = _listed([f"{a.name} to {b.name}" for a, b, _, _ in rows])
    names = tuple(dict.fromkeys(each.name for row in rows for each in row[:2]))
    diallers = list({_host(a): a for a, _, _, _ in rows}.values())
    place = f"from {_listed([_host_words(each) for each in diallers])} to {_host_words(listener)}"
    if ended == "turned away":
        return DoctorProblem(
            "turned away",
            names,
            f"{place} a connection comes up and is turned away: {first.words} ({ways})",
            "do what the sentence above says; docs/certificates.md and docs/security.md say who is "
            "let in",
        )
    words = f"{place} nothing gets through to {_listed(ends)}: {first.words} ({ways})"
    if all(pair.ok for *_, pair in rows):
        words += (
            f"; calls there work over what {_listed(list({b.name: b for _, b, _, _ in rows}))} has "
            "opened itself, and stop when that breaks until it has dialled again"
        )
    if same_host:
        remedy = (
            f"both are on this one host: {listener.name!r} advertises an address at which it does "
            "not listen (RpcOptions(advertise=...)), its process is stopped, or a packet filter "
            "stands in the way; look with: ss -ltn; sudo nft list ruleset"
        )
    else:
        remedy = _remedy(ended, diallers, listener, ends)
    return DoctorProblem("cannot reach", names, words, remedy)


def _remedy(
    ended: str, diallers: Sequence[DoctorWorker], listener: DoctorWorker, ends: Sequence[str]
) -> str:
    """Returns instructions to make one host reachable from another."""
    host, first = _host_words(listener), diallers[0]
    chosen = list(dict.fromkeys(filter(None, map(host_in, ends))))
    others = [each for each in listener.addresses if each.address not in chosen]
    if ended == "no route":
        return (
            f"{_host_words(first)} has no route to {_listed(chosen)}; its addresses are "
            f"{_addresses(first)}, those of {host} {_addresses(listener)}: choose one that both "
            f"networks know, by {NAMED_BY}"
        )
    sources = [next((each.address for each in a.addresses), "ADDRESS") for a in diallers]
    source = sources[0] if len(sources) == 1 else "any"
    ports = [port for port in dict.fromkeys(map(port_in, ends)) if port]
    stopped = "its process is stopped or busy, " if listener.silence else ""
    what = (
        f"{stopped}a firewall there drops it, or the address is not reached from here"
        if ended == "silent"
        else "a firewall there rejects it, or somebody else has that address"
    )
    remedy = (
        f"{what}; let the workers' ports in (now: {_listed(ports)}): give them a range, "
        "RpcOptions(port='29501-29599'), and run there, for example: sudo ufw allow proto tcp from "
        f"{source} to any port 29501:29599; test it by telegrad doctor --port 29501-29599; where "
        "nothing may come in: RpcOptions(port=None), tested by --no-listen"
    )
    if others:
        remedy += (
            f"; another address of {host}, by RpcOptions(bind=...): {_addresses(listener, others)}"
        )
    return remedy


def _unexplained(
    known: _ByName,
    pairs: Sequence[DoctorPair],
    explained: set[tuple[str, str]],
    silent: set[str],
) -> Iterator[DoctorProblem]:
    """Finds the remaining pairs without a session or measurement, which nothing above explains."""
    for pair in pairs:
        if {pair.one, pair.other} & silent and not pair.ok:
            continue
        told = {(pair.one, pair.other), (pair.other, pair.one)} & explained
        if _neither_listens(known, pair) or (pair.ok and not pair.words) or (told and not pair.ok):
            continue
        lost = pair.reach.loss or pair.reach_back.loss
        if told and not lost and pair.bandwidth is not None and pair.bandwidth_back is not None:
            continue
        kind = "not measured" if pair.transport and not lost else "no session"
        yield DoctorProblem(
            kind,
            (pair.one, pair.other),
            f"{pair.one!r} and {pair.other!r}: {pair.words or 'no session came up'}",
            "a worker that is lost to another stays so: start it again (docs/membership.md)"
            if lost
            else "run the doctor again; if it says so again, look at the logs of both workers, and "
            "raise timeout= where the time was over",
        )


def suspects(
    workers: Sequence[DoctorWorker], pairs: Sequence[DoctorPair]
) -> list[tuple[DoctorPair, float, float]]:
    """Returns the links between hosts that are much slower than the others.

    Returns:
        For each link its fastest pair, that pair's speed in the slower direction, and the median of
        the other links.
    """
    links = _links({each.name: each for each in workers}, pairs)
    found = []
    for own, (rate, pair) in links.items():
        others = [each for key, (each, _) in links.items() if key != own]
        if len(others) > 1 and rate < SUSPECT_SHARE * statistics.median(others):
            found.append((pair, rate, statistics.median(others)))
    return found


def _suspect(known: _ByName, pairs: Sequence[DoctorPair]) -> Iterator[DoctorProblem]:
    found = suspects(list(known.values()), pairs)
    for host in _all_slow(known, pairs, [pair for pair, _, _ in found]):
        mine = [each for each in found if host in _hosts(known, each[0])]
        found = [each for each in found if each not in mine]
        worker = next(each for each in known.values() if _host(each) == host)
        yield DoctorProblem(
            "slow link",
            _names(pair for pair, _, _ in mine),
            f"{_host_words(worker)} moves {_rate(max(rate for _, rate, _ in mine))} at best with "
            f"any other host, the others {_rate(mine[0][2])} between them",
            _another(worker),
        )
    for pair, rate, median in found:
        a, b = known[pair.one], known[pair.other]
        yield DoctorProblem(
            "slow link",
            (pair.one, pair.other),
            f"between {_host_words(a)} and {_host_words(b)} move {_rate(rate)}, between the other "
            f"hosts {_rate(median)}: {pair.endpoint} is perhaps an address of the wrong network",
            _another(a, b),
        )


def _another(*workers: DoctorWorker) -> str:
    """Returns advice on a slow link: to choose other addresses, if there are any."""
    has = ", ".join(f"{_host_words(each)} has {_addresses(each)}" for each in workers)
    if all(len(each.addresses) < 2 for each in workers):
        return f"there is no other address to choose ({has}): {LOOK}"
    return f"choose another address: {has}; name it by {NAMED_BY}; if it is the right one, {LOOK}"


def _all_slow(known: _ByName, pairs: Sequence[DoctorPair], slow: Sequence[DoctorPair]) -> list[str]:
    """Returns the hosts whose links are all slow: the cause is there, and not at other hosts."""
    links = Counter(host for link in _links(known, pairs) for host in link)
    found = Counter(host for pair in slow for host in _hosts(known, pair))
    return [host for host, count in found.items() if count == links[host] > 1]


def _versions(workers: Sequence[DoctorWorker], package: str) -> Iterator[DoctorProblem]:
    found: dict[str, list[str]] = defaultdict(list)
    for each in workers:
        if package in each.versions:
            found[_said(package, each.versions[package])].append(each.name)
    if len(found) > 1:
        told = ", ".join(f"{version} on {_listed(names)}" for version, names in found.items())
        yield DoctorProblem(
            "versions",
            tuple(name for names in found.values() for name in names),
            f"the workers have different versions of {package}: {told}",
            f"install the same on all hosts, for example: pip install '{package}=={max(found)}'"
            if package != "python"
            else "that works; functions whose module differs between them may not",
        )


# -- notes ---------------------------------------------------------------------------------------


def _outbound(pairs: Sequence[DoctorPair], known: _ByName) -> Iterator[DoctorProblem]:
    """Finds pairs of workers that both do not listen, and so cannot call each other."""
    cut = [pair for pair in pairs if _neither_listens(known, pair)]
    if not cut:
        return
    through = [name for name, each in known.items() if each.listens and not each.silence]
    named = _listed([f"{pair.one} and {pair.other}" for pair in cut])
    yield DoctorProblem(
        "outbound only",
        _names(cut),
        f"{named} cannot call each other, since neither listens (port=None)",
        "if they have to, let one of the two listen, or have a worker that does make the call"
        + (f" ({_listed(through)})" if through else ""),
    )


def _slow(known: _ByName, pairs: Sequence[DoctorPair], told: set[str]) -> Iterator[DoctorProblem]:
    for rate, pair in _links(known, pairs).values():
        if rate >= SLOW_LINK or {pair.one, pair.other} <= told:
            continue
        a, b = known[pair.one], known[pair.other]
        yield DoctorProblem(
            "slow link",
            (pair.one, pair.other),
            f"between {_host_words(a)} and {_host_words(b)} move {_rate(rate)} over "
            f"{pair.endpoint}, less than 100 Mbit/s",
            _another(a, b),
        )


def _interfaces(known: _ByName, pairs: Sequence[DoctorPair]) -> Iterator[DoctorProblem]:
    """Finds hosts that communicate over a slower interface than their best one."""
    seen: set[str] = set()
    for pair in pairs:
        if pair.same_host or not pair.endpoint:
            continue
        worker = known[pair.other if pair.opened_by == pair.one else pair.one]
        chosen = _address_of(worker, pair.endpoint)
        if chosen is None or worker.host_id in seen or not chosen.megabits:
            continue
        faster = [a for a in worker.addresses if a.megabits >= FASTER_INTERFACE * chosen.megabits]
        if faster:
            seen.add(worker.host_id)
            yield DoctorProblem(
                "other interface",
                (worker.name,),
                f"{_host_words(worker)} is reached at {chosen}, and has a faster interface: "
                f"{_addresses(worker, faster)}",
                f"if that network joins the hosts, name its address by {NAMED_BY}",
            )


def _packet_sizes(known: _ByName, pairs: Sequence[DoctorPair]) -> Iterator[DoctorProblem]:
    seen: set[frozenset[str]] = set()
    for pair in pairs:
        a, b = known[pair.one], known[pair.other]
        ends = [_address_of(each, next(iter(each.endpoints), "")) for each in (a, b)]
        hosts = frozenset((a.host_id, b.host_id))
        if pair.same_host or hosts in seen or None in ends:
            continue
        mtus = {end.mtu for end in ends if end is not None and end.mtu}
        if len(mtus) > 1:
            seen.add(hosts)
            yield DoctorProblem(
                "packet sizes",
                (a.name, b.name),
                f"{_host_words(a)} and {_host_words(b)} differ in the MTU of the interfaces "
                f"between them ({_listed(sorted(map(str, mtus)))} bytes)",
                "if large arrays stand still or are slow there, set the same MTU on both, for "
                f"example: sudo ip link set dev INTERFACE mtu {min(mtus)}",
            )


def _detours(
    workers: Sequence[DoctorWorker], known: _ByName, pairs: Sequence[DoctorPair]
) -> Iterator[DoctorProblem]:
    """Finds a job on a single host that uses TCP beyond loopback without need."""
    if len({each.host_id for each in workers}) != 1:
        return
    rows = [
        pair
        for pair in pairs
        if pair.transport in ("grpc", "grpcs", "tcp", "tcps")
        and not is_loopback_endpoint(pair.endpoint)
    ]
    certified = any(pair.reach.certificate is not None for pair in pairs)
    if rows and not certified:
        first = rows[0]
        encrypted = " and is encrypted" if first.transport in ("grpcs", "tcps") else ""
        yield DoctorProblem(
            "detour",
            _names(rows),
            f"all workers are on one host, and what they send goes to {first.endpoint}{encrypted}",
            "name the coordinator by 127.0.0.1 and leave bind and advertise out; where no TCP port "
            "is wanted, RpcOptions(bind='unix')",
        )


# -- words ---------------------------------------------------------------------------------------


def _dials(known: _ByName, pairs: Sequence[DoctorPair]) -> Iterator[_Row]:
    """Yields the two dials of every pair."""
    for pair in pairs:
        one, other = known[pair.one], known[pair.other]
        yield one, other, pair.reach, pair
        yield other, one, pair.reach_back, pair


def _links(
    known: _ByName, pairs: Sequence[DoctorPair]
) -> dict[tuple[str, str], tuple[float, DoctorPair]]:
    """Returns for each two hosts their fastest pair, with its speed in the slower direction."""
    links: dict[tuple[str, str], tuple[float, DoctorPair]] = {}
    for pair in pairs:
        if pair.same_host or pair.bandwidth is None or pair.bandwidth_back is None:
            continue
        rate = min(pair.bandwidth, pair.bandwidth_back)
        one, other = sorted((_host(known[pair.one]), _host(known[pair.other])))
        if (one, other) not in links or links[one, other][0] < rate:
            links[one, other] = rate, pair
    return links


def _names(pairs: Iterable[DoctorPair]) -> tuple[str, ...]:
    """Returns the workers of pairs, once each."""
    return tuple(dict.fromkeys(name for pair in pairs for name in (pair.one, pair.other)))


def _hosts(known: _ByName, pair: DoctorPair) -> tuple[str, str]:
    return _host(known[pair.one]), _host(known[pair.other])


def _address_of(worker: DoctorWorker, endpoint: str) -> Address | None:
    host = host_in(endpoint)
    return next((each for each in worker.addresses if each.address == host), None)


def _neither_listens(known: _ByName, pair: DoctorPair) -> bool:
    return not (known[pair.one].listens or known[pair.other].listens)


def _host(worker: DoctorWorker) -> str:
    return worker.host_id or worker.name


def _host_words(worker: DoctorWorker) -> str:
    """Returns a host's name, with an address if several hosts may share it (containers)."""
    where = next(filter(None, map(host_in, worker.endpoints)), "")
    named = worker.host or f"the host of {worker.name!r}"
    return f"{named} ({where})" if where and where != named else named


def _addresses(worker: DoctorWorker, only: Sequence[Address] | None = None) -> str:
    found = worker.addresses if only is None else only
    return ", ".join(map(str, found)) or "none but loopback"


def _said(package: str, version: str) -> str:
    """Returns the part of a version that matters between workers."""
    return version if package == "telegrad" else ".".join(version.split(".")[:2])


def _rate(rate: float) -> str:
    """Returns a speed in bytes a second, in words.

    >>> _rate(1.25e9), _rate(640_000.0)
    ('1250 MB/s', '0.64 MB/s')
    """
    return f"{rate / 1e6:.3g} MB/s" if rate < 1e9 else f"{rate / 1e6:.0f} MB/s"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
