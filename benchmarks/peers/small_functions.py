"""Thirty small functions of real programs, whose gradients benchmarks/autograd.py measures.

Each is written once, under NumPy's names, for all libraries that have these: the first two arguments
are the library's `numpy` and its `scipy.special`, the others are arrays. `torch_functions.py` has the
same for torch, which has names of its own. All return a scalar, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

__all__ = ["FUNCTIONS", "inputs"]

Function = Callable[..., Any]

LABELS = numpy.arange(16) % 10
ROWS = numpy.arange(16)
FIVE = numpy.arange(5)  # HIPS autograd cannot differentiate np.diagonal(a)


def rosenbrock(np: Any, sp: Any, x: Any) -> Any:
    """The banana-shaped valley of optimisers' tests."""
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def logistic_regression(np: Any, sp: Any, w: Any, x: Any, y: Any) -> Any:
    """Mean negative log-likelihood of labels 0 and 1."""
    z = x @ w
    return np.mean(np.logaddexp(0.0, z) - y * z)


def ridge_regression(np: Any, sp: Any, w: Any, x: Any, y: Any) -> Any:
    """Least squares with a penalty."""
    return np.sum((x @ w - y) ** 2) + 0.1 * np.sum(w**2)


def cross_entropy(np: Any, sp: Any, z: Any) -> Any:
    """Of logits, by the logarithm of their sum of exponentials."""
    return np.mean(sp.logsumexp(z, axis=1) - z[ROWS, LABELS])


def gaussian_mixture(np: Any, sp: Any, logits: Any, means: Any, scales: Any, x: Any) -> Any:
    """Log-likelihood of points under Gaussians with diagonal covariances."""
    z = (x[:, None, :] - means) / np.exp(scales)
    each = -0.5 * np.sum(z**2, axis=2) - np.sum(scales, axis=1)
    weights = logits - sp.logsumexp(logits)
    return np.sum(sp.logsumexp(each + weights, axis=1))


def lstm_cell(np: Any, sp: Any, w: Any, b: Any, x: Any, h: Any, c: Any) -> Any:
    """One step of a long short-term memory."""
    gates = np.concatenate([x, h], axis=1) @ w + b
    i, f, o = sp.expit(gates[:, :8]), sp.expit(gates[:, 8:16]), sp.expit(gates[:, 16:24])
    c = f * c + i * np.tanh(gates[:, 24:])
    return np.sum(o * np.tanh(c))


def gru_cell(np: Any, sp: Any, w: Any, u: Any, v: Any, x: Any, h: Any) -> Any:
    """One step of a gated recurrent unit."""
    both = np.concatenate([x, h], axis=1)
    r, z = sp.expit(both @ w), sp.expit(both @ u)
    new = np.tanh(np.concatenate([x, r * h], axis=1) @ v)
    return np.sum((1.0 - z) * h + z * new)


def attention(np: Any, sp: Any, q: Any, k: Any, v: Any) -> Any:
    """One head of scaled dot products."""
    scores = q @ k.T / 4.0
    weights = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return np.sum((weights / np.sum(weights, axis=1, keepdims=True)) @ v)


def layer_norm(np: Any, sp: Any, x: Any, gain: Any, bias: Any) -> Any:
    """Rows with mean 0 and variance 1, scaled, squared so that there is a gradient."""
    centred = x - np.mean(x, axis=1, keepdims=True)
    scale = np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5)
    return np.sum((centred / scale * gain + bias) ** 2)


def cholesky_log_density(np: Any, sp: Any, a: Any, x: Any) -> Any:
    """Of a multivariate Gaussian, by the factor of its covariance."""
    factor = np.linalg.cholesky(a @ a.T + numpy.eye(5))
    z = np.linalg.solve(factor, x)
    return -0.5 * np.sum(z**2) - np.sum(np.log(factor[FIVE, FIVE]))


