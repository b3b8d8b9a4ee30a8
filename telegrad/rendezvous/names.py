"""What a worker and a job may be called."""

from __future__ import annotations

import re

__all__ = ["check_job", "check_name", "name_problem"]

LONGEST_NAME = 63  # a DNS label, so that a name can be a host, a file or a metric label
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")


def name_problem(name: object) -> str | None:
    """Returns what is wrong with a worker's name, or None.

    >>> name_problem("trainer-0")
    >>> name_problem("my trainer")
    "worker name 'my trainer' has ' '; use letters, digits, '.', '_' and '-', up to 63 characters"
    """
    return _problem(name, "worker name")


def check_name(name: object) -> str:
    """Returns the name of a worker.

    Raises:
        ValueError: It is empty, longer than 63 characters or has a character out of
            `[A-Za-z0-9._-]`.
    """
    return _checked(name, "worker name")


def check_job(job: object) -> str:
    """Returns the name of a job; it obeys the same rule as a worker's.

    Raises:
        ValueError: It is no such name.
    """
    return _checked(job, "job name")


def _checked(name: object, what: str) -> str:
    problem = _problem(name, what)
    if problem is not None:
        raise ValueError(problem)
    assert isinstance(name, str)
    return name


def _problem(name: object, what: str) -> str | None:
    if not isinstance(name, str):
        return f"{what} must be a str (got {type(name).__name__})"
    if _NAME.fullmatch(name):
        return None
    rule = f"use letters, digits, '.', '_' and '-', up to {LONGEST_NAME} characters"
    if not name:
        return f"{what} is empty; {rule}"
    wrong = sorted(set(re.sub(r"[A-Za-z0-9._-]", "", name)))
    if wrong:
        return f"{what} {name[:80]!r} has {', '.join(map(repr, wrong[:5]))}; {rule}"
    return f"{what} {name[:80]!r} has {len(name)} characters; {rule}"
