"""Training or test rows in Parquet or CSV files, read block by block, here or on the workers of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vhat.checks import check_memory
from vhat.errors import InputError, MemoryBudgetError
from vhat.tables.files import Chunk, open_table, read_all, require_columns

__all__ = ["Rows", "check_responses"]

_COPIES = 3
"""Copies of all numbers in memory at once: the blocks, the joined array, and the array in the units of the model."""


@dataclass(frozen=True)
class _Block:
    """Rows that are read together.

    Attributes:
        file: The path of the file.
        group: The row group of a Parquet file; None for a whole file.
        rows: The number of rows.
    """

    file: str
    group: int | None
    rows: int


@dataclass(frozen=True, repr=False)
class Rows:
    """Rows of Parquet or CSV files, sorted by file name, in place of ``X`` and ``y``.

    Made by :meth:`parquet` or :meth:`csv`. It holds names of files and columns and no row, so that it can be sent to
    other machines that see the same files. A block is a row group of a Parquet file, or a whole CSV file.

    Attributes:
        blocks: The blocks, in the order of the rows.
        inputs: The columns of X, in this order; a single name, not in a list, makes X a vector.
        target: The column of y, or a list with one column per output; None without responses.

    Examples:
        >>> import pandas as pd, tempfile, vhat
        >>> frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.0, 1.0, 0.0], "y": [1.0, 3.0, 3.0]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frame.to_csv(f"{folder}/part.csv", index=False)
        ...     rows = vhat.Rows.csv(folder, inputs=["a", "b"], target="y")
        ...     X, y = rows.read(0)
        >>> rows
        Rows(3 rows in 1 block of 1 file, inputs=('a', 'b'), target='y')
        >>> X.shape, y
        ((3, 2), array([1., 3., 3.]))
    """

    blocks: tuple[_Block, ...] = field(repr=False)
    inputs: tuple[str, ...] | str
    target: tuple[str, ...] | str | None = None

    @classmethod
    def parquet(
        cls,
        path: str | os.PathLike[str],
        *,
        inputs: Sequence[str] | str,
        target: Sequence[str] | str | None = None,
    ) -> Rows:
        """Return the rows of a Parquet file, or of all Parquet files in a directory and below.

        Args:
            path: The file or directory; workers of a cluster must find it under the same name.
            inputs: The columns of X.
            target: The column of y, or several in a list; None for test points.

        Raises:
            InputError: When there are no such files or columns, or no rows.
            MissingPackage: Without pyarrow.
        """
        from vhat.tables.files.parquet import row_groups

        files = _files(path, (".parquet", ".pq"))
        blocks = []
        for file in files:
            blocks += [_Block(file, group, rows) for group, rows in enumerate(row_groups(Path(file)))]
        return cls._checked(blocks, files, inputs, target)

    @classmethod
    def csv(
        cls,
        path: str | os.PathLike[str],
        *,
        inputs: Sequence[str] | str,
        target: Sequence[str] | str | None = None,
    ) -> Rows:
        """Return the rows of a CSV file, or of all CSV files in a directory and below; each is read once to count rows.

        Args:
            path: The file or directory; workers of a cluster must find it under the same name.
            inputs: The columns of X.
            target: The column of y, or several in a list; None for test points.

        Raises:
            InputError: When there are no such files or columns, or no rows.
        """
        files = _files(path, (".csv", ".tsv"))
        blocks = [_Block(file, None, open_table(file).count()) for file in files]
        return cls._checked(blocks, files, inputs, target)

    @classmethod
    def _checked(cls, blocks: list[_Block], files: list[str], inputs: Any, target: Any) -> Rows:
        """Return the rows of some files.

        Raises:
            InputError: For columns that are not there, a column that is named twice, and files without rows.
        """
        inputs = inputs if isinstance(inputs, str) else tuple(inputs)
        target = target if target is None or isinstance(target, str) else tuple(target)
        rows = cls(tuple(block for block in blocks if block.rows), inputs, target)
        if not rows._input_names:
            raise InputError("inputs=[] names no column. Name those of X.")
        both = [name for name in rows._input_names if name in rows._target_names]
        if both:
            raise InputError(f"column {both[0]!r} is named in inputs= and in target=: it can be one of them.")
        wanted = [*rows._input_names, *rows._target_names]
        for file in files:
            require_columns(open_table(file), wanted, "which inputs= or target= name")
        if not rows.blocks:
            which = f"{files[0]} and the other files have" if len(files) > 1 else f"{files[0]} has"
            raise InputError(f"{which} columns and no rows.")
        return rows

    @property
    def _input_names(self) -> tuple[str, ...]:
        return (self.inputs,) if isinstance(self.inputs, str) else self.inputs

    @property
    def _target_names(self) -> tuple[str, ...]:
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else self.target

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(block.rows for block in self.blocks)

    def __repr__(self) -> str:
        blocks = len(self.blocks)
        files = len({block.file for block in self.blocks})
        return (
            f"Rows({len(self):,} rows in {blocks} {'block' if blocks == 1 else 'blocks'} of {files} "
            f"{'file' if files == 1 else 'files'}, inputs={self.inputs!r}, target={self.target!r})"
        )

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the inputs and the responses of a block, in float64.

        Args:
            number: The block, counted from 0.

        Raises:
            InputError: For text and missing values, naming file and row; for a file that has changed.
        """
        block = self.blocks[number]
        chunk = _chunk(block, [*self._input_names, *self._target_names])
        if len(chunk) != block.rows:
            raise InputError(
                f"{block.file} had {block.rows:,} rows in this block and has {len(chunk):,} now: it was written to in "
                "between. Make the Rows anew."
            )
        X = chunk.numbers(self._input_names)
        y = chunk.numbers(self._target_names) if self._target_names else None
        if isinstance(self.inputs, str):
            X = X[:, 0]
        if y is not None and isinstance(self.target, str):
            y = y[:, 0]
        return X, y

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield the inputs and responses of each block in order; one block is in memory at a time."""
        return (self.read(number) for number in range(len(self.blocks)))

    def load(self, memory: float | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the inputs and the responses of all rows.

        Args:
            memory: Budget in bytes; half of the free memory by default.

        Raises:
            MemoryBudgetError: When the numbers do not fit.
        """
        budget = check_memory(memory)
        columns = len(self._input_names) + len(self._target_names)
        need = _COPIES * 8 * len(self) * columns
        if need > budget:
            raise MemoryBudgetError(
                f"{len(self):,} rows of {columns} columns take up to {need / 1e9:.3g} GB, and the budget is "
                f"{budget / 1e9:.3g} GB. Give a larger memory=, fewer rows, or from_torch(..., parameters='last'), "
                "which reads them block by block."
            )
        parts = list(self)
        X = np.concatenate([x for x, _ in parts])
        if self.target is None:
            return X, None
        return X, np.concatenate([y for _, y in parts if y is not None])


