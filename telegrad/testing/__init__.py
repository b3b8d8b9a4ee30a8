"""For tests of distributed programs: clusters in one process or many, and leak checks."""

from __future__ import annotations

from telegrad.testing.cluster import Cluster
from telegrad.testing.leaks import (
    LeakError,
    no_leaked_children,
    no_leaked_descriptors,
    no_leaked_tasks,
    no_leaked_threads,
)
from telegrad.testing.references import held_references, no_leaked_references

__all__ = [
    "Cluster",
    "LeakError",
    "held_references",
    "no_leaked_children",
    "no_leaked_descriptors",
    "no_leaked_references",
    "no_leaked_tasks",
    "no_leaked_threads",
]
