"""Groups, schedulers, clipping, loss scales and saved state of the distributed optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from telegrad import dist_autograd, optim, rpc
from telegrad.autograd import RowSparse, tensor
from telegrad.errors import ContextError, InvalidUseError
from telegrad.nn import Embedding, Parameter
from telegrad.nn.utils import clip_grad_norm_
from telegrad.parallel import (
    DistributedOptimizer,
    LossScale,
    RemoteModule,
    parameter_rrefs,
    step_failure,
)
from telegrad.parallel.optimizer.owners import _norm
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.parallel.optimizer.trained_parts import (
    XS,
    Part,
    close,
    grouped,
    here,
    loss_of,
    make_parts,
    rrefs_of,
    step,
    step_here,
    values,
)

RELATIVE = 1e-12
TWO = ("worker0", "worker1")


def local(n: int) -> tuple[list[Part], list[Any]]:
    parts = [Part(i) for i in range(n)]
    return parts, [p for part in parts for p in part.parameters()]


# -- groups and schedulers -----------------------------------------------------------------------


def groups_over_owners() -> None:
    parts = make_parts([*TWO, "worker1"])
    optimizer = DistributedOptimizer(optim.SGD, grouped(rrefs_of(parts)), lr=0.1)
    assert [group["params"] for group in optimizer.param_groups] == [[0, 1, 2], [3, 4, 5]]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.02]
    own, params = local(3)
    expected = optim.SGD(grouped(params), lr=0.1)
    for i, x in enumerate(XS[:6]):
        step(optimizer, parts, x)
        step_here(expected, own, x)
        if i == 3:
            for group in (*optimizer.param_groups, *expected.param_groups):
                group["lr"] /= 2
    close(values(parts), values(own))


def test_groups_go_across_owners(cluster: Cluster) -> None:
    cluster.call(0, groups_over_owners)


def scheduled() -> None:
    parts = make_parts(TWO)
    optimizer = DistributedOptimizer(optim.SGD, grouped(rrefs_of(parts)), lr=0.1, momentum=0.9)
    own, params = local(2)
    expected = optim.SGD(grouped(params), lr=0.1, momentum=0.9)
    schedulers = [optim.OneCycleLR(each, 0.2, 8) for each in (optimizer, expected)]
    for x in XS[:7]:
        step(optimizer, parts, x)
        step_here(expected, own, x)
        for scheduler in schedulers:
            scheduler.step()
        assert schedulers[0].get_last_lr() == schedulers[1].get_last_lr()
    close(values(parts), values(own))
    assert optimizer.param_groups[0]["lr"] != 0.1


def test_schedulers_drive_the_rates_of_all_owners(cluster: Cluster) -> None:
    cluster.call(0, scheduled)


def bad_input() -> None:
    rrefs = rrefs_of(make_parts(["worker1"]))
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (Part, rrefs, TypeError, "must be a subclass of telegrad.optim.Optimizer"),
        (optim.SGD, [], ValueError, "at least one parameter"),
        (optim.SGD, rrefs[0], TypeError, r"write \[rref\]"),
        (optim.SGD, [Part(0)], TypeError, r"params_rref\[0\] must be an RRef"),
        (optim.SGD, [rpc.RRef("no parameter")], TypeError, "not of a parameter"),
        (optim.SGD, [{"params": rrefs, "rate": 1.0}], ValueError, "SGD has no option rate"),
        (optim.SGD, [{"params": rrefs, "lr": -1.0}], ValueError, "SGD needs lr >= 0"),
        (optim.SGD, [{"params": rrefs}, {"params": []}], ValueError, "each group"),
        (optim.SGD, [{"params": rrefs}, rrefs[0]], TypeError, r"params_rref\[1\] must be a dict"),
        (optim.SGD, [{"params": [1.0]}], TypeError, r"params_rref\[0\]\['params'\]\[0\] must be"),
        (optim.SGD, {"params": rrefs}, TypeError, "must be a list of RRefs"),
        (optim.SGD, [{"params": rrefs}, {"params": rrefs[0]}], ValueError, "given twice"),
    ]
    for optimizer_class, params, error, words in cases:
        with pytest.raises(error, match=words):
            DistributedOptimizer(optimizer_class, params)
    parts = make_parts(TWO)
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts))
    before = values(parts)
    with dist_autograd.context() as context_id:
        optimizer.step(context_id)  # no gradients: nothing is stepped
    with pytest.raises(ContextError, match="released"):
        optimizer.step(context_id)
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="SGD needs lr >= 0"):
        step(optimizer, parts, XS[0])
    close(values(parts), before)


def test_bad_input_is_told_of(cluster: Cluster) -> None:
    cluster.call(0, bad_input)


def added_group() -> None:
    parts = make_parts(["worker1", "worker1", "worker2"])
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts[:1]), lr=0.1, momentum=0.9)
    optimizer.add_param_group({"params": rrefs_of(parts[1:]), "lr": 0.02})
    assert [group["params"] for group in optimizer.param_groups] == [[0, 1], [2, 3, 4, 5]]
    sent = rpc.statistics().calls_sent
    own, params = local(3)
    groups: list[Any] = [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]
    expected = optim.SGD(groups, lr=0.1, momentum=0.9)
    for x in XS[:3]:
        step(optimizer, parts, x)
        step_here(expected, own, x)
    assert rpc.statistics().calls_sent - sent == 3 * (3 + 2)  # three forwards, two owners
    close(values(parts), values(own))
    close(list(flat(optimizer.state_dict())), list(flat(expected.state_dict())))
    with pytest.raises(TypeError, match="takes a dict"):
        optimizer.add_param_group(rrefs_of(parts))  # type: ignore[arg-type]
    together = DistributedOptimizer(optim.SGD, rrefs_of(parts[:1]), trainers=[0])
    with pytest.raises(ValueError, match="synchronous optimizer has the groups"):
        together.add_param_group({"params": rrefs_of(parts[1:])})


def test_a_group_may_be_added(cluster: Cluster) -> None:
    cluster.call(0, added_group)


def added_after_a_scheduler() -> None:
    parts = make_parts(["worker1", "worker2"])
    optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts[:1]), lr=0.1, momentum=0.9)
    own, params = local(2)
    expected = optim.SGD(params[:2], lr=0.1, momentum=0.9)
    schedulers = [optim.OneCycleLR(each, 0.2, 8) for each in (optimizer, expected)]
    for x in XS[:6]:
        step(optimizer, parts, x)
        step_here(expected, own, x)
        for scheduler in schedulers:
            scheduler.step()
        if x is XS[2]:
            optimizer.add_param_group({"params": rrefs_of(parts[1:]), "lr": 0.02})
            expected.add_param_group({"params": params[2:], "lr": 0.02})
        assert schedulers[0].get_last_lr() == schedulers[1].get_last_lr()
    close(values(parts), values(own))


def test_a_group_may_be_added_after_a_scheduler(cluster: Cluster) -> None:
    cluster.call(0, added_after_a_scheduler)


def edited_groups() -> None:
    parts = make_parts(TWO)
    optimizer = DistributedOptimizer(optim.SGD, grouped(rrefs_of(parts)), lr=0.1)
    before, whole = values(parts), list(optimizer.param_groups)
    edits: list[tuple[Callable[[list[Any]], Any], str]] = [
        (lambda groups: groups.append({"params": [4], "lr": 1.0}), r"param_groups\[2\]"),
        (lambda groups: groups.pop(0), r"param_groups\[0\]"),  # the others would get its rate
        (lambda groups: groups[1]["params"].pop(), r"param_groups\[1\]"),
    ]
    for edit, words in edits:
        edit(optimizer.param_groups)
        for act in (lambda: step(optimizer, parts, XS[0]), optimizer.state_dict):
            with pytest.raises(ValueError, match=f"{words}.* write add_param_group"):
                act()
        optimizer.param_groups[:] = whole
    close(values(parts), before)


def test_groups_of_which_no_owner_has_heard_are_refused(cluster: Cluster) -> None:
    cluster.call(0, edited_groups)


# -- the norm over all owners ---------------------------------------------------------------------


def clipped(max_norm: float) -> None:
    parts = make_parts(["worker0", "worker1", "worker2"])
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, momentum=0.9, max_norm=max_norm
    )
    own, params = local(3)
    expected = optim.SGD(params, lr=0.1, momentum=0.9)
    for x in XS[:5]:
        result = step(optimizer, parts, x)
        expected.zero_grad()
        loss_of(own, x).backward()
        norm = clip_grad_norm_(params, max_norm)
        expected.step()
        assert result.norm == pytest.approx(norm, rel=RELATIVE)
    close(values(parts), values(own))


@pytest.mark.parametrize("max_norm", [1.0, 1e6])
def test_gradients_are_clipped_by_the_norm_over_all_owners(
    cluster: Cluster, max_norm: float
) -> None:
    cluster.call(0, clipped, max_norm)


class Table(Embedding):
    """The same wherever it is made."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        super().__init__(6, 2, sparse=True, dtype=np.float64, rng=rng)

    def data(self) -> list[Array]:
        return [self.weight.data]


