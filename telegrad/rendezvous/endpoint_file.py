"""The file in which rank 0 says where the coordinator is: `init_method="file:///path"`.

It is replaced as a whole and so never read half. A file that an earlier job has left names a
coordinator that is gone: who reads it looks again until rank 0 of this job has replaced it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import final

from telegrad.errors import RendezvousError

__all__ = ["EndpointFile", "Published"]

MAGIC = "telegrad job 1"
LONGEST = 4096  # bytes; an address and some words


@final
@dataclass(frozen=True, slots=True)
class Published:
    """What stands in the file.

    Attributes:
        endpoint: Where the coordinator listens, or did.
        job: The name of its job.
        by: Who wrote it and when, in words.
    """

    endpoint: str
    job: str
    by: str

    def text(self) -> str:
        """Returns the file's text."""
        return f"{MAGIC}\nendpoint {self.endpoint}\njob {self.job}\nby {self.by}\n"

    @classmethod
    def of(cls, text: str) -> Published | None:
        """Reads a file's text; None where it is none."""
        first, *lines = text.splitlines() or [""]
        fields = dict(line.split(" ", 1) for line in lines if " " in line)
        if first != MAGIC or not {"endpoint", "job", "by"} <= set(fields):
            return None
        return cls(fields["endpoint"], fields["job"], fields["by"])


@final
class EndpointFile:
    """The file, for the one who writes it and for those who read it.

    Args:
        path: Absolute; its directory must be there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._mine: Published | None = None

    def publish(self, endpoint: str, job: str) -> None:
        """Writes where the coordinator is, over what an earlier job has left.

        Raises:
            RendezvousError: The file cannot be written, or is something else.
        """
        self.read()
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        by = f"process {os.getpid()} on {socket.gethostname()} at {now}"
        self._mine = Published(endpoint, job, by)
        draft = f"{self.path}.{secrets.token_hex(4)}"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with open(descriptor, "w") as file:
                    file.write(self._mine.text())
                os.replace(draft, self.path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)
                raise
        except OSError as error:
            raise self._error(error, "name a path that rank 0 may write to") from error

    def read(self) -> Published | None:
        """Returns what stands there; None where nothing does yet.

        Raises:
            RendezvousError: The file cannot be read, its directory is not there, or it is
                something else.
        """
        directory = os.path.dirname(self.path)
        try:
            # Opening the directory makes a network file system look at it anew.
            os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RendezvousError(
                f"init_method names {self.path!r}, and there is no directory {directory!r} here; "
                "make it, or name a file in one that all workers see"
            ) from error
        except PermissionError:
            pass  # it may be passed through nevertheless
        try:
            with open(self.path, "rb") as file:
                text = file.read(LONGEST).decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(error, "name a file that all workers may read") from error
        published = Published.of(text)
        if published is None and text:
            raise RendezvousError(
                f"init_method names {self.path!r}, which is something else than what rank 0 "
                f"writes (it begins with {text[:16]!r}); name a file of its own"
            )
        return published

    def withdraw(self) -> None:
        """Takes away what `publish` wrote, if no other job has written since; idempotent."""
        if self._mine is None:
            return
        aside = f"{self.path}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            os.rename(self.path, aside)
            with open(aside) as file:
                mine = Published.of(file.read()) == self._mine
            if not mine:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self.path)
            os.unlink(aside)
        self._mine = None

    def _error(self, error: OSError, remedy: str) -> RendezvousError:
        reason = error.strerror or str(error)
        return RendezvousError(f"init_method names {self.path!r}: {reason}; {remedy}")
