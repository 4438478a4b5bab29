"""Methods side by side: the same splits, the same seeds, the same questions, one tidy table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vhat import metrics
from vhat.checks import as_numbers, check_choice, check_count, check_delta, check_finite
from vhat.errors import InputError, Interrupted, MissingPackage, VhatError
from vhat.memory import Peak
from vhat.progress import bar

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vhat.fit import Recipe
    from vhat.interval import Interval
    from vhat.methods import Method

__all__ = ["Comparison", "Outcome", "compare"]

_HELD_OUT = 0.2
ANSWERED, REFUSED = "answered", "refused"


@dataclass(frozen=True)
class Outcome:
    """One method on one split.

    Attributes:
        method: The method's name.
        split: The number of the split.
        seed: The seed that the method was given, by which its cell can be had alone.
        status: ``"answered"``, or ``"refused"`` where the method said that it cannot.
        reason: What it said.
        coverage: Share of test points whose interval holds the truth, or the held-out response.
        mean_width: Mean width.
        median_width: Median width.
        winkler: Mean interval score at delta: width plus what misses cost; smaller is better.
        fit_seconds: Wall time of training.
        interval_seconds: Wall time of the intervals.
        peak_megabytes: Most memory that was resident above what there was at the start; NaN where the system does not
            tell.
        interval: The intervals themselves.
    """

    method: str
    split: int
    seed: int
    status: str = REFUSED
    reason: str = ""
    coverage: float = np.nan
    mean_width: float = np.nan
    median_width: float = np.nan
    winkler: float = np.nan
    fit_seconds: float = np.nan
    interval_seconds: float = np.nan
    peak_megabytes: float = np.nan
    interval: Interval | None = field(default=None, repr=False, compare=False)


_MEASURES = (
    "coverage",
    "mean_width",
    "median_width",
    "winkler",
    "fit_seconds",
    "interval_seconds",
    "peak_megabytes",
)


@dataclass(frozen=True, repr=False)
class Comparison:
    """What :func:`compare` found.

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

        names = ("method", "split", "seed", "status", "reason", *_MEASURES)
        return pd.DataFrame([{name: getattr(each, name) for name in names} for each in self.outcomes])

    def summary(self) -> pd.DataFrame:
        """One row a method: the mean of every measure over splits, and the standard error of coverage and Winkler."""
        import pandas as pd

        rows = [{"method": name, **self._means(name)} for name in self.methods]
        return pd.DataFrame(rows).set_index("method")

    def _means(self, method: str) -> dict[str, float]:
        found = [each for each in self.outcomes if each.method == method and each.status == ANSWERED]
        values = {name: np.array([getattr(each, name) for each in found]) for name in _MEASURES}
        row = {name: float(value.mean()) if len(found) else np.nan for name, value in values.items()}
        for name in ("coverage", "winkler"):
            spread = values[name].std(ddof=1) if len(found) > 1 else np.nan
            row[f"{name}_error"] = float(spread / np.sqrt(max(len(found), 1)))
        return {"answered": float(len(found)), **row}

    def __repr__(self) -> str:
        judged = "the truth" if self.target == "mean" else "held-out responses"
        head = f"{100 * (1 - self.delta):g}% intervals, judged by {judged}, {len(self.splits)} split(s)"
        columns = ("method", "coverage", "mean width", "median", "Winkler", "seconds", "MB")
        rows = [columns, *(self._row(name) for name in self.methods)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        lines = [
            "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))  # noqa: B905
            for row in rows
        ]
        refused = {each.method: each.reason for each in self.outcomes if each.status == REFUSED}
        return "\n".join([head, *lines, *(f"{name}: {reason}" for name, reason in refused.items())])

    def _row(self, method: str) -> tuple[str, ...]:
        mean = self._means(method)
        if not mean["answered"]:
            return (method, REFUSED, *[""] * 5)
        seconds = mean["fit_seconds"] + mean["interval_seconds"]
        share = f"{100 * mean['coverage']:.1f}%"
        widths = (f"{mean[name]:.3g}" for name in ("mean_width", "median_width", "winkler"))
        return (method, share, *widths, f"{seconds:.1f}", f"{mean['peak_megabytes']:.0f}")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw coverage against median width, one mark a method; see :func:`vhat.plot.coverage_plane`."""
        from vhat.plot import coverage_plane

        marks = {name: self._means(name) for name in self.methods}
        usable = {name: mean for name, mean in marks.items() if mean["answered"]}
        return coverage_plane(
            list(usable),
            np.array([mean["median_width"] for mean in usable.values()]),
            np.array([mean["coverage"] for mean in usable.values()]),
            np.array([mean["coverage_error"] for mean in usable.values()]),
            level=1 - self.delta,
            ax=ax,
        )

    def gallery(
        self, split: int = 0, *, truth: Any = None, gap: tuple[float, float] | None = None, columns: int = 4
    ) -> Figure:
        """Draw the band of every method over a single input, one panel each on the same axes, with its coverage.

        Methods that refused have no panel; the printed comparison has their reasons.

        Args:
            split: Which split.
            truth: The regression function, where it is known.
            gap: Ends of a stretch without data, to be shaded.
            columns: Panels in a row.

        Raises:
            InputError: When there is no such split, or the inputs have more than one column.
        """
        from vhat.plot import gallery

        if not 0 <= split < len(self.splits):
            raise InputError(f"split={split} is none of the {len(self.splits)} that were compared.")
        rows = self.splits[split]
        if rows.X_test.reshape(len(rows.X_test), -1).shape[1] != 1:
            raise InputError("a gallery is drawn over one input, and X has several columns. Use plot().")
        shown = [each for each in self.outcomes if each.split == split]
        return gallery(
            {each.method: each.interval for each in shown if each.interval is not None},
            rows.X_test,
            truth=None if truth is None else np.asarray(truth(rows.X_test)),
            data=(rows.X_train, rows.y_train),
            gap=gap,
            notes={each.method: f"covers {100 * each.coverage:.0f}%" for each in shown},
            columns=columns,
        )


class Split(NamedTuple):
    """Rows to train on, points to ask about, and what their intervals should hold."""

    X_train: Any
    y_train: np.ndarray
    X_test: Any
    judge: np.ndarray


def compare(
    methods: Mapping[str, Method] | Sequence[Method],
    X: Any,
    y: Any,
    *,
    recipe: Recipe,
    truth: Callable[[Any], Any] | None = None,
    test: Any = None,
    delta: float = 0.05,
    target: str | None = None,
    splits: Any = 5,
    seed: int = 0,
    n_jobs: int = 1,
) -> Comparison:
    """Ask several methods the same questions on the same data.

    Every method trains by ``recipe`` on the same rows, from the same seed, and answers at the same points. A method
    that cannot answer is a row with its reason; the others go on.

    Args:
        methods: Those of :mod:`vhat.methods`, or anything with their ``fit``; a mapping gives them names.
        X: Rows, an array.
        y: Responses, (n,) or (n, outputs).
        recipe: How models are trained: one of :mod:`vhat.fit`, or your own
            ``recipe(X, y, *, seed, sample_weight=None) -> fitted``.
        truth: The regression function, from inputs to means, where it is known: intervals for the mean are then judged
            by it. None judges intervals for a new response by responses that were held out.
        test: Points to ask about in place of held-out rows; all rows are then trained on, and ``splits`` counts seeds.
            Inputs, if ``truth`` is given, or a pair of inputs and responses.
        delta: Probability of a miss that every method is to claim.
        target: ``"mean"`` or ``"observation"``; None for what ``truth`` implies.
        splits: How many random splits, a fifth of the rows held out in each; or a scikit-learn splitter; or pairs of
            training and test row numbers.
        seed: Draws splits and everything that methods draw.
        n_jobs: Processes, by joblib; -1 for one a core.

    Returns:
        The measures, the intervals, and pictures of them.

    Raises:
        InputError: For options or data that cannot be used.
        Interrupted: On Ctrl-C; its ``record`` is the comparison so far.

    Examples:
        >>> import numpy as np, vhat
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, size=(60, 1))
        >>> y = 2 * x[:, 0] + 0.1 * rng.normal(size=60)
        >>> recipe = vhat.fit.Minimum(vhat.fit.Network((1, 1)), weight_decay=1e-3)
        >>> found = vhat.compare([vhat.methods.Proposed(), vhat.methods.Wald()], x, y, recipe=recipe, splits=2)
        >>> found.methods
        ('Proposed', 'Wald')
    """
    named, delta = _named(methods), check_delta(delta)
    check_count("seed", seed)
    target = target or ("observation" if truth is None else "mean")
    check_choice("target", target, ("mean", "observation"))
    if target == "mean" and truth is None:
        raise InputError("target='mean' needs truth=, a function from inputs to means, to be judged by.")
    rows = tuple(_splits(X, y, truth if target == "mean" else None, test, splits, seed))
    seeds = [int(np.random.SeedSequence([seed, i]).generate_state(1)[0]) for i in range(len(rows))]
    jobs = [
        _Job(name, method, i, recipe, split, delta, target, seeds[i])
        for i, split in enumerate(rows)
        for name, method in named.items()
    ]
    outcomes: list[Outcome] = []
    try:
        with bar("methods", len(jobs)) as advance:
            for outcome in _done(jobs, n_jobs):
                outcomes.append(outcome)
                advance(f"{outcome.method}, {outcome.status}")
    except KeyboardInterrupt:
        raise Interrupted(
            f"{len(outcomes)} of {len(jobs)} cells were compared. To keep them: except vhat.Interrupted as stop: "
            "stop.record",
            Comparison(tuple(outcomes), delta, target, rows),
        ) from None
    return Comparison(tuple(outcomes), delta, target, rows)


class _Job(NamedTuple):
    """One method on one split."""

    name: str
    method: Method
    split: int
    recipe: Recipe
    rows: Split
    delta: float
    target: str
    seed: int

    def __call__(self) -> Outcome:
        rows, peak = self.rows, Peak()
        began = time.perf_counter()
        try:
            fitted = self.method.fit(self.recipe, rows.X_train, rows.y_train, seed=self.seed)
            trained = time.perf_counter()
            band = fitted.interval(rows.X_test, self.delta, target=self.target)  # type: ignore[arg-type]
            done = time.perf_counter()
            width = metrics.width(band.lower, band.upper)
            judge = rows.judge.reshape(np.shape(band.center))
            score = metrics.winkler(band.lower, band.upper, judge, self.delta)
        except VhatError as error:
            return Outcome(self.name, self.split, self.seed, reason=str(error))
        return Outcome(
            self.name,
            self.split,
            self.seed,
            status=ANSWERED,
            coverage=metrics.coverage(band.lower, band.upper, judge),
            mean_width=width.mean,
            median_width=width.median,
            winkler=score,
            fit_seconds=trained - began,
            interval_seconds=done - trained,
            peak_megabytes=peak.megabytes(),
            interval=band,
        )


def _done(jobs: list[_Job], n_jobs: int) -> Iterator[Outcome]:
    """Do the jobs, here or in other processes, in the order they are listed."""
    if n_jobs == 1:
        return (job() for job in jobs)
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise MissingPackage("n_jobs needs joblib. Install it: pip install joblib, or use n_jobs=1.") from error
    found: Iterator[Outcome] = Parallel(n_jobs=n_jobs, return_as="generator")(delayed(job)() for job in jobs)
    return found


def _named(methods: Any) -> dict[str, Method]:
    """Return the methods with a name each: the class's own, numbered where it occurs more than once."""
    if isinstance(methods, Mapping):
        named = {str(name): method for name, method in methods.items()}
    else:
        kinds = [type(method).__name__ for method in methods]
        places = [kinds[: i + 1].count(kind) for i, kind in enumerate(kinds)]
        names = [kind if kinds.count(kind) == 1 else f"{kind} {at}" for kind, at in zip(kinds, places, strict=True)]
        named = dict(zip(names, methods, strict=True))
    if not named:
        raise InputError("no method was given. vhat.methods has them: [vhat.methods.Proposed(), ...].")
    for name, method in named.items():
        if isinstance(method, type) or not callable(getattr(method, "fit", None)):
            hint = f" Write {name if name != 'type' else method.__name__}()." if isinstance(method, type) else ""
            raise InputError(f"{method!r} is no method: it has no fit(recipe, X, y, seed=...).{hint}")
    return named


