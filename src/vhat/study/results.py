"""Results of cells on disk: one JSON file per cell, written atomically."""

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

_CHECKSUM = "sha256"
"""Name of the checksum in the file of a cell. It detects accidental changes; it is not a signature."""
_REMEDY = "Delete it; the next run computes it again."
"""Remedy in the message about a damaged file."""


@dataclass(frozen=True)
class Results:
    """The directory of a study.

    Attributes:
        folder: Its path. It contains ``cells/``, with one file per cell, and the outputs made from these.
    """

    folder: Path

    @property
    def scratch(self) -> Path:
        """Directory of the cached fits of running cells.

        The fits of a cell are removed when its result is written. A run removes the fit that several methods share when
        all of its cells have a result.
        """
        return self.folder / ".unfinished"

    @property
    def compiled(self) -> Path:
        """Directory of JAX's compilation cache."""
        return self.folder / ".compiled"

    def path(self, cell: Cell) -> Path:
        """Return the path of the result of a cell."""
        return self.folder / "cells" / f"{cell.key}.json"

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Return the result of a cell; None if there is none of the current protocol.

        Raises:
            StoreError: When the file is damaged, or belongs to another cell.
        """
        path = self.path(cell)
        try:
            result = _read_file(path)
        except FileNotFoundError:
            return None
        if result.get("cell") != cell.config():
            raise StoreError(f"{path} holds another cell than its name says. {_REMEDY}")
        if result.get("protocol") != PROTOCOL:
            return None
        return result

    def every(self) -> list[dict[str, Any]]:
        """Return all stored results, of any plan and protocol, in the order of their names.

        Raises:
            StoreError: When a file is damaged.
        """
        return [_read_file(path) for path in sorted((self.folder / "cells").glob("[!.]*.json"))]

    def write(self, cell: Cell, text: str) -> None:
        """Write the result of a cell atomically, and remove its cached fits."""
        path = self.path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
        shutil.rmtree(self.scratch / cell.key, ignore_errors=True)

    def drop_fit(self, cell: Cell) -> None:
        """Remove the cached fit that the methods of a cell share."""
        shutil.rmtree(self.scratch / cell.fit_key, ignore_errors=True)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells without a result, in the given order."""
        return [cell for cell in cells if self.read(cell) is None]

    def found(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Return the existing results of the cells, in the order of the cells."""
        results = [self.read(cell) for cell in cells]
        return [result for result in results if result is not None]


def to_text(result: dict[str, Any]) -> str:
    """Return a result as JSON text with its checksum, the same text for the same result."""
    content = {name: value for name, value in result.items() if name != _CHECKSUM}
    return json.dumps(content | {_CHECKSUM: _checksum(content)}, indent=1, allow_nan=False) + "\n"


def _checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the values, independent of the order of the names and of white space.

    Raises:
        ValueError: When a value is NaN or infinite.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _read_file(path: Path) -> dict[str, Any]:
    """Return a result without its checksum.

    Raises:
        StoreError: When the file is not JSON, has no checksum, or the checksum of other values.
    """
    try:
        result = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}). {_REMEDY}") from error
    if not isinstance(result, dict) or _CHECKSUM not in result:
        raise StoreError(
            f"{path} has no checksum ({_CHECKSUM!r}), so that a changed number would not be noticed. {_REMEDY}"
        )
    stored = result.pop(_CHECKSUM)
    try:
        computed = _checksum(result)
    except ValueError as error:  # NaN or infinity, which no result contains
        raise StoreError(f"{path} is damaged ({error}). {_REMEDY}") from error
    if computed != stored:
        raise StoreError(
            f"{path} has been changed since it was written: the checksum of its values is {computed[:12]}..., not "
            f"{str(stored)[:12]}.... {_REMEDY}"
        )
    return result


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        file.write(content)
