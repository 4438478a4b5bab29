"""The rows of a table that a model learns from, or is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vhat.cli.options import split
from vhat.errors import InputError, calling_rows

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from vhat.cli.encode_rows import Filled
    from vhat.estimator import NetworkRegressor
    from vhat.tables.columns import Column, Columns
    from vhat.tables.files import Chunk, TableFile
    from vhat.tables.row_names import RowNames

__all__ = ["Rows", "frame_of", "predictors", "row_names"]


def predictors(table: TableFile, target: str, features: str | None, weights: str | None = None) -> list[str]:
    """Return the columns to learn from.

    Raises:
        InputError: For columns that are not there or have no name, and for the target among them.
    """
    from vhat.tables.files import require_columns

    require_columns(table, [target], "which --target names")
    if weights is not None:
        require_columns(table, [weights], "which --weights names")
    if features is None:
        names = [name for name in table.columns if name not in (target, weights)]
        if "" in names:
            raise InputError(
                f"{table.name}: column {table.columns.index('') + 1} has no name; pandas writes row numbers so. Name "
                "it or remove it, or say which columns to learn from: --features A,B,..."
            )
    else:
        names = list(dict.fromkeys(split(features, table.columns)))
        require_columns(table, names, "which --features names")
    if target in names:
        raise InputError(f"the target {target!r} is among the columns to learn from. Leave it out of --features.")
    if not names:
        raise InputError(f"{table.name} has no column to learn from beside the target {target!r}.")
    return names


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table to learn from or to judge by.

    Attributes:
        X: Inputs, with their names: numbers, or the cells as they stand in the file where these need reading.
        y: The target.
        names: What the rows are called, as in messages about the table: by line or by row of the file.
        weights: How much each row counts, or None.
        columns: How X is read, decided over the whole table; None where X is numbers.
        target: How y was read; None where it was numbers.
        without_target: How many rows were left out because their target was missing.
    """

    X: pd.DataFrame
    y: np.ndarray
    names: RowNames
    weights: np.ndarray | None = None
    columns: Columns | None = None
    target: Column | None = None
    without_target: int = 0

    @classmethod
    def read(
        cls,
        table: TableFile,
        names: list[str],
        target: str,
        weights: str | None = None,
        asked: Mapping[str, str] | None = None,
    ) -> Rows:
        """Read a whole table.

        Args:
            table: The table.
            names: The columns to learn from.
            target: The column to predict.
            weights: The column of weights, or None.
            asked: What some columns are, by ``--columns``.

        Raises:
            InputError: For no rows, and for cells that cannot be read.
        """
        from vhat.tables.columns import Columns, Wording
        from vhat.tables.files import read_all

        wanted = [*names, target, *([] if weights is None else [weights])]
        chunk = read_all(table, wanted)
        unused = set(table.columns) - {*names, target}  # --features may leave out what --columns names
        asked = {name: kind for name, kind in (asked or {}).items() if name not in unused}
        wording = Wording(table.name, command=True)
        with calling_rows(row_names(chunk)):
            decided = Columns.of(frame_of(chunk, [*names, target]), asked, wording=wording)
        if decided.plain:
            return cls.of(chunk, names, target, weights)
        return cls._read(chunk, decided.take(names), decided[target], weights)

    @classmethod
    def _read(cls, chunk: Chunk, columns: Columns, target: Column, weights: str | None) -> Rows:
        """Take rows that were read, in columns of any kind; rows without a target are left out."""
        import numpy as np

        X, names = frame_of(chunk, columns.names), row_names(chunk)
        y = read_target(chunk, target)
        known = ~np.isnan(y)
        if not known.any():
            raise InputError(f"{chunk.table}: the target {target.name!r} is missing in all rows. Check --target.")
        counts = None if weights is None else chunk.numbers([weights])[:, 0]
        target = replace(target, gaps=0)  # rows without a target are left out, and none is filled
        whole = cls(X, y, names, counts, columns, target, int((~known).sum()))
        return whole if known.all() else whole._take(known.nonzero()[0])

    def counted(self) -> Rows:
        """The rows whose weight is not zero: no one learns from the others, or judges by them."""
        if self.weights is None or not self.weights.any():  # the fit refuses the latter in words
            return self
        return self._take(self.weights.nonzero()[0])

    @classmethod
    def of(cls, chunk: Chunk, names: list[str], target: str, weights: str | None = None) -> Rows:
        """Take rows of numbers that were read.

        Raises:
            InputError: For what is not a finite number.
        """
        import pandas as pd

        numbers = chunk.numbers([*names, target, *([] if weights is None else [weights])])
        X, y = pd.DataFrame(numbers[:, : len(names)], columns=names), numbers[:, len(names)]
        return cls(X, y, row_names(chunk), None if weights is None else numbers[:, -1])

    @classmethod
    def judging(
        cls, network: NetworkRegressor, chunk: Chunk, names: Sequence[str], target: str, filled: Filled
    ) -> Rows:
        """Take rows that were read, as a model sees them; rows without a target are left out.

        Args:
            network: The model.
            chunk: The rows.
            names: The columns that the model takes.
            target: The column of what was observed.
            filled: Where cells are noted of which training knew nothing.

        Raises:
            InputError: For cells that cannot be read.
        """
        import numpy as np

        from vhat.cli.encode_rows import encode_rows
        from vhat.tables.columns.kinds import Number

        column = replace(network.target_column_ or Number(target), name=target)
        y = read_target(chunk, column)
        whole = cls(encode_rows(network, chunk, names, filled)[0], y, row_names(chunk))
        known = ~np.isnan(y)
        if not known.any():
            raise InputError(f"{chunk.table}: the target {target!r} is missing in all rows. Check --target.")
        return whole if known.all() else replace(whole._take(known.nonzero()[0]), without_target=int((~known).sum()))

    def told(self, network: NetworkRegressor, filled: Filled, table: str) -> list[str]:
        """Say which rows were left out, and which cells were filled."""
        said = (
            [] if network.columns_ is None else filled.told(network.columns_, table, len(self.y) + self.without_target)
        )
        if self.without_target:
            said.append(f"warning: {self.without_target:,} rows of {table} have no target and are left out.")
        return said

    def split(self, share: float, seed: int) -> tuple[Rows, Rows | None]:
        """Keep a random share of the rows apart.

        Raises:
            InputError: For a share that leaves nothing on one side.
        """
        import numpy as np

        if share == 0:
            return self, None
        count = round(share * len(self.y)) if 0 < share < 1 else 0
        if not 1 <= count <= len(self.y) - 2:
            raise InputError(f"--hold-out {share:g} of {len(self.y)} rows is no usable share; 0.2 keeps a fifth apart.")
        order = np.random.default_rng(seed).permutation(len(self.y))
        return self._take(np.sort(order[count:])), self._take(np.sort(order[:count]))

    def fit(self, network: NetworkRegressor, target: str) -> None:
        """Train a network on these rows: levels and medians of columns are those of these rows alone."""
        import pandas as pd

        decided = None if self.columns is None else self.columns.relearned(self.X, self.weights)
        with calling_rows(self.names):
            network._fit(self.X, pd.Series(self.y, name=target), self.weights, decided)
        network.row_names_, network.target_column_ = self.names, self.target

    def findings(self, network: NetworkRegressor, target: str) -> list[str]:
        """Return what stands out in these rows, one sentence each, once a network has been trained on them."""
        from vhat.tables.columns import Wording
        from vhat.tables.findings import findings, log_would_help, skewness

        assert network.columns_ is not None  # the table has names
        said = findings(self.X, self.y, network.columns_, self.names, target, Wording(command=True))
        if not network.log_target and log_would_help(self.y):
            import numpy as np

            said.append(
                f"{target} is positive and skewed (skewness {skewness(self.y):.2g}, of its log "
                f"{skewness(np.log(self.y)):.2g}): --log-target fits its log, and no interval is then negative"
            )
        return said

    def encoded(self, columns: Columns | None, filled: Filled | None = None) -> Rows:
        """Return the rows as a network sees them that reads columns so.

        Args:
            columns: How it reads them.
            filled: Where cells are noted of which its training knew nothing.
        """
        import pandas as pd

        if self.columns is None or columns is None:
            return self
        with calling_rows(self.names):
            found = columns.encode(self.X)
        if filled is not None:
            filled.note(found, self.names)
        return replace(self, X=pd.DataFrame(found.numbers, columns=list(found.names), index=self.X.index), columns=None)

    def _take(self, rows: np.ndarray) -> Rows:
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, X=self.X.iloc[rows], y=self.y[rows], names=self.names.take(rows), weights=weights)