def gaussian_process(np: Any, sp: Any, scale: Any, noise: Any, x: Any, y: Any) -> Any:
    """Marginal likelihood of observations under a squared exponential kernel."""
    distances = (x[:, None] - x[None, :]) ** 2
    k = np.exp(-0.5 * distances * np.exp(scale)) + np.exp(noise) * numpy.eye(12)
    return -0.5 * y @ np.linalg.solve(k, y) - 0.5 * np.linalg.slogdet(k)[1]


def runge_kutta(np: Any, sp: Any, state: Any, rates: Any) -> Any:
    """Ten steps of hunters and prey."""

    def slope(s: Any) -> Any:
        a, b = s[0], s[1]
        return np.stack([rates[0] * a - rates[1] * a * b, rates[2] * a * b - rates[3] * b])

    for _ in range(10):
        k1 = slope(state)
        k2 = slope(state + 0.05 * k1)
        k3 = slope(state + 0.05 * k2)
        k4 = slope(state + 0.1 * k3)
        state = state + (k1 + 2.0 * k2 + 2.0 * k3 + k4) / 60.0
    return np.sum(state)


def n_body_energy(np: Any, sp: Any, x: Any, v: Any) -> Any:
    """Kinetic and potential energy of eight bodies."""
    apart = x[:, None, :] - x[None, :, :]
    distances = np.sqrt(np.sum(apart**2, axis=2) + 0.01)
    return 0.5 * np.sum(v**2) - 0.5 * np.sum(1.0 / distances)


def kalman_step(np: Any, sp: Any, f: Any, h: Any, mean: Any, cov: Any, y: Any) -> Any:
    """Predicts, and corrects by a measurement; its log-likelihood."""
    mean, cov = f @ mean, f @ cov @ f.T + 0.1 * numpy.eye(4)
    seen = h @ cov @ h.T + 0.5 * numpy.eye(2)
    off = y - h @ mean
    gain = np.linalg.solve(seen, h @ cov).T
    corrected = mean + gain @ off
    return np.sum(corrected**2) - 0.5 * off @ np.linalg.solve(seen, off)


def matrix_factorisation(np: Any, sp: Any, u: Any, v: Any, seen: Any, mask: Any) -> Any:
    """Squared error at what was seen, with penalties."""
    error = mask * (u @ v.T - seen)
    return np.sum(error**2) + 0.01 * (np.sum(u**2) + np.sum(v**2))


def gaussian_divergence(np: Any, sp: Any, mean: Any, log_variance: Any) -> Any:
    """Of diagonal Gaussians from the standard one."""
    return 0.5 * np.sum(np.exp(log_variance) + mean**2 - 1.0 - log_variance)


def variational_bound(np: Any, sp: Any, w: Any, v: Any, x: Any, noise: Any) -> Any:
    """A small autoencoder: what it misses, and the divergence of its code."""
    hidden = np.tanh(x @ w)
    mean, log_variance = hidden[:, :4], hidden[:, 4:]
    code = mean + np.exp(0.5 * log_variance) * noise
    logits = code @ v
    missed = np.sum(np.logaddexp(0.0, logits) - x * logits)
    return missed + 0.5 * np.sum(np.exp(log_variance) + mean**2 - 1.0 - log_variance)


def student_t(np: Any, sp: Any, freedom: Any, location: Any, x: Any) -> Any:
    """Log-likelihood under heavy tails, with as many degrees of freedom as fit."""
    constant = sp.gammaln((freedom + 1.0) / 2.0) - sp.gammaln(freedom / 2.0)
    z = (x - location) ** 2
    each = constant - 0.5 * np.log(freedom) - (freedom + 1.0) / 2.0 * np.log(1.0 + z / freedom)
    return np.sum(each)


def huber(np: Any, sp: Any, w: Any, x: Any, y: Any) -> Any:
    """Squares near zero, lines farther away."""
    off = x @ w - y
    size = np.abs(off)
    return np.mean(np.where(size < 1.0, 0.5 * off**2, size - 0.5))


