"""A stand-in for `cupyx.scipy.special`, of those of its functions that telegrad's rules call."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from tests.gpu.stand_in.stand_in import Ufunc, call_on_host, ndarray

__all__ = ["NAMES", "special_stand_in"]

# `dawsn` is not among them: CuPy 14.2 has none.
_UFUNCS = """beta betaln cbrt digamma entr erf erfc erfcinv erfcx erfinv exp1 exp10 exp2 expi expit expm1
    gamma gammainc gammaincc gammaln i0 i0e i1 i1e j0 j1 k0 k0e k1 k1e kl_div log1p log_expit
    log_ndtr loggamma logit ndtr ndtri psi rel_entr xlog1py xlogy y0 y1"""
_FUNCTIONS = "logsumexp softmax log_softmax sinc"

NAMES = frozenset([*_UFUNCS.split(), *_FUNCTIONS.split(), "polygamma"])


def _polygamma(n: Any, x: Any) -> Any:
    if not (isinstance(n, ndarray) and isinstance(x, ndarray)):
        # CuPy passes `n == 0` to `where`, which is no array for a number.
        raise AttributeError("'bool' object has no attribute 'astype'")
    return call_on_host(special.polygamma)(n, x)


def special_stand_in() -> types.ModuleType:
    """Returns what stands in `sys.modules` for `cupyx.scipy.special`."""
    module = types.ModuleType("cupyx.scipy.special", __doc__)
    functions: dict[str, Callable[..., Any]] = {
        **{
            name: Ufunc(getattr(special, name), f"cupyx_scipy_special_{name}")
            for name in _UFUNCS.split()
        },
        **{name: call_on_host(getattr(special, name)) for name in _FUNCTIONS.split()},
        "polygamma": _polygamma,
    }
    vars(module).update(functions, float64=np.float64)
    return module
