"""What a module's state is, and files of it."""

from __future__ import annotations

import errno
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as safetensors_numpy

from telegrad import checkpoint, nn, optim, tensor
from telegrad.rpc.policy.allowed import ALLOWED_PACKAGES


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight  # tied, as in language models
        self.register_buffer("mean", tensor(np.array(0.5, np.float32)))
        self.register_buffer("cache", tensor([1.0]), persistent=False)
        self.back = self.embedding


def test_what_is_shared_has_each_of_its_names() -> None:
    net = Net()
    assert list(net.state_dict()) == ["mean", "embedding.weight", "head.weight", "back.weight"]
    assert len(list(net.parameters())) == 1
    assert list(net.state_shapes()) == list(net.state_dict())
    net.load_state_dict(net.state_dict())


def test_a_module_may_hold_what_holds_it() -> None:
    net: Any = nn.Module()
    net.inner = nn.Linear(1, 1)
    net.inner.outer = net
    assert list(net.state_dict()) == ["inner.weight", "inner.bias"]


def test_a_buffer_that_is_not_saved() -> None:
    net: Any = Net()
    assert [name for name, _ in net.named_buffers()] == ["mean", "cache"]
    net.cache = tensor([2.0])
    assert "cache" not in net.state_dict()
    assert len(list(net.buffers())) == 2
    net.register_buffer("cache", tensor([3.0]))
    assert "cache" in net.state_dict()
    del net.cache
    net.cache = tensor([4.0])
    assert [name for name, _ in net.named_buffers()] == ["mean"]


def test_all_differences_are_told_at_once_and_nothing_changes() -> None:
    net = nn.LSTM(3, 2)
    before = net.state_dict()
    state: dict[str, Any] = {**before, "bias_hh_l0": np.zeros(3), "more": np.zeros(1)}
    del state["weight_hh_l0"]
    state["weight_ih_l0"] = state["weight_ih_l0"] + 1
    with pytest.raises(ValueError, match="state does not fit LSTM") as caught:
        net.load_state_dict(state)
    assert str(caught.value).endswith(
        "missing weight_hh_l0; unexpected more; bias_hh_l0 has shape (3,), (8,) needed"
    )
    with pytest.raises(ValueError, match="bias_hh_l0 has shape"):
        net.load_state_dict(state, strict=False)
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_names_of_one_side_alone_are_returned() -> None:
    net = nn.Linear(3, 2)
    state = {"weight": np.full((2, 3), 7.0), "more": np.zeros(1)}
    found = net.load_state_dict(state, strict=False)
    assert found == (["bias"], ["more"])
    assert (found.missing_keys, found.unexpected_keys) == (["bias"], ["more"])
    assert (net.weight.data == 7).all()
    assert net.load_state_dict(net.state_dict()) == ([], [])


# -- files -----------------------------------------------------------------------------------------


def test_a_round_trip(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "float": np.linspace(0, 1, 6).reshape(2, 3).T,
        "half": np.ones(2, np.float16),
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 3), np.float32),
        "reversed": np.arange(4)[::-1],
        "truth": np.array([True, False]),
        "complex": np.array([1 + 2j], np.complex64),
    }
    path = tmp_path / "state.safetensors"
    checkpoint.save_state_dict(state, path, metadata={"step": "7"})
    found = checkpoint.load_state_dict(path)
    assert found.keys() == state.keys()
    for name, array in state.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    assert checkpoint.load_metadata(path) == {"step": "7"}
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_a_module_in_a_file_is_read_by_safetensors_itself(tmp_path: Path) -> None:
    net, other, path = Net(), Net(), tmp_path / "net.safetensors"
    checkpoint.save_state_dict(net, path)
    assert list(safetensors_numpy.load_file(path)) == sorted(net.state_dict())
    other.load_state_dict(checkpoint.load_state_dict(path))
    np.testing.assert_array_equal(other.embedding.weight.data, net.embedding.weight.data)
    safetensors_numpy.save_file({"x": np.ones(2)}, path)
    assert checkpoint.load_state_dict(path)["x"].tolist() == [1.0, 1.0]
    assert checkpoint.load_metadata(path) == {}


