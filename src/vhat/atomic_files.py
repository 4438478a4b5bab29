"""Write files atomically: a file is complete or does not exist, also in a directory that others can write to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["replacing", "write_new"]


def write_new(path: Path, content: bytes) -> None:
    """Write a new file, and flush it to the disk.

    Raises:
        FileExistsError: If the name is taken by a file, a folder or a symbolic link. A link is not followed.
    """
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream whose content replaces the file ``path`` if the block ends without an error.

    The content is written to a temporary file beside ``path``, flushed to the disk, and renamed. A reader sees the old
    file or the complete new one. After an error, including Ctrl-C, the temporary file is removed. If ``path`` is a
    symbolic link, the file that it points to is replaced, and the link stays.

    Raises:
        OSError: If the file cannot be written.
    """
    target = path.resolve()
    # The name cannot be guessed, and "x" fails if it is taken: a symbolic link that somebody placed under this name is
    # not followed, and a file of the user is neither overwritten nor removed.
    temporary = target.with_name(f".vhat-{secrets.token_hex(8)}.part")
    stream = temporary.open("xb")
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
