"""The result of a comparison: a table, a summary, and plots."""

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

    from vhat.intervals.interval import Interval

__all__ = ["Comparison"]


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of :func:`vhat.compare`.

    Attributes:
        outcomes: One per method and split.
        delta: Probability of a miss that every method claimed.
        target: ``"mean"``, judged by the truth, or ``"observation"``, judged by responses.
        splits: Training and test rows of each split.
    """

    outcomes: tuple[Outcome, ...]
    delta: float
    target: str
    splits: tuple[Split, ...] = field(repr=False)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order in which they were given."""
        return tuple(dict.fromkeys(each.method for each in self.outcomes))

    @property
    def table(self) -> pd.DataFrame:
        """One row per method and split: method, split, seed, status, reason and all measures."""
        import pandas as pd

        names = ("method", "split", "seed", "status", "reason", *MEASURES)
        return pd.DataFrame([{name: getattr(each, name) for name in names} for each in self.outcomes])

    def summary(self) -> pd.DataFrame:
        """Return one row per method: means of all measures over the splits, standard errors of coverage and Winkler.

        ``answered`` is the number of splits in each mean. The standard error is the standard deviation over the splits
        divided by the root of their number. It is NaN for a single split, and if all splits have the same data
        (``test=``): their spread would then show only the effect of the seeds. Random splits share most of their rows,
        so that the standard error is too small.
        """
        import pandas as pd

        rows = [{"method": name, **self._means(name)} for name in self.methods]
        return pd.DataFrame(rows).set_index("method")

    def _answers(self, method: str) -> list[Outcome]:
        """Return the outcomes that enter a method's means: answered or incomplete."""
        return [each for each in self.outcomes if each.method == method and each.status in (ANSWERED, INCOMPLETE)]

    def _means(self, method: str) -> dict[str, float]:
        """Return a row of the summary."""
        answers = self._answers(method)
        data_differ = not all(self.splits[each.split].same_data(self.splits[answers[0].split]) for each in answers)
        row = {"answered": float(len(answers))}
        values = {name: np.array([getattr(each, name) for each in answers]) for name in MEASURES}
        for name, value in values.items():
            row[name] = float(value.mean()) if answers else np.nan
        for name in ("coverage", "winkler"):
            deviation = values[name].std(ddof=1) if data_differ else np.nan
            row[f"{name}_error"] = float(deviation / np.sqrt(max(len(answers), 1)))
        return row

    def __repr__(self) -> str:
        judged = "the truth" if self.target == "mean" else "held-out responses"
        head = f"{level_text(self.delta)} intervals, judged by {judged}, {len(self.splits)} split(s)"
        columns = ("method", "coverage", "mean width", "median", "Winkler", "seconds", "CPU s", "MB")
        rows = [columns, *(self._row(name) for name in self.methods)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        lines = []
        for name, *cells in rows:
            aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *aligned]))
        return "\n".join([head, *lines, *self._footnotes(), *self._reasons()])

    def _marked(self, method: str) -> str:
        """Return the name, with a star if its means are over some of the splits only."""
        if 0 < len(self._answers(method)) < len(self.splits):
            return f"{method}*"
        return method

    def _footnotes(self) -> list[str]:
        """Return the footnotes of the stars."""
        counts = {name: len(self._answers(name)) for name in self.methods if self._marked(name) != name}
        return [f"* {name}: over {count} of {len(self.splits)} splits" for name, count in counts.items()]

    def _row(self, method: str) -> tuple[str, ...]:
        """Return a row of the printed table."""
        mean = self._means(method)
        if not mean["answered"]:
            return (method, self.silence(method), *[""] * 6)
        seconds = mean["fit_seconds"] + mean["interval_seconds"]
        return (
            self._marked(method),
            f"{100 * mean['coverage']:.1f}%",
            *(_format(mean[name], ".3g") for name in ("mean_width", "median_width", "winkler")),
            _format(seconds, ".1f"),
            _format(mean["cpu_seconds"], ".1f"),
            _format(mean["peak_megabytes"], ".0f"),
        )

    def silence(self, method: str) -> str:
        """Return the statuses of a method without any answer: ``"refused"``, ``"failed"`` or both."""
        return " and ".join(dict.fromkeys(each.status for each in self.outcomes if each.method == method))

    def _reasons(self) -> list[str]:
        """Return one line for each distinct reason of each method, with its number of splits if not all."""
        counts: dict[tuple[str, str], int] = {}
        for each in self.outcomes:
            if each.reason:
                counts[each.method, each.reason] = counts.get((each.method, each.reason), 0) + 1
        total = len(self.splits)
        lines = []
        for (name, reason), count in counts.items():
            where = ""
            if count < total:
                where = f" ({count} of {total} splits)"
            lines.append(f"{name}{where}: {reason}")
        return lines

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw coverage against median width, one mark per method; see :func:`vhat.plot.coverage_plane`.

        A star marks means over fewer splits than were compared. A method without a finite median width is named below
        the plot.

        Args:
            ax: Axes to draw on; None makes a figure.

        Raises:
            InputError: When no method has intervals at all points.
        """
        from vhat.plot import coverage_plane

        means = {name: self._means(name) for name in self.methods}
        usable = {name: mean for name, mean in means.items() if np.isfinite(mean["median_width"])}
        not_drawn = [self._not_drawn(name) for name in means if name not in usable]
        if not usable:
            raise InputError("there is nothing to draw: no method answered at every point. Print the comparison.")
        return coverage_plane(
            [self._marked(name) for name in usable],
            np.array([mean["median_width"] for mean in usable.values()]),
            np.array([mean["coverage"] for mean in usable.values()]),
            np.array([mean["coverage_error"] for mean in usable.values()]),
            level=1 - self.delta,
            notes=[*self._footnotes(), *not_drawn],
            ax=ax,
        )

    def _not_drawn(self, method: str) -> str:
        """Return the note below the plot for a method without a median width."""
        incomplete = sum(each.status == INCOMPLETE for each in self.outcomes if each.method == method)
        why = self.silence(method)
        if incomplete:
            why = f"points without an interval in {incomplete} of {len(self.splits)} splits"
        return f"{method} is not drawn: {why}"

    def gallery(
        self, split: int = 0, *, truth: Any = None, gap: tuple[float, float] | None = None, columns: int = 3
    ) -> Figure:
        """Draw the band of every method over a single input, in one panel per method with the same axes.

        Each panel shows the coverage of its method, or the reason why it has no intervals.

        Args:
            split: Number of the split.
            truth: The regression function, if it is known.
            gap: Ends of an interval without data, which is shaded.
            columns: Panels per row.

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
        panels: dict[str, Interval | str] = {}
        notes: dict[str, str] = {}
        for each in shown:
            if each.interval is None:
                panels[each.method] = each.reason
            else:
                panels[each.method] = each.interval
                notes[each.method] = f"covers {100 * each.coverage:.0f}%"
        return gallery(
            panels,
            rows.X_test,
            truth=None if truth is None else np.asarray(truth(rows.X_test)),
            data=(rows.X_train, rows.y_train),
            gap=gap,
            notes=notes,
            columns=columns,
        )


def _format(value: float, form: str) -> str:
    """Return a number as text, a dash if it is not finite."""
    return format(value, form) if np.isfinite(value) else "-"
