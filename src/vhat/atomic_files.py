"""Files that appear complete or not at all, whoever else can write to their folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["replacing", "write_new"]


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, and bring it to the disk.

    Raises:
        FileExistsError: When anything has this name: a file, a folder, or a symbolic link, which is not followed.
    """
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream whose content takes the place of ``path`` when the block ends without an error.

    The content goes to a temporary file beside ``path``, is brought to the disk, and is renamed: whoever looks sees
    the old file or the complete new one. After an error, Ctrl-C among them, the temporary file is removed. Where
    ``path`` is a symbolic link, the file that it points to is replaced, and the link stays.

    Raises:
        OSError: When the file cannot be written.
    """
    target = path.resolve()
    # The name cannot be guessed, and "x" creates the file or fails: a symbolic link that somebody has put under the
    # name of the temporary file is not followed, and a file of the user's is neither overwritten nor removed.
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
