"""Intervals as one pure function, frame to frame, for engines that carry frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_choice, check_delta
from vhat.errors import InputError
from vhat.tables.files.cells import Chunk

if TYPE_CHECKING:
    import pandas as pd

    from vhat.cli.predict_stream import Asked, Tally
    from vhat.estimator import NetworkRegressor
    from vhat.intervals.interval import Interval
    from vhat.tables.files import TableFile

__all__ = ["FramePredictor", "FrameTable"]

TARGETS = ("mean", "observation")


@dataclass(frozen=True)
class FramePredictor:
    """A function from rows to their intervals, ``predict(frame)``, that can be sent to other processes.

    It holds options and the name of a directory, so that a pickle of it is small; each process reads the model once.
    Rows keep their order and do not depend on each other, so that they may be split in any way. What comes back has the
    columns ``center``, ``lower``, ``upper``, ``standard_error``, ``unsupported`` and ``status`` of ``vhat predict``
    behind those of ``keep``; with several outputs each has its number at the end of the name.

    Attributes:
        model: The directory of a saved estimator or of its sketch, under the name that every worker knows it by.
        delta: Probability of a miss.
        target: ``"mean"`` or ``"observation"``.
        bound: The bound's name; None for calibrated intervals of an observation, and the default of the mean.
        noise: The noise level; None, ``"weights"`` or ``"equal"`` to estimate it.
        observation_noise: The noise of a new observation; None where it is that of the training rows.
        keep: Columns to pass on.
        fingerprint: The model that must be there, by :func:`vhat.store.reading.fingerprint`; None for any.

    Examples:
        >>> predict = FramePredictor("deployed", 0.1, target="observation", keep=("id",))  # doctest: +SKIP
        >>> intervals = predict(frame)  # doctest: +SKIP
    """

    model: str
    delta: float = 0.05
    target: str = "mean"
    bound: str | None = None
    noise: float | str | None = None
    observation_noise: float | None = None
    keep: tuple[str, ...] = ()
    fingerprint: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_choice("target", self.target, TARGETS)
        if isinstance(self.keep, str):
            raise InputError(f"keep={self.keep!r} is text; give a tuple of names, such as ({self.keep!r},).")

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the intervals of some rows, under the index of their frame.

        Raises:
            InputError: For columns that are missing, and for cells that cannot be read.
            StoreError: When the model cannot be loaded.
            MissingPackage: Without pyarrow.
        """
        import pandas as pd

        from vhat.cli.directories.worker_models import loaded_model, one_at_a_time
        from vhat.cli.predict_stream import Tally

        with one_at_a_time():
            network = loaded_model(self.model, self.fingerprint)
            table = FrameTable(frame)
            columns = self.columns_of(network, table)
            if not len(frame):
                types = {name: frame[name].dtype for name in self.keep}
                return pd.DataFrame(self.no_rows(network), index=frame.index).astype(types)
            parts = [rows for _, _, rows in self.answers(network, table, columns, Tally())]
        return pd.DataFrame(
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, index=frame.index
        )

    def over(self, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the intervals of one frame after the other: the form of Spark's ``mapInPandas``."""
        for frame in frames:
            yield self(frame)

    @property
    def asked(self) -> Asked:
        """What is asked of every row."""
        from vhat.cli.predict_stream import Asked

        return Asked(self.delta, self.target, self.bound, self.noise, self.observation_noise)

    def columns_of(self, network: NetworkRegressor, table: TableFile) -> tuple[str, ...]:
        """Return the columns of a table that the model takes.

        Raises:
            InputError: For a table without them, or without those to keep.
        """
        from vhat.cli import saved_models
        from vhat.tables.files import require_columns

        require_columns(table, self.keep, "which are to be kept")
        return saved_models.input_columns(network, table)

    def answers(
        self, network: NetworkRegressor, table: TableFile, columns: Sequence[str], tally: Tally
    ) -> Iterator[tuple[Chunk, Interval, dict[str, np.ndarray]]]:
        """Yield a table chunk by chunk: rows as they were read, their intervals, and the columns of the result."""
        from vhat.cli.predict_stream import intervals, result_columns

        for chunk, band in intervals(network, table, columns, self.keep, self.asked, tally):
            yield chunk, band, {name: chunk.columns[name] for name in self.keep} | result_columns(band)

    def no_rows(self, network: NetworkRegressor) -> dict[str, np.ndarray]:
        """Return the columns of the result of a table without rows."""
        from vhat.cli.predict_stream import RESULTS

        outputs = network.fitted_.problem.outputs
        suffixes = [""] if outputs == 1 else [f"_{output}" for output in range(outputs)]
        kept = {name: np.empty(0, dtype=object) for name in self.keep}
        types = {name: object if name == "status" else float for name in RESULTS}
        return kept | {f"{name}{end}": np.empty(0, dtype=types[name]) for end in suffixes for name in RESULTS}


@dataclass(frozen=True, eq=False)
class FrameTable:
    """A data frame as a table; see :class:`vhat.tables.files.TableFile`."""

    frame: pd.DataFrame
    name: str = "the frame"

    def __post_init__(self) -> None:
        if len(set(self.columns)) < len(self.columns):
            raise InputError(f"{self.name} has several columns of the same name: {', '.join(self.columns)}.")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(str(name) for name in self.frame.columns)

    @property
    def rereadable(self) -> bool:
        """Return True: it is in memory."""
        return True

    @property
    def types(self) -> dict[str, Any]:
        """None: a frame becomes a frame."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns, ``rows`` rows at a time."""
        from vhat.tables.files.parquet import arrow, column_values

        pyarrow, _ = arrow()
        at = [self.columns.index(name) for name in columns]
        for begin in range(0, len(self.frame), rows):
            part = self.frame.iloc[begin : begin + rows]
            # by way of Arrow a cell is what it would be in a Parquet file of this frame: gaps are None in every type
            values = {
                name: column_values(pyarrow.chunked_array([self._arrow(pyarrow, name, part.iloc[:, k])]))
                for name, k in zip(columns, at, strict=True)
            }
            yield Chunk(values, np.arange(begin + 1, begin + 1 + len(part)), "row", self.name)

    def count(self) -> int:
        """Return the number of rows."""
        return len(self.frame)

    def _arrow(self, pyarrow: Any, name: str, cells: pd.Series[Any]) -> Any:
        """Return the cells of a column as an Arrow array.

        Raises:
            InputError: For cells of several types, whole numbers of more than 64 bits, and text that is not Unicode.
        """
        try:
            return pyarrow.Array.from_pandas(cells)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:  # its own, and Python's
            raise InputError(
                f"{self.name}: the cells of column {name!r} have no common type: {error}. Give numbers, or text, in "
                "every row."
            ) from error
