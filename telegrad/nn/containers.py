"""Lists and dicts of modules and parameters that `parameters()` and `state_dict()` find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from telegrad.nn.module import Module, Parameter


class ModuleList(Module):
    """A list of modules; the parameters of the i-th are named `i.<name>`.

    It computes nothing itself; its owner calls the modules.

    Args:
        modules: The first modules.

    >>> from telegrad import nn
    >>> layers = ModuleList(nn.Linear(4, 4) for _ in range(3))
    >>> len(layers), [name for name, _ in layers.named_parameters()][:2]
    (3, ['0.weight', '0.bias'])
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        """Adds `module` at the end and returns the list."""
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Adds `modules` at the end and returns the list."""
        self._replace([*self, *modules])
        return self

    def insert(self, index: int, module: Module) -> None:
        """Inserts `module` before the module at `index`; the names of later modules change."""
        modules = list(self)
        modules.insert(index, module)
        self._replace(modules)

    def _replace(self, modules: list[Module]) -> None:
        for i, module in enumerate(modules):
            if not isinstance(module, Module):
                raise TypeError(f"item {i} must be a Module, not {type(module).__name__}")
        for name in tuple(self._modules):
            delattr(self, name)
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def __iter__(self) -> Iterator[Module]:
        return iter(tuple(self._modules.values()))

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, module: object) -> bool:
        return any(module is own for own in self)

    @overload
    def __getitem__(self, index: int) -> Module: ...

    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...

    def __getitem__(self, index: int | slice) -> Module | ModuleList:
        modules = tuple(self)
        return ModuleList(modules[index]) if isinstance(index, slice) else modules[index]

    def __setitem__(self, index: int, module: Module) -> None:
        modules = list(self)
        modules[index] = module
        self._replace(modules)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index]
        self._replace(modules)


class ModuleDict(Module):
    """Modules by name; the parameters of each are named `<key>.<name>`.

    It computes nothing itself; its owner calls the modules.

    Args:
        modules: The first modules.

    Raises:
        ValueError: A key is empty or contains a dot.

    >>> from telegrad import nn
    >>> import numpy as np
    >>> heads = ModuleDict({"left": nn.Linear(4, 2), "right": nn.Linear(4, 3)})
    >>> list(heads), heads["right"](np.ones((1, 4), np.float32)).shape
    (['left', 'right'], (1, 3))
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Adds modules; a module replaces the present one of the same name."""
        for name, module in modules.items():
            self[name] = module

    def keys(self) -> Iterable[str]:
        """Returns the names."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """Returns the modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Returns names and modules."""
        return self._modules.items()

    def pop(self, name: str) -> Module:
        """Removes a module and returns it."""
        module = self._modules[name]
        del self[name]
        return module

    def __getitem__(self, name: str) -> Module:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{name!r} must be a Module, not {type(module).__name__}")
        if not name or "." in name:
            raise ValueError(f"the name of a module must be non-empty, without a dot, not {name!r}")
        self._modules[name] = module

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._modules))

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules


class ParameterList(Module):
    """A list of parameters, named by their numbers.

    Args:
        parameters: The first parameters; arrays become parameters.

    >>> import numpy as np
    >>> [name for name, _ in ParameterList([np.ones(2), np.ones(3)]).named_parameters()]
    ['0', '1']
    """

    def __init__(self, parameters: Iterable[Any] = ()) -> None:
        super().__init__()
        self.extend(parameters)

    def append(self, parameter: Any) -> ParameterList:
        """Adds `parameter` at the end and returns the list."""
        return self.extend([parameter])

    def extend(self, parameters: Iterable[Any]) -> ParameterList:
        """Adds `parameters` at the end and returns the list."""
        for given in parameters:
            made = given if isinstance(given, Parameter) else Parameter(given)
            self._parameters[str(len(self))] = made
        return self

    def __iter__(self) -> Iterator[Parameter]:
        return iter(tuple(self._parameters.values()))

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, index: int) -> Parameter:
        return tuple(self._parameters.values())[index]