def test_a_file_is_whole_or_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.safetensors"
    checkpoint.save_state_dict({"x": np.zeros(3)}, path)

    def fail(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save_state_dict({"x": np.ones(3)}, path)
    assert os.listdir(tmp_path) == ["state.safetensors"]
    assert not checkpoint.load_state_dict(path)["x"].any()


def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    """It was a TypeError, as if the format could not hold the state."""
    path = tmp_path / "state"
    checkpoint.save_checkpoint({"x": np.zeros(3)}, path)
    large = {"x": np.zeros(100_000)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))  # as if no more had room
    try:
        for save in (checkpoint.save_checkpoint, checkpoint.save_state_dict):
            with pytest.raises(OSError, match="File too large") as caught:
                save(large, path)
            assert caught.value.errno == errno.EFBIG
            assert caught.value.filename == str(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["state"]
    assert not checkpoint.load_checkpoint(path)["x"].any()
    for read in (checkpoint.load_state_dict, checkpoint.load_metadata, checkpoint.load_checkpoint):
        with pytest.raises(OSError, match="os error|directory"):
            read(tmp_path)


def test_a_link_stays_one_and_the_file_may_be_read_as_new_files_may(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "a.safetensors", tmp_path / "b.safetensors"
    link.symlink_to(target)
    checkpoint.save_state_dict({"x": np.zeros(3)}, link)
    (tmp_path / "new").touch()
    assert link.is_symlink()
    assert target.stat().st_mode == (tmp_path / "new").stat().st_mode


def test_what_is_no_file_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"words")
    for read in (checkpoint.load_state_dict, checkpoint.load_metadata):
        with pytest.raises(ValueError, match="is not a safetensors file"):
            read(path)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none")
    with pytest.raises(TypeError, match="cannot hold this state"):
        checkpoint.save_state_dict({"x": np.ones(2, np.complex128)}, path)
    assert os.listdir(tmp_path) == ["x"]
    with pytest.raises(TypeError, match="strings only, not 'step': 7"):
        checkpoint.save_state_dict({}, path, metadata={"step": 7})  # type: ignore[dict-item]


def test_without_the_library_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match=r"pip install 'telegrad\[safetensors\]'"):
        checkpoint.save_state_dict({}, tmp_path / "x")
    with pytest.raises(ImportError, match=r"pip install 'telegrad\[safetensors\]'"):
        checkpoint.load_state_dict(tmp_path / "x")


