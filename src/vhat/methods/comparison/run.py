"""Ask several methods the same questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_choice, check_count, check_delta
from vhat.errors import InputError, Interrupted, MissingPackage
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
    """Ask several methods the same questions on the same data.

    Every method trains by ``recipe`` on the same rows (a copy of its own), from the same seed, and answers at the same
    points. A method that cannot answer, or breaks off with an error, is a row with its reason; the others go on.

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
    named = _named(methods)
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
    seeds = [int(np.random.SeedSequence([seed, i]).generate_state(1)[0]) for i in range(len(rows))]
    jobs = [
        Job(name, method, i, recipe, split, delta, target, seeds[i])
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


def _done(jobs: list[Job], n_jobs: int) -> Iterator[Outcome]:
    """Do the jobs, here or in other processes, in the order they are listed."""
    if n_jobs == 1:
        return (job() for job in jobs)
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise MissingPackage("n_jobs needs joblib. Install it: pip install joblib, or use n_jobs=1.") from error
    found: Iterator[Outcome] = Parallel(n_jobs=n_jobs, return_as="generator")(delayed(job)() for job in jobs)
    return found


def _check_jobs(n_jobs: Any) -> None:
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise InputError(f"n_jobs={n_jobs!r} is not a number of processes. Use 1, 2, ..., or -1 for one a core.")


def _named(methods: Any) -> dict[str, Method]:
    """Return the methods with a name each: the class's own, numbered where it occurs more than once."""
    if isinstance(methods, Mapping):
        named = {str(name): method for name, method in methods.items()}
    else:
        # a method that brings its recipe along goes by its own name
        kinds = [type(getattr(method, "method", method)).__name__ for method in methods]
        places = [kinds[: i + 1].count(kind) for i, kind in enumerate(kinds)]
        names = [kind if kinds.count(kind) == 1 else f"{kind} {at}" for kind, at in zip(kinds, places, strict=True)]
        named = dict(zip(names, methods, strict=True))
    if not named:
        raise InputError("no method was given. vhat.methods has them: [vhat.methods.Proposed(), ...].")
    for name, method in named.items():
        if isinstance(method, type) or not callable(getattr(method, "fit", None)):
            hint = ""
            if isinstance(method, type):
                called = method.__name__ if name == "type" else name
                hint = f" Write {called}()."
            raise InputError(f"{method!r} is no method: it has no fit(recipe, X, y, seed=...).{hint}")
    return named
