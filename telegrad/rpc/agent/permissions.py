"""The permissions of callers: the policy of callables, and the audit log of what it refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from telegrad.errors import CallRefusedError
from telegrad.rpc.call.served_call import current_served_call
from telegrad.rpc.policy.policy import CallablePolicy
from telegrad.transport import CALL_REFUSED, Audit
from telegrad.types import WorkerInfo
from telegrad.wire import FunctionRef

__all__ = ["Permissions"]


@final
class Permissions:
    """Finds the functions that others may call on this worker, and records refused calls.

    All methods may be called from any thread.

    Args:
        policy: The rules of what others may call.
        audit: The log of refusals.
    """

    def __init__(self, policy: CallablePolicy, audit: Audit) -> None:
        self._policy = policy
        self._audit = audit

    def resolve(
        self, function: str, *, script: str = "", caller: WorkerInfo | None = None
    ) -> Callable[..., Any]:
        """Returns the function of this name, if others may call it.

        Args:
            function: `module:qualname`.
            script: The caller's script, for the error.
            caller: The worker that asks.

        Raises:
            FunctionNotFoundError: There is no such function.
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        ref = FunctionRef(function, script) if script else function
        try:
            return self._policy.resolve(ref, caller=caller)
        except CallRefusedError as error:
            self.record_refusal(caller, function, "NOT_ALLOWED", error)
            raise

    def resolve_value(self, peer: WorkerInfo, kind: str, function: str) -> Callable[..., Any]:
        """Returns the function of a name that a peer has sent as a value, if it may have it.

        Args:
            peer: The sender.
            kind: The kind of the envelope that brought it.
            function: `module:qualname`.

        Raises:
            FunctionNotFoundError: There is no such function.
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        try:
            return self._policy.resolve_value(function, caller=peer)
        except CallRefusedError as error:
            self.record_refusal(peer, function, "NOT_ALLOWED_AS_VALUE", error, kind)
            raise

    def check_method(self, value: object, method: str, caller: WorkerInfo) -> None:
        """Checks that a caller may call a method of a value, through a reference to it.

        Raises:
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        try:
            self._policy.check_method(value, method, caller=caller)
        except CallRefusedError as error:
            self.record_refusal(caller, _called(value, method), "NOT_ALLOWED", error)
            raise

    def check_found(self, value: object, name: str, found: object, caller: WorkerInfo) -> None:
        """Checks that a caller may call the value of an attribute, after `check_method`.

        Raises:
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        try:
            self._policy.check_found(value, name, found, caller=caller)
        except CallRefusedError as error:
            self.record_refusal(caller, _called(value, name), "NOT_ALLOWED", error)
            raise

    def record_refusal(
        self,
        caller: WorkerInfo | None,
        function: str,
        reason: str,
        error: CallRefusedError,
        kind: str | None = None,
    ) -> None:
        """Writes a refused call into the audit log.

        Args:
            caller: The worker that called.
            function: `module:qualname`.
            reason: The reason, for programs.
            error: The error that the caller gets.
            kind: The kind of the envelope; that of the call that is served by default.
        """
        served = current_served_call()
        self._audit.record(
            CALL_REFUSED,
            caller=None if caller is None else caller.name,
            incarnation=None if caller is None else caller.incarnation,
            kind=served.kind if kind is None and served is not None else kind,
            function=function,
            reason=reason,
            words=str(error),
        )


def _called(value: object, method: str) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}.{method}"