def hinge(np: Any, sp: Any, w: Any, x: Any, y: Any) -> Any:
    """A support vector machine's."""
    return np.mean(np.maximum(0.0, 1.0 - (2.0 * y - 1.0) * (x @ w))) + 0.01 * np.sum(w**2)


def contrast(np: Any, sp: Any, a: Any, b: Any) -> Any:
    """Each row's own partner against all others."""
    a = a / np.sqrt(np.sum(a**2, axis=1, keepdims=True))
    b = b / np.sqrt(np.sum(b**2, axis=1, keepdims=True))
    similar = a @ b.T / 0.1
    return np.mean(sp.logsumexp(similar, axis=1) - similar[ROWS, ROWS])


def convolution(np: Any, sp: Any, kernel: Any, x: Any) -> Any:
    """In one dimension, by shifted windows, and a rectifier."""
    windows = np.stack([x[k : k + 28] for k in range(5)], axis=1)
    return np.sum(np.maximum(windows @ kernel, 0.0))


def horner(np: Any, sp: Any, coefficients: Any, x: Any) -> Any:
    """A polynomial of degree 9 at sixteen places."""
    y = 0.0 * x
    for k in range(10):
        y = y * x + coefficients[k]
    return np.sum(y**2)


def fourier_features(np: Any, sp: Any, frequencies: Any, w: Any, x: Any) -> Any:
    """Regression on sines and cosines."""
    phase = x @ frequencies
    features = np.concatenate([np.sin(phase), np.cos(phase)], axis=1)
    return np.mean((features @ w) ** 2)


def soft_neighbours(np: Any, sp: Any, a: Any, x: Any) -> Any:
    """How often points choose neighbours of their own kind, in a space that is learnt."""
    y = x @ a
    distances = np.sum((y[:, None, :] - y[None, :, :]) ** 2, axis=2) + 1e3 * numpy.eye(16)
    weights = np.exp(-distances)
    chosen = weights / np.sum(weights, axis=1, keepdims=True)
    return np.sum(chosen * (LABELS[:, None] == LABELS[None, :]))


def trajectory(np: Any, sp: Any, forces: Any) -> Any:
    """A path by forces: how far from its goal it ends, how hard it was pushed."""
    speed = np.cumsum(forces, axis=0) * 0.1
    place = np.cumsum(speed, axis=0) * 0.1
    return np.sum((place[-1] - 1.0) ** 2) + 0.01 * np.sum(forces**2)


def hidden_markov(np: Any, sp: Any, first: Any, moves: Any, seen: Any) -> Any:
    """The forward algorithm in logarithms, twelve observations."""
    moves = moves - sp.logsumexp(moves, axis=1, keepdims=True)
    alpha = first - sp.logsumexp(first) + seen[0]
    for k in range(1, 12):
        alpha = sp.logsumexp(alpha[:, None] + moves, axis=0) + seen[k]
    return sp.logsumexp(alpha)


def two_layers(np: Any, sp: Any, w: Any, b: Any, v: Any, c: Any, x: Any) -> Any:
    """A small network, squared."""
    return np.mean((np.tanh(x @ w + b) @ v + c) ** 2)


def policy_gradient(np: Any, sp: Any, w: Any, x: Any, gains: Any) -> Any:
    """Of actions that were taken, with a bonus for entropy."""
    z = x @ w
    logs = z - sp.logsumexp(z, axis=1, keepdims=True)
    entropy = -np.sum(np.exp(logs) * logs)
    return -np.sum(gains * logs[ROWS, LABELS]) - 0.01 * entropy


def black_scholes(np: Any, sp: Any, price: Any, volatility: Any) -> Any:
    """Values of options to buy, whose gradients are their Greeks."""
    d1 = (np.log(price / 100.0) + 0.5 * volatility**2) / volatility
    d2 = d1 - volatility
    root = numpy.sqrt(2.0)
    bought = price * 0.5 * (1.0 + sp.erf(d1 / root))
    return np.sum(bought - 100.0 * 0.5 * (1.0 + sp.erf(d2 / root)))


