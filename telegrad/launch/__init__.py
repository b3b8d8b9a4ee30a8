"""Runs a program in several workers: the command `telegrad run`, and `LocalWorkers`."""

from __future__ import annotations

from telegrad.launch.env import JobEnvironment
from telegrad.launch.local_workers import LocalWorkers
from telegrad.launch.log_relay import LogRelay, Screen
from telegrad.launch.policy import Policy
from telegrad.launch.supervisor import Supervisor, Watcher

__all__ = [
    "JobEnvironment",
    "LocalWorkers",
    "LogRelay",
    "Policy",
    "Screen",
    "Supervisor",
    "Watcher",
]
