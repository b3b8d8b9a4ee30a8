"""The type of NumPy's and SciPy's functions that have rules."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, overload

from telegrad.autograd import Tensor

R_co = TypeVar("R_co", covariant=True)

class Function(Protocol[R_co]):
    """Gives R where the first or second argument is a Tensor, or the first a list of Tensors."""

    @overload
    def __call__(self, x: Tensor | Sequence[Tensor], /, *args: Any, **options: Any) -> R_co: ...
    @overload
    def __call__(self, x: Any, y: Tensor, /, *args: Any, **options: Any) -> R_co: ...
    @overload
    def __call__(self, *args: Any, **options: Any) -> Any: ...
