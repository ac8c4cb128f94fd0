"""Files that are there whole or not at all: whatever is written goes through :func:`write_atomically`."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

#: The ending of files that are being written. Nothing reads them.
PARTIAL = ".partial"


@contextlib.contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """The name of a temporary file to write, beside ``path``; at the end it takes the place of ``path``.

    A crash at any moment leaves ``path`` as it was, or whole; so does a loss of power, as the file reaches the disk
    before its name does. What killed processes left behind is removed when the same ``path`` is written again. The
    folder is made where it is missing, links are followed, and the rights of a file that is replaced are kept.
    Writers must name their format, which they cannot tell from the temporary name. What is no ordinary file
    (``/dev/stdout``, a pipe) is written directly.
    """
    path = Path(path)
    special = path.absolute().as_posix().startswith(("/dev/", "/proc/")) or (path.exists() and not path.is_file())
    if special:
        yield path
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(target)
    temporary = target.with_name(f".{target.name[:40]}.{_owner()}{secrets.token_hex(4)}{PARTIAL}")
    # O_EXCL: nobody else's file. 0o666 less the umask: an ordinary file, not a private one.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o777)
        rights = temporary.stat().st_mode & 0o777
        yield temporary
        temporary.chmod(rights)  # safetensors puts a file of its own, a private one, in its place
        flush(temporary)
        temporary.replace(target)
        _flush_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """A text file in UTF-8, whole or not at all."""
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def flush(path: Path) -> None:
    """Wait until the disk has what was written."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """The new name too; where folders cannot be opened (Windows) there is no such call."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _owner(pid: int | None = None) -> str:
    """Says in the name of a temporary file which process of which machine writes it."""
    machine = "".join(letter for letter in socket.gethostname() if letter.isalnum() or letter == "-")[:40]
    return f"{machine}_{os.getpid() if pid is None else pid}_"


def _remove_stale(target: Path) -> None:
    """Remove what processes of this machine that are no more left of this file."""
    prefix, machine = f".{target.name[:40]}.", _owner(0).removesuffix("0_")
    with contextlib.suppress(OSError):
        for other in os.scandir(target.parent):
            if not (other.name.startswith(prefix + machine) and other.name.endswith(PARTIAL)):
                continue
            pid = other.name.removeprefix(prefix + machine).partition("_")[0]
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                Path(other.path).unlink(missing_ok=True)