def clipped_rows() -> None:
    table, head = rpc.remote("worker1", Table), Part(0)
    rrefs = [*parameter_rrefs(table), *parameter_rrefs(head)]
    optimizer = DistributedOptimizer(optim.SGD, rrefs, lr=0.1, max_norm=0.5, trainers=[0])
    own, own_head = Table(), Part(0)
    params: list[Any] = [own.weight, *own_head.parameters()]
    expected = optim.SGD(params, lr=0.1)
    for rows in ([0, 3, 3], [3, 5, 1]):
        with dist_autograd.context() as context_id:
            loss = head((table.rpc_sync().forward(np.array(rows))).sum(axis=1))
            dist_autograd.backward(context_id, [loss])
            result = optimizer.step(context_id)
        expected.zero_grad()
        head_loss = own_head(own(np.array(rows)).sum(axis=1))
        head_loss.backward()
        assert isinstance(params[0].grad, RowSparse)
        assert result.norm == pytest.approx(clip_grad_norm_(params, 0.5), rel=RELATIVE)
        expected.step()
    close([*table.rpc_sync().data(), *head.data()], [*own.data(), *own_head.data()])


def test_rows_are_clipped_and_stepped(cluster: Cluster) -> None:
    cluster.call(0, clipped_rows)


def calls_of_a_step() -> None:
    parts = make_parts(["worker0", "worker1", "worker2"])
    for options, calls in (
        ({}, 3),
        ({"max_norm": 1.0}, 6),
        ({"loss_scale": LossScale()}, 6),
        ({"max_norm": 1.0, "loss_scale": LossScale()}, 6),
        ({"trainers": ["worker0"]}, 1 + 3),
        ({"trainers": ["worker0"], "max_norm": 1.0}, 1 + 6),
        ({"trainers": ["worker0"], "staleness": 2}, 3 + 1),
    ):
        optimizer = DistributedOptimizer(optim.SGD, rrefs_of(parts), lr=0.01, **options)
        step(optimizer, parts, XS[0])  # the first one asks whether this worker is a trainer
        before = rpc.statistics().calls_sent
        step(optimizer, parts, XS[0])
        assert rpc.statistics().calls_sent - before - len(parts) == calls, options


