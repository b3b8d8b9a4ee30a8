"""What is of a file store alone: killed writers, deleted files, processes, errors of the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.errors import RendezvousError, RendezvousTimeoutError
from telegrad.rendezvous import FileStore, PrefixStore, file
from tests.conftest import Programs

COUNT = """
import sys
from telegrad.rendezvous import FileStore
store = FileStore(sys.argv[1])
store.add("ready", 1)
store.get("go", timeout=40.0)
seen = [store.add("n", 1) for _ in range(50)]
assert seen == sorted(set(seen))
store.set(f"done{sys.argv[2]}", b"x" * 5000)
"""

WRITE_FOR_EVER = """
import sys
from telegrad.rendezvous import FileStore
store = FileStore(sys.argv[1])
print("begun", flush=True)
for i in range(10**9):
    store.set("big", b"%d" % i * 20000)
    store.add("n", 1)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_processes_count_and_wait_for_each_other(programs: Programs, path: Path) -> None:
    store = FileStore(path)
    script = programs.script(COUNT)
    started = [programs.start(["python", script, str(path), str(r)]) for r in range(2)]
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(store.wait, ["done0", "done1"], 40.0)
        counted = pool.submit(lambda: [FileStore(path).add("n", 1) for _ in range(50)])
        store.set("go", b"")
        counted.result(40)
        waiting.result(40)
    for program in started:
        program.wait()
    assert store.get("n") == b"150"
    assert len(store.get("done1")) == 5000


