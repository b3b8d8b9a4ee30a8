"""The types of `telegrad.scipy.special`: a function of a Tensor gives a Tensor, of arrays Any."""

from typing import Any, overload

from telegrad.autograd import Tensor
from telegrad.autograd.function_types import Function

__all__: list[str]

def __getattr__(name: str) -> Any: ...

_tensor: Function[Tensor]

@overload
def logsumexp(a: Tensor, axis: Any = None, b: Any = None, keepdims: bool = False) -> Tensor: ...
@overload
def logsumexp(*args: Any, **options: Any) -> Any: ...

beta = betaln = cbrt = dawsn = digamma = entr = erf = erfc = erfcinv = erfcx = erfinv = _tensor
exp1 = exp10 = exp2 = expi = expit = expm1 = gamma = gammainc = gammaincc = gammaln = _tensor
gammaln = i0 = i0e = i1 = i1e = j0 = j1 = k0 = k0e = k1 = k1e = kl_div = log1p = log_expit = _tensor
log_ndtr = log_softmax = loggamma = logit = ndtr = ndtri = polygamma = psi = _tensor
rel_entr = sinc = softmax = xlog1py = xlogy = y0 = y1 = _tensor
