"""Copies of the state of each place at a neighbour, so that no state is lost with a worker.

    after a step of the optimizer, number v      place 0 ─ copy v ─▶ place 1 ─ copy v ─▶ place 2 ─▶ 0
    worker of place 1 lost                       place 0, v: its own · place 1, v: at place 2 · ...

A place keeps its last two copies and those of its neighbour: a worker may be lost while the newest
copies are on their way. All places go on from the newest number of which each has a copy left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

from telegrad.errors import InvalidUseError
from telegrad.parallel.dist_optimizer import DistributedOptimizer
from telegrad.parallel.pipeline.places import Member, Places, by_stage
from telegrad.parallel.pipeline.runner import StateCopy

__all__ = ["Copies", "no_state"]

Saved: TypeAlias = "tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]"
"""The state of each stage, and that of each optimizer in the layout of its `state_dict`."""


@final
class Copies:
    """The copies of one pipeline, as its driver knows them: it holds numbers and options alone."""

    def __init__(self) -> None:
        self._version = 0
        self._groups: dict[int, list[list[dict[str, Any]]]] = {}

    def take(self, places: Places, optimizers: Sequence[DistributedOptimizer]) -> None:
        """Has every place hand a copy to its neighbour.

        Raises:
            PipelineError: A place is lost; the copies before these are still there.
        """
        self._version += 1
        options = [[dict(group) for group in each.param_groups] for each in optimizers]
        self._groups[self._version] = options
        self._groups = dict(sorted(self._groups.items())[-2:])

        def arguments(member: Member) -> Sequence[Any]:
            parts = [each._part_at(member.worker) for each in optimizers]
            next_one = _neighbour(member, places.members)
            neighbour = None if next_one is None else (member.id.place, next_one.runner)
            return self._version, [each for each in parts if each is not None], neighbour

        places.ask("copy", arguments)

    def newest(self, places: Places) -> Saved | None:
        """Returns the newest state of which living places have all parts; None if there is none."""
        found: dict[int, dict[int, StateCopy]] = {}
        for member, kept in places.ask_living("copies"):
            for place, versions in kept.items():
                of_place = found.setdefault(member.id.place if place < 0 else place, {})
                of_place.update(versions)
        for version in sorted(self._groups, reverse=True):
            copies = [found.get(each.id.place, {}).get(version) for each in places.members]
            whole = [each for each in copies if each is not None]
            if len(whole) == len(copies):
                return _joined(whole, self._groups[version])
        return None


def _neighbour(member: Member, members: Sequence[Member]) -> Member | None:
    """Returns the next place that is on another worker."""
    first = member.id.place + 1
    others = [*members[first:], *members[:first]]
    return next((each for each in others if each.worker != member.worker), None)


def _joined(copies: Sequence[StateCopy], groups: Sequence[list[dict[str, Any]]]) -> Saved:
    optimizers = []
    for k, options in enumerate(groups):
        state: dict[int, Mapping[str, Any]] = {}
        for each in copies:
            if k < len(each.optimizers):
                state |= each.optimizers[k]
        optimizers.append({"state": dict(sorted(state.items())), "param_groups": options})
    return by_stage([each.stages for each in copies]), optimizers


def no_state() -> InvalidUseError:
    """Returns the error that there is no state to go on from."""
    return InvalidUseError(
        "no state is known from which the pipeline could go on; call state_dict() now and then, or "
        "make the pipeline with keep_copies=True and step its optimizer once"
    )
