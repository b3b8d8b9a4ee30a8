"""Optimizers, which apply pure array updates to parameters, and learning-rate schedules."""

from telegrad.optim.adam import Adam, AdamW
from telegrad.optim.groups import Group, HasGroups
from telegrad.optim.lion import Lion
from telegrad.optim.loss_scale import LossScale
from telegrad.optim.optimizer import Optimizer, Params, State
from telegrad.optim.rmsprop import Adagrad, RMSprop
from telegrad.optim.schedulers import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    Scheduler,
    SequentialLR,
    StepLR,
)
from telegrad.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineAnnealingLR",
    "ExponentialLR",
    "Group",
    "HasGroups",
    "LambdaLR",
    "LinearLR",
    "Lion",
    "LossScale",
    "MultiStepLR",
    "OneCycleLR",
    "Optimizer",
    "Params",
    "RMSprop",
    "ReduceLROnPlateau",
    "Scheduler",
    "SequentialLR",
    "State",
    "StepLR",
]
