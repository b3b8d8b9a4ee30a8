"""Runs the split-learning example, and looks at every byte that its server receives."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pytest

import telegrad as tg
from examples import split_learning
from examples.split_learning import Body, Client
from telegrad import rpc
from telegrad.testing import Cluster
from telegrad.testing.agents_here import AgentsHere
from telegrad.transport import Carrier, InprocTransport, Listener, Transport, WrappedCarrier
from tests.conftest import Programs

LAUNCH = ["telegrad", "run", "--nproc-per-node"]
STEPS = 2  # of each client; all batches are whole
SHORT = """
from tests import digits
digits.put_in_place()
from examples import split_learning

split_learning.EPOCHS, split_learning.LINE_EVERY = {epochs}, 1

if __name__ == "__main__":
    split_learning.main()
"""


@pytest.mark.long
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("epochs", "least"), [(3, 30.0), pytest.param(None, 85.0, marks=pytest.mark.long)]
)
def test_the_clients_learn_digits_with_a_server_that_sees_none(
    programs: Programs, epochs: int | None, least: float
) -> None:
    program: Path | str = "examples/split_learning.py"
    preload = ["sklearn.datasets"]  # which takes a second to import
    if epochs is not None:
        preload = []
        program = programs.script(SHORT.format(epochs=epochs))
    output = programs.run([*LAUNCH, "3", program], limit=80.0, preload=preload)
    found = re.findall(r"\[(\d)\] \d{3} images of its own, test accuracy: (\d+\.\d) %", output)
    assert sorted(rank for rank, _ in found) == ["1", "2"], output
    assert all(float(accuracy) >= least for _, accuracy in found), output
    batches = 2 * ((epochs or split_learning.EPOCHS) * 23 + 1)
    assert f"[0] the server saw {batches} batches of 64 activations" in output
    assert "warning" not in output.lower()


# -- what the server receives --------------------------------------------------------------------


@final
class Tapped(Transport):
    """The in-process transport, with a copy of every message that this worker receives."""

    def __init__(self, inner: Transport, received: list[bytes]) -> None:
        self.scheme, self.schemes = inner.scheme, inner.schemes
        self._inner = inner
        self._received = received

    async def listen(self, accept: Callable[[Carrier], Awaitable[None]]) -> Listener:
        async def accept_tapped(carrier: Carrier) -> None:
            await accept(TappedCarrier(carrier, self._received))

        return await self._inner.listen(accept_tapped)

    async def dial(self, endpoint: str) -> Carrier:
        return TappedCarrier(await self._inner.dial(endpoint), self._received)


@final
class TappedCarrier(WrappedCarrier):
    def __init__(self, inner: Carrier, received: list[bytes]) -> None:
        super().__init__(inner)
        self._received = received

    async def receive(self) -> bytes:
        message = await self._inner.receive()
        self._received.append(message)
        return message


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What worker0 of a cluster receives, of anybody."""
    messages: list[bytes] = []

    def transport(self: AgentsHere, name: str) -> Transport:
        inner = InprocTransport(self._network)
        return Tapped(inner, messages) if name == "worker0" else inner

    monkeypatch.setattr(AgentsHere, "_transport", transport)
    return messages


def data_of(client: int) -> split_learning.Data:
    (images, labels), _ = split_learning.load_data(client, 2)
    count = STEPS * split_learning.BATCH
    return images[:count], labels[:count]


def serve() -> None:
    rpc.publish(split_learning.NAME, Body(np.random.default_rng(0)))


def forms_of_images(images: split_learning.Floats) -> list[bytes]:
    """Every image, in each form in which one could travel."""
    shades = images * 16.0
    arrays: list[npt.NDArray[Any]] = [images.astype(dtype) for dtype in "efd"]
    arrays += [shades.astype(dtype) for dtype in "bhilfd"]
    return [image.tobytes() for array in arrays for image in array]


def forms_of_labels(labels: split_learning.Labels) -> list[bytes]:
    """The labels of one batch; as small integers they are the bytes of a list as well."""
    forms = [labels.astype(dtype) for dtype in "bhilfd"]
    forms += [np.eye(10, dtype=dtype)[labels] for dtype in "?bilfd"]
    return [array.tobytes() for array in forms]


def test_neither_inputs_nor_labels_reach_the_server(
    received: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[split_learning.Labels] = []
    activations: list[bytes] = []
    dtypes: set[tuple[object, ...]] = set()
    step, forward = Client.step, Body.forward

    def noted_step(
        self: Client, images: split_learning.Floats, labels: split_learning.Labels
    ) -> float:
        batches.append(labels)
        return step(self, images, labels)

    def noted_forward(self: Body, given: tg.Tensor) -> tg.Tensor:
        activations.append(given.data.tobytes())
        dtypes.add((given.dtype, *given.shape))
        return forward(self, given)

    monkeypatch.setattr(Client, "step", noted_step)
    monkeypatch.setattr(Body, "forward", noted_forward)

    def learn() -> None:
        rank = rpc.get_worker_info().rank
        if rank > 0:
            body = rpc.lookup(0, split_learning.NAME)
            Client(body, data_of(rank - 1), seed=rank).epoch()

    with Cluster(3) as cluster:
        cluster.call(0, serve)
        cluster.run(learn)
        training = list(received)
        # What is looked for is found where it is sent: one client sends what it must not.
        images, labels = data_of(0)
        cluster.call(1, rpc.rpc_sync, 0, len, ([images[3], labels[:32]],))
        leak = b"".join(received[len(training) :])

    seen = b"".join(training)
    assert len(batches) == len(activations) == 2 * STEPS
    assert all(array in seen for array in activations)
    assert dtypes == {(np.dtype(np.float32), split_learning.BATCH, split_learning.WIDTH)}
    for client in (0, 1):
        assert not any(image in seen for image in forms_of_images(data_of(client)[0]))
    for batch in [*batches, data_of(0)[1][:32], data_of(1)[1][:32]]:
        assert not any(form in seen for form in forms_of_labels(batch))
    assert images[3].tobytes() in leak
    assert labels[:32].tobytes() in leak
