"""`scipy.special` with gradients, under SciPy's names and signatures.

These functions have rules, to second order:

    error       erf erfc erfcx erfinv erfcinv dawsn ndtr log_ndtr ndtri
    logistic    expit logit log_expit logsumexp softmax log_softmax
    gamma       gamma gammaln loggamma digamma psi polygamma beta betaln
                gammainc gammaincc (not with respect to their first argument)
    entropy     xlogy xlog1py entr rel_entr kl_div
    Bessel      i0 i1 i0e i1e k0 k1 k0e k1e j0 j1 y0 y1
    others      expi exp1 exp2 exp10 expm1 log1p cbrt sinc

Any other function raises if an argument needs a gradient. `scipy.special.f(tensor)` does the same
as the function here, except for `logsumexp`, `softmax`, `log_softmax` and `polygamma`: SciPy's are
not ufuncs, so use the ones here. CuPy arrays go to `cupyx.scipy.special`, if that has the function.
"""

try:
    from scipy import special as _special
except ImportError as error:
    raise ImportError("telegrad.scipy needs SciPy; pip install 'telegrad[scipy]'") from error

from telegrad.autograd import extend as _extend

__all__ = sorted(_special.__all__)

globals().update(
    {
        name: _extend.find(value) or value if callable(value) else value
        for name, value in ((name, getattr(_special, name)) for name in _special.__all__)
    }
)
