"""What `make bench` measures: its parts, the rows of its tables, and what each row has to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

__all__ = ["GROWTH", "GROWTH_MOST", "HOSTS", "PARTS", "ROWS", "Bar", "Part", "Row"]

TWO = "2 workers"
HOSTS: Final = "two hosts"
GROWTH: Final = (2, 4, 8, 16, 32)
# Thirty-two processes of torch hold ten gigabytes, and take minutes to meet on two cores.
GROWTH_MOST: Final = {"torch": 16}


@final
@dataclass(frozen=True, slots=True)
class Part:
    """What is run as one: a program for each peer, and what these are told.

    Attributes:
        what: In words, for `--help` and the documents.
        programs: Each peer's, in benchmarks/peers.
        plans: What is run: a name, and the programs' arguments.
        rounds: At most so many; None for as many as the command was told.
        between_hosts: Whether the workers are on two hosts.
        grows: Whether its plans are those of `GROWTH`.
    """

    what: str
    programs: dict[str, str]
    plans: Sequence[tuple[str, Sequence[str]]]
    rounds: int | None = None
    between_hosts: bool = False
    grows: bool = False


@final
@dataclass(frozen=True, slots=True)
class Bar:
    """What telegrad's figure has to be of a peer's.

    Attributes:
        peer: Whose.
        factor: How many times theirs.
        least: Whether it is to be at least that; else at most.
    """

    peer: str
    factor: float
    least: bool = False

    def __str__(self) -> str:
        return f"{'at least' if self.least else 'at most'} {self.factor:g} x {self.peer}"

    def met(self, ratio: float) -> bool:
        """Tells whether a ratio is as good."""
        return ratio >= self.factor if self.least else ratio <= self.factor


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    Attributes:
        label: What stands in its first column; with the unit.
        part: What measures it.
        plan: What is run for it.
        where: Where its figure lies in a report.
        bar: What it has to reach; None where it is shown alone.
        scale: What the figure is divided by.
    """

    label: str
    part: str
    plan: str
    where: tuple[str, ...]
    bar: Bar | None = None
    scale: float = 1.0


IDLE = (
    *("call", "calls", "awaited", "awaited at once"),
    *("echo 1 MiB", "echo 64 MiB", "other 64 MiB", "references"),
)
BETWEEN = ("call", "calls", "echo 64 MiB")

PARTS: Final[dict[str, Part]] = {
    "calls": Part(
        "calls of two workers on one host, beside all peers",
        {
            "telegrad": "telegrad_rpc.py",
            "torch": "torch_rpc.py",
            "xoscar": "xoscar_actors.py",
            "ray": "ray_actors.py",
            "dask": "dask_actors.py",
            "monarch": "monarch_actors.py",
        },
        [(TWO, ["--workers", "2", "--idle", *IDLE, "--busy", "call"])],
    ),
    "step": Part(
        "a step of distributed autograd, beside torch",
        {"telegrad": "telegrad_passes.py", "torch": "torch_passes.py"},
        [(TWO, ["--workers", "2", "--step"])],
    ),
    "jobs": Part(
        "a parameter server and batched updates, beside the same written with torch",
        {"telegrad": "telegrad_jobs.py", "torch": "torch_jobs.py"},
        [("3 workers", [])],
    ),
    "hosts": Part(
        "two workers on two hosts (network namespaces), over TCP, beside torch",
        {
            "telegrad": "telegrad_rpc.py",
            "telegrad-plain": "telegrad_rpc.py",
            "telegrad-sockets": "telegrad_rpc.py",
            "torch": "torch_rpc.py",
        },
        [(HOSTS, ["--workers", "2", "--idle", *BETWEEN, "--busy"])],
        between_hosts=True,
    ),
    "growth": Part(
        "2 to 32 workers on one host, all calling all, beside torch up to 16",
        {"telegrad": "growth.py", "torch": "growth.py"},
        [(f"{n} workers", ["--workers", str(n)]) for n in GROWTH],
        rounds=1,
        grows=True,
    ),
}

ROWS: Final[tuple[Row, ...]] = (
    Row("empty `rpc_sync`, p50, us", "calls", TWO, ("idle", "call", "p50"), Bar("torch", 0.35)),
    Row("empty `rpc_sync`, p99, us", "calls", TWO, ("idle", "call", "p99"), Bar("torch", 0.5)),
    Row("awaited, one by one, us", "calls", TWO, ("idle", "awaited", "p50"), Bar("xoscar", 0.6)),
    Row("awaited, 1,000 at once, calls/s", "calls", TWO, ("idle", "awaited at once", "per_second")),
    Row(
        "`rpc_async`, 1,000 in flight, calls/s",
        "calls",
        TWO,
        ("idle", "calls", "per_second"),
        Bar("torch", 5, least=True),
    ),
    Row("echo 1 MiB, ms", "calls", TWO, ("idle", "echo 1 MiB", "p50"), Bar("torch", 0.5), 1e3),
    Row("echo 64 MiB, ms", "calls", TWO, ("idle", "echo 64 MiB", "p50"), Bar("torch", 0.25), 1e3),
    Row("64 MiB, and others back, ms", "calls", TWO, ("idle", "other 64 MiB", "p50"), scale=1e3),
    Row(
        "1,000 references made and fetched, ms",
        "calls",
        TWO,
        ("idle", "references", "p50"),
        Bar("torch", 0.33),
        1e3,
    ),
    Row(
        "empty `rpc_sync`, busy callee, p50, us",
        "calls",
        TWO,
        ("busy", "call", "p50"),
        Bar("torch", 0.3),
    ),
    Row("step of distributed autograd, us", "step", TWO, ("step", "p50"), Bar("torch", 0.6)),
    Row(
        "parameter server, images/s",
        "jobs",
        "3 workers",
        ("parameter server", "per_second"),
        Bar("torch", 2, least=True),
    ),
    Row(
        "batched updates, images/s",
        "jobs",
        "3 workers",
        ("batch", "per_second"),
        Bar("torch", 2, least=True),
    ),
    Row(
        "between hosts: round trip, us", "hosts", HOSTS, ("idle", "call", "p50"), Bar("torch", 0.9)
    ),
    Row(
        "between hosts: 1,000 in flight, calls/s",
        "hosts",
        HOSTS,
        ("idle", "calls", "per_second"),
        Bar("torch", 8, least=True),
    ),
    Row(
        "between hosts: echo 64 MiB, ms",
        "hosts",
        HOSTS,
        ("idle", "echo 64 MiB", "p50"),
        Bar("torch", 1),
        1e3,
    ),
)