def _splits(X: Any, y: Any, truth: Any, test: Any, splits: Any, seed: int) -> Iterator[Split]:
    X, y = as_numbers("X", X), as_numbers("y", y)
    check_finite("X", X)
    check_finite("y", y)
    if len(X) != len(y):
        raise InputError(f"X has {len(X)} rows and y has {len(y)}.")
    if test is not None:
        check_count("splits", splits, least=1)
        points, judge = _points(test, truth)
        yield from [Split(X, y, points, judge)] * int(splits)
        return
    for train, held in _pairs(X, y, splits, seed):
        judge = y[held] if truth is None else _means(truth, X[held])
        yield Split(X[train], y[train], X[held], judge)


def _points(test: Any, truth: Any) -> tuple[np.ndarray, np.ndarray]:
    if truth is not None:
        points = as_numbers("test", test[0] if isinstance(test, tuple) else test)
        return points, _means(truth, points)
    if not (isinstance(test, tuple) and len(test) == 2):
        raise InputError("test= without truth= must be a pair (X_test, y_test): intervals are judged by responses.")
    return as_numbers("test", test[0]), as_numbers("test", test[1])


def _means(truth: Any, points: np.ndarray) -> np.ndarray:
    values = as_numbers("truth(x)", truth(points))
    check_finite("truth(x)", values)
    if len(values) != len(points):
        raise InputError(f"truth(x) returned {len(values)} values for {len(points)} points.")
    return values


def _pairs(X: np.ndarray, y: np.ndarray, splits: Any, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if hasattr(splits, "split"):
        yield from splits.split(X, y)
        return
    if not isinstance(splits, int | np.integer):
        yield from ((np.asarray(train), np.asarray(held)) for train, held in splits)
        return
    check_count("splits", splits, least=1)
    held_out = round(_HELD_OUT * len(X))
    if held_out < 1 or len(X) - held_out < 2:
        raise InputError(f"{len(X)} rows are too few to hold a fifth of them out. Give test=, or more rows.")
    for i in range(int(splits)):
        order = np.random.default_rng([seed, i]).permutation(len(X))
        yield np.sort(order[held_out:]), np.sort(order[:held_out])
