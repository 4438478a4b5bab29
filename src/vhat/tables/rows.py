"""Training or test rows in files, read block by block, here or on the workers of a cluster."""

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
"""How often the numbers of all rows are in memory at once: as they are read, joined, and in the units of the model."""
_SHOWN = 3


@dataclass(frozen=True)
class _Block:
    """Rows that are read together.

    Attributes:
        file: The path of their file.
        group: Which row group of a Parquet file; None for a whole file.
        rows: How many.
    """

    file: str
    group: int | None
    rows: int


@dataclass(frozen=True, repr=False)
class Rows:
    """Rows of Parquet or CSV files, in the order of the names of the files: in place of ``X`` and ``y``.

    Made by :meth:`parquet` or :meth:`csv`. It holds names of files and columns and no row, so that it can be sent to
    other machines that see the same files. A block is a row group of a Parquet file, or a whole CSV file.

    Attributes:
        blocks: Where the rows are.
        inputs: The columns of X, in this order; one name, not in a list, makes X a vector.
        target: The column of y, or several in a list, one an output; None where there are no responses.

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
        """Look at a Parquet file, or at all of them in a directory and below.

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
        blocks = [_Block(file, group, rows) for file in files for group, rows in enumerate(row_groups(Path(file)))]
        return cls._checked(blocks, files, inputs, target)

    @classmethod
    def csv(
        cls,
        path: str | os.PathLike[str],
        *,
        inputs: Sequence[str] | str,
        target: Sequence[str] | str | None = None,
    ) -> Rows:
        """Look at a CSV file, or at all of them in a directory and below; each is read once to count its rows.

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
        named = cls(
            tuple(block for block in blocks if block.rows),
            inputs if isinstance(inputs, str) else tuple(inputs),
            target if target is None or isinstance(target, str) else tuple(target),
        )
        if not named._input_names:
            raise InputError("inputs=[] names no column. Name those of X.")
        both = [name for name in named._input_names if name in named._target_names]
        if both:
            raise InputError(f"column {both[0]!r} is named in inputs= and in target=: it can be one of them.")
        for file in files:
            require_columns(
                open_table(file), [*named._input_names, *named._target_names], "which inputs= or target= name"
            )
        if not named.blocks:
            raise InputError(
                f"{files[0]}{' and the other files have' if len(files) > 1 else ' has'} columns and no rows."
            )
        return named

    @property
    def _input_names(self) -> tuple[str, ...]:
        return (self.inputs,) if isinstance(self.inputs, str) else self.inputs

    @property
    def _target_names(self) -> tuple[str, ...]:
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else self.target

    def __len__(self) -> int:
        """Return how many rows there are."""
        return sum(block.rows for block in self.blocks)

    def __repr__(self) -> str:
        count, files = len(self.blocks), len({block.file for block in self.blocks})
        return (
            f"Rows({len(self):,} rows in {count} {'block' if count == 1 else 'blocks'} of {files} "
            f"{'file' if files == 1 else 'files'}, inputs={self.inputs!r}, target={self.target!r})"
        )

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the inputs and the responses of a block, in float64.

        Args:
            number: Which block, counted from 0.

        Raises:
            InputError: For text and missing values, naming file and row, and for a file that has changed.
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
        """Yield all blocks in their order; one is in memory at a time."""
        return (self.read(number) for number in range(len(self.blocks)))

    def load(self, memory: float | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the inputs and the responses of all rows.

        Args:
            memory: Budget in bytes; half of the free memory by default.

        Raises:
            MemoryBudgetError: When they do not fit.
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
    """Return the files that are meant, as absolute paths in the order of their names."""
    place = Path(path)
    if place.is_file():
        return [str(place.resolve())]
    if not place.exists():
        raise InputError(f"there is no file or directory {path}. Check the name.")
    # As in a directory that is predicted: a name with a dot or an underscore before it is no data.
    found = sorted(
        file
        for file in place.rglob("*")
        if file.suffix.lower() in endings and file.is_file() and not _is_hidden(file.relative_to(place))
    )
    if not found:
        raise InputError(f"{path} has no files that end in {' or '.join(endings)}.")
    return [str(file.resolve()) for file in found]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _chunk(block: _Block, columns: list[str]) -> Chunk:
    if block.group is None:
        return read_all(open_table(block.file), columns)
    from vhat.tables.files.parquet import read_row_group

    return read_row_group(Path(block.file), block.group, columns)


def check_responses(rows: Rows, y: Any, call: str) -> None:
    """Refuse rows without responses, or with responses beside them.

    Args:
        rows: Rows to train on.
        y: What was given beside them.
        call: What messages say to call, such as ``"from_torch(module, rows)"``.

    Raises:
        InputError: Naming the call that works.
    """
    if y is not None:
        raise InputError(f"Rows bring their responses, target={rows.target!r}; leave y out: {call}.")
    if rows.target is None:
        raise InputError(f"these Rows have no responses: make them with target=, then {call}.")
