"""SciPy's functions with gradients; needs SciPy, `pip install 'telegrad[scipy]'`.

>>> import telegrad as tg
>>> x = tg.tensor([0.5, 2.0], requires_grad=True)
>>> special.gammaln(x).sum().backward()
>>> x.grad
tensor([-1.96351003,  0.42278434])
"""

from telegrad.scipy import special as special

__all__ = ["special"]