def test_other_workers_may_not_have_files_written() -> None:
    assert not checkpoint.__name__.startswith(ALLOWED_PACKAGES)
    assert checkpoint.save_state_dict.__module__ == "telegrad.checkpoint"


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    def made() -> Any:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        optimizer = optim.Adam(
            [{"params": model[:2].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
        )
        return model, optimizer, optim.StepLR(optimizer, 2)

    def train(model: Any, optimizer: Any, scheduler: Any) -> None:
        for k in range(3):
            optimizer.zero_grad()
            (model(np.arange(12, dtype=np.float32).reshape(4, 3) * k) ** 2).sum().backward()
            optimizer.step()
            scheduler.step()

    path, names = tmp_path / "checkpoint", ("model", "optimizer", "scheduler")
    first, second = made(), made()
    train(*first)
    best = tensor([1.5, 2.5])
    notes = {"losses": [1.0, float("inf")], "best": best, "by": {0: ("a", None)}, 7: True}
    checkpoint.save_checkpoint(dict(zip(names, first, strict=True)) | {"notes": notes}, path)
    found = checkpoint.load_checkpoint(path)
    assert found["notes"].pop("best").tolist() == [1.5, 2.5]
    assert found["notes"] == {"losses": [1.0, float("inf")], "by": {0: ("a", None)}, 7: True}
    for name, part in zip(names, second, strict=True):
        part.load_state_dict(found[name])
    train(*first)
    train(*second)
    for name, array in first[0].state_dict().items():
        np.testing.assert_array_equal(second[0].state_dict()[name], array)
    assert second[1].state_dict()["param_groups"] == first[1].state_dict()["param_groups"]
    assert "model.0.weight" in checkpoint.load_state_dict(path)


def test_what_a_checkpoint_refuses(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(TypeError, match="cannot hold notes.rng, which is a Generator"):
        checkpoint.save_checkpoint({"notes": {"rng": np.random.default_rng()}}, path)
    with pytest.raises(TypeError, match=r"cannot hold notes, with the key \(1, 2\): tuple"):
        checkpoint.save_checkpoint({"notes": {(1, 2): 3}}, path)
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(ValueError, match=r"at most 64 levels, and a\.0\.0\.\.\. has more"):
        checkpoint.save_checkpoint({"a": itself}, path)
    with pytest.raises(ValueError, match="cannot have the name '__metadata__'"):
        checkpoint.save_state_dict({"__metadata__": np.ones(1)}, path)
    assert not path.exists()
    checkpoint.save_state_dict({"x": np.ones(1)}, path)
    with pytest.raises(ValueError, match="is not a checkpoint; read it with load_state_dict"):
        checkpoint.load_checkpoint(path)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.builds(lambda x: np.array([x]), st.integers(0, 9)),
)
KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.floats(allow_nan=False),
    st.sampled_from(["1", "None", "True", "a", "b", "a.b", "__metadata__", "dict", "\ud800"]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=12,
)


def plain(x: Any) -> Any:
    """What compares as `x`, with the types of keys, and arrays apart from numbers."""
    if isinstance(x, dict):
        return [(type(key), key, plain(each)) for key, each in x.items()]
    if isinstance(x, np.ndarray):
        return "array", x.dtype, x.tolist()
    if isinstance(x, list | tuple):
        return type(x), [plain(each) for each in x]
    return type(x), x


@settings(max_examples=150, deadline=None)
@given(parts=st.dictionaries(KEYS, TREES, max_size=4))
def test_what_was_saved_is_what_is_loaded(
    parts: dict[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keys of the outermost dict became strings, and of 1 and "1" one was lost."""
    path = tmp_path_factory.getbasetemp() / "checkpoint"
    checkpoint.save_checkpoint(parts, path)
    assert plain(checkpoint.load_checkpoint(path)) == plain(parts)


def test_keys_of_one_text_name_two_arrays(tmp_path: Path) -> None:
    parts = {1: np.ones(1), "1": np.zeros(2), "a.b": np.ones(3), "a": {"b": np.ones(4)}}
    checkpoint.save_checkpoint(parts, tmp_path / "x")
    assert sorted(checkpoint.load_state_dict(tmp_path / "x")) == ["1", "1#2", "a.b", "a.b#2"]
    found = checkpoint.load_checkpoint(tmp_path / "x")
    assert [found[1].size, found["1"].size, found["a.b"].size, found["a"]["b"].size] == [1, 2, 3, 4]


def with_tree(path: Path, words: str) -> Path:
    metadata = {"telegrad.checkpoint": words}
    safetensors_numpy.save_file({"a": np.ones(2)}, path, metadata=metadata)
    return path


@pytest.mark.parametrize(
    "words",
    [
        "",
        "words",
        "null",
        "1",
        "[1]",
        '["m"]',
        '[["m"]]',
        '[["m", 1], ["m", 2]]',
        '[[["m"], 1]]',
        '[["m", {}]]',
        '[["m", {"array": "b"}]]',
        '[["m", {"array": 1}]]',
        '[["m", {"array": ["a"]}]]',
        '[["m", {"array": "a", "tuple": []}]]',
        '[["m", {"tuple": 3}]]',
        '[["m", {"dict": 5}]]',
        '[["m", {"dict": ["ab"]}]]',
        '[["m", {"words": []}]]',
        '{"m": {"array": "b"}}',
        f'[["m", {"[" * 5000}{"]" * 5000}]]',
        f'[["m", {"9" * 5000}]]',
    ],
)
def test_a_tree_that_was_changed_is_a_value_error(tmp_path: Path, words: str) -> None:
    path = with_tree(tmp_path / "x", words)
    with pytest.raises(ValueError, match="is not a checkpoint as save_checkpoint writes it"):
        checkpoint.load_checkpoint(path)
    assert checkpoint.load_state_dict(path)["a"].tolist() == [1.0, 1.0]


def test_a_checkpoint_of_an_earlier_telegrad_is_read(tmp_path: Path) -> None:
    words = '{"m": {"dict": [[1, {"array": "a"}]]}, "epoch": 3, "dict": [["x"]]}'
    found = checkpoint.load_checkpoint(with_tree(tmp_path / "x", words))
    assert found["m"][1].tolist() == [1.0, 1.0]
    assert (found["epoch"], found["dict"]) == (3, [["x"]])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_a_value_error_or_nothing(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed"
    model = nn.Linear(2, 1)
    parts = {"model": model, "optimizer": optim.Adam(model.parameters()), 3: [None, (1, 2.5)]}
    checkpoint.save_checkpoint(parts, path)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    for read in (checkpoint.load_checkpoint, checkpoint.load_state_dict, checkpoint.load_metadata):
        with suppress(ValueError):
            read(path)


def test_a_path_in_the_place_of_the_state_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for wrong in (path, str(path)):
        with pytest.raises(TypeError, match=r"write save_checkpoint\(parts, path\)"):
            checkpoint.save_checkpoint(wrong, {"a": 1})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"write save_state_dict\(state, path\)"):
            checkpoint.save_state_dict(wrong, nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"write save_state_dict\(state, path\)"):
        checkpoint.save_state_dict([np.ones(1)], path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
