"""Compute the intervals of a table chunk by chunk.

Chunks consist of whole blocks of the solver, so that every number is, bit for bit, that of the table in one piece.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from vhat.cli.encode_rows import Filled, encode_rows
from vhat.errors import ConvergenceWarning, InputError, SupportWarning, TableWarning
from vhat.tables.validate import identifier_remedy

if TYPE_CHECKING:
    import pandas as pd

    from vhat.estimator import NetworkRegressor
    from vhat.intervals.interval import Interval
    from vhat.tables.files import Chunk, TableFile

__all__ = ["Asked", "Tally", "chunk_rows", "intervals", "result_columns"]

MOVED = "constant column"
"""Status of a row whose value in some column differs from the one that all training rows have. It has an interval."""
RESULTS = ("center", "lower", "upper", "standard_error", "unsupported", "status")
"""The columns of the result, which are fields of an interval."""
_ROWS = 32_768
"""The most rows of a chunk: their cells as text, numbers and results take some tens of megabytes."""


@dataclass(frozen=True)
class Asked:
    """The interval that is asked of every row.

    Attributes:
        delta: Probability of a miss.
        target: ``"mean"`` or ``"observation"``.
        bound: Name of the bound; None for calibrated intervals of an observation, or the default bound of the mean.
        noise: The noise level; None, ``"weights"`` or ``"equal"`` to estimate it.
        observation_noise: Standard deviation of a new observation; None if it is that of the training rows.
        together: Number of rows that share delta by the union bound; None if delta holds for each row alone.
    """

    delta: float
    target: str
    bound: str | None
    noise: float | str | None = None
    observation_noise: float | None = None
    together: int | None = None

    def of(self, network: NetworkRegressor, inputs: pd.DataFrame) -> Interval:
        """Return the intervals of some rows."""
        whole = self.together == len(inputs)
        values_sharing_delta = 1
        if self.together is not None and not whole:  # the rows are a part of those that share delta
            values_sharing_delta = self.together * network.fitted_.problem.outputs
        has_names = hasattr(network, "feature_names_in_")
        return network.predict_interval(
            inputs if has_names else inputs.to_numpy(),
            self.delta / values_sharing_delta,
            target=self.target,
            bound=self.bound,
            simultaneous=whole,
            noise=self.noise,
            observation_noise=self.observation_noise,
        )


@dataclass
class Tally:
    """Counts over the rows of a table that have been read so far.

    Attributes:
        chunks: Number of chunks.
        rows: Number of rows.
        failed: Number of rows without an interval, by status.
        unsupported: Number of rows that the training data hardly support.
        moved: By column that was constant in training: number of rows with another value, and place of the first.
        far: By column: number of rows far outside the training range, and place of the first.
        remedies: What to do about each of these columns, if it looks like an identifier; else an empty text.
        filled: Cells that were replaced, because they are missing or hold an unknown level.
        guarantee: The guarantee sentence of the intervals.
    """

    chunks: int = 0
    rows: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    unsupported: int = 0
    moved: dict[str, tuple[int, str]] = field(default_factory=dict)
    far: dict[str, tuple[int, str]] = field(default_factory=dict)
    remedies: dict[str, str] = field(default_factory=dict)
    filled: Filled = field(default_factory=Filled)
    guarantee: str = ""

    def count(self, band: Interval) -> None:
        """Count the rows of a chunk, and those without an interval or without support."""
        from vhat.estimator.columns import FAR
        from vhat.variance.weighted_norm import hardly_supported

        self.chunks += 1
        self.rows += len(band.center)
        unanswered = (band.status != "converged") & (band.status != FAR)
        self.failed.update(map(str, band.status[unanswered]))
        self.unsupported += int(np.sum(hardly_supported(band.unsupported, usual=band.usual_unsupported)))

    def count_moved(self, network: NetworkRegressor, chunk: Chunk, inputs: pd.DataFrame) -> np.ndarray:
        """Count the rows in which a column differs from its constant training value, and return which, (rows,)."""
        anywhere = np.zeros(len(inputs), dtype=bool)
        for at, value in network.constants_.items():
            name = str(inputs.columns[at])
            moved = inputs.iloc[:, at].to_numpy() != value
            anywhere |= moved
            _add_rows(self.moved, name, moved, chunk)
        return anywhere

    def count_far(self, network: NetworkRegressor, chunk: Chunk, inputs: pd.DataFrame) -> None:
        """Count the rows that are far outside the training range of a column."""
        far = network.scaling_.far(inputs.to_numpy(dtype=np.float64))
        for k in np.flatnonzero(far.any(axis=0)):
            column = int(network.scaling_.kept[k])
            name = str(inputs.columns[column])
            if name not in self.far:
                numbers = network.fitted_.problem.X[:, column]
                self.remedies[name] = identifier_remedy(numbers, column, list(inputs.columns), command=True)
            _add_rows(self.far, name, far[:, k], chunk)

    def moved_warnings(self, table: TableFile) -> list[str]:
        """Return one sentence for each column that was constant in training and has other values here."""
        return [
            f"warning: column {name!r} was the same in all training rows and is not in {count:,} "
            f"{'row' if count == 1 else 'rows'} of {table.name} (first in {first}): what it does there is not known, "
            "and no interval tells. Do not rely on these predictions."
            for name, (count, first) in self.moved.items()
        ]

    def far_warnings(self, table: TableFile) -> list[str]:
        """Return one sentence for each column with values far outside its training range."""
        return [
            f"warning: column {name!r} is far outside the range that it had in training in {count:,} "
            f"{'row' if count == 1 else 'rows'} of {table.name} (first in {first}): the model was fitted to nothing "
            f"there, and no interval tells how it errs. Do not rely on these predictions.{self.remedies.get(name, '')}"
            for name, (count, first) in self.far.items()
        ]


def _add_rows(counts: dict[str, tuple[int, str]], name: str, rows: np.ndarray, chunk: Chunk) -> None:
    """Add rows of a chunk to the count of a column.

    Args:
        counts: By column, the number of rows and the place of the first.
        name: The column.
        rows: The rows to count, (rows,) of bool.
        chunk: The chunk, which tells the place of the first of them.
    """
    if rows.any():
        count, first = counts.get(name, (0, f"{chunk.noun} {chunk.places[rows.argmax()]}"))
        counts[name] = (count + int(rows.sum()), first)


def chunk_rows(network: NetworkRegressor) -> int:
    """Return the number of rows of a chunk: whole blocks of the solver, so that chunks do not change any number."""
    from vhat.linalg.solvers.cost import points_together

    block = points_together(network.fitted_.problem)
    return block * max(1, _ROWS // block)


def intervals(
    network: NetworkRegressor, table: TableFile, columns: Sequence[str], keep: Sequence[str], asked: Asked, tally: Tally
) -> Iterator[tuple[Chunk, Interval]]:
    """Yield the rows of a table with their intervals.

    Args:
        network: The model.
        table: The table.
        columns: The columns that the model takes, in its order.
        keep: Further columns to read.
        asked: The interval that is asked of every row.
        tally: The counts, to which those of this table are added.

    Raises:
        InputError: For a table without rows, and for values that are not finite numbers.
    """
    best_supported: pd.DataFrame | None = None
    for chunk in table.chunks(list(dict.fromkeys([*columns, *keep])), chunk_rows(network)):
        inputs, status = encode_rows(network, chunk, columns, tally.filled)
        moved = tally.count_moved(network, chunk, inputs)
        tally.count_far(network, chunk, inputs)
        with warnings.catch_warnings():  # these warnings count the rows of a chunk; the tally counts those of the table
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", SupportWarning)
            warnings.simplefilter("ignore", TableWarning)
            band = asked.of(network, inputs)
            if tally.chunks == 1:
                # The sentence of the first chunk counts its rows. With a second chunk, the sentence of a single row
                # takes its place: that of the row which the training data support best.
                assert best_supported is not None
                tally.guarantee = asked.of(network, best_supported).guarantee
        if not tally.chunks:
            unsupported = np.nan_to_num(band.unsupported, nan=np.inf).reshape(len(inputs), -1).max(axis=1)
            best_supported = inputs.iloc[[int(unsupported.argmin())]]
            tally.guarantee = band.guarantee
        tally.count(band)
        band = _with_status(band, moved, MOVED)
        yield chunk, _with_status(band, status != "", status)
    if not tally.rows:
        raise InputError(f"{table.name} has column names and no rows.")
    if asked.together is not None and asked.together != tally.rows:
        raise InputError(
            f"{table.name} had {asked.together:,} rows when they were counted and {tally.rows:,} when they were read: "
            "it was written to in between. Ask again."
        )


def _with_status(band: Interval, rows: np.ndarray, status: np.ndarray | str) -> Interval:
    """Return an interval with another status of some rows, where it was ``converged`` or :data:`FAR`.

    Args:
        band: The interval.
        rows: The rows, (rows,) of bool.
        status: Their status, one text or one a row.
    """
    from vhat.estimator.columns import FAR

    if not rows.any():
        return band
    shape = (-1, *(1,) * (band.status.ndim - 1))  # one status for all outputs of a row
    replaced = rows.reshape(shape) & ((band.status == "converged") | (band.status == FAR))
    return replace(band, status=np.where(replaced, np.array(status, dtype=object).reshape(shape), band.status))


def result_columns(band: Interval) -> dict[str, np.ndarray]:
    """Return the columns of the result; with several outputs, each name ends in the number of the output."""
    if band.center.ndim == 1:
        return {name: getattr(band, name) for name in RESULTS}
    return {f"{name}_{k}": getattr(band, name)[:, k] for k in range(band.center.shape[1]) for name in RESULTS}
