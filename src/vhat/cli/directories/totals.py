"""What was seen in all files of a directory, as if they were one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from vhat.cli.encode_rows import Filled
from vhat.cli.predict_stream import Tally

if TYPE_CHECKING:
    from vhat.cli.directories.partition import Finished

__all__ = ["joined"]


Key = TypeVar("Key")


def _add(whole: dict[Key, tuple[int, str]], part: dict[Key, tuple[int, str]], file: str) -> None:
    """Add the counts of one file; the first place of something is kept, with the file's name."""
    for key, (count, first) in part.items():
        so_far, place = whole.get(key, (0, f"{first} of {file}"))
        whole[key] = (so_far + count, place)


def joined(files: Sequence[Finished], *, together: bool) -> Tally:
    """Return the tally of all files, in their order; the first place of something is named with its file.

    Args:
        files: What was seen in each.
        together: Whether delta was shared among all rows: what each file says is then said of its rows alone.
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
        _add(cells, tally.filled.cells, file.name)
    whole.filled = Filled(cells)
    speaking = [file for file in files if file.tally.rows]
    if len(speaking) == 1 and not together:
        whole.guarantee = speaking[0].tally.guarantee
        return whole
    # a sentence about the rows of one file is not one about the directory: that of a single row is
    whole.guarantee = speaking[0].sentence if speaking else ""
    whole.chunks = max(whole.chunks, 2)
    return whole
