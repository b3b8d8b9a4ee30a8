"""Ten steps of every optimizer and option, thirty learning rates of every scheduler, clipped norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from golden.builder import dyadic

__all__ = ["clippings", "schedules", "trajectories"]

STEPS, EPOCHS = 10, 30
SHAPES = [(2, 3), (3,), ()]

# fmt: off
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.125}), ("SGD", {"lr": 0.125, "weight_decay": 0.25}), ("SGD", {"lr": 0.125, "momentum": 0.75}),
    ("SGD", {"lr": 0.125, "momentum": 0.75, "dampening": 0.5}), ("SGD", {"lr": 0.125, "momentum": 0.75, "nesterov": True}),
    ("SGD", {"lr": 0.125, "momentum": 0.75, "nesterov": True, "weight_decay": 0.25}), ("SGD", {"lr": 0.125, "momentum": 0.75, "weight_decay": 0.25, "dampening": 0.25}),
    ("Adagrad", {}), ("Adagrad", {"lr": 0.5, "lr_decay": 0.25}), ("Adagrad", {"lr": 0.5, "weight_decay": 0.125}), ("Adagrad", {"lr": 0.5, "initial_accumulator_value": 0.25, "eps": 0.01}),
    ("RMSprop", {}), ("RMSprop", {"lr": 0.125, "alpha": 0.75}), ("RMSprop", {"lr": 0.125, "alpha": 0.75, "momentum": 0.5}), ("RMSprop", {"lr": 0.125, "centered": True}),
    ("RMSprop", {"lr": 0.125, "centered": True, "momentum": 0.5, "weight_decay": 0.25, "eps": 0.01}),
    ("Adam", {}), ("Adam", {"lr": 0.125, "betas": (0.5, 0.75)}), ("Adam", {"lr": 0.125, "weight_decay": 0.25}), ("Adam", {"lr": 0.125, "amsgrad": True, "betas": (0.5, 0.75)}),
    ("Adam", {"lr": 0.125, "eps": 0.01, "amsgrad": True, "weight_decay": 0.25}),
    ("AdamW", {}), ("AdamW", {"lr": 0.125, "betas": (0.5, 0.75)}), ("AdamW", {"lr": 0.125, "weight_decay": 0.25}), ("AdamW", {"lr": 0.125, "amsgrad": True, "betas": (0.5, 0.75)}),
]
PLATEAU = [0.1 * abs(10 - t) + (t % 3) for t in range(EPOCHS)]
SCHEDULERS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("StepLR", [7], {}), ("StepLR", [4], {"gamma": 0.5}), ("MultiStepLR", [[3, 10, 20]], {"gamma": 0.5}), ("ExponentialLR", [0.9], {}),
    ("LinearLR", [], {}), ("LinearLR", [], {"start_factor": 0.125, "end_factor": 0.75, "total_iters": 12}),
    ("CosineAnnealingLR", [20], {}), ("CosineAnnealingLR", [30], {"eta_min": 0.0625}), ("LambdaLR", ["one over root"], {}),
    ("OneCycleLR", [0.75, 31], {}), ("OneCycleLR", [0.75, 40], {"pct_start": 0.25, "anneal_strategy": "linear", "div_factor": 10.0, "final_div_factor": 100.0}),
    ("OneCycleLR", [0.75, 35], {"cycle_momentum": False}), ("OneCycleLR", [0.75, 35], {"base_momentum": 0.5, "max_momentum": 0.875}),
    ("SequentialLR", [[("LinearLR", [], {"start_factor": 0.125, "total_iters": 5}), ("CosineAnnealingLR", [25], {})], [5]], {}),
    ("SequentialLR", [[("LinearLR", [], {"total_iters": 3}), ("StepLR", [4], {"gamma": 0.5}), ("ExponentialLR", [0.75], {})], [4, 17]], {}),
    ("ReduceLROnPlateau", [], {"patience": 2, "factor": 0.5}), ("ReduceLROnPlateau", [], {"patience": 0, "factor": 0.5, "cooldown": 3, "min_lr": 0.03125}),
    ("ReduceLROnPlateau", [], {"patience": 1, "mode": "max", "factor": 0.75, "threshold": 0.05, "threshold_mode": "abs"}),
]
# fmt: on
LAMBDAS = {"one over root": lambda t: 1.0 / (1.0 + t) ** 0.5}


def trajectories() -> list[dict[str, Any]]:
    """Returns parameters after each step, by given gradients, and what is remembered at the end."""
    made = []
    for seed, (name, options) in enumerate(OPTIMIZERS):
        for groups in (False, True)[: 1 + (seed % 4 == 0)]:
            rng = np.random.default_rng(seed)
            start = [dyadic(rng, shape, -2.0, 2.0) for shape in SHAPES]
            gradients = [dyadic(rng, (STEPS, *shape), -1.0, 1.0) for shape in SHAPES]
            params = [torch.from_numpy(a.copy()).requires_grad_() for a in start]
            given: Any = params
            if groups:
                given = [{"params": params[:1], "lr": 0.25}, {"params": params[1:]}]
            optimizer = getattr(torch.optim, name)(given, **options, foreach=False)
            after = [np.empty((STEPS, *shape)) for shape in SHAPES]
            for t in range(STEPS):
                for p, g in zip(params, gradients, strict=True):
                    p.grad = torch.from_numpy(np.asarray(g[t]))
                optimizer.step()
                for p, kept in zip(params, after, strict=True):
                    kept[t] = p.detach().numpy()
            state = {
                key: x.numpy()
                for key, x in optimizer.state_dict()["state"].get(0, {}).items()
                if torch.is_tensor(x) and x.ndim
            }
            made.append({"class": name, "options": options, "groups": groups, "start": start,
                         "gradients": gradients, "after": after, "state": state})  # fmt: skip
    return made


def schedules() -> list[dict[str, Any]]:
    """Returns the learning rate, and the momentum, of each of thirty steps."""
    made = []
    for name, args, options in SCHEDULERS:
        optimizer = torch.optim.SGD([torch.zeros(2).requires_grad_()], lr=0.5, momentum=0.75)
        scheduler = scheduled(optimizer, name, args, options)
        rates, momenta = np.empty(EPOCHS), np.empty(EPOCHS)
        for t in range(EPOCHS):
            rates[t] = optimizer.param_groups[0]["lr"]
            momenta[t] = optimizer.param_groups[0]["momentum"]
            optimizer.step()
            scheduler.step(*[PLATEAU[t]] if name == "ReduceLROnPlateau" else [])
        made.append({"class": name, "args": args, "options": options, "rates": rates,
                     "momenta": momenta, "metrics": PLATEAU if "Plateau" in name else None})  # fmt: skip
    return made


def scheduled(optimizer: Any, name: str, args: list[Any], options: dict[str, Any]) -> Any:
    """Returns torch's scheduler."""
    if name == "LambdaLR":
        args = [LAMBDAS[args[0]]]
    if name == "SequentialLR":
        args = [[scheduled(optimizer, *each) for each in args[0]], args[1]]
    return getattr(torch.optim.lr_scheduler, name)(optimizer, *args, **options)


def clippings() -> list[dict[str, Any]]:
    """Returns gradients before and after they were clipped."""
    made = []
    for limit, order in [(0.5, 2.0), (100.0, 2.0), (0.5, 1.0), (0.25, float("inf")), (1.0, 3.0)]:
        rng = np.random.default_rng(5)
        gradients = [dyadic(rng, shape, -1.0, 1.0) for shape in SHAPES]
        params = [torch.zeros(shape).requires_grad_() for shape in SHAPES]
        for p, g in zip(params, gradients, strict=True):
            p.grad = torch.from_numpy(g.copy())
        total = torch.nn.utils.clip_grad_norm_(params, limit, norm_type=order)
        made.append({"limit": limit, "order": order, "gradients": gradients,
                     "total": total.numpy(), "clipped": [p.grad.numpy() for p in params]})  # fmt: skip
    return made
