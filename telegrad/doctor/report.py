"""The doctor's report: matrices, pairs, problems and notes, as text and as plain values. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from telegrad.doctor.facts import DoctorPair, DoctorWorker
from telegrad.doctor.judgement import DoctorProblem
from telegrad.wire import escaped

WIDTH = 80  # characters of a line of words
MOST_PAIRS = 40  # that are listed; if there are more, only those with problems


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with this host, or with the network between it and others.

    Attributes:
        words: The description of the problem.
        remedy: The way to fix it.
    """

    words: str
    remedy: str


@final
@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of `doctor.examine()`; `str()` of it is for people.

    Attributes:
        workers: All workers, by rank.
        pairs: All pairs of workers, by rank.
        problems: The problems, with their remedies.
        notes: Things that only cost time, or are as somebody wanted.

    Example:
        >>> from telegrad import doctor
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster:
        ...     report = cluster.call(0, doctor.examine)
        >>> report.ok, report.problems
        (True, ())
    """

    workers: tuple[DoctorWorker, ...]
    pairs: tuple[DoctorPair, ...]
    problems: tuple[DoctorProblem, ...] = ()
    notes: tuple[DoctorProblem, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    def pair(self, one: str, other: str) -> DoctorPair:
        """Returns the pair of two workers, in either order.

        Raises:
            LookupError: There is no such pair.
        """
        for each in self.pairs:
            if {each.one, each.other} == {one, other}:
                return each
        raise LookupError(f"the report has no pair of {one!r} and {other!r}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as dicts, lists, texts and numbers, for JSON."""
        plain = json.loads(json.dumps(asdict(self)))  # lists in place of tuples
        plain["workers"] = [{**each.pop("info"), **each} for each in plain["workers"]]
        plain["pairs"] = [
            {"ok": pair.ok, **each} for pair, each in zip(self.pairs, plain["pairs"], strict=True)
        ]
        return {"ok": self.ok, **plain}

    def __str__(self) -> str:
        parts = [_head(self.workers), _workers(self.workers)]
        if len(self.workers) > 1:
            parts += [
                _matrix("round trip in ms", self.workers, self._trip),
                _matrix("bandwidth in MB/s, from the row to the column", self.workers, self._rate),
                _pairs(self.pairs),
            ]
        parts.append(findings("problem", self.problems) or "nothing is wrong")
        parts.append(findings("note", self.notes))
        text = "\n\n".join(filter(None, parts))
        return escaped(text, lines=True, most=len(text))

    def _trip(self, one: DoctorWorker, other: DoctorWorker) -> str:
        trip = self.pair(one.name, other.name).round_trip
        return "none" if trip is None else f"{1e3 * trip:.3g}"

    def _rate(self, one: DoctorWorker, other: DoctorWorker) -> str:
        pair = self.pair(one.name, other.name)
        rate = pair.bandwidth if pair.one == one.name else pair.bandwidth_back
        if rate is None:
            return "none"
        return f"{rate / 1e6:.0f}" if rate >= 1e7 else f"{rate / 1e6:.2g}"


def _head(workers: Sequence[DoctorWorker]) -> str:
    hosts = {each.host_id for each in workers if each.host_id}
    unheard = sum(not each.host_id for each in workers)
    more = f", {unheard} of them not heard" if unheard else ""
    return f"{_count(len(workers), 'worker')} on {_count(len(hosts), 'host')}{more}"


def _workers(workers: Sequence[DoctorWorker]) -> str:
    rows = [
        (
            each.name,
            f"rank {each.info.rank}",
            f"incarnation {each.info.incarnation}",
            each.host or "?",
            "not heard" if each.silence else ", ".join(each.endpoints) or "does not listen",
        )
        for each in workers
    ]
    return "\n".join(_columns(rows))


def _matrix(
    title: str, workers: Sequence[DoctorWorker], cell: Callable[[DoctorWorker, DoctorWorker], str]
) -> str:
    """Draws a matrix; its columns are ranks, since names may be long."""
    rows = [("", *(str(each.info.rank) for each in workers))]
    for one in workers:
        cells = ("-" if one is other else cell(one, other) for other in workers)
        rows.append((f"{one.info.rank} {one.name}", *cells))
    return "\n".join([title, *_columns(rows, right=True)])


def _columns(rows: Sequence[tuple[str, ...]], *, right: bool = False) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if right and i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()


def _pairs(pairs: Sequence[DoctorPair]) -> str:
    shown = [each for each in pairs if len(pairs) <= MOST_PAIRS or each.words]
    lines = [line for each in shown for line in _pair(each)]
    if more := len(pairs) - len(shown):
        lines.append(f"  {_count(more, 'more pair')}, with which nothing is wrong")
    return "\n".join(["pairs", *lines])


def _pair(pair: DoctorPair) -> list[str]:
    name = f"{pair.one} and {pair.other}"
    if not pair.transport:
        return wrapped(f"{name}: {pair.words or 'no session'}")
    lines = wrapped(
        f"{name}: {pair.transport} to {pair.endpoint}, opened by {pair.opened_by}; {pair.why}"
    )
    names = (pair.other, pair.reach.certificate), (pair.one, pair.reach_back.certificate)
    proved = [f"{who} is {', '.join(told)}" for who, told in names if told]
    if proved:
        lines.append(f"    in the certificates: {'; '.join(proved)}")
    return lines + wrapped(pair.words, "    ")


def findings(what: str, found: Sequence[DoctorProblem | Finding], where: str = "") -> str:
    """Returns problems, or notes, as a numbered list; "" if there are none.

    >>> print(findings("problem", [Finding("it is far away", "go there")], " on this host"))
    1 problem on this host
      1. it is far away
         to mend it: go there
    """
    lead = "to mend it" if what == "problem" else "if it matters"
    lines = [_count(len(found), what) + where] if found else []
    for i, each in enumerate(found, 1):
        lines += wrapped(f"{i}. {each.words}")
        lines += wrapped(f"{lead}: {each.remedy}", "     ")
    return "\n".join(lines)


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Wraps text; commands and addresses are not broken."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(count: int, what: str) -> str:
    """Returns a count with its noun.

    >>> _count(1, "note"), _count(2, "note")
    ('1 note', '2 notes')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"
