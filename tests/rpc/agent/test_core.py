"""The core of an agent: a frozen set of parts, and what packages above keep on it."""

from __future__ import annotations

import dataclasses

import pytest

from telegrad import rpc
from telegrad.errors import AgentForkedError, NotInitializedError
from telegrad.rpc import seams

MOST_PARTS, MOST_METHODS = 15, 25


class Part:
    """Is kept on an agent."""


def test_a_core_is_a_frozen_set_of_few_parts() -> None:
    """A delegating method would hide which part does the work; verbs take an agent instead."""
    with rpc.init_rpc("me") as agent:
        core = seams.core_of(agent)
        parts = dataclasses.fields(core)
        assert len(parts) <= MOST_PARTS
        assert not hasattr(core, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            core.options = rpc.RpcOptions()  # type: ignore[misc]
    methods = [name for name, found in vars(seams.AgentCore).items() if callable(found)]
    assert len([name for name in methods if not name.startswith("__")]) <= MOST_METHODS
    assert seams.AgentCore.__bases__ == (object,)


def test_two_agents_share_no_part() -> None:
    with rpc.Agent("one") as one, rpc.Agent("two") as two:
        mine, others = seams.core_of(one), seams.core_of(two)
        shared = [
            field.name
            for field in dataclasses.fields(mine)
            if getattr(mine, field.name) is getattr(others, field.name)
        ]
        assert shared in (["loop"], ["options", "loop"])  # one loop thread for the sockets of all


def test_a_part_is_found_by_its_class() -> None:
    attachments, part = seams.Attachments("w0"), Part()
    assert attachments.find(Part) is None
    with pytest.raises(NotInitializedError, match="Part does not run on agent 'w0'"):
        attachments[Part]
    attachments.attach(part)
    assert attachments.find(Part) is part
    assert attachments[Part] is part
    later = Part()
    attachments.attach(later)
    assert attachments[Part] is later


def test_a_life_of_another_process_says_so() -> None:
    life = seams.Life("w0")
    life.check_process()
    life.pid += 1
    with pytest.raises(AgentForkedError, match="'w0' belongs to process"):
        life.check_process()
