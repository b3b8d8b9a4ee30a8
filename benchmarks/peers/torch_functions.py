"""The functions of `small_functions.py` as one writes them with torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from small_functions import LABELS

__all__ = ["FUNCTIONS"]

LABELS_HERE = torch.from_numpy(LABELS)
SAME = (LABELS_HERE[:, None] == LABELS_HERE[None, :]).double()
EYE4, EYE2, EYE5, EYE12, EYE16 = (torch.eye(n, dtype=torch.float64) for n in (4, 2, 5, 12, 16))
ZERO = torch.zeros((), dtype=torch.float64)


def rosenbrock(x: Any) -> Any:
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


def logistic_regression(w: Any, x: Any, y: Any) -> Any:
    z = x @ w
    return (torch.logaddexp(ZERO, z) - y * z).mean()


def ridge_regression(w: Any, x: Any, y: Any) -> Any:
    return ((x @ w - y) ** 2).sum() + 0.1 * (w**2).sum()


def cross_entropy(z: Any) -> Any:
    return F.cross_entropy(z, LABELS_HERE)


def gaussian_mixture(logits: Any, means: Any, scales: Any, x: Any) -> Any:
    z = (x[:, None, :] - means) / scales.exp()
    each = -0.5 * (z**2).sum(2) - scales.sum(1)
    return torch.logsumexp(each + logits - torch.logsumexp(logits, 0), 1).sum()


def lstm_cell(w: Any, b: Any, x: Any, h: Any, c: Any) -> Any:
    gates = torch.cat([x, h], 1) @ w + b
    i, f, o, g = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return (torch.sigmoid(o) * torch.tanh(c)).sum()


def gru_cell(w: Any, u: Any, v: Any, x: Any, h: Any) -> Any:
    both = torch.cat([x, h], 1)
    r, z = torch.sigmoid(both @ w), torch.sigmoid(both @ u)
    new = torch.tanh(torch.cat([x, r * h], 1) @ v)
    return ((1.0 - z) * h + z * new).sum()


def attention(q: Any, k: Any, v: Any) -> Any:
    return (torch.softmax(q @ k.T / 4.0, 1) @ v).sum()


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    return (F.layer_norm(x, (16,), gain, bias, 1e-5) ** 2).sum()


def cholesky_log_density(a: Any, x: Any) -> Any:
    factor = torch.linalg.cholesky(a @ a.T + EYE5)
    z = torch.linalg.solve(factor, x)
    return -0.5 * (z**2).sum() - torch.diagonal(factor).log().sum()


def gaussian_process(scale: Any, noise: Any, x: Any, y: Any) -> Any:
    distances = (x[:, None] - x[None, :]) ** 2
    k = torch.exp(-0.5 * distances * scale.exp()) + noise.exp() * EYE12
    return -0.5 * y @ torch.linalg.solve(k, y) - 0.5 * torch.linalg.slogdet(k)[1]


def runge_kutta(state: Any, rates: Any) -> Any:
    def slope(s: Any) -> Any:
        a, b = s[0], s[1]
        return torch.stack([rates[0] * a - rates[1] * a * b, rates[2] * a * b - rates[3] * b])

    for _ in range(10):
        k1 = slope(state)
        k2 = slope(state + 0.05 * k1)
        k3 = slope(state + 0.05 * k2)
        k4 = slope(state + 0.1 * k3)
        state = state + (k1 + 2.0 * k2 + 2.0 * k3 + k4) / 60.0
    return state.sum()


def n_body_energy(x: Any, v: Any) -> Any:
    apart = x[:, None, :] - x[None, :, :]
    distances = ((apart**2).sum(2) + 0.01).sqrt()
    return 0.5 * (v**2).sum() - 0.5 * (1.0 / distances).sum()


def kalman_step(f: Any, h: Any, mean: Any, cov: Any, y: Any) -> Any:
    mean, cov = f @ mean, f @ cov @ f.T + 0.1 * EYE4
    seen = h @ cov @ h.T + 0.5 * EYE2
    off = y - h @ mean
    gain = torch.linalg.solve(seen, h @ cov).T
    corrected = mean + gain @ off
    return (corrected**2).sum() - 0.5 * off @ torch.linalg.solve(seen, off)


def matrix_factorisation(u: Any, v: Any, seen: Any, mask: Any) -> Any:
    error = mask * (u @ v.T - seen)
    return (error**2).sum() + 0.01 * ((u**2).sum() + (v**2).sum())


def gaussian_divergence(mean: Any, log_variance: Any) -> Any:
    return 0.5 * (log_variance.exp() + mean**2 - 1.0 - log_variance).sum()


def variational_bound(w: Any, v: Any, x: Any, noise: Any) -> Any:
    hidden = torch.tanh(x @ w)
    mean, log_variance = hidden[:, :4], hidden[:, 4:]
    code = mean + (0.5 * log_variance).exp() * noise
    logits = code @ v
    missed = (torch.logaddexp(ZERO, logits) - x * logits).sum()
    return missed + 0.5 * (log_variance.exp() + mean**2 - 1.0 - log_variance).sum()


def student_t(freedom: Any, location: Any, x: Any) -> Any:
    constant = torch.lgamma((freedom + 1.0) / 2.0) - torch.lgamma(freedom / 2.0)
    z = (x - location) ** 2
    each = constant - 0.5 * freedom.log() - (freedom + 1.0) / 2.0 * (1.0 + z / freedom).log()
    return each.sum()


def huber(w: Any, x: Any, y: Any) -> Any:
    return F.huber_loss(x @ w, y)


def hinge(w: Any, x: Any, y: Any) -> Any:
    return torch.relu(1.0 - (2.0 * y - 1.0) * (x @ w)).mean() + 0.01 * (w**2).sum()


def contrast(a: Any, b: Any) -> Any:
    a = a / (a**2).sum(1, keepdim=True).sqrt()
    b = b / (b**2).sum(1, keepdim=True).sqrt()
    similar = a @ b.T / 0.1
    return (torch.logsumexp(similar, 1) - torch.diagonal(similar)).mean()


def convolution(kernel: Any, x: Any) -> Any:
    windows = torch.stack([x[k : k + 28] for k in range(5)], 1)
    return torch.relu(windows @ kernel).sum()


def horner(coefficients: Any, x: Any) -> Any:
    y = 0.0 * x
    for k in range(10):
        y = y * x + coefficients[k]
    return (y**2).sum()


def fourier_features(frequencies: Any, w: Any, x: Any) -> Any:
    phase = x @ frequencies
    return ((torch.cat([phase.sin(), phase.cos()], 1) @ w) ** 2).mean()


def soft_neighbours(a: Any, x: Any) -> Any:
    y = x @ a
    distances = ((y[:, None, :] - y[None, :, :]) ** 2).sum(2) + 1e3 * EYE16
    weights = (-distances).exp()
    return (weights / weights.sum(1, keepdim=True) * SAME).sum()


def trajectory(forces: Any) -> Any:
    speed = torch.cumsum(forces, 0) * 0.1
    place = torch.cumsum(speed, 0) * 0.1
    return ((place[-1] - 1.0) ** 2).sum() + 0.01 * (forces**2).sum()


def hidden_markov(first: Any, moves: Any, seen: Any) -> Any:
    moves = torch.log_softmax(moves, 1)
    alpha = torch.log_softmax(first, 0) + seen[0]
    for k in range(1, 12):
        alpha = torch.logsumexp(alpha[:, None] + moves, 0) + seen[k]
    return torch.logsumexp(alpha, 0)


def two_layers(w: Any, b: Any, v: Any, c: Any, x: Any) -> Any:
    return ((torch.tanh(x @ w + b) @ v + c) ** 2).mean()


def policy_gradient(w: Any, x: Any, gains: Any) -> Any:
    logs = torch.log_softmax(x @ w, 1)
    taken = logs.gather(1, LABELS_HERE[:, None])[:, 0]
    return -(gains * taken).sum() + 0.01 * (logs.exp() * logs).sum()


def black_scholes(price: Any, volatility: Any) -> Any:
    d1 = ((price / 100.0).log() + 0.5 * volatility**2) / volatility
    d2 = d1 - volatility
    root = math.sqrt(2.0)
    bought = price * 0.5 * (1.0 + torch.erf(d1 / root))
    return (bought - 100.0 * 0.5 * (1.0 + torch.erf(d2 / root))).sum()


FUNCTIONS: tuple[Callable[..., Any], ...] = (
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
