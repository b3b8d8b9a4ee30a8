"""Pipelines: a model split over workers; schedules as data, their proof and their pictures."""

from __future__ import annotations

from telegrad.errors import ScheduleError
from telegrad.parallel.pipeline.checking import Checked, check, simulate
from telegrad.parallel.pipeline.optimizer import PipelineOptimizer
from telegrad.parallel.pipeline.pipeline import Pipeline
from telegrad.parallel.pipeline.report import PipelineReport
from telegrad.parallel.pipeline.schedule import Action, Kind, Schedule, make_schedule
from telegrad.parallel.pipeline.skips import Pop, Stash
from telegrad.parallel.pipeline.timeline import Costs, Span, Timeline, as_svg, as_text

__all__ = [
    "Action",
    "Checked",
    "Costs",
    "Kind",
    "Pipeline",
    "PipelineOptimizer",
    "PipelineReport",
    "Pop",
    "Schedule",
    "ScheduleError",
    "Span",
    "Stash",
    "Timeline",
    "as_svg",
    "as_text",
    "check",
    "make_schedule",
    "simulate",
]
