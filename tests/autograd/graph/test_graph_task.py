"""What a graph task promises: feeds from outside, none, sinks, captures, threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.autograd import (
    Edge,
    Gradient,
    Gradients,
    GraphTask,
    Node,
    Sink,
    Tensor,
    attach,
    no_grad,
    tensor,
)
from telegrad.autograd.seams import edge_of, graph_root
from telegrad.errors import AutogradError
from tests.autograd.threads import in_threads


def edge(x: Tensor) -> Edge:
    found = edge_of(x)
    assert found is not None
    return found


class Source(Node):
    """Like a SendFunction: hands on what it is fed, one gradient per edge."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__([edge_of(x) for x in tensors], num_outputs=len(tensors))

    def backward(self, gradients: Gradients) -> Gradients:
        return gradients


class Record:
    """Takes what a task delivers."""

    def __init__(self) -> None:
        self.leaves: dict[Tensor, Any] = {}
        self.sinks: dict[Sink, list[Gradients | None]] = {}

    def accumulate(self, leaf: Tensor, gradient: Gradient) -> None:
        assert leaf not in self.leaves
        self.leaves[leaf] = gradient

    def sink(self, node: Sink, gradients: Gradients | None) -> None:
        self.sinks.setdefault(node, []).append(gradients)

    def task(self, *sources: Node, **options: Any) -> GraphTask:
        return GraphTask(
            options.pop("roots", []),
            accumulate=self.accumulate,
            sink=self.sink,
            sources=sources,
            **options,
        )


def leaf(value: float = 2.0) -> Any:
    return tensor([value], requires_grad=True)


def received(sink: Sink, output: int = 0, value: float = 3.0) -> Tensor:
    return attach(np.array([value]), sink, output)


ONE = np.array([1.0])


def test_it_waits_for_every_source() -> None:
    x = leaf()
    first, second = Source(x * 5), Source(x * 7)
    record = Record()
    task = record.task(first, second)
    assert not task.run()
    task.feed(second, (ONE,))
    assert not task.run()
    assert record.leaves == {}
    task.feed(first, (10 * ONE,))
    assert task.run()
    assert record.leaves[x].tolist() == [57.0]


def test_none_passes_through_and_runs_no_rule() -> None:
    x, y = leaf(), leaf()
    z = x * y
    source, other = Source(z.sum()), Source(x * 1)
    record = Record()
    task = record.task(source, other)
    task.feed(source, None)
    task.feed(other, (ONE,))
    assert task.run()
    assert record.leaves[x].tolist() == [1.0]
    assert y not in record.leaves
    z.sum().backward()  # nothing of z was freed


def test_none_for_all_outputs_is_none() -> None:
    sink = Sink(refusal="no")
    source = Source(received(sink) * 2, received(sink) * 3)
    record = Record()
    task = record.task(source)
    task.feed(source, (None, None))
    assert task.run()
    assert record.sinks == {sink: [None]}


def test_a_node_runs_with_some_gradients_none() -> None:
    sink = Sink(2, refusal="no")
    first, second = received(sink, 0), received(sink, 1)
    record = Record()
    source = Source(first * 2, second * 3)
    task = record.task(source)
    task.feed(source, (None, ONE))
    assert task.run()
    assert [
        [None if g is None else g.item() for g in given or ()] for given in record.sinks[sink]
    ] == [[None, 3.0]]


def test_with_captures_only_what_leads_to_them_or_to_a_sink_is_run() -> None:
    sink, x, other = Sink(refusal="no"), leaf(), leaf()
    wanted = x * 2.0
    source = Source(wanted * received(sink), other * 3.0)
    record = Record()
    captured = edge(wanted)
    assert captured is not None
    task = record.task(source, captures=[captured])
    assert sink in task.reachable
    assert edge(other)[0] not in task.reachable
    task.feed(source, (ONE, ONE))
    assert task.run()
    assert task.captured == {captured: np.array([3.0])}
    assert record.sinks[sink] == [(np.array([4.0]),)]
    assert record.leaves == {}

    nothing = record.task(source, captures=[])  # what leads to sinks alone
    assert sink in nothing.reachable
    assert captured[0] not in nothing.reachable


def test_hooks_of_a_sink() -> None:
    sink = Sink(refusal="no")
    seen: list[tuple[int, int]] = []
    sink.register_prehook(lambda gradients: tuple(None if g is None else -g for g in gradients))
    sink.register_hook(lambda inputs, outputs: seen.append((len(inputs), len(outputs))))
    source = Source(received(sink) * 2.0)
    record = Record()
    task = record.task(source)
    task.feed(source, (ONE,))
    assert task.run()
    assert record.sinks[sink] == [(np.array([-2.0]),)]
    assert seen == [(0, 1)]