def frame_of(chunk: Chunk, names: Sequence[str]) -> pd.DataFrame:
    """Return some columns of a chunk, cell by cell as they stand in the file."""
    import pandas as pd

    return pd.DataFrame({name: pd.Series(chunk.columns[name], dtype=chunk.columns[name].dtype) for name in names})


def read_target(chunk: Chunk, target: Column) -> np.ndarray:
    """Return the target of the rows of a chunk, NaN where it is missing.

    Raises:
        InputError: For a target that is no number.
    """
    from vhat.tables.columns import Wording
    from vhat.tables.columns.kinds import Flag, Number

    series = frame_of(chunk, [target.name])[target.name]
    if not isinstance(target, Number | Flag):
        raise InputError(
            f"{chunk.table}: the target {target.name!r} holds no numbers ({target.told}), and a regression predicts "
            "numbers. Check --target."
        )
    with calling_rows(row_names(chunk)):
        return target.read(series, Wording(chunk.table, command=True))


def row_names(chunk: Chunk) -> RowNames:
    """Return what the rows of a chunk are called: by their place in the file."""
    from vhat.tables.row_names import RowNames

    counted = {"line": "as an editor counts them", "row": "counted from 1"}[chunk.noun]
    return RowNames(chunk.places, chunk.noun, f"their {chunk.noun} in {Path(chunk.table).name}, {counted}")
