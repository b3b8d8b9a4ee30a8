"""For tests of distributed programs: clusters in one process or many, faults, leak checks."""

from __future__ import annotations

from telegrad.testing.cluster import Cluster
from telegrad.testing.fault_plan import Fault, FaultPlan, FaultRule
from telegrad.testing.faults import (
    FaultStatistics,
    FaultyNetwork,
    FaultyTransport,
    Injected,
    faulty_network,
)
from telegrad.testing.leaks import (
    LeakError,
    held_references,
    no_leaked_children,
    no_leaked_descriptors,
    no_leaked_references,
    no_leaked_tasks,
    no_leaked_threads,
)

__all__ = [
    "Cluster",
    "Fault",
    "FaultPlan",
    "FaultRule",
    "FaultStatistics",
    "FaultyNetwork",
    "FaultyTransport",
    "Injected",
    "LeakError",
    "faulty_network",
    "held_references",
    "no_leaked_children",
    "no_leaked_descriptors",
    "no_leaked_references",
    "no_leaked_tasks",
    "no_leaked_threads",
]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
