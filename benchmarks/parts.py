"""What `make bench` measures: its parts, the rows of its tables, and the gate of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

__all__ = [
    "FOUR_RANKS",
    "GROWTH",
    "GROWTH_MOST",
    "HOSTS",
    "PARTS",
    "ROWS",
    "SLACK",
    "Gate",
    "Part",
    "Row",
]

TWO = "2 workers"
ALONE = "1 process"
TWO_RANKS: Final = "2 ranks"
FOUR_RANKS: Final = "4 ranks"
PERCEPTRON = "perceptron"
HOSTS: Final = "two hosts"
GROWTH: Final = (2, 4, 8, 16, 32)
# Thirty-two processes of torch hold ten gigabytes, and take minutes to meet on two cores.
GROWTH_MOST: Final = {"torch": 16}
# A figure whose gate the last recorded run missed may get worse by no more than this share.
SLACK: Final = 0.1
# Of `make bench`; one run of these figures says too little.
FIVE_RUNS = "median of five runs"


@final
@dataclass(frozen=True, slots=True)
class Part:
    """What is run as one: a program for each peer, and what these are told.

    Attributes:
        what: In words, for `--help` and the documents.
        programs: Each peer's, in benchmarks/peers.
        plans: What is run: a name, and the programs' arguments.
        rounds: At most so many; None for as many as the command was told.
        least_rounds: At least so many, however few it was told.
        between_hosts: Whether the workers are on two hosts.
        grows: Whether its plans are those of `GROWTH`.
        repeats: Whether its programs repeat a case on request (peers/repetitions.py).
    """

    what: str
    programs: dict[str, str]
    plans: Sequence[tuple[str, Sequence[str]]]
    rounds: int | None = None
    least_rounds: int = 1
    between_hosts: bool = False
    grows: bool = False
    repeats: bool = False


@final
@dataclass(frozen=True, slots=True)
class Gate:
    """The ratio of telegrad's figure to a peer's that a change has to keep.

    A change that makes a figure miss its gate does not land. A gate that the last recorded run
    (docs/bench.json) misses already may get no worse than `SLACK` of that run's ratio.

    Attributes:
        peer: Whose figure telegrad's is divided by.
        factor: The ratio.
        least: Whether the ratio has to be at least that; else at most.
        note: What else has to be known of the gate.
        ours: Which of telegrad's figures is divided: `telegrad`, or one of `hosts.VARIANTS`.
    """

    peer: str
    factor: float
    least: bool = False
    note: str = ""
    ours: str = "telegrad"

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{'at least' if self.least else 'at most'} {self.factor:g} x {self.peer}{note}"

    def met(self, ratio: float) -> bool:
        """Tells whether a ratio is as good."""
        return ratio >= self.factor if self.least else ratio <= self.factor

    def bound(self, missed: float) -> float:
        """Returns the worst ratio that is allowed after a run that missed the gate by `missed`."""
        return missed * (1 - SLACK if self.least else 1 + SLACK)


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    Attributes:
        label: What stands in its first column; with the unit.
        part: What measures it.
        plan: What is run for it.
        where: Where its figure lies in a report.
        gate: What it has to keep; None where it is shown alone.
        scale: What the figure is divided by.
    """

    label: str
    part: str
    plan: str
    where: tuple[str, ...]
    gate: Gate | None = None
    scale: float = 1.0


