"""Pipelines: schedules as data, their proof and their pictures."""

from __future__ import annotations

from telegrad.errors import ScheduleError
from telegrad.parallel.pipeline.schedule import Action, Kind, Schedule, make_schedule

__all__ = ["Action", "Kind", "Schedule", "ScheduleError", "make_schedule"]
