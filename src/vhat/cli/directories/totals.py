"""Join the counts of all files of a directory, as if they were one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from vhat.cli.encode_rows import Filled
from vhat.cli.predict_stream import Tally

if TYPE_CHECKING:
    from vhat.cli.directories.partition import Finished

__all__ = ["joined_tally"]

Key = TypeVar("Key")


def _add(whole: dict[Key, tuple[int, str]], part: dict[Key, tuple[int, str]], file: str) -> None:
    """Add the counts of one file to those of all files. The first place is kept, with the name of its file."""
    for key, (count, first) in part.items():
        total, place = whole.get(key, (0, f"{first} of {file}"))
        whole[key] = (total + count, place)


def joined_tally(files: Sequence[Finished], *, together: bool) -> Tally:
    """Return the counts over all files. The first place of a peculiarity is given with the name of its file.

    Args:
        files: The finished files.
        together: Whether delta was shared by all rows of all files. The guarantee of a file then covers its rows only.
    """
    whole = Tally()
    cells: dict[tuple[str, str], tuple[int, str]] = {}
    for file in files:
        tally = file.tally
        whole.chunks += tally.chunks
        whole.rows += tally.rows
        whole.failed.update(tally.failed)
        whole.unsupported += tally.unsupported
        _add(whole.moved, tally.moved, file.name)
        _add(whole.far, tally.far, file.name)
        whole.remedies |= tally.remedies
        _add(cells, tally.filled.cells, file.name)
    whole.filled = Filled(cells)
    with_rows = [file for file in files if file.tally.rows]
    if len(with_rows) == 1 and not together:
        whole.guarantee = with_rows[0].tally.guarantee
        return whole
    # The guarantee of one file counts its rows and does not describe the directory; that of a single row does.
    whole.guarantee = with_rows[0].sentence if with_rows else ""
    whole.chunks = max(whole.chunks, 2)  # more than one chunk: the remarks then add the counts of all rows
    return whole
