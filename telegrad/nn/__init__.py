"""Modules, which own parameters and compute with them."""

from telegrad.autograd import autocast, current_generator, manual_seed
from telegrad.nn import functional, init, utils
from telegrad.nn.activation import (
    ELU,
    GELU,
    GLU,
    SELU,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from telegrad.nn.attention import MultiheadAttention
from telegrad.nn.containers import ModuleDict, ModuleList, ParameterList
from telegrad.nn.convolution import AdaptiveAvgPool2d, AvgPool2d, Conv1d, Conv2d, Flatten, MaxPool2d
from telegrad.nn.dropout import Dropout
from telegrad.nn.embedding import Embedding
from telegrad.nn.layers import Identity, Linear, Sequential
from telegrad.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from telegrad.nn.module import IncompatibleKeys, Module, Parameter
from telegrad.nn.normalization import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from telegrad.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from telegrad.nn.transformer import TransformerEncoderLayer

__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "IncompatibleKeys",
    "KLDivLoss",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "ParameterList",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "TransformerEncoderLayer",
    "autocast",
    "current_generator",
    "functional",
    "init",
    "manual_seed",
    "utils",
]
