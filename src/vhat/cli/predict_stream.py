"""Intervals for a table chunk by chunk, the same numbers as in one piece."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from vhat.cli.encode_rows import Filled, encode_rows
from vhat.errors import ConvergenceWarning, InputError, SupportWarning, TableWarning

if TYPE_CHECKING:
    import pandas as pd

    from vhat.estimator import NetworkRegressor
    from vhat.intervals.interval import Interval
    from vhat.tables.files import Chunk, TableFile

__all__ = ["Asked", "Tally", "chunk_rows", "intervals", "result_columns"]

MOVED = "constant column"
"""Status of a row that has an interval, and a value in some column that was another in all training rows."""
RESULTS = ("center", "lower", "upper", "standard_error", "unsupported", "status")
_ROWS = 32_768


@dataclass(frozen=True)
class Asked:
    """What is asked of every row.

    Attributes:
        delta: Probability of a miss.
        target: ``"mean"`` or ``"observation"``.
        bound: The bound's name; None for calibrated intervals of an observation, and the default of the mean.
        noise: The noise level; None, ``"weights"`` or ``"equal"`` to estimate it.
        observation_noise: The noise of a new observation; None where it is that of the training rows.
        together: How many rows the delta is for, all at once by the union bound; None for each row alone.
    """

    delta: float
    target: str
    bound: str | None
    noise: float | str | None = None
    observation_noise: float | None = None
    together: int | None = None

    def of(self, network: NetworkRegressor, inputs: pd.DataFrame) -> Interval:
        """Ask about some rows."""
        whole = self.together == len(inputs)
        share = 1 if self.together is None or whole else self.together * network.fitted_.problem.outputs
        known = hasattr(network, "feature_names_in_")
        return network.predict_interval(
            inputs if known else inputs.to_numpy(),
            self.delta / share,
            target=self.target,
            bound=self.bound,
            simultaneous=whole,
            noise=self.noise,
            observation_noise=self.observation_noise,
        )


@dataclass
class Tally:
    """What has been seen of a table so far.

    Attributes:
        chunks: How many chunks.
        rows: How many rows.
        failed: How many rows have no interval, by status.
        unsupported: For how many rows the training data hardly speak.
        moved: Columns that were constant in training and are not here: in how many rows, and where first.
        far: Columns that are far outside the range they had in training: in how many rows, and where first.
        filled: Cells of which training knew nothing.
        guarantee: The sentence of the intervals.
    """

    chunks: int = 0
    rows: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    unsupported: int = 0
    moved: dict[str, tuple[int, str]] = field(default_factory=dict)
    far: dict[str, tuple[int, str]] = field(default_factory=dict)
    filled: Filled = field(default_factory=Filled)
    guarantee: str = ""

    def note(self, band: Interval) -> None:
        """Count the rows of a chunk."""
        from vhat.estimator.columns import FAR
        from vhat.variance.weighted_norm import hardly_supported

        self.chunks += 1
        self.rows += len(band.center)
        unanswered = (band.status != "converged") & (band.status != FAR)
        self.failed.update(map(str, band.status[unanswered]))
        self.unsupported += int(np.sum(hardly_supported(band.unsupported, usual=band.usual_unsupported)))

    def note_moved(self, network: NetworkRegressor, chunk: Chunk, inputs: pd.DataFrame) -> np.ndarray:
        """Count the rows at which a column differs that was constant in training, and return which, (rows,)."""
        anywhere = np.zeros(len(inputs), dtype=bool)
        for at, value in network.constants_.items():
            name = str(inputs.columns[at])
            here = inputs.iloc[:, at].to_numpy() != value
            anywhere |= here
            _count(self.moved, name, here, chunk)
        return anywhere

    def note_far(self, network: NetworkRegressor, chunk: Chunk, inputs: pd.DataFrame) -> None:
        """Count the rows far outside the range that a column had in training."""
        far = network.scaling_.far(inputs.to_numpy(dtype=np.float64))
        for k in np.flatnonzero(far.any(axis=0)):
            _count(self.far, str(inputs.columns[network.scaling_.kept[k]]), far[:, k], chunk)

    def told_moved(self, table: TableFile) -> list[str]:
        """Say of every such column in how many rows it differs, and where first."""
        return [
            f"warning: column {name!r} was the same in all training rows and is not in {count:,} "
            f"{'row' if count == 1 else 'rows'} of {table.name} (first in {first}): what it does there is not known, "
            "and no interval tells. Do not rely on these predictions."
            for name, (count, first) in self.moved.items()
        ]

    def told_far(self, table: TableFile) -> list[str]:
        """Say of every column in how many rows it is far outside its training range, and where first."""
        return [
            f"warning: column {name!r} is far outside the range that it had in training in {count:,} "
            f"{'row' if count == 1 else 'rows'} of {table.name} (first in {first}): the model was fitted to nothing "
            "there, and no interval tells how it errs. Do not rely on these predictions."
            for name, (count, first) in self.far.items()
        ]


def _count(seen: dict[str, tuple[int, str]], name: str, here: np.ndarray, chunk: Chunk) -> None:
    """Add the rows of a chunk at which something was seen of a column, and where it was seen first."""
    if here.any():
        count, first = seen.get(name, (0, f"{chunk.noun} {chunk.places[here.argmax()]}"))
        seen[name] = (count + int(here.sum()), first)


def chunk_rows(network: NetworkRegressor) -> int:
    """How many rows to read at a time: whole blocks of the solver, so that chunks change not one bit of a number."""
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
        columns: Those that the model takes, in its order.
        keep: Further columns to read.
        asked: What is asked of every row.
        tally: Where it is noted what was seen.

    Raises:
        InputError: For a table without rows, and for values that are not finite numbers.
    """
    spokesman: pd.DataFrame | None = None
    for chunk in table.chunks(list(dict.fromkeys([*columns, *keep])), chunk_rows(network)):
        inputs, status = encode_rows(network, chunk, columns, tally.filled)
        moved = tally.note_moved(network, chunk, inputs)
        tally.note_far(network, chunk, inputs)
        with warnings.catch_warnings():  # they count rows within the chunk; the tally counts them in the table
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", SupportWarning)
            warnings.simplefilter("ignore", TableWarning)
            band = asked.of(network, inputs)
            if tally.chunks == 1:  # a sentence about the first chunk is not one about the table
                assert spokesman is not None
                tally.guarantee = asked.of(network, spokesman).guarantee
        if not tally.chunks:
            support = np.nan_to_num(band.unsupported, nan=np.inf).reshape(len(inputs), -1).max(axis=1)
            spokesman, tally.guarantee = inputs.iloc[[int(support.argmin())]], band.guarantee
        tally.note(band)
        yield chunk, _marked(_marked(band, moved, MOVED), status != "", status)
    if not tally.rows:
        raise InputError(f"{table.name} has column names and no rows.")
    if asked.together is not None and asked.together != tally.rows:
        raise InputError(
            f"{table.name} had {asked.together:,} rows when they were counted and {tally.rows:,} when they were read: "
            "it was written to in between. Ask again."
        )


def _marked(band: Interval, rows: np.ndarray, status: np.ndarray | str) -> Interval:
    """Let the status of some rows say what is to be known of them; that they converged is no news."""
    from vhat.estimator.columns import FAR

    if not rows.any():
        return band
    shape = (-1, *(1,) * (band.status.ndim - 1))
    told = rows.reshape(shape) & ((band.status == "converged") | (band.status == FAR))
    return replace(band, status=np.where(told, np.array(status, dtype=object).reshape(shape), band.status))


def result_columns(band: Interval) -> dict[str, np.ndarray]:
    """Return the columns of the result; with several outputs, each has its number at the end of the name."""
    if band.center.ndim == 1:
        return {name: getattr(band, name) for name in RESULTS}
    return {f"{name}_{k}": getattr(band, name)[:, k] for k in range(band.center.shape[1]) for name in RESULTS}