def test_each_reachable_sink_is_called_once_and_no_other() -> None:
    near, far, other = (Sink(refusal="no") for _ in range(3))
    x = received(near)
    y = received(far)
    received(other)
    source = Source(x * x + x, x * y)
    record = Record()
    task = record.task(source)
    assert near in task.reachable
    assert far in task.reachable
    assert other not in task.reachable
    assert near in task.reachable
    task.feed(source, (ONE, None))
    assert task.run()
    assert set(record.sinks) == {near, far}
    assert record.sinks[far] == [None]
    assert len(record.sinks[near]) == 1


def test_a_sink_is_refused_before_any_rule_runs() -> None:
    x = received(Sink(refusal="write dist_autograd.backward(context_id, [loss])"))
    w = leaf()
    with pytest.raises(AutogradError, match=r"write dist_autograd\.backward"):
        (x * w).sum().backward()
    assert w.grad is None


def test_feeding_wrongly_is_refused() -> None:
    x = leaf()
    source, stranger = Source(x * 1, x * 2), Source(x * 1)
    task = Record().task(source)
    with pytest.raises(AutogradError, match="no source"):
        task.feed(stranger, None)
    with pytest.raises(AutogradError, match="2 outputs and was fed 1"):
        task.feed(source, (ONE,))
    task.feed(source, None)
    with pytest.raises(AutogradError, match="twice"):
        task.feed(source, None)


def test_only_nodes_that_a_gradient_went_through_are_freed() -> None:
    x, y = leaf(), leaf()
    used, unused = (x * y).sum(), (x * y).sum()
    source, other = Source(used), Source(unused)
    record = Record()
    task = record.task(source, other)
    task.feed(source, (np.array(1.0),))
    task.feed(other, None)
    assert task.run()
    with pytest.raises(AutogradError, match="'multiply' saved for its gradient was freed"):
        used.backward()
    unused.backward()


def test_two_tasks_share_nodes_and_no_counts() -> None:
    x = leaf()
    y = x * 3
    first, second = Source(y * y), Source(y + y)
    records = [Record(), Record()]
    tasks = [record.task(first, second, retain_graph=True) for record in records]
    tasks[0].feed(first, (ONE,))
    tasks[1].feed(second, (ONE,))
    assert not tasks[0].run()
    assert not tasks[1].run()
    tasks[0].feed(second, None)
    tasks[1].feed(first, None)
    assert tasks[1].run()
    assert tasks[0].run()
    assert [record.leaves[x].item() for record in records] == [36.0, 6.0]


def test_a_root_may_lie_inside_the_graph_of_another() -> None:
    x = leaf()
    y = x * 3
    record = Record()
    assert record.task(
        roots=[graph_root((y * y).sum()), graph_root(y.sum()), graph_root(y, ONE)]
    ).run()
    assert record.leaves[x].tolist() == [3 * (12 + 2)]


def test_captures_run_only_what_lies_between() -> None:
    x, w = leaf(), leaf()
    sink = Sink(refusal="never reached")
    hidden = x * w
    y = hidden * received(sink)
    ran: list[str] = []
    assert hidden.grad_fn is not None
    hidden.grad_fn.register_hook(lambda *_: ran.append("hidden"))
    task = GraphTask([graph_root(y.sum())], accumulate=Record().accumulate, captures=[edge(hidden)])
    assert task.run()
    assert np.asarray(task.captured[edge(hidden)]).tolist() == [3.0]
    assert ran == []
    assert sink not in task.reachable


def test_a_source_outside_the_captures_may_be_fed() -> None:
    x, w = leaf(), leaf()
    needed, other = Source(x * 2), Source(w * 2)
    task = Record().task(needed, other, captures=[edge(x)])
    task.feed(other, (ONE,))
    task.feed(needed, (ONE,))
    assert task.run()
    assert np.asarray(task.captured[edge(x)]).tolist() == [2.0]


def test_an_error_stops_the_task() -> None:
    x = leaf()
    y = x * x

    def fail(gradient: Tensor) -> None:
        raise ArithmeticError("mine")

    y.register_hook(fail)
    record = Record()
    source = Source(x * 1)
    task = record.task(source, roots=[graph_root(y.sum())])
    with pytest.raises(ArithmeticError, match="mine"):
        task.run()
    task.feed(source, (ONE,))
    assert not task.run()
    assert record.leaves == {}


