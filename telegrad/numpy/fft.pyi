"""The types of `telegrad.numpy.fft`; see `telegrad.numpy`."""

from typing import Any

from telegrad.autograd import Tensor
from telegrad.autograd.function_types import Function

__all__: list[str]

def __getattr__(name: str) -> Any: ...

_tensor: Function[Tensor]

fft = fft2 = fftn = fftshift = hfft = ifft = ifft2 = ifftn = ifftshift = ihfft = irfft = _tensor
irfft2 = irfftn = rfft = rfft2 = rfftn = _tensor