def test_a_step_is_one_call_to_each_owner_or_two(cluster: Cluster) -> None:
    cluster.call(0, calls_of_a_step)


@pytest.mark.parametrize(
    ("gradient", "norm"),
    [
        (np.array([3.0, 4.0]), 5.0),
        (np.array([3e25, 4e25], np.float32), 5e25),
        (np.array([3e-25, 4e-25], np.float32), 5e-25),
        (np.array([3e200, 4e200]), 5e200),
        (np.array([300.0, 400.0], np.float16), 500.0),
        (np.array(-2.0), 2.0),
        (np.zeros((0, 3)), 0.0),
        (np.zeros(3), 0.0),
        (np.array([3j, 4.0]), 5.0),
        (np.array([1.0, np.inf]), math.inf),
        (np.array([1.0, np.nan], np.float32), math.nan),
        (RowSparse(np.array([1, 1]), np.array([[1.0, 2.0], [2.0, 2.0]]), (5, 2)), 5.0),
    ],
)
def test_a_norm_is_finite_where_all_items_are(gradient: Any, norm: float) -> None:
    assert _norm(gradient) == pytest.approx(norm, rel=1e-5, nan_ok=True)


# -- loss scales ----------------------------------------------------------------------------------


def scaled_steps() -> None:
    parts = make_parts(TWO)
    scale = LossScale(2.0**10, interval=2)
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, momentum=0.9, loss_scale=scale
    )
    loss = tensor(2.0)
    assert optimizer.scale_loss(loss).item() == 2.0**11
    for x in XS[:4]:
        assert step(optimizer, parts, x).stepped
    assert scale.value == 2.0**12
    close(values(parts), here(2, XS[:4], optim.SGD, lr=0.1, momentum=0.9))


