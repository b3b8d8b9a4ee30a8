"""The doctor: examines every pair of a job's workers, says what is wrong and how to mend it."""

from __future__ import annotations

from telegrad.doctor.examination import examine
from telegrad.doctor.facts import DoctorPair, DoctorWorker
from telegrad.doctor.judgement import DoctorProblem
from telegrad.doctor.report import DoctorReport

__all__ = ["DoctorPair", "DoctorProblem", "DoctorReport", "DoctorWorker", "examine"]
