"""A pure function from a data frame to the intervals of its rows, for engines such as Spark and Dask."""

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
"""What an interval may be for."""


@dataclass(frozen=True)
class FramePredictor:
    """A function from rows to their intervals, ``predict(frame)``, that can be sent to other processes.

    It holds options and the name of a directory, so that its pickle is small. Each process reads the model once. Rows
    keep their order and do not depend on each other, so that a frame may be split in any way. The result has the
    columns of ``keep``, followed by ``center``, ``lower``, ``upper``, ``standard_error``, ``unsupported`` and
    ``status`` as in ``vhat predict``. With several outputs, the number of the output is at the end of each name.

    Attributes:
        model: The directory of a saved estimator or of its sketch, under a name that is valid on every worker.
        delta: Probability of a miss.
        target: ``"mean"`` or ``"observation"``.
        bound: The name of the bound; None for calibrated intervals of an observation, or the default bound of the mean.
        noise: The noise level; None, ``"weights"`` or ``"equal"`` to estimate it.
        observation_noise: The noise of a new observation; None if it is that of the training rows.
        keep: Columns to pass on.
        fingerprint: The expected :func:`vhat.store.reading.fingerprint` of the model; None accepts any model.

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
        """Return the intervals of the rows of a frame, with the index of the frame.

        Raises:
            InputError: For missing columns, and for cells that cannot be read.
            StoreError: If the model cannot be loaded.
            MissingPackage: If pyarrow is not installed.
        """
        import pandas as pd

        from vhat.cli.directories.worker_models import loaded_model, one_at_a_time
        from vhat.cli.predict_stream import Tally

        with one_at_a_time():
            network = loaded_model(self.model, self.fingerprint)
            table = FrameTable(frame)
            columns = self.columns_of(network, table)
            if len(frame) == 0:
                types = {name: frame[name].dtype for name in self.keep}
                return pd.DataFrame(self.no_rows(network), index=frame.index).astype(types)
            parts = [rows for _, _, rows in self.interval_chunks(network, table, columns, Tally())]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return pd.DataFrame(joined, index=frame.index)

    def over(self, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the intervals of each frame, in the form of Spark's ``mapInPandas``."""
        for frame in frames:
            yield self(frame)

    @property
    def asked(self) -> Asked:
        """Return the options of the intervals."""
        from vhat.cli.predict_stream import Asked

        return Asked(self.delta, self.target, self.bound, self.noise, self.observation_noise)

    def columns_of(self, network: NetworkRegressor, table: TableFile) -> tuple[str, ...]:
        """Return the columns of a table that the model takes.

        Raises:
            InputError: If one of them, or of the columns to keep, is missing.
        """
        from vhat.cli import saved_models
        from vhat.tables.files import require_columns

        require_columns(table, self.keep, "which are to be kept")
        return saved_models.input_columns(network, table)

    def interval_chunks(
        self, network: NetworkRegressor, table: TableFile, columns: Sequence[str], tally: Tally
    ) -> Iterator[tuple[Chunk, Interval, dict[str, np.ndarray]]]:
        """Yield for each chunk of a table: the rows as read, their intervals, and the columns of the result."""
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
        """Return the names of its columns."""
        return tuple(str(name) for name in self.frame.columns)

    @property
    def rereadable(self) -> bool:
        """Return True: a frame can be read more than once."""
        return True

    @property
    def types(self) -> dict[str, Any]:
        """Return no types: the result is a frame, too, and needs none."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns, ``rows`` rows at a time."""
        from vhat.tables.files.parquet import arrow, column_values

        pyarrow, _ = arrow()
        positions = [self.columns.index(name) for name in columns]
        for begin in range(0, len(self.frame), rows):
            part = self.frame.iloc[begin : begin + rows]
            # By way of Arrow, a cell is what it would be in a Parquet file of this frame: missing cells are None.
            values = {}
            for name, position in zip(columns, positions, strict=True):
                cells = self._arrow(pyarrow, name, part.iloc[:, position])
                values[name] = column_values(pyarrow.chunked_array([cells]))
            yield Chunk(values, np.arange(begin + 1, begin + 1 + len(part)), "row", self.name)

    def count(self) -> int:
        """Return the number of rows."""
        return len(self.frame)

    def _arrow(self, pyarrow: Any, name: str, cells: pd.Series[Any]) -> Any:
        """Return the cells of a column as an Arrow array.

        Raises:
            InputError: For cells of several types, integers of more than 64 bits, and text that is not Unicode.
        """
        try:
            return pyarrow.Array.from_pandas(cells)
        except (
            pyarrow.ArrowException,
            TypeError,
            ValueError,
            OverflowError,
        ) as error:  # pyarrow raises its own exceptions and Python's
            raise InputError(
                f"{self.name}: the cells of column {name!r} have no common type: {error}. Give numbers, or text, in "
                "every row."
            ) from error
