"""Results of cells on disk: one JSON file a cell, written at once or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vhat.errors import StoreError
from vhat.study.cell import Cell
from vhat.study.protocol import PROTOCOL

__all__ = ["Results", "to_text"]


@dataclass(frozen=True)
class Results:
    """The directory of a study.

    Attributes:
        folder: It holds ``cells/``, one file a cell, and what is made from them.
    """

    folder: Path

    @property
    def scratch(self) -> Path:
        """Where cells under way keep their fits.

        The fits of one cell are removed when its result is written. The fit that several methods have in common is
        removed by the run when none of its cells that share it is missing any more.
        """
        return self.folder / ".unfinished"

    @property
    def compiled(self) -> Path:
        """Where cells keep what was compiled for them."""
        return self.folder / ".compiled"

    def path(self, cell: Cell) -> Path:
        """Return where the result of a cell is kept."""
        return self.folder / "cells" / f"{cell.key}.json"

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Return the result of a cell, or None where there is none by this protocol.

        Raises:
            StoreError: When the file is not what :meth:`write` has written.
        """
        path = self.path(cell)
        try:
            result = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(f"{path} is damaged ({error}). Delete it; the next run computes it again.") from error
        if not isinstance(result, dict) or result.get("cell") != cell.config():
            raise StoreError(
                f"{path} holds another cell than its name says. Delete it; the next run computes it again."
            )
        return result if result.get("protocol") == PROTOCOL else None

    def write(self, cell: Cell, text: str) -> None:
        """Write the result of a cell: a reader, or a crash, sees the old file or the whole new one."""
        path = self.path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
        shutil.rmtree(self.scratch / cell.key, ignore_errors=True)

    def drop_fit(self, cell: Cell) -> None:
        """Remove the fit that the methods of a cell have in common."""
        shutil.rmtree(self.scratch / cell.fit_key, ignore_errors=True)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells without a result, in their order."""
        return [cell for cell in cells if self.read(cell) is None]

    def found(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Return the results that there are, in the order of their cells."""
        return [result for cell in cells if (result := self.read(cell)) is not None]


def to_text(result: dict[str, Any]) -> str:
    """Write a result as JSON, the same text for the same result."""
    return json.dumps(result, indent=1, allow_nan=False) + "\n"


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in its place at once: under another name first, on the disk, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
