"""Futures of values: how one gets what another has, whose error is kept and must hold no frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from telegrad.rpc.fresh import fresh_copy
from telegrad.rpc.future import Future

if TYPE_CHECKING:
    from telegrad.rpc.rref_reference import Reference

__all__ = ["failed", "follow", "hand_on", "result"]


def follow(outcome: Future[Any], value: Future[Any]) -> None:
    """Completes a future as another one was; a value is taken out where it is wanted."""
    outcome.try_set_thunk(lambda: result(value), fails=value.failed)


def failed(error: BaseException) -> Future[Any]:
    """Returns a future that has failed; to raise in its place would leave a circle.

    future ─▶ error ─▶ frames of whoever made the future, with the reference ─▶ future
    """
    outcome: Future[Any] = Future()
    outcome.try_set_exception(error)
    return outcome


def hand_on(done: Future[Any], outcome: Future[Any], reference: Reference | None) -> None:
    """Completes a future as another one, and as the one inside it; without a raise, as `failed`.

    Args:
        done: The other one.
        outcome: What is completed.
        reference: Is kept until then.
    """
    error = done.exception()
    if error is not None:
        outcome.try_set_exception(error)
    elif isinstance(value := done.value(), Future):
        value.add_done_callback(lambda inner: hand_on(inner, outcome, reference))
    else:
        outcome.try_set_result(value)


def result(done: Future[Any]) -> Any:
    """Returns a value, or raises a copy of its error: the original is kept and may hold no frame."""
    error = done.exception()
    if error is not None:
        raise fresh_copy(error).with_traceback(error.__traceback__)
    return done.value()
