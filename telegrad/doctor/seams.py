"""The part of the doctor that an agent needs; not for users."""

from __future__ import annotations

from telegrad.doctor.examination import attach_to

__all__ = ["attach_to"]
