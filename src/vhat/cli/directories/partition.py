"""Write the intervals of one file to another file: the task that an engine gives to its workers."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.cli.directories.dataset import Partition, open_partition
from vhat.cli.directories.frames import FramePredictor
from vhat.cli.directories.worker_models import loaded_model, one_at_a_time
from vhat.cli.encode_rows import Filled, encode_rows
from vhat.cli.predict_stream import Tally
from vhat.errors import ConvergenceWarning, InputError, SupportWarning, TableWarning, VhatWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vhat.estimator import NetworkRegressor
    from vhat.intervals.interval import Interval
    from vhat.tables.files import Chunk, TableFile

__all__ = ["Finished", "predict_partition"]


@dataclass(frozen=True)
class Finished:
    """A file whose intervals are written.

    Attributes:
        name: The name of the file.
        size: The size of the file when it was read, in bytes.
        modified: The time of its last change before it was read, in nanoseconds.
        written: The size of the file of its intervals, in bytes.
        tally: Counts over its rows.
        sentence: The guarantee of one of its rows, taken alone; empty if it has no rows.
        warnings: Warnings of the library: names of warning classes, and messages.
    """

    name: str
    size: int
    modified: int
    written: int
    tally: Tally
    sentence: str
    warnings: tuple[tuple[str, str], ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the fields in a form that JSON can hold."""
        tally = vars(self.tally) | {"filled": [[*key, *count] for key, count in self.tally.filled.cells.items()]}
        return vars(self) | {"tally": tally}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Finished:
        """Return the file that a record describes: the inverse of :meth:`record`."""
        saved = record["tally"]
        tally = Tally(
            **saved
            | {
                "failed": Counter(saved["failed"]),
                "moved": {name: (count, first) for name, (count, first) in saved["moved"].items()},
                "far": {name: (count, first) for name, (count, first) in saved["far"].items()},
                "filled": Filled({(status, name): (count, first) for status, name, count, first in saved["filled"]}),
            }
        )
        pairs = tuple((kind, message) for kind, message in record["warnings"])
        return cls(**record | {"tally": tally, "warnings": pairs})


def predict_partition(predict: FramePredictor, partition: Partition, out: str, version: str) -> Finished:
    """Write the intervals of one file, completely or not at all.

    The written bytes depend only on the arguments and the files that they name, so that an engine may call this again
    after the loss of a worker.

    Args:
        predict: The function from rows to their intervals.
        partition: The file.
        out: The directory of the results, an absolute path.
        version: The version of vhat of the caller.

    Raises:
        InputError: If the file cannot be read or has changed, or the result cannot be written.
        StoreError: If the model cannot be loaded.
    """
    from vhat import __version__
    from vhat.tables.files.write import open_output

    if version != __version__:
        raise InputError(
            f"a worker has vhat {__version__} and the caller {version}. Install one version on all of them."
        )
    partition.check_unchanged()
    target = Path(out) / partition.output
    with one_at_a_time(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VhatWarning)
        network = loaded_model(predict.model, predict.fingerprint)
        table = open_partition(partition)
        columns = predict.columns_of(network, table)
        tally = Tally()
        sentence = ""
        _make_directory(target.parent)
        with open_output(target, "parquet", force=True, types=_types(predict, network, table)) as write:
            if not _has_rows(table):
                write(predict.no_rows(network))
            else:
                for chunk, band, rows in predict.interval_chunks(network, table, columns, tally):
                    write(rows)
                    sentence = sentence or _sentence(predict, network, chunk, band, columns)
            partition.check_unchanged()  # it was not replaced while it was read
    texts = [(each.category.__name__, str(each.message)) for each in caught if issubclass(each.category, VhatWarning)]
    return Finished(
        name=partition.name,
        size=partition.size,
        modified=partition.modified,
        written=target.stat().st_size,
        tally=tally,
        sentence=sentence,
        warnings=tuple(dict.fromkeys(texts)),
    )


def _make_directory(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}. Give --out another directory.") from None


def _has_rows(table: TableFile) -> bool:
    rows: Any = table.chunks(table.columns[:1], 1)
    with closing(rows):
        return next(rows, None) is not None


def _types(predict: FramePredictor, network: NetworkRegressor, table: TableFile) -> dict[str, Any]:
    """Return the types of the columns of objects, so that a file without rows gets the same types as the others."""
    from vhat.tables.files.parquet import arrow

    pyarrow, _ = arrow()
    kept = {name: table.types.get(name, pyarrow.string()) for name in predict.keep}
    return kept | {name: pyarrow.string() for name in predict.no_rows(network) if name.startswith("status")}


def _sentence(
    predict: FramePredictor, network: NetworkRegressor, chunk: Chunk, band: Interval, columns: Sequence[str]
) -> str:
    """Return the guarantee of a single row: the one that is best supported by the training data.

    The guarantee of all rows would contain counts of the rows of this file.
    """
    support = np.nan_to_num(band.unsupported, nan=np.inf).reshape(len(chunk), -1).max(axis=1)
    best = [int(support.argmin())]
    row = type(chunk)(
        {name: values[best] for name, values in chunk.columns.items()}, chunk.places[best], chunk.noun, chunk.table
    )
    inputs, _ = encode_rows(network, row, columns, Filled())
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, SupportWarning, TableWarning):
            warnings.simplefilter("ignore", category)
        return predict.asked.of(network, inputs).guarantee
