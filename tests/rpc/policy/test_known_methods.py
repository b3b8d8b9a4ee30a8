"""A method that was judged once is called again unasked only as long as it is the same."""

from __future__ import annotations

import os
import subprocess
from abc import ABC
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any

import pytest

from telegrad.errors import CallRefusedError
from telegrad.rpc.seams import CallablePolicy


class Base:
    def inherited(self) -> int:
        return 1


class Other:
    """A class of a library."""

    inherited = os.getpid
    __module__ = "posix"


class Thing(Base):
    def method(self) -> int:
        return 1

    def other(self) -> int:
        return 2


class Slotted:
    __slots__ = ("kept",)

    def method(self) -> int:
        return 1


class Meta(type):
    pass


class OfMeta(metaclass=Meta):
    def method(self) -> int:
        return 1


def judged(policy: CallablePolicy, value: Any, name: str) -> None:
    """As a call does: by name, then what was found."""
    policy.check_method(value, name)
    policy.check_found(value, name, getattr(value, name))


class Registering(ABC):  # noqa: B024 - its metaclass has a method of Python's
    pass


class Wrapper:
    def __init__(self, function: Callable[[], Any]) -> None:
        update_wrapper(self, function)
        self.function = function

    def __call__(self) -> Any:
        return self.function()


def ours() -> int:
    return 1


@pytest.fixture
def policy() -> CallablePolicy:
    policy = CallablePolicy("project")
    for _ in range(2):
        judged(policy, Thing(), "method")
        judged(policy, Thing(), "inherited")
    return policy


def in_a_function() -> Any:
    class Local:
        def method(self) -> int:
            return 1

    return Local()


@pytest.mark.parametrize(
    ("make", "name"),
    [(Thing, "method"), (Thing, "inherited"), (Slotted, "method"), (OfMeta, "method"),
     (in_a_function, "method"), (list, "append"), (lambda: Thing, "method")],
)  # fmt: skip
def test_what_may_be_called_may_be_called_again(make: Callable[[], Any], name: str) -> None:
    policy = CallablePolicy("project")
    for _ in range(3):
        judged(policy, make(), name)


def test_another_function_in_its_place(
    policy: CallablePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((Thing, "method"), (Thing, "inherited"), (Base, "inherited")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, os.getpid, raising=False)
            with pytest.raises(CallRefusedError):
                judged(policy, Thing(), name)
        judged(policy, Thing(), name)


def test_an_objects_own_in_its_place(policy: CallablePolicy) -> None:
    thing = Thing()
    vars(thing)["method"] = os.getpid
    with pytest.raises(CallRefusedError):
        policy.check_method(thing, "method")


class Holding:
    run = subprocess.run


def test_an_objects_own_tells_nothing_of_its_class(policy: CallablePolicy) -> None:
    """A caller chooses the fields of an object, and so might have had the class's own allowed."""
    holding = Holding()
    vars(holding)["run"] = ours
    judged(policy, holding, "run")
    with pytest.raises(CallRefusedError):
        policy.check_method(Holding(), "run")


def test_something_else_that_is_found(policy: CallablePolicy) -> None:
    policy.check_found(Thing(), "method", Thing().method)
    with pytest.raises(CallRefusedError):
        policy.check_found(Slotted(), "kept", os.getpid)


class Changing(Base):
    pass


def test_other_bases(policy: CallablePolicy) -> None:
    changing = Changing()
    judged(policy, changing, "inherited")
    Changing.__bases__ = (Other,)
    with pytest.raises(CallRefusedError):
        judged(policy, changing, "inherited")


def test_a_method_of_a_metaclass_is_judged_by_the_class_that_has_it(policy: CallablePolicy) -> None:
    for _ in range(2):
        for value in (Registering, Mapping):
            with pytest.raises(CallRefusedError, match=r"\.register"):
                judged(policy, value, "register")


def test_a_callable_object_is_judged_by_what_it_says_of_itself(policy: CallablePolicy) -> None:
    for _ in range(2):
        with pytest.raises(CallRefusedError, match=r"posix\.getpid"):
            judged(policy, Wrapper(os.getpid), "__call__")
        judged(policy, Wrapper(ours), "__call__")