IDLE = (
    *("call", "calls", "awaited", "awaited at once"),
    *("echo 1 MiB", "echo 64 MiB", "other 64 MiB", "references"),
)
BETWEEN = ("call", "calls", "echo 64 MiB")
REDUCED = ("all_reduce 4 B", "all_reduce 1 MiB", "all_reduce 64 MiB", "barrier")
EXCHANGED = ("exchange 4 B", "exchange 64 MiB")
COLLECTIVES = "collectives"
COLLECTIVES_HOSTS = "collectives-hosts"
DDP = "ddp"

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
    "grpc": Part(
        "an empty call of two workers on one host over gRPC, beside torch as it comes",
        {"telegrad": "telegrad_rpc.py", "torch": "torch_rpc.py"},
        [(TWO, ["--workers", "2", "--grpc", "--idle", "call", "--busy"])],
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
        least_rounds=9,  # of three, medians of the same tree differed by more than a tenth
    ),
    "mlp": Part(
        "a step of a 784-1024-1024-10 network in one process, beside torch and NumPy by hand",
        {
            "telegrad": "telegrad_gradients.py",
            "torch": "torch_gradients.py",
            "numpy": "numpy_gradients.py",
        },
        [(ALONE, [PERCEPTRON])],
        repeats=True,
    ),
    "hosts": Part(
        "two workers on two hosts (network namespaces), over TCP, beside torch",
        {
            "telegrad": "telegrad_rpc.py",
            "telegrad-plain": "telegrad_rpc.py",
            "telegrad-grpc": "telegrad_rpc.py",
            "torch": "torch_rpc.py",
        },
        [(HOSTS, ["--workers", "2", "--idle", *BETWEEN, "--busy"])],
        between_hosts=True,
    ),
    COLLECTIVES: Part(
        "collectives of 2 and 4 ranks on one host, beside torch (Gloo) and OpenMPI",
        {
            "telegrad": "telegrad_collectives.py",
            "torch": "torch_collectives.py",
            "openmpi": "openmpi_collectives.py",
        },
        [
            (TWO_RANKS, ["--ranks", "2", "--figures", *REDUCED, "resident 64 MiB", *EXCHANGED]),
            (FOUR_RANKS, ["--ranks", "4", "--figures", *REDUCED, "resident 64 MiB"]),
        ],
    ),
    DDP: Part(
        "a data-parallel step of a 784-1024-1024-10 network, 2 and 4 ranks, beside torch (Gloo)",
        {"telegrad": "telegrad_ddp.py", "torch": "torch_ddp.py"},
        [
            (TWO_RANKS, ["--ranks", "2", "--figures", "step", "step beside 4"]),
            (FOUR_RANKS, ["--ranks", "4", "--figures", "step"]),
        ],
    ),
    COLLECTIVES_HOSTS: Part(
        "collectives of 2 ranks on two hosts (network namespaces), beside torch (Gloo)",
        {
            "telegrad": "telegrad_collectives.py",
            "telegrad-plain": "telegrad_collectives.py",
            "torch": "torch_collectives.py",
        },
        [(HOSTS, ["--ranks", "2", "--figures", *REDUCED, *EXCHANGED])],
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

# Gloo encrypts nothing.
INSECURE = Gate("torch", 1.0, note="not encrypted", ours="telegrad-plain")

ROWS: Final[tuple[Row, ...]] = (
    Row(
        "empty `rpc_sync`, p50, us",
        "calls",
        TWO,
        ("idle", "call", "p50"),
        Gate("torch", 0.33, note=FIVE_RUNS),
    ),
    Row(
        "empty `rpc_sync`, p99, us",
        "calls",
        TWO,
        ("idle", "call", "p99"),
        Gate("torch", 0.5, note=FIVE_RUNS),
    ),
    Row("awaited, one by one, us", "calls", TWO, ("idle", "awaited", "p50"), Gate("xoscar", 0.6)),
    Row("awaited, 1,000 at once, calls/s", "calls", TWO, ("idle", "awaited at once", "per_second")),
    Row(
        "`rpc_async`, 1,000 in flight, calls/s",
        "calls",
        TWO,
        ("idle", "calls", "per_second"),
        Gate("torch", 4, least=True, note=FIVE_RUNS),
    ),
    Row("echo 1 MiB, ms", "calls", TWO, ("idle", "echo 1 MiB", "p50"), Gate("torch", 0.5), 1e3),
    Row("echo 64 MiB, ms", "calls", TWO, ("idle", "echo 64 MiB", "p50"), Gate("torch", 0.25), 1e3),
    Row("64 MiB, and others back, ms", "calls", TWO, ("idle", "other 64 MiB", "p50"), scale=1e3),
    Row(
        "1,000 references made and fetched, ms",
        "calls",
        TWO,
        ("idle", "references", "p50"),
        Gate("torch", 0.45),
        1e3,
    ),
    Row(
        "empty `rpc_sync`, busy callee, p50, us",
        "calls",
        TWO,
        ("busy", "call", "p50"),
        Gate("torch", 0.3),
    ),
    Row("gRPC, one host: round trip, us", "grpc", TWO, ("idle", "call", "p50"), Gate("torch", 1.3)),
    Row("step of distributed autograd, us", "step", TWO, ("step", "p50"), Gate("torch", 0.7)),
    Row(
        "parameter server, images/s",
        "jobs",
        "3 workers",
        ("parameter server", "per_second"),
        Gate("torch", 1.0, least=True),
    ),
    Row(
        "parameter server, processor time of a step, us",
        "jobs",
        "3 workers",
        ("parameter server", "processor"),
    ),
    Row(
        "batched updates, images/s",
        "jobs",
        "3 workers",
        ("batch", "per_second"),
        Gate("torch", 1.2, least=True),
    ),
    Row("MLP step, ms", "mlp", ALONE, (PERCEPTRON, "p50"), Gate("numpy", 1.12), 1e3),
    Row(
        "between hosts: round trip, us", "hosts", HOSTS, ("idle", "call", "p50"), Gate("torch", 1.0)
    ),
    Row(
        "between hosts: 1,000 in flight, calls/s",
        "hosts",
        HOSTS,
        ("idle", "calls", "per_second"),
        Gate("torch", 3.0, least=True),
    ),
    Row(
        "between hosts: echo 64 MiB, ms",
        "hosts",
        HOSTS,
        ("idle", "echo 64 MiB", "p50"),
        Gate("torch", 2.3),
        1e3,
    ),
    Row(
        "2 ranks: `all_reduce` 4 B, us",
        COLLECTIVES,
        TWO_RANKS,
        ("all_reduce 4 B", "p50"),
        Gate("torch", 0.33),
    ),
    Row(
        "2 ranks: `all_reduce` 1 MiB, us",
        COLLECTIVES,
        TWO_RANKS,
        ("all_reduce 1 MiB", "p50"),
        Gate("torch", 0.4),
    ),
    Row(
        "2 ranks: `all_reduce` 64 MiB, ms",
        COLLECTIVES,
        TWO_RANKS,
        ("all_reduce 64 MiB", "p50"),
        Gate("openmpi", 1.0),
        1e3,
    ),
    Row(
        "2 ranks: `all_reduce` 64 MiB, resident, ms",
        COLLECTIVES,
        TWO_RANKS,
        ("resident 64 MiB", "p50"),
        Gate("openmpi", 0.4),
        1e3,
    ),
    Row(
        "2 ranks: `barrier`, us",
        COLLECTIVES,
        TWO_RANKS,
        ("barrier", "p50"),
        Gate("torch", 0.33),
    ),
    Row(
        "2 ranks: 4 B there and back, us",
        COLLECTIVES,
        TWO_RANKS,
        ("exchange 4 B", "p50"),
        Gate("torch", 1.0),
    ),
    Row(
        "2 ranks: 64 MiB there and back, ms",
        COLLECTIVES,
        TWO_RANKS,
        ("exchange 64 MiB", "p50"),
        Gate("torch", 1.0),
        1e3,
    ),
    Row(
        "4 ranks: `all_reduce` 4 B, us",
        COLLECTIVES,
        FOUR_RANKS,
        ("all_reduce 4 B", "p50"),
        Gate("torch", 1.0),
    ),
    Row(
        "4 ranks: `all_reduce` 1 MiB, us",
        COLLECTIVES,
        FOUR_RANKS,
        ("all_reduce 1 MiB", "p50"),
        Gate("torch", 0.4),
    ),
    Row(
        "4 ranks: `all_reduce` 64 MiB, ms",
        COLLECTIVES,
        FOUR_RANKS,
        ("all_reduce 64 MiB", "p50"),
        Gate("openmpi", 1.0),
        1e3,
    ),
    Row(
        "4 ranks: `all_reduce` 64 MiB, resident, ms",
        COLLECTIVES,
        FOUR_RANKS,
        ("resident 64 MiB", "p50"),
        Gate("openmpi", 0.4),
        1e3,
    ),
    Row(
        "4 ranks: `barrier`, us",
        COLLECTIVES,
        FOUR_RANKS,
        ("barrier", "p50"),
        Gate("torch", 0.33),
    ),
    Row(
        "2 ranks: DDP step, ms",
        DDP,
        TWO_RANKS,
        ("step", "p50"),
        Gate("torch", 0.75),
        1e3,
    ),
    Row(
        "2 ranks: DDP step beside 4 busy processes, ms",
        DDP,
        TWO_RANKS,
        ("step beside 4", "p50"),
        Gate("torch", 0.9),
        1e3,
    ),
    Row(
        "4 ranks: DDP step, ms",
        DDP,
        FOUR_RANKS,
        ("step", "p50"),
        Gate("torch", 1.0),
        1e3,
    ),
    Row(
        "between hosts: `all_reduce` 4 B, us",
        COLLECTIVES_HOSTS,
        HOSTS,
        ("all_reduce 4 B", "p50"),
        INSECURE,
    ),
    Row(
        "between hosts: `all_reduce` 1 MiB, us",
        COLLECTIVES_HOSTS,
        HOSTS,
        ("all_reduce 1 MiB", "p50"),
        INSECURE,
    ),
    Row(
        "between hosts: `all_reduce` 64 MiB, ms",
        COLLECTIVES_HOSTS,
        HOSTS,
        ("all_reduce 64 MiB", "p50"),
        INSECURE,
        1e3,
    ),
    Row(
        "between hosts: `barrier`, us",
        COLLECTIVES_HOSTS,
        HOSTS,
        ("barrier", "p50"),
        INSECURE,
    ),
    Row(
        "between hosts: 4 B there and back, us",
        COLLECTIVES_HOSTS,
        HOSTS,
        ("exchange 4 B", "p50"),
        INSECURE,
    ),
    Row(
        "between hosts: 64 MiB there and back, ms",
        COLLECTIVES_HOSTS,
        HOSTS,
        ("exchange 64 MiB", "p50"),
        INSECURE,
        1e3,
    ),
)