def test_a_scaled_loss_makes_the_same_steps(cluster: Cluster) -> None:
    cluster.call(0, scaled_steps)


def overflow_at_one_owner() -> None:
    parts = make_parts(TWO)
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, momentum=0.9, loss_scale=LossScale(8.0), max_norm=1e9
    )
    x = XS[0]
    with np.errstate(all="ignore"):
        for bad in (np.inf, np.nan):
            before = values(parts)
            with_bad = step_with(optimizer, parts, [x, np.array([1.0, bad, 1.0])])
            assert not with_bad.stepped
            assert with_bad.norm is not None
            assert not math.isfinite(with_bad.norm)
            close(values(parts), before)
    assert optimizer.loss_scale is not None
    assert optimizer.loss_scale.value == 2.0
    assert step(optimizer, parts, x).stepped  # momentum and all is as if nothing had been
    close(values(parts), here(2, [x], optim.SGD, lr=0.1, momentum=0.9))


def step_with(optimizer: DistributedOptimizer, parts: Sequence[Any], xs: Sequence[Array]) -> Any:
    with dist_autograd.context() as context_id:
        losses = [part.rpc_sync().forward(tensor(x)) for part, x in zip(parts, xs, strict=True)]
        dist_autograd.backward(context_id, [optimizer.scale_loss(sum(losses))])
        return optimizer.step(context_id)


def test_an_overflow_at_one_owner_is_a_step_of_none(cluster: Cluster) -> None:
    cluster.call(0, overflow_at_one_owner)


@pytest.mark.parametrize(
    "options", [{"value": 0.0}, {"growth": 1.0}, {"backoff": 1.0}, {"interval": 0}]
)
def test_a_loss_scale_is_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="LossScale needs value > 0"):
        LossScale(**options)


# -- saved state ----------------------------------------------------------------------------------


def flat(state: dict[str, Any]) -> Iterator[Array]:
    for i in sorted(state["state"]):
        for name in sorted(state["state"][i]):
            yield np.asarray(state["state"][i][name])