@pytest.mark.long
def test_a_writer_killed_in_the_middle_leaves_whole_values(programs: Programs, path: Path) -> None:
    for _ in range(3):
        program = programs.start(["python", programs.script(WRITE_FOR_EVER), str(path)])
        program.wait_for("begun")
        reader = FileStore(path)
        before = int(reader.add("n", 0))
        while int(reader.add("n", 0)) < before + 3:
            pass
        os.kill(program.process.pid, signal.SIGKILL)
        program.wait(code=None)
        value = reader.get("big", timeout=10.0)
        number = value[: len(value) // 20000]
        assert value == number * 20000
        assert reader.add("n", 1) == FileStore(path).add("n", 0)


@pytest.mark.long
@given(st.integers(1, 200), st.binary(max_size=30))
def test_a_torn_tail_is_never_read_and_cut_off_by_the_next_writer(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    path = tmp_path_factory.mktemp("torn") / "store"
    store = FileStore(path)
    store.set("a", b"1")
    whole = path.read_bytes()
    store.set("b", b"x" * 150)
    record = path.read_bytes()[len(whole) :]
    for tail in (record[: cut % len(record)], record[: cut % len(record)] + bytes(len(garbage))):
        path.write_bytes(whole + tail)
        reader, old_reader = FileStore(path), store
        for each in (reader, old_reader):
            with pytest.raises(RendezvousTimeoutError):
                each.get("b", timeout=1e-9)
            assert each.get("a") == b"1"
        reader.set("b", b"2")
        assert old_reader.get("b") == b"2"
        assert FileStore(path).num_keys() == 2


def test_the_file_does_not_grow_by_what_a_key_holds_already(path: Path) -> None:
    """Programs that look at a counter by adding 0, again and again, filled the disk."""
    store = FileStore(path)
    store.multi_set(["k", "n"], [b"v", b"1"])
    size = path.stat().st_size
    store.set("k", b"v")
    assert store.add("n", 0) == 1
    assert store.compare_set("k", b"v", b"v") == store.compare_set("k", b"x", b"y") == b"v"
    store.multi_set(["n", "k"], [b"1", b"v"])
    assert path.stat().st_size == size
    store.multi_set(["n", "k"], [b"1", b"w"])
    assert FileStore(path).multi_get(["k", "n"]) == [b"w", b"1"]


@pytest.mark.parametrize("beginning", [file.MAGIC[:7], file.MAGIC + b"half"])
def test_a_half_written_beginning_is_begun_again(path: Path, beginning: bytes) -> None:
    path.write_bytes(beginning)
    store = FileStore(path)
    store.set("k", b"v")
    assert FileStore(path).get("k") == b"v"


def test_a_file_of_somebody_else_is_left_alone(path: Path) -> None:
    path.write_text("my diary")
    with pytest.raises(RendezvousError, match="is not a store .it begins with b'my diary'.; name"):
        FileStore(path)
    assert path.read_text() == "my diary"


def test_a_deleted_file_begins_anew(path: Path) -> None:
    first, second = FileStore(path), FileStore(path)
    first.set("k", b"old")
    assert second.get("k") == b"old"
    path.unlink()
    assert second.num_keys() == 0
    first.set("n", b"new")
    assert second.get("n") == b"new"
    assert second.num_keys() == 1


def test_a_successor_with_the_inode_of_a_deleted_file_is_another_file(
    path: Path, tmp_path: Path
) -> None:
    """File systems give a freed inode to the next file: a reader went on where the old one ended.

    It returned what the old file held, or cut off what it took for a torn tail of the new one.
    """
    old, new = FileStore(path), FileStore(tmp_path / "new")
    old.set("k", b"old")
    new.set("k", b"new" * 100)
    path.write_bytes((tmp_path / "new").read_bytes())
    assert old.get("k") == b"new" * 100
    old.set("n", b"1")
    assert FileStore(path).get("k") == b"new" * 100


def test_only_its_user_may_read_it(path: Path) -> None:
    FileStore(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_errors_of_the_disk_say_the_remedy(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RendezvousError, match=r"there is no directory '.*nowhere'; make it"):
        FileStore(tmp_path / "nowhere" / "store")
    with pytest.raises(RendezvousError, match="it is a directory; name a file in it"):
        FileStore(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RendezvousError, match="loop' as a store: it is a symbolic link; name the"):
        FileStore(tmp_path / "loop")

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)  # the user that runs the tests may be root
    with pytest.raises(RendezvousError, match="Permission denied; name a file that this user may"):
        FileStore(path)
    monkeypatch.undo()


def test_a_full_disk_leaves_no_half_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(path)
    before, write, room = path.stat().st_size, os.write, 5

    def fill(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room = 0
        return write(descriptor, data[:5])

    with monkeypatch.context() as patch, pytest.raises(RendezvousError, match="No space left"):
        patch.setattr(os, "write", fill)
        store.set("k", b"value")
    assert path.stat().st_size == before
    store.set("k", b"value")
    assert FileStore(path).get("k") == b"value"


def test_only_a_file_of_ones_own_is_used(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory of all, another user could put a link, a FIFO or a file in the store's place."""
    diary = tmp_path / "diary"
    diary.write_bytes(b"")
    path.symlink_to(diary)
    with pytest.raises(RendezvousError, match="it is a symbolic link; name the file itself"):
        FileStore(path)
    assert diary.read_bytes() == b""
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RendezvousError, match="it is no regular file; name a file that only this"):
        FileStore(path)
    path.unlink()
    store = FileStore(path)
    store.set("k", b"v")
    path.chmod(0o666)
    with pytest.raises(RendezvousError, match=r"it may be written by others \(mode 0666\)"):
        store.get("k")
    path.chmod(0o640)  # others may read: what a job keeps there is no secret
    assert store.get("k") == b"v"
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)  # the user that runs the tests may be root
    with pytest.raises(RendezvousError, match=f"belongs to another user .uid {own}; this one has"):
        store.set("k", b"w")


def test_a_lock_that_nobody_lets_go_ends_with_words(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "LOCK_TIMEOUT", 0.05)
    store = FileStore(path)
    with path.open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RendezvousTimeoutError, match=r"is locked by another process for 0\.05"):
            store.set("k", b"")
        assert store.num_keys() == 0  # reading takes no lock
    store.set("k", b"v")


def test_bad_prefixes(path: Path) -> None:
    store = FileStore(path)
    with pytest.raises(ValueError, match="must not be empty"):
        PrefixStore("", store)
    with pytest.raises(TypeError, match="store must be a Store"):
        PrefixStore("a", path)  # type: ignore[arg-type]
