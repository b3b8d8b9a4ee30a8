"""How workers find each other: stores, the coordinator, joining and leaving a job."""

from __future__ import annotations

from telegrad.rendezvous.call_off import CallOff
from telegrad.rendezvous.coordinator import Coordinator, CoordinatorStatistics
from telegrad.rendezvous.file import FileStore
from telegrad.rendezvous.init_method import JobAddress, parse_init_method
from telegrad.rendezvous.join import join_job
from telegrad.rendezvous.joined_job import JobListener, JoinedJob
from telegrad.rendezvous.listening import JobPort
from telegrad.rendezvous.membership import Member
from telegrad.rendezvous.memory import MemoryStore
from telegrad.rendezvous.messages import COORDINATOR_NAME
from telegrad.rendezvous.names import check_job, check_name
from telegrad.rendezvous.newest import MOST_LOST, keep_newest
from telegrad.rendezvous.prefix import PrefixStore
from telegrad.rendezvous.progress import JoinProgress
from telegrad.rendezvous.reminder import Reminder
from telegrad.rendezvous.secured import secured
from telegrad.rendezvous.store import Store
from telegrad.rendezvous.tcp import TCPStore

__all__ = [
    "COORDINATOR_NAME",
    "MOST_LOST",
    "CallOff",
    "Coordinator",
    "CoordinatorStatistics",
    "FileStore",
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
    "secured",
]
