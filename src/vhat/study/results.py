"""Results of cells on disk: one JSON file a cell, written at once or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vhat.atomic_files import replacing
from vhat.errors import StoreError
from vhat.study.cell import Cell
from vhat.study.protocol import PROTOCOL

__all__ = ["Results", "to_text"]

_SEAL = "sha256"
"""The name of the checksum in the file of a cell. It finds accidents; it is no signature."""
_AGAIN = "Delete it; the next run computes it again."


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
            result = _read_file(path)
        except FileNotFoundError:
            return None
        if result.get("cell") != cell.config():
            raise StoreError(f"{path} holds another cell than its name says. {_AGAIN}")
        return result if result.get("protocol") == PROTOCOL else None

    def every(self) -> list[dict[str, Any]]:
        """Return all results that are stored, of any plan and protocol, in the order of their names.

        Raises:
            StoreError: When a file is not what :meth:`write` has written.
        """
        return [_read_file(path) for path in sorted((self.folder / "cells").glob("[!.]*.json"))]

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
    """Write a result as JSON with its checksum, the same text for the same result."""
    content = {name: value for name, value in result.items() if name != _SEAL}
    return json.dumps(content | {_SEAL: _seal(content)}, indent=1, allow_nan=False) + "\n"


def _seal(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the values, whatever the order of the names and the space between them."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _read_file(path: Path) -> dict[str, Any]:
    """Return a result without its checksum.

    Raises:
        StoreError: When it is no JSON, has no checksum, or has that of other values.
    """
    try:
        result = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}). {_AGAIN}") from error
    if not isinstance(result, dict) or _SEAL not in result:
        raise StoreError(f"{path} has no checksum ({_SEAL!r}), so that a changed number would not be noticed. {_AGAIN}")
    said = result.pop(_SEAL)
    try:
        found = _seal(result)
    except ValueError as error:  # NaN or an infinity, which no result has
        raise StoreError(f"{path} is damaged ({error}). {_AGAIN}") from error
    if found != said:
        raise StoreError(
            f"{path} has been changed since it was written: the checksum of its values is {found[:12]}..., not "
            f"{str(said)[:12]}.... {_AGAIN}"
        )
    return result


def write_whole(path: Path, content: bytes) -> None:
    """Write a file at once or not at all."""
    with replacing(path) as file:
        file.write(content)
