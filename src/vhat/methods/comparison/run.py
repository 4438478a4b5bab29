"""``vhat.compare``: several methods on the same data, splits and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_choice, check_count, check_delta
from vhat.errors import InputError, Interrupted
from vhat.methods.base.requirements import require_package
from vhat.methods.comparison.outcome import Job, Outcome
from vhat.methods.comparison.result import Comparison
from vhat.methods.comparison.splits import make_splits
from vhat.progress import bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from vhat.fit import Recipe
    from vhat.methods import Method

__all__ = ["compare"]


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
    """Compare several methods on the same data.

    Every method trains by ``recipe`` on a copy of the same rows, from the same seed, and gives intervals at the same
    points. If a method raises an error, the table shows the reason in its row, and the other methods continue.

    Args:
        methods: Methods of :mod:`vhat.methods`, or objects with the same ``fit``; a mapping gives them names.
        X: Rows, an array.
        y: Responses, (n,) or (n, outputs).
        recipe: How models are trained: one of :mod:`vhat.fit`, or your own
            ``recipe(X, y, *, seed, sample_weight=None) -> fitted``.
        truth: The regression function, from inputs to means, if it is known: it then judges intervals for the mean.
            None judges intervals for a new response by held-out responses.
        test: Test points in place of held-out rows: inputs if ``truth`` is given, else a pair of inputs and responses.
            All rows are then used for training, and ``splits`` is the number of seeds.
        delta: Probability of a miss that every method claims.
        target: ``"mean"`` or ``"observation"``; None takes ``"mean"`` if ``truth`` is given.
        splits: Number of random splits, with a fifth of the rows held out in each; or a scikit-learn splitter; or pairs
            of training and test row numbers.
        seed: Seed of the splits and of all methods.
        n_jobs: Number of processes (joblib); -1 for one per core.

    Returns:
        The comparison: measures, intervals and plots.

    Raises:
        InputError: When an option or the data cannot be used.
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
    methods_by_name = _with_names(methods)
    delta = check_delta(delta)
    check_count("seed", seed)
    if not target:
        target = "observation" if truth is None else "mean"
    check_choice("target", target, ("mean", "observation"))
    if target == "mean" and truth is None:
        raise InputError("target='mean' needs truth=, a function from inputs to means, to be judged by.")
    _check_jobs(n_jobs)
    rows = tuple(make_splits(X, y, truth if target == "mean" else None, test, splits, seed))
    if not rows:
        raise InputError("splits= has no pair of training and test rows.")
    jobs = []
    for number, split in enumerate(rows):
        # All methods of a split share a seed, which depends on its number alone.
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        for name, method in methods_by_name.items():
            jobs.append(Job(name, method, number, recipe, split, delta, target, own_seed))
    outcomes: list[Outcome] = []
    try:
        with bar("methods", len(jobs)) as advance:
            for outcome in _outcomes(jobs, n_jobs):
                outcomes.append(outcome)
                advance(f"{outcome.method}, {outcome.status}")
    except KeyboardInterrupt:
        raise Interrupted(
            f"{len(outcomes)} of {len(jobs)} cells were compared. To keep them: except vhat.Interrupted as stop: "
            "stop.record",
            Comparison(tuple(outcomes), delta, target, rows),
        ) from None
    return Comparison(tuple(outcomes), delta, target, rows)


def _outcomes(jobs: list[Job], n_jobs: int) -> Iterator[Outcome]:
    """Run the jobs in this process or in others, and return their outcomes in the order of the jobs.

    Raises:
        MissingPackage: When joblib is needed and not installed.
    """
    if n_jobs == 1:
        return (job() for job in jobs)
    joblib = require_package("joblib", "n_jobs needs joblib. Install it: pip install joblib, or use n_jobs=1.")
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator")
    outcomes: Iterator[Outcome] = parallel(joblib.delayed(job)() for job in jobs)
    return outcomes


def _check_jobs(n_jobs: Any) -> None:
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise InputError(f"n_jobs={n_jobs!r} is not a number of processes. Use 1, 2, ..., or -1 for one a core.")


def _with_names(methods: Any) -> dict[str, Method]:
    """Return the methods by name: that of the class, with a number if several methods have the same class.

    Raises:
        InputError: When there is no method, or an object is not a method.
    """
    if isinstance(methods, Mapping):
        methods_by_name = {str(name): method for name, method in methods.items()}
    else:
        methods_by_name = dict(zip(_class_names(methods), methods, strict=True))
    if not methods_by_name:
        raise InputError("no method was given. vhat.methods has them: [vhat.methods.Proposed(), ...].")
    for name, method in methods_by_name.items():
        if isinstance(method, type) or not callable(getattr(method, "fit", None)):
            hint = ""
            if isinstance(method, type):
                class_name = method.__name__ if name == "type" else name
                hint = f" Write {class_name}()."
            raise InputError(f"{method!r} is not a method: it has no fit(recipe, X, y, seed=...).{hint}")
    return methods_by_name


def _class_names(methods: Sequence[Any]) -> list[str]:
    """Return the class name of each method, with a number if it occurs more than once."""
    # A method inside WithRecipe has the name of its own class.
    classes = [type(getattr(method, "method", method)).__name__ for method in methods]
    names = []
    for position, name in enumerate(classes):
        if classes.count(name) > 1:
            names.append(f"{name} {classes[: position + 1].count(name)}")
        else:
            names.append(name)
    return names
