"""What the packages above do with a tensor's place in the graph and its memory; not for users."""

from __future__ import annotations

from telegrad.autograd.generator import repeatable
from telegrad.autograd.graph.autocast import cast_as
from telegrad.autograd.graph.graph_task import add_to
from telegrad.autograd.graph.halves import HalvedBackward
from telegrad.autograd.graph.user_warning import warn_user
from telegrad.autograd.tensor.tensor import (
    array_of,
    change_rows,
    edge_of,
    graph_root,
    post_accumulate_hooks,
    replace_all,
    replace_data,
    steady,
)

__all__ = [
    "HalvedBackward",
    "add_to",
    "array_of",
    "cast_as",
    "change_rows",
    "edge_of",
    "graph_root",
    "post_accumulate_hooks",
    "repeatable",
    "replace_all",
    "replace_data",
    "steady",
    "warn_user",
]
