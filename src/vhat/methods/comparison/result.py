"""What a comparison found: a table, a summary, and pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError
from vhat.level import level_text
from vhat.methods.comparison.outcome import ANSWERED, INCOMPLETE, MEASURES, Outcome
from vhat.methods.comparison.splits import Split

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Comparison"]


@dataclass(frozen=True, repr=False)
class Comparison:
    """What :func:`vhat.compare` found.

    Attributes:
        outcomes: One a method and split.
        delta: The probability of a miss that every method claimed.
        target: ``"mean"``, judged by the truth, or ``"observation"``, judged by responses.
        splits: Training and test rows of each split.
    """

    outcomes: tuple[Outcome, ...]
    delta: float
    target: str
    splits: tuple[Split, ...] = field(repr=False)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names, in the order they were given."""
        return tuple(dict.fromkeys(each.method for each in self.outcomes))

    @property
    def table(self) -> pd.DataFrame:
        """One row a method and split: method, split, seed, status, reason and every measure."""
        import pandas as pd

        names = ("method", "split", "seed", "status", "reason", *MEASURES)
        return pd.DataFrame([{name: getattr(each, name) for name in names} for each in self.outcomes])

    def summary(self) -> pd.DataFrame:
        """One row a method: the mean of every measure over splits, and the standard error of coverage and Winkler.

        ``answered`` counts the splits that a mean is over. The standard error is the spread over splits by the root of
        their number: NaN for a single split, and where all splits have the same data (``test=``), since seeds alone
        would then speak. Random splits share most of their rows, so it is low.
        """
        import pandas as pd

        rows = [{"method": name, **self._means(name)} for name in self.methods]
        return pd.DataFrame(rows).set_index("method")

    def _answers(self, method: str) -> list[Outcome]:
        """Return the outcomes that a method's means are over: answered in full or in part."""
        return [each for each in self.outcomes if each.method == method and each.status in (ANSWERED, INCOMPLETE)]

    def _means(self, method: str) -> dict[str, float]:
        found = self._answers(method)
        told_apart = not all(self.splits[each.split].same_data(self.splits[found[0].split]) for each in found)
        values = {name: np.array([getattr(each, name) for each in found]) for name in MEASURES}
        row = {name: float(value.mean()) if len(found) else np.nan for name, value in values.items()}
        for name in ("coverage", "winkler"):
            spread = values[name].std(ddof=1) if told_apart else np.nan
            row[f"{name}_error"] = float(spread / np.sqrt(max(len(found), 1)))
        return {"answered": float(len(found)), **row}

    def __repr__(self) -> str:
        judged = "the truth" if self.target == "mean" else "held-out responses"
        head = f"{level_text(self.delta)} intervals, judged by {judged}, {len(self.splits)} split(s)"
        columns = ("method", "coverage", "mean width", "median", "Winkler", "seconds", "CPU s", "MB")
        rows = [columns, *(self._row(name) for name in self.methods)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        lines = [
            "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))  # noqa: B905
            for row in rows
        ]
        return "\n".join([head, *lines, *self._short(), *self._reasons()])

    def _marked(self, method: str) -> str:
        """Return the name, with a star where its means are over some of the splits only."""
        if 0 < len(self._answers(method)) < len(self.splits):
            return f"{method}*"
        return method

    def _short(self) -> list[str]:
        """Return the footnotes of the stars."""
        counts = {name: len(self._answers(name)) for name in self.methods if self._marked(name) != name}
        return [f"* {name}: over {count} of {len(self.splits)} splits" for name, count in counts.items()]

    def _row(self, method: str) -> tuple[str, ...]:
        mean = self._means(method)
        if not mean["answered"]:
            return (method, self.silence(method), *[""] * 6)
        seconds = mean["fit_seconds"] + mean["interval_seconds"]
        return (
            self._marked(method),
            f"{100 * mean['coverage']:.1f}%",
            *(_written(mean[name], ".3g") for name in ("mean_width", "median_width", "winkler")),
            _written(seconds, ".1f"),
            _written(mean["cpu_seconds"], ".1f"),
            _written(mean["peak_megabytes"], ".0f"),
        )

    def silence(self, method: str) -> str:
        """Return whether a method without any answer refused or failed."""
        return " and ".join(dict.fromkeys(each.status for each in self.outcomes if each.method == method))

    def _reasons(self) -> list[str]:
        """Return the reasons of methods that did not answer everything, each sentence once a method."""
        said: dict[tuple[str, str], int] = {}
        for each in self.outcomes:
            if each.reason:
                said[each.method, each.reason] = said.get((each.method, each.reason), 0) + 1
        total = len(self.splits)
        return [
            f"{name}{f' ({count} of {total} splits)' if count < total else ''}: {reason}"
            for (name, reason), count in said.items()
        ]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw coverage against median width, one mark a method; see :func:`vhat.plot.coverage_plane`.

        A star marks means over fewer splits than there are. A method that has no width to draw, because it left points
        or all splits without an answer, is named below the picture.

        Raises:
            InputError: When no method answered.
        """
        from vhat.plot import coverage_plane

        marks = {name: self._means(name) for name in self.methods}
        usable = {name: mean for name, mean in marks.items() if np.isfinite(mean["median_width"])}
        if not usable:
            raise InputError("there is nothing to draw: no method answered at every point. Print the comparison.")
        return coverage_plane(
            [self._marked(name) for name in usable],
            np.array([mean["median_width"] for mean in usable.values()]),
            np.array([mean["coverage"] for mean in usable.values()]),
            np.array([mean["coverage_error"] for mean in usable.values()]),
            level=1 - self.delta,
            notes=[*self._short(), *(self._undrawn(name) for name in marks if name not in usable)],
            ax=ax,
        )

    def _undrawn(self, method: str) -> str:
        holes = sum(each.status == INCOMPLETE for each in self.outcomes if each.method == method)
        why = self.silence(method)
        if holes:
            why = f"points without an interval in {holes} of {len(self.splits)} splits"
        return f"{method} is not drawn: {why}"

    def gallery(
        self, split: int = 0, *, truth: Any = None, gap: tuple[float, float] | None = None, columns: int = 3
    ) -> Figure:
        """Draw the band of every method over a single input, one panel each on the same axes, with its coverage.

        A method that refused has its reason in its panel.

        Args:
            split: Which split.
            truth: The regression function, where it is known.
            gap: Ends of a stretch without data, to be shaded.
            columns: Panels in a row.

        Raises:
            InputError: When there is no such split, the inputs have more than one column, or no method answered.
        """
        from vhat.plot import gallery

        if not 0 <= split < len(self.splits):
            raise InputError(f"split={split} is none of the {len(self.splits)} that were compared.")
        rows = self.splits[split]
        if rows.X_test.reshape(len(rows.X_test), -1).shape[1] != 1:
            raise InputError("a gallery is drawn over one input, and X has several columns. Use plot().")
        shown = [each for each in self.outcomes if each.split == split]
        return gallery(
            {each.method: each.reason if each.interval is None else each.interval for each in shown},
            rows.X_test,
            truth=None if truth is None else np.asarray(truth(rows.X_test)),
            data=(rows.X_train, rows.y_train),
            gap=gap,
            notes={each.method: f"covers {100 * each.coverage:.0f}%" for each in shown if each.interval is not None},
            columns=columns,
        )


def _written(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "-"
