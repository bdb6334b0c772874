"""Files that appear whole under their names, so that a reader never sees half of one."""

from collections.abc import Iterator
import contextlib
import itertools
import os
import pathlib
import stat
from typing import IO, Any

_NUMBERS = itertools.count()


def check(path: str | os.PathLike) -> None:
    """Refuses what cannot be written, before anything is computed for it.

    Raises:
      OSError: a directory, a folder that is none, or one that may not be written to, naming the file.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a directory, wanted a file to write")
    if is_special(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path}: may not be written to")
        return
    target = pathlib.Path(os.path.realpath(path))
    folder = next(each for each in target.parents if os.path.lexists(each))
    if not folder.is_dir():
        raise NotADirectoryError(f"{path}: {folder} is no directory, wanted one to write in")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: {folder} may not be written to")


def is_special(path: str | os.PathLike) -> bool:
    """Whether it is there and is no ordinary file: a pipe or a device, which is written to as it is."""
    with contextlib.suppress(OSError):
        return not stat.S_ISREG(os.stat(path).st_mode)
    return False


@contextlib.contextmanager
def whole(path: str | os.PathLike, mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write that replaces `path` when the block ends well; if it does not, what was there stays.

    Folders are made where there are none. A link stays, and the file that it means is replaced. A pipe, a device or
    what this process prints to (``/dev/stdout``) is written to as it comes.

    Args:
      path: the file.
      mode: "w" for text, UTF-8 with line feeds, or "wb".

    Raises:
      OSError: see `check`; the file cannot be written, naming it.
    """
    check(path)
    printed = _printed_to(path)
    if printed is not None or is_special(path):
        with _open(os.dup(printed) if printed is not None else path, mode) as file:
            yield file
        return
    target = pathlib.Path(os.path.realpath(path))
    # Short enough for a name of any length, and for each file of each process another.
    scratch = target.with_name(f".{target.name[:40]}.{os.getpid()}-{next(_NUMBERS)}.partial")
    try:
        with _naming(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            file = _open(scratch, mode)
        try:
            yield file
            with _naming(path):
                file.close()
                os.replace(scratch, target)
        finally:
            # Closing writes what is left, which may fail again; the first error is the one to tell.
            with contextlib.suppress(OSError):
                file.close()
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def _open(file: Any, mode: str) -> IO[Any]:
    return open(file, mode) if "b" in mode else open(file, mode, encoding="utf-8", newline="\n")


def _printed_to(path: str | os.PathLike) -> int | None:
    """The standard stream that is this file: two of their own would write over each other."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(stream)):
                return stream
    return None


@contextlib.contextmanager
def _naming(path: str | os.PathLike) -> Iterator[None]:
    """Errors of the block name the file that was asked for, not the one beside it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
