"""The parts of the launcher that the doctor and the tests use; not for users."""

from __future__ import annotations

from telegrad.launch.env import JobEnvironment
from telegrad.launch.log_relay import LogRelay, Screen
from telegrad.launch.policy import Policy
from telegrad.launch.run import Refusals, RunOptions, run
from telegrad.launch.supervisor import Supervisor, Watcher

__all__ = [
    "JobEnvironment",
    "LogRelay",
    "Policy",
    "Refusals",
    "RunOptions",
    "Screen",
    "Supervisor",
    "Watcher",
    "run",
]