@pytest.mark.parametrize("end", ["leaf", "sink"])
def test_it_is_not_done_before_its_last_end_has_been_told(end: str) -> None:
    """Another thread, that finds it done, says so to others: what ends there must be there."""
    seen: list[bool] = []
    source = Source(leaf() if end == "leaf" else received(Sink(refusal="no")))
    task = GraphTask(
        [],
        accumulate=lambda *_: seen.append(task.done),
        sink=lambda *_: seen.append(task.done),
        sources=[source],
    )
    task.feed(source, (ONE,))
    assert task.run()
    assert seen == [False]


def test_abort_runs_and_frees_nothing_more() -> None:
    x = leaf()
    y = (x * x).sum()
    record = Record()
    task = record.task(roots=[graph_root(y)])
    task.abort()
    assert not task.run()
    assert not task.done
    assert record.leaves == {}
    y.backward()


def test_run_may_be_called_from_within() -> None:
    x = leaf()
    y = x * x
    seen: list[bool] = []
    task = Record().task(roots=[graph_root(y.sum())])
    y.register_hook(lambda g: seen.append(task.run()))
    assert task.run()
    assert seen == [False]


def test_create_graph_gives_tensors_and_records() -> None:
    x = leaf()
    source = Source(x * x * x)
    record = Record()
    task = record.task(source, create_graph=True, retain_graph=True)
    with no_grad():
        task.feed(source, (tensor([1.0]),))
        assert task.run()
    gradient = record.leaves[x]
    assert isinstance(gradient, Tensor)
    gradient.sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 12.0


def test_a_gradient_has_its_leafs_dtype_and_shape() -> None:
    x = tensor([1.0], dtype=np.float32, requires_grad=True)
    record = Record()
    source = Source(x)
    task = record.task(source)
    task.feed(source, (np.array([1.0]),))
    assert task.run()
    assert record.leaves[x].dtype == np.float32
    task = record.task(source)
    task.feed(source, (np.array([1.0, 2.0]),))
    with pytest.raises(AutogradError, match=r"shape \(2,\) reached a leaf of shape \(1,\)"):
        task.run()


def test_sources_fed_from_several_threads() -> None:
    for repeat in range(50):
        x = leaf()
        sinks = [Sink(refusal="no") for _ in range(8)]
        sources = [Source(x * float(i), x * received(sinks[i])) for i in range(8)]
        record = Record()
        task = record.task(*sources)

        def feed(i: int, task: GraphTask = task, sources: list[Source] = sources) -> None:
            task.feed(sources[i], (ONE, ONE if i % 2 else None))
            task.run()

        in_threads(*[lambda i=i: feed(i) for i in range(8)])
        assert task.done, repeat
        assert record.leaves[x].item() == sum(range(8)) + 4 * 3.0
        assert [len(record.sinks[sink]) for sink in sinks] == [1] * 8
        assert [record.sinks[sink][0] is None for sink in sinks] == [i % 2 == 0 for i in range(8)]


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_random_graphs_split_at_random_places(data: st.DataObject) -> None:
    """Feeding sources is the same as one backward from the sum of what they were fed for."""
    leaves = [tensor([data.draw(st.integers(1, 4)) / 2], requires_grad=True) for _ in range(3)]
    values = list(leaves)
    operations: list[Any] = [
        lambda a, b: a + b,
        lambda a, b: a * b * 0.5,
        lambda a, b: np.tanh(a) - b,
    ]
    for _ in range(data.draw(st.integers(1, 12))):
        a, b = data.draw(st.sampled_from(values)), data.draw(st.sampled_from(values))
        values.append(data.draw(st.sampled_from(operations))(a, b))
    ends = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=5))
    weights = [data.draw(st.sampled_from([None, 0.5, 2.0])) for _ in ends]
    record = Record()
    sources = [Source(end) for end in ends]
    task = record.task(*sources, retain_graph=True)
    for i in data.draw(st.permutations(range(len(ends)))):
        weight = weights[i]
        task.feed(sources[i], None if weight is None else (weight * ONE,))
        if data.draw(st.booleans()):
            task.run()
    assert task.run()
    terms = [end * w for end, w in zip(ends, weights, strict=True) if w is not None]
    if terms:
        total: Any = sum(terms)
        if isinstance(total, Tensor):
            total.sum().backward()
    for x in leaves:
        assert (x.grad is None) == (x not in record.leaves)
        if x.grad is not None:
            np.testing.assert_allclose(record.leaves[x], x.grad.data, rtol=1e-12)
