"""Read the rows of a table that a model is trained or tested on."""

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
    """Return the columns to predict from.

    Args:
        table: The table.
        target: The column to predict.
        features: The option ``--features``, or None for all columns except target and weights.
        weights: The column of weights, or None.

    Raises:
        InputError: For columns that do not exist or have no name, and if the target is among them.
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
    """Rows of a table for training or for a test.

    Attributes:
        X: Inputs by column: numbers, or cells as they are in the file if some of them are not plain numbers.
        y: The target.
        names: The names of the rows in messages: their line or row in the file.
        weights: The weight of each row, or None.
        columns: The reading of the columns of X, decided on the whole table; None if X is numbers.
        target: The reading of the target; None if it is numbers.
        without_target: The number of rows that were left out because their target was missing.
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
        kinds: Mapping[str, str] | None = None,
    ) -> Rows:
        """Read a whole table.

        Args:
            table: The table.
            names: The columns to predict from.
            target: The column to predict.
            weights: The column of weights, or None.
            kinds: Kinds of columns that the user gave by ``--columns``.

        Raises:
            InputError: If the table has no rows, or cells that cannot be read.
        """
        from vhat.tables.columns import Columns, Wording
        from vhat.tables.files import read_all

        wanted = [*names, target, *([] if weights is None else [weights])]
        chunk = read_all(table, wanted)
        unused = set(table.columns) - {*names, target}  # --features may leave out what --columns names
        kinds = {name: kind for name, kind in (kinds or {}).items() if name not in unused}
        wording = Wording(table.name, command=True)
        with calling_rows(row_names(chunk)):
            decided = Columns.of(frame_of(chunk, [*names, target]), kinds, wording=wording)
        if decided.plain:
            return cls.of(chunk, names, target, weights)
        return cls._read(chunk, decided.take(names), decided[target], weights)

    @classmethod
    def _read(cls, chunk: Chunk, columns: Columns, target: Column, weights: str | None) -> Rows:
        """Return the rows of a chunk whose columns are of any kind. Rows without a target are left out."""
        import numpy as np

        X = frame_of(chunk, columns.names)
        names = row_names(chunk)
        y = read_target(chunk, target)
        known = ~np.isnan(y)
        if not known.any():
            raise InputError(f"{chunk.table}: the target {target.name!r} is missing in all rows. Check --target.")
        counts = None if weights is None else chunk.numbers([weights])[:, 0]
        target = replace(target, gaps=0)  # a missing target is not filled in; its row is left out
        whole = cls(X, y, names, counts, columns, target, int((~known).sum()))
        return whole if known.all() else whole._take(known.nonzero()[0])

    def counted(self) -> Rows:
        """Return the rows whose weight is not zero."""
        if self.weights is None or not self.weights.any():  # the fit refuses weights that are all zero
            return self
        return self._take(self.weights.nonzero()[0])

    @classmethod
    def of(cls, chunk: Chunk, names: list[str], target: str, weights: str | None = None) -> Rows:
        """Return the rows of a chunk of numbers.

        Raises:
            InputError: For a cell that is not a finite number.
        """
        import pandas as pd

        numbers = chunk.numbers([*names, target, *([] if weights is None else [weights])])
        X = pd.DataFrame(numbers[:, : len(names)], columns=names)
        y = numbers[:, len(names)]
        return cls(X, y, row_names(chunk), None if weights is None else numbers[:, -1])

    @classmethod
    def judging(
        cls, network: NetworkRegressor, chunk: Chunk, names: Sequence[str], target: str, filled: Filled
    ) -> Rows:
        """Return the rows of a chunk, encoded as inputs of a model, for a test. Rows without a target are left out.

        Args:
            network: The model.
            chunk: The rows.
            names: The columns that the model takes.
            target: The column of the target.
            filled: The record of filled cells, which is updated.

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
        if known.all():
            return whole
        return replace(whole._take(known.nonzero()[0]), without_target=int((~known).sum()))

    def warnings(self, network: NetworkRegressor, filled: Filled, table: str) -> list[str]:
        """Return warnings about rows that were left out and cells that were filled in."""
        texts = []
        if network.columns_ is not None:
            texts += filled.warnings(network.columns_, table, len(self.y) + self.without_target)
        if self.without_target:
            texts.append(f"warning: {self.without_target:,} rows of {table} have no target and are left out.")
        return texts

    def split(self, share: float, seed: int) -> tuple[Rows, Rows | None]:
        """Return the training rows and a random share of held-out rows; no held-out rows for a share of 0.

        Copies of a row, in every input of the network and the target, are on one side: the training rows must not tell
        the responses of held-out rows.

        Raises:
            InputError: For a share that leaves no held-out row, or fewer than two training rows.
        """
        import numpy as np

        if share == 0:
            return self, None
        count = round(share * len(self.y)) if 0 < share < 1 else 0
        if not 1 <= count <= len(self.y) - 2:
            raise InputError(f"--hold-out {share:g} of {len(self.y)} rows is no usable share; 0.2 holds out a fifth.")
        order = np.random.default_rng(seed).permutation(len(self.y))
        held = _whole_groups(self._groups(), order, count)
        if not held.any():
            raise InputError(
                f"--hold-out {share:g} of {len(self.y)} rows is less than the copies of any row, which stay together. "
                "Hold out a larger share, or remove the copies."
            )
        return self._take(np.flatnonzero(~held)), self._take(np.flatnonzero(held))

    def _groups(self) -> np.ndarray:
        """Return a number for each row, the same for copies in every input of the network and the target, (rows,)."""
        import numpy as np

        cells = self.encoded(self.columns).X.to_numpy(dtype=np.float64)
        _, groups = np.unique(np.column_stack([cells, self.y]), axis=0, return_inverse=True)
        return groups.ravel()

    def fit(self, network: NetworkRegressor, target: str) -> None:
        """Train a network on these rows. Levels and medians of columns are computed from these rows alone."""
        import pandas as pd

        from vhat.tables.columns import Wording

        decided = None
        if self.columns is not None:
            decided = self.columns.relearned(self.X, self.weights, Wording(command=True))
        with calling_rows(self.names):
            network._fit(self.X, pd.Series(self.y, name=target), self.weights, decided)
        network.row_names_ = self.names
        network.target_column_ = self.target

    def findings(self, network: NetworkRegressor, target: str, held: Rows | None = None) -> list[str]:
        """Return one sentence on each peculiarity of the rows that the user should check, after training.

        Args:
            network: The trained network.
            target: The column of the target.
            held: The held-out rows of the same table, among which copies are counted too; or None.
        """
        from vhat.tables.columns import Wording
        from vhat.tables.findings import findings, log_would_help, skewness

        assert network.columns_ is not None  # the table has names
        wording = Wording(command=True)
        held_out = None if held is None else (held.X, held.y)
        asked = network.columns or {}
        texts = findings(self.X, self.y, network.columns_, self.names, target, wording, asked, held_out)
        if not network.log_target and log_would_help(self.y):
            import numpy as np

            texts.append(
                f"{target} is positive and skewed (skewness {skewness(self.y):.2g}, of its log "
                f"{skewness(np.log(self.y)):.2g}): --log-target fits its log, and no interval is then negative"
            )
        return texts

    def encoded(self, columns: Columns | None, filled: Filled | None = None) -> Rows:
        """Return the rows encoded as inputs of a network.

        Args:
            columns: The columns of the network.
            filled: The record of filled cells, which is updated, if any.
        """
        import pandas as pd

        if self.columns is None or columns is None:
            return self
        with calling_rows(self.names):
            encoded = columns.encode(self.X)
        if filled is not None:
            filled.note(encoded, self.names)
        X = pd.DataFrame(encoded.numbers, columns=list(encoded.names), index=self.X.index)
        return replace(self, X=X, columns=None)

    def _take(self, rows: np.ndarray) -> Rows:
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, X=self.X.iloc[rows], y=self.y[rows], names=self.names.take(rows), weights=weights)


def _whole_groups(groups: np.ndarray, order: np.ndarray, count: int) -> np.ndarray:
    """Return which rows are held out, as a mask: whole groups in a random order, ``count`` rows or a little less.

    Args:
        groups: The number of the group of each row, from 0, (rows,).
        order: The rows in random order. If no two rows are in one group, the first ``count`` of them are held out.
        count: The largest number of rows to hold out.
    """
    import numpy as np

    sizes = np.bincount(groups)
    chosen = np.zeros(len(sizes), dtype=bool)
    left = count
    for group in dict.fromkeys(groups[order].tolist()):
        if sizes[group] <= left:
            chosen[group] = True
            left -= sizes[group]
        if not left:
            break
    return chosen[groups]


def frame_of(chunk: Chunk, names: Sequence[str]) -> pd.DataFrame:
    """Return some columns of a chunk with their cells as they are in the file."""
    import pandas as pd

    return pd.DataFrame({name: pd.Series(chunk.columns[name], dtype=chunk.columns[name].dtype) for name in names})


def read_target(chunk: Chunk, target: Column) -> np.ndarray:
    """Return the target of the rows of a chunk, NaN where it is missing.

    Raises:
        InputError: If the target is not a number.
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
    """Return the names of the rows of a chunk in messages: their places in the file."""
    from vhat.tables.row_names import RowNames

    counting = {"line": "as an editor counts them", "row": "counted from 1"}[chunk.noun]
    return RowNames(chunk.places, chunk.noun, f"their {chunk.noun} in {Path(chunk.table).name}, {counting}")
