"""Polish that gives up where the error at validation rows rises clearly."""

from __future__ import annotations

from vhat.evidence.minimise.polish import Polished, polish
from vhat.evidence.minimise.validation_error import ValidationWatch, warn_of_rise
from vhat.linalg.solvers.kernel import newton_metric
from vhat.models.problem import Problem
from vhat.progress import steps_shown
from vhat.variance.validation import Validation

__all__ = ["polish_watched"]


def polish_watched(
    problem: Problem,
    rows: Validation | None,
    *,
    gtol: float,
    max_steps: int,
    warmup: int,
    beyond_early_stopping: bool,
    seed: int,
) -> Polished:
    """Descend to the nearest certified minimum: see :meth:`vhat.FittedModel.polish`.

    A linear model under the square loss is not watched, because its minimum is one solve away.

    Args:
        problem: The training problem at the parameters to start from.
        rows: Rows that training did not fit, or None.
        gtol: As in :meth:`vhat.FittedModel.polish`, like the options that follow.
        max_steps: As there.
        warmup: As there.
        beyond_early_stopping: As there.
        seed: As there.

    Raises:
        PolishError: When no certified minimum is reached, and when validation rows are predicted clearly worse. Where
            the minimum was reached first, the error's ``record`` holds it.

    Warns:
        EarlyStoppingWarning: When validation rows are predicted worse at the minimum.
    """
    watch: ValidationWatch | None = None
    solved = problem.linear and problem.loss_derivatives.square
    if rows is not None and not solved and not beyond_early_stopping:
        watch = ValidationWatch(problem, rows)
    with steps_shown("polish") as show:
        found = polish(
            problem,
            gtol=gtol,
            max_steps=max_steps,
            warmup=warmup,
            metric=newton_metric(problem),
            progress=show,
            watch=None if watch is None else watch.observe,
            seed=seed,
        )
    if watch is not None:
        watch.judge(found.problem, found)
    if rows is not None:
        warn_of_rise(problem, found.problem, rows)
    return found