def saved_and_loaded(before: Sequence[str], after: Sequence[str]) -> None:
    parts = make_parts(before)
    optimizer = DistributedOptimizer(optim.Adam, grouped_adam(rrefs_of(parts)), lr=0.1)
    for x in XS[:3]:
        step(optimizer, parts, x)
    optimizer.param_groups[0]["lr"] = 0.3
    saved = optimizer.state_dict()
    assert list(saved["state"]) == list(range(2 * len(parts)))
    # Into parts that other workers own, and into an optimizer of this process.
    others = make_parts(after)
    for other, part in zip(others, parts, strict=True):
        other.rpc_sync().load_state_dict(part.rpc_sync().state_dict())
    again = DistributedOptimizer(optim.Adam, grouped_adam(rrefs_of(others)), lr=7.0)
    again.load_state_dict(saved)
    own, params = local(len(parts))
    for mine, part in zip(own, parts, strict=True):
        mine.load_state_dict(part.rpc_sync().state_dict())
    single = optim.Adam(grouped_adam(params), lr=7.0)
    single.load_state_dict(saved)
    for x in XS[3:6]:
        step(optimizer, parts, x)
        step(again, others, x)
        step_here(single, own, x)
    close(values(others), values(parts))
    close(values(own), values(parts))
    # And back.
    again.load_state_dict(single.state_dict())
    close(list(flat(again.state_dict())), list(flat(single.state_dict())))


def grouped_adam(params: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"params": params[::2]}, {"params": params[1::2], "betas": (0.5, 0.9)}]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["worker0", "worker1", "worker2"], ["worker1", "worker1", "worker1"]),
        (["worker1", "worker1", "worker1"], ["worker2", "worker0", "worker1"]),
        (["worker1", "worker2", "worker1"], ["worker2", "worker2", "worker0"]),
    ],
)
def test_state_is_loaded_into_another_number_of_owners(
    cluster: Cluster, before: list[str], after: list[str]
) -> None:
    cluster.call(0, saved_and_loaded, before, after)


def state_that_does_not_fit() -> None:
    parts = make_parts(TWO)
    optimizer = DistributedOptimizer(
        optim.SGD, rrefs_of(parts), lr=0.1, momentum=0.9, loss_scale=LossScale(4.0)
    )
    step(optimizer, parts, XS[0])
    saved = optimizer.state_dict()
    assert saved["loss_scale"] == {"value": 4.0, "good_steps": 1}
    group = saved["param_groups"][0]
    buffers = {**saved["state"], 1: {"momentum_buffer": np.ones(5)}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({**saved, "param_groups": [{**group, "params": [0, 1]}]}, r"groups have \[2\] parameters"),
        ({**saved, "state": buffers}, r"of parameter 1 has shape \(5,\), \(1,\) needed"),
        ({**saved, "state": {9: {}}}, "parameter 9 is none of 4"),
        ({**saved, "param_groups": [{**group, "momentum": -2.0}]}, "SGD needs lr >= 0"),
        ({**saved, "param_groups": [{"params": group["params"]}]}, "group 0 lacks lr"),
        ({"state": 5}, "it lacks param_groups; state is 5"),
        ({**saved, "loss_scale": {"value": "large"}}, "lacks good_steps|value is 'large'"),
    ]
    for state, words in cases:
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(state)
    close(list(flat(optimizer.state_dict())), list(flat(saved)))
    optimizer.load_state_dict({**saved, "loss_scale": {"value": 16.0, "good_steps": 0}})
    assert optimizer.loss_scale is not None
    assert optimizer.loss_scale.value == 16.0


def test_state_that_does_not_fit_changes_nothing(cluster: Cluster) -> None:
    cluster.call(0, state_that_does_not_fit)


# -- modules that change at their owner ----------------------------------------------------------


def change(part: rpc.RRef[Part], how: str) -> None:
    """Runs at the owner of a part; alters its structure."""
    module = part.local_value()
    if how == "unfreeze":
        module.b.requires_grad = True
    elif how == "freeze":
        module.b.requires_grad = False
    elif how == "replace":
        module.b = Parameter(module.b.data)
    elif how == "add":
        module.more = Parameter(np.ones(1))
    else:
        assert how == "remove"
        del module.b


def altered(part: rpc.RRef[Part], how: str) -> None:
    rpc.rpc_sync(part.owner(), change, (part, how))