def _files(path: str | os.PathLike[str], endings: tuple[str, ...]) -> list[str]:
    """Return a file, or the files of a directory with some endings, as absolute paths sorted by name.

    Names that begin with a dot or an underscore are skipped, as in a directory that is predicted.
    """
    root = Path(path)
    if root.is_file():
        return [str(root.resolve())]
    if not root.exists():
        raise InputError(f"there is no file or directory {path}. Check the name.")
    found = []
    for file in sorted(root.rglob("*")):
        if file.suffix.lower() in endings and not _is_hidden(file.relative_to(root)) and file.is_file():
            found.append(file)
    if not found:
        raise InputError(f"{path} has no files that end in {' or '.join(endings)}.")
    return [str(file.resolve()) for file in found]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _chunk(block: _Block, columns: list[str]) -> Chunk:
    """Read some columns of a block."""
    if block.group is None:
        return read_all(open_table(block.file), columns)
    from vhat.tables.files.parquet import read_row_group

    return read_row_group(Path(block.file), block.group, columns)


def check_responses(rows: Rows, y: Any, call: str) -> None:
    """Refuse rows without responses, and rows together with a y.

    Args:
        rows: Rows to train on.
        y: The argument y of the same call.
        call: The call that messages suggest, such as ``"from_torch(module, rows)"``.

    Raises:
        InputError: Naming the call that works.
    """
    if y is not None:
        raise InputError(f"Rows bring their responses, target={rows.target!r}; leave y out: {call}.")
    if rows.target is None:
        raise InputError(f"these Rows have no responses: make them with target=, then {call}.")
