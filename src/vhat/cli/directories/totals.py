"""What was seen in all files of a directory, as if they were one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vhat.cli.encode_rows import Filled
from vhat.cli.predict_stream import Tally

if TYPE_CHECKING:
    from vhat.cli.directories.partition import Finished

__all__ = ["joined"]


def joined(files: Sequence[Finished], *, together: bool) -> Tally:
    """Return the tally of all files, in their order; the first place of something is named with its file.

    Args:
        files: What was seen in each.
        together: Whether delta was shared among all rows: what each file says is then said of its rows alone.
    """
    whole = Tally()
    moved: dict[str, tuple[int, str]] = {}
    far: dict[str, tuple[int, str]] = {}
    cells: dict[tuple[str, str], tuple[int, str]] = {}
    for file in files:
        tally = file.tally
        whole.chunks += tally.chunks
        whole.rows += tally.rows
        whole.failed.update(tally.failed)
        whole.unsupported += tally.unsupported
        for name, (count, first) in tally.moved.items():
            so_far, place = moved.get(name, (0, f"{first} of {file.name}"))
            moved[name] = (so_far + count, place)
        for name, (count, first) in tally.far.items():
            so_far, place = far.get(name, (0, f"{first} of {file.name}"))
            far[name] = (so_far + count, place)
        for key, (count, first) in tally.filled.cells.items():
            so_far, place = cells.get(key, (0, f"{first} of {file.name}"))
            cells[key] = (so_far + count, place)
    whole.moved = moved
    whole.far = far
    whole.filled = Filled(cells)
    speaking = [file for file in files if file.tally.rows]
    if len(speaking) == 1 and not together:
        whole.guarantee = speaking[0].tally.guarantee
        return whole
    # a sentence about the rows of one file is not one about the directory: that of a single row is
    whole.guarantee = speaking[0].sentence if speaking else ""
    whole.chunks = max(whole.chunks, 2)
    return whole
