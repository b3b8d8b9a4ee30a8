"""`RemoteModule`: a module that lives on another worker, used here like a local one.

trainer                                    ps
RemoteModule("ps", Head, (64,)) ──remote──▶ Head(64), kept there
head(x) ─────────────── x ────────────────▶ Head.forward(x)
      y ◀────────────── y ─────────────────
dist_autograd.backward ─── gradients ─────▶ through Head's graph, to its parameters' gradients
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self, cast, final

from telegrad.autograd import Tensor
from telegrad.errors import UnknownWorkerError
from telegrad.nn import Module, Parameter
from telegrad.parallel.optimizer.structure import References
from telegrad.rpc import Future, RRef, expose, register_type, remote, rpc_sync
from telegrad.rpc.seams import (
    AgentCore,
    current_agent,
    reference_of,
    refuse_to_block,
    seconds,
    use_agent,
    wait_or_cancel,
)
from telegrad.types import Array, Shape, WorkerInfo

# -- references to the parameters of a module, made at its owner ---------------------------------


def parameter_rrefs(module_or_rref: Module | RRef[Any]) -> list[RRef[Parameter]]:
    """Returns a reference to each parameter of a module, in the order of its `parameters()`.

    Parameters of its `RemoteModule` parts, wherever they live, come after its own.

    Args:
        module_or_rref: A module of this worker, or a reference to a module of any worker; for a
            reference, its owner makes all references in one call.

    Raises:
        TypeError: The argument is neither, or a reference to something else.
        WorkerLostError: The owner is lost.

    Example:
        >>> from telegrad import nn, parallel, rpc
        >>> with rpc.init_rpc("a"):
        ...     model = rpc.remote("a", nn.Linear, (3, 2))
        ...     [rref.to_here().shape for rref in parallel.parameter_rrefs(model)]
        [(2, 3), (2,)]
    """
    if isinstance(module_or_rref, Module):
        return _of_module(module_or_rref)
    if not isinstance(module_or_rref, RRef):
        raise TypeError(
            f"parameter_rrefs takes a Module or an RRef of one, not {module_or_rref!r} "
            f"({type(module_or_rref).__name__})"
        )
    if module_or_rref.is_owner():
        return make_parameter_rrefs(module_or_rref)
    return rpc_sync(module_or_rref.owner(), make_parameter_rrefs, (module_or_rref,))


@expose
def make_parameter_rrefs(module_rref: RRef[Any]) -> list[RRef[Parameter]]:
    """Runs at the owner of a module; see `parameter_rrefs`."""
    return _of_module(_local_module(module_rref))


def _local_module(module_rref: RRef[Any]) -> Module:
    module = module_rref.local_value()
    if not isinstance(module, Module):
        raise TypeError(
            f"the reference is to {type(module).__name__}, not to a Module: it has no parameters "
            "and no mode"
        )
    return module


def _of_module(module: Module) -> list[RRef[Parameter]]:
    parts = [each for each in module.modules() if isinstance(each, RemoteModule)]
    own = [] if module in parts else [RRef(parameter) for parameter in module.parameters()]
    if own:
        current_agent().attachments[References].note(module)
    return own + [rref for part in parts for rref in part.remote_parameters()]


# -- the handle ----------------------------------------------------------------------------------


@final
class RemoteModule(Module):
    """A handle on a module of another worker, which makes the module and keeps it.

    A call of the handle runs `forward` there. Inside a `dist_autograd.context()` gradients go
    through it in both directions. Outside of one, a Tensor that needs a gradient arrives as one
    that needs none. The parameters stay there: train them with `DistributedOptimizer`, given
    `remote_parameters()`.

    As a part of another module it takes part in that module's `train()`, `eval()`, `state_dict()`
    and `load_state_dict()`. That module's `parameters()` contain only those of this process;
    `parameter_rrefs` of that module returns all.

    The handle may be sent to other workers, as an argument or a result: it arrives as a handle on
    the same module. The owner keeps the module as long as there is a handle.

    Args:
        to: The worker where the module lives: name, rank or WorkerInfo; may be this worker.
        module_class: A subclass of `nn.Module` that the owner finds by its name. For a module
            that is made in another way: `RemoteModule.from_rref(rpc.remote(to, make_it))`.
        args: Arguments for the class: a tuple or list; None as `()`. Arrays travel by value.
        kwargs: Keyword arguments for the class.
        timeout: Seconds for making it, and for each later call through this handle; None for
            `RpcOptions.timeout`.

    Raises:
        TypeError: `module_class` is no Module class.
        UnknownWorkerError: There is no such worker; "worker1/cuda:0" is no worker either.
        CallRefusedError: The owner does not allow this worker to use the class.
        WorkerLostError: The owner is lost.
        BlockingCallError: On an event loop that telegrad runs, as from every method that waits.
        Exception: Any error that the class raised.

    Attributes:
        training: The mode that `train()` or `eval()` of this handle set last, else the module's own
            mode when the handle was made. Another handle may have changed the mode since.

    Example:
        >>> import numpy as np
        >>> from telegrad import nn, no_grad, parallel, rpc
        >>> with rpc.init_rpc("a"), no_grad():
        ...     layer = parallel.RemoteModule("a", nn.Linear, (3, 2))
        ...     layer(np.ones((5, 3), np.float32)).shape
        (5, 2)
    """

    def __init__(
        self,
        to: str | int | WorkerInfo,
        module_class: type[Module],
        args: tuple[Any, ...] | list[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        given: object = module_class
        if not (isinstance(given, type) and issubclass(given, Module)):
            raise TypeError(
                f"module_class must be a subclass of telegrad.nn.Module, not {given!r}; for a "
                "function that makes one write RemoteModule.from_rref(rpc.remote(to, func, args))"
            )
        _refuse_device(to)
        refuse_to_block("RemoteModule(...)", "write `await rpc.to_thread(RemoteModule, ...)`")
        rref = remote(to, module_class, args, kwargs, timeout)
        self._hold(rref, timeout, training=_adjust(rref, timeout))

    @classmethod
    def from_rref(cls, module_rref: RRef[Any], *, timeout: float | None = None) -> RemoteModule:
        """Returns a handle on a module that exists already, on any worker.

        Args:
            module_rref: A reference to a Module.
            timeout: Seconds for each call through this handle; None for `RpcOptions.timeout`.

        Raises:
            TypeError: The argument is no RRef, or an RRef of something else.
            WorkerLostError: The owner is lost.
            Exception: Any error that making the module raised.
        """
        if not isinstance(module_rref, RRef):
            raise TypeError(
                f"from_rref takes an RRef of a Module, not {type(module_rref).__name__}; for a "
                "module of this process write rpc.RRef(module)"
            )
        refuse_to_block("from_rref()", "write `await rpc.to_thread(RemoteModule.from_rref, rref)`")
        return cls._of(module_rref, timeout, training=_adjust(module_rref, timeout))

    def __reduce__(self) -> Any:
        raise TypeError(
            "a RemoteModule is a handle on a module of another worker, and is not copied or "
            "pickled: pass it as an argument of a call, or make another handle with "
            "RemoteModule.from_rref(module.get_module_rref()); what it learned is in state_dict()"
        )

    # Computing.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's `forward` at the owner; waits for its result.

        Raises:
            WorkerLostError: The owner is lost.
            CallTimeoutError: The value was not there in time.
            Exception: Any error that `forward` raised.
        """
        refuse_to_block("RemoteModule.forward()", "write `await module.forward_async(...)`")
        return wait_or_cancel(self.forward_async(*args, **kwargs))

    def forward_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs `forward` at the owner and returns the future of its value at once."""
        return self._rref.rpc_async(self._timeout).forward(*args, **kwargs)

    # The module at its owner.

    def get_module_rref(self) -> RRef[Any]:
        """Returns the reference to the module that this handle holds."""
        return self._rref

    def remote_parameters(self) -> list[RRef[Parameter]]:
        """Returns a reference to each parameter, made at the module's owner, in the module's order.

        RemoteModules that are parts of the module there are included.
        """
        with use_agent(_agent_of(self._rref)):
            return rpc_sync(
                self._rref.owner(), make_parameter_rrefs, (self._rref,), timeout=self._timeout
            )

    def to(self, device: str) -> Self:
        """Moves the module to a device of its worker; see `Module.to`. Returns this handle."""
        _adjust(self._rref, self._timeout, "to", device)
        return self

    def zero_grad(self) -> None:
        """Sets the `grad` of every parameter to None, at the owner."""
        self._there().zero_grad()

    # Methods that need the parameters themselves, which are not here.

    def parameters(self) -> Iterator[Parameter]:
        """Raises TypeError: write `remote_parameters()`."""
        raise self._not_here("parameters()", "remote_parameters() gives references to them")

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Raises TypeError: write `remote_parameters()`, or `state_dict()` for copies."""
        raise self._not_here(
            "named_parameters()",
            "remote_parameters() gives references to them, state_dict() copies by name",
        )

    def buffers(self) -> Iterator[Tensor]:
        """Raises TypeError: write `state_dict()`."""
        raise self._not_here("buffers()", "state_dict() gives copies by name")

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Raises TypeError: write `state_dict()`."""
        raise self._not_here("named_buffers()", "state_dict() gives copies by name")

    def register_buffer(self, name: str, value: Tensor, *, persistent: bool = True) -> None:
        """Raises TypeError: a buffer belongs to the module, in its class."""
        raise self._not_here(f"register_buffer({name!r})", "register it in the module's own class")

    def add_module(self, name: str, module: Module) -> None:
        """Raises TypeError: a part belongs to the module, in its class."""
        raise self._not_here(f"add_module({name!r})", "add it in the module's own class")

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Tensor | Module):
            raise self._not_here(f"the attribute {name!r}", "set it in the module's own class")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"RemoteModule({self._rref!r})"

    def _set_training(self, mode: bool) -> None:
        _adjust(self._rref, self._timeout, "train", mode)
        super()._set_training(mode)

    def _set_requires_grad(self, requires_grad: bool) -> None:
        _adjust(self._rref, self._timeout, "requires_grad_", requires_grad)

    def _state_elsewhere(self) -> dict[str, Array]:
        return cast("dict[str, Array]", self._there().state_dict())

    def _shapes_elsewhere(self) -> dict[str, Shape]:
        return cast("dict[str, Shape]", self._there().state_shapes())

    def _load_elsewhere(self, state: dict[str, Array]) -> None:
        self._there().load_state_dict(state, strict=False)

    def _named_state(
        self, prefix: str = "", above: tuple[Module, ...] = ()
    ) -> Iterator[tuple[str, Tensor]]:
        yield from ()  # all state is at the owner

    def _there(self) -> Any:
        return self._rref.rpc_sync(self._timeout)

    def _not_here(self, what: str, instead: str) -> TypeError:
        return TypeError(
            f"{what} of a RemoteModule: the module lives on worker {self._rref.owner_name()!r}; "
            f"{instead}"
        )

    @classmethod
    def _of(cls, rref: RRef[Any], timeout: float | None, *, training: bool) -> RemoteModule:
        module = object.__new__(cls)
        module._hold(rref, timeout, training=training)
        return module

    def _hold(self, rref: RRef[Any], timeout: float | None, *, training: bool) -> None:
        seconds(timeout, 0.0)  # refuses 0, negatives and bools before any call
        super().__init__()
        self._rref = rref
        self._timeout = timeout
        super()._set_training(training)

    def _encode(self) -> tuple[RRef[Any], float | None, bool]:
        return self._rref, self._timeout, self.training

    @staticmethod
    def _decode(plain: tuple[RRef[Any], float | None, bool]) -> RemoteModule:
        rref, timeout, training = plain
        return RemoteModule._of(rref, timeout, training=training)


register_type(RemoteModule, encode=RemoteModule._encode, decode=RemoteModule._decode)


def _adjust(rref: RRef[Any], timeout: float | None, *change: Any) -> bool:
    """Runs `adjust` at the owner of a module."""
    with use_agent(_agent_of(rref)):
        return rpc_sync(rref.owner(), adjust, (rref, *change), timeout=timeout)


def _agent_of(rref: RRef[Any]) -> AgentCore:
    """Returns the agent that counts a reference, which may not be the ambient one."""
    return reference_of(rref).registry.agent


def _refuse_device(to: object) -> None:
    """Refuses a worker name with a device in it, as torch allows."""
    if isinstance(to, str) and ("/" in to or ":" in to):
        worker = to.partition("/")[0].removeprefix("rank:")
        raise UnknownWorkerError(
            f"no worker {to!r}: a worker's name or rank has no device in it; write "
            f"{int(worker) if worker.isdecimal() else worker!r}, and have the class place its "
            "arrays"
        )


# The methods by which a handle changes its module; each returns the module.
ADJUSTMENTS = ("to", "train", "requires_grad_")


@expose
def adjust(module_rref: RRef[Any], method: str = "", argument: Any = None) -> bool:
    """Runs at the owner of a module: calls a method, if one is named, and drops its value.

    Returns:
        True if the module is in training mode.

    Raises:
        Exception: The error that making the module raised, or that of the method.
    """
    module = _local_module(module_rref)
    if method in ADJUSTMENTS:
        getattr(module, method)(argument)
    elif method:
        raise ValueError(f"{method!r} is none of {', '.join(ADJUSTMENTS)}")
    return module.training