def refused_after(how: str, words: str, remote_module: bool, max_norm: float | None) -> None:
    """Alters the part of worker1, beside one of worker0, and asks that the step refuses."""
    if remote_module:
        module = RemoteModule("worker1", Part, (1,))
        parts = [*make_parts(["worker0"]), module.get_module_rref()]
        references = module.remote_parameters
    else:
        parts = make_parts(TWO)

        def references() -> list[rpc.RRef[Parameter]]:
            return parameter_rrefs(parts[1])

    kept = 2
    if how == "unfreeze":
        altered(parts[1], "freeze")
        kept = 1  # the frozen one is left out
    given = rrefs_of(parts[:1]) + references()[:kept]
    optimizer = DistributedOptimizer(optim.SGD, given, lr=0.1, max_norm=max_norm)
    step(optimizer, parts, XS[0])  # nothing has changed yet
    altered(parts[1], how)
    before = [rref.to_here().data for rref in given]
    with dist_autograd.context() as context_id:
        loss = tensor(0.0, dtype=np.float64)
        for rref in given:
            loss = loss + rref.to_here().sum()
        dist_autograd.backward(context_id, [loss])
        with pytest.raises(InvalidUseError, match=words) as caught:
            optimizer.step(context_id)
    after = [rref.to_here().data for rref in given]
    close(after[2:], before[2:])
    if max_norm is None:
        assert str(step_failure(caught.value)) == "worker0 stepped; worker1 did not step"
    else:
        close(after, before)
    if how != "remove":  # the remedy
        anew = DistributedOptimizer(optim.SGD, rrefs_of(parts[:1]) + references(), lr=0.1)
        held = values(parts)
        step(anew, parts, XS[1])
        assert all((left != right).all() for left, right in zip(held, values(parts), strict=True))


@pytest.mark.few(3)
@pytest.mark.parametrize("max_norm", [None, 100.0])
@pytest.mark.parametrize("remote_module", [False, True])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("unfreeze", "'b' of Part on worker 'worker1' was unfrozen, .*parameter_rrefs.*again"),
        ("replace", "'b' of Part on worker 'worker1' was .*replaced"),
        ("add", "'more' of Part on worker 'worker1' was .*added"),
        ("remove", "'b' of Part on worker 'worker1' was removed"),
    ],
)
def test_a_module_that_changed_at_its_owner_is_told_of(
    cluster: Cluster, how: str, words: str, remote_module: bool, max_norm: float | None
) -> None:
    cluster.call(0, refused_after, how, words, remote_module, max_norm)


def unharmed() -> None:
    parts = make_parts(TWO)
    everything = DistributedOptimizer(optim.SGD, rrefs_of(parts), lr=0.1)
    altered(parts[1], "freeze")
    step(everything, parts, XS[0])
    altered(parts[1], "unfreeze")
    before = values(parts)
    step(everything, parts, XS[1])  # it has a reference, so the step reaches it
    assert (values(parts)[3] != before[3]).all()
    part = rpc.remote("worker1", Part, (2,))
    w, _ = parameter_rrefs(part)
    chosen = DistributedOptimizer(optim.SGD, [w], lr=0.1)
    step(chosen, [part], XS[2])  # the other one is trained, and was left out
    altered(part, "add")
    more = DistributedOptimizer(optim.SGD, parameter_rrefs(part)[2:], lr=0.1)
    step(chosen, [part], XS[3])  # another optimizer steps the new one
    step(more, [part], XS[3])


def test_parameters_that_were_left_out_or_are_stepped_elsewhere_are_no_error(
    cluster: Cluster,
) -> None:
    cluster.call(0, unharmed)


def added_later() -> None:
    part = rpc.RRef(Part(0))
    optimizer = DistributedOptimizer(optim.SGD, parameter_rrefs(part), lr=0.1)
    altered(part, "add")
    with pytest.raises(InvalidUseError, match="'more' of Part on worker 'worker0'"):
        step(optimizer, [part], XS[0])
    *_, more = part.local_value().parameters()
    optimizer.add_param_group({"params": [rpc.RRef(more)]})
    step(optimizer, [part], XS[0])


def test_a_parameter_that_is_added_as_a_group_is_stepped(cluster: Cluster) -> None:
    cluster.call(0, added_later)