FUNCTIONS: tuple[Function, ...] = (
    rosenbrock,
    logistic_regression,
    ridge_regression,
    cross_entropy,
    gaussian_mixture,
    lstm_cell,
    gru_cell,
    attention,
    layer_norm,
    cholesky_log_density,
    gaussian_process,
    runge_kutta,
    n_body_energy,
    kalman_step,
    matrix_factorisation,
    gaussian_divergence,
    variational_bound,
    student_t,
    huber,
    hinge,
    contrast,
    convolution,
    horner,
    fourier_features,
    soft_neighbours,
    trajectory,
    hidden_markov,
    two_layers,
    policy_gradient,
    black_scholes,
)
# Shapes of the arrays that are differentiated, and of those that are not.
SHAPES: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]] = {
    "rosenbrock": (((10,),), ()),
    "logistic_regression": (((10,),), ((16, 10), (16,))),
    "ridge_regression": (((10,),), ((16, 10), (16,))),
    "cross_entropy": (((16, 10),), ()),
    "gaussian_mixture": (((4,), (4, 3), (4, 3)), ((32, 3),)),
    "lstm_cell": (((16, 32), (32,)), ((4, 8), (4, 8), (4, 8))),
    "gru_cell": (((16, 8), (16, 8), (16, 8)), ((4, 8), (4, 8))),
    "attention": (((12, 16), (12, 16), (12, 16)), ()),
    "layer_norm": (((8, 16), (16,), (16,)), ()),
    "cholesky_log_density": (((5, 5),), ((5,),)),
    "gaussian_process": (((), ()), ((12,), (12,))),
    "runge_kutta": (((2,), (4,)), ()),
    "n_body_energy": (((8, 3), (8, 3)), ()),
    "kalman_step": (((4, 4), (2, 4)), ((4,), (4, 4), (2,))),
    "matrix_factorisation": (((12, 3), (10, 3)), ((12, 10), (12, 10))),
    "gaussian_divergence": (((16, 4), (16, 4)), ()),
    "variational_bound": (((10, 8), (4, 10)), ((16, 10), (16, 4))),
    "student_t": (((), ()), ((32,),)),
    "huber": (((10,),), ((16, 10), (16,))),
    "hinge": (((10,),), ((16, 10), (16,))),
    "contrast": (((16, 8), (16, 8)), ()),
    "convolution": (((5,),), ((32,),)),
    "horner": (((10,),), ((16,),)),
    "fourier_features": (((3, 8), (16,)), ((16, 3),)),
    "soft_neighbours": (((4, 2),), ((16, 4),)),
    "trajectory": (((20, 2),), ()),
    "hidden_markov": (((3,), (3, 3)), ((12, 3),)),
    "two_layers": (((10, 8), (8,), (8, 2), (2,)), ((16, 10),)),
    "policy_gradient": (((8, 10),), ((16, 8), (16,))),
    "black_scholes": (((8,), (8,)), ()),
}
# Where numbers around zero make no sense.
POSITIVE = {"student_t": (0,), "black_scholes": (0, 1)}


def inputs(name: str) -> tuple[list[Any], list[Any]]:
    """Returns the arrays of a function that are differentiated, and those that are not."""
    rng = numpy.random.default_rng(sum(map(ord, name)))
    free, fixed = SHAPES[name]
    arrays = [0.5 * rng.standard_normal(shape) for shape in free]
    for k in POSITIVE.get(name, ()):
        arrays[k] = numpy.abs(arrays[k]) + 0.5
    if name == "black_scholes":
        arrays[0] = 100.0 * arrays[0]
    others = [0.5 * rng.standard_normal(shape) for shape in fixed]
    if name in ("logistic_regression", "hinge"):
        others[1] = (others[1] > 0).astype(float)
    if name == "matrix_factorisation":
        others[1] = (others[1] > 0).astype(float)
    return [numpy.asarray(a) for a in arrays], [numpy.asarray(a) for a in others]
