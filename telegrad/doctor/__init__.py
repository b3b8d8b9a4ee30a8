"""The doctor: examines every pair of a job's workers, and reports problems with remedies."""

from __future__ import annotations

from telegrad.doctor.examination import examine
from telegrad.doctor.facts import DoctorPair, DoctorWorker
from telegrad.doctor.judgement import DoctorProblem
from telegrad.doctor.report import DoctorReport

__all__ = ["DoctorPair", "DoctorProblem", "DoctorReport", "DoctorWorker", "examine"]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
