"""Meeting of workers: stores, the coordinator, joining and leaving a job."""

from __future__ import annotations

from telegrad.rendezvous.control import COORDINATOR_NAME, Reminder
from telegrad.rendezvous.coordinator import Coordinator, CoordinatorStatistics
from telegrad.rendezvous.file import FileStore
from telegrad.rendezvous.init_method import parse_init_method, port_in_use, secured
from telegrad.rendezvous.init_plugins import InitMethod
from telegrad.rendezvous.job_address import JobAddress
from telegrad.rendezvous.join import CallOff, join_job
from telegrad.rendezvous.joined_job import JobListener, JoinedJob, JoinProgress
from telegrad.rendezvous.listening import JobPort
from telegrad.rendezvous.membership import MOST_LOST, Member, check_job, check_name, keep_newest
from telegrad.rendezvous.memory import MemoryStore
from telegrad.rendezvous.store import PrefixStore, Store
from telegrad.rendezvous.tcp import TCPStore

__all__ = [
    "COORDINATOR_NAME",
    "MOST_LOST",
    "CallOff",
    "Coordinator",
    "CoordinatorStatistics",
    "FileStore",
    "InitMethod",
    "JobAddress",
    "JobListener",
    "JobPort",
    "JoinProgress",
    "JoinedJob",
    "Member",
    "MemoryStore",
    "PrefixStore",
    "Reminder",
    "Store",
    "TCPStore",
    "check_job",
    "check_name",
    "join_job",
    "keep_newest",
    "parse_init_method",
    "port_in_use",
    "secured",
]
