"""Leave-one-out predictions of the training rows, from solves and without refits.

Without row i, and with unchanged ``1/n`` and decay, the minimum moves to first order by
``A^-1 G_i' (l'_i + C_i u) / n``, where u is the move of the row's own prediction. With ``a = G_i A^-1 G_i' / n``::

    u = (I - a C_i)^-1 a l'_i

For the square loss this is ``(y - f)_-i = (y - f)_i / (1 - S_ii)``. It is exact for models linear in their parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vhat.errors import ConvergenceWarning, Interrupted, LeverageWarning, name_rows, outside
from vhat.evidence.factored_rows import is_worthwhile, products_of_rows
from vhat.evidence.minimise.stationarity import units
from vhat.linalg.solvers import Prepared, Status
from vhat.linalg.solvers.interface import Response, contract
from vhat.models.problem import Problem
from vhat.progress import bar
from vhat.variance.weighted_norm import gradient_blocks

__all__ = [
    "ALONE",
    "HIGH_LEVERAGE",
    "ROUGH",
    "LeaveOneOut",
    "LeftOut",
    "StoppedRows",
    "describe",
    "keeping_rows",
    "leave_block_out",
    "leave_rows_out",
    "leave_rows_out_of",
    "warn_of_rows",
]

HIGH_LEVERAGE = "leverage"
_SLACK = 1e-6
"""Difference from 1 up to which a leverage counts as 1: the accuracy to which solves are accepted."""
ROUGH = 0.5
"""Leverage above which removing a row moves its own prediction by more than its residual as fitted."""
_MANY = 0.25
"""Share of such rows above which means over leave-one-out residuals are unreliable."""
ALONE = 0.9
"""Leverage above which the first-order residual is more than ten times the residual as fitted. Compared with refits it
was wrong by a factor of up to 90 there, and by a sixth up to 0.75."""
_SMALL = 0.05
"""Mean leverage below which it does not matter whether a model is linear."""
_CONFIRMED = 8
"""Number of rows, those of largest leverage, at which matrix products are compared with the solver's own answers."""
_LINEAR = 1e-5
"""Largest deviation of a move of the predictions from its linear forecast, relative to it, of a linear model."""


@dataclass(frozen=True, repr=False)
class LeaveOneOut:
    """Predictions of the training rows, each by the model without it. Shapes are (n,) or (n, outputs) by default.

    Attributes:
        prediction: ``f_-i(x_i)``; NaN where the status is not ``converged``.
        residual: ``y_i - f_-i(x_i)``; None for a loss that is not a function of f - y, whose predictions are not on
            the scale of y.
        leverage: The share of a row's prediction that its own response determines, (n,): ``S_ii`` for the square loss;
            with several outputs, or weights, the largest eigenvalue of the row's block ``a C``. At or above 1 the row
            alone determines its prediction, first-order leave-one-out is undefined, and the row is NaN.
        weighted_norm: V at the row for the model without it, whose first-order variance there is ``sigma^2 V/n``.
        status: (n,): ``"converged"``, ``"leverage"`` where it is at or above 1, or how the row's solve failed.
        curvature: ``"hessian"`` or ``"ggn"``.
        solver: The solver's name.
        rough: Number of rows with a leverage above 0.5 in a model that is not linear in its parameters. Their values
            are rough, and may be wrong by a large factor where the leverage is near 1.

    Examples:
        >>> import numpy as np, vhat
        >>> x = np.linspace(0, 4, 30)
        >>> y = 2.0 * np.exp(-x) + 0.01 * np.cos(30 * x)
        >>> fitted = vhat.from_numpy(lambda q, x: q[0] * np.exp(-q[1] * x), [2.0, 1.0], x, y).polish()
        >>> found = fitted.leave_one_out()
        >>> bool(np.all(np.abs(found.residual) >= np.abs(y - fitted.predict(x))))
        True
    """

    prediction: np.ndarray
    residual: np.ndarray | None
    leverage: np.ndarray
    weighted_norm: np.ndarray
    status: np.ndarray
    curvature: str
    solver: str
    rough: int = 0

    def __repr__(self) -> str:
        good = self.status == Status.CONVERGED
        size = "" if self.residual is None else f"root mean square {np.sqrt(np.nanmean(self.residual**2)):.4g}, "
        known = self.leverage[np.isfinite(self.leverage)]
        usable = f"{int(good.sum())} usable" + (f", {self.rough} of them roughly" if self.rough else "")
        span = f"{known.min():.3g} to {known.max():.3g}" if known.size else "unknown"
        return (
            f"LeaveOneOut of {len(self.status)} rows ({self.curvature}, {self.solver}, {usable}): {size}leverage {span}"
        )


@dataclass(frozen=True)
class LeftOut:
    """Leave-one-out predictions with an output axis, and variances that are not divided by a noise level.

    Attributes:
        prediction: ``f_-i(x_i)``, (n, K).
        leverage: (n,).
        variance: ``n sum_jb sigma_jb^2 (d f_-i(x_i) / d y_jb)^2``, (n, K).
        status: (n,) of str.
        rough: How many rows have so much leverage that a first-order step does not do for them; none where it is exact.
        exact: Whether the model is linear, so that leaving rows out is exact; not looked at where leverages are small.
    """

    prediction: np.ndarray
    leverage: np.ndarray
    variance: np.ndarray
    status: np.ndarray
    rough: int = 0
    exact: bool = False

    @property
    def mean_leverage(self) -> float:
        """Mean leverage of the rows that have one; 0 where leaving rows out is exact."""
        return 0.0 if self.exact else float(np.nanmean(self.leverage))

    @property
    def unreliable(self) -> bool:
        """Whether so many rows are rough that what is averaged over all of them is, too."""
        return self.rough > _MANY * len(self.leverage)


def leave_rows_out(problem: Problem, prepared: Prepared, sigma: np.ndarray, rows: np.ndarray | None = None) -> LeftOut:
    """Leave out training rows in turn, by products of p x p matrices where that is cheaper, else by a solve per row.

    Args:
        problem: The training problem, at its minimum.
        prepared: The solver of ``A = H + lam``.
        sigma: Noise of each training response, (n, K).
        rows: The rows to leave out, by number; None for all of them.

    Raises:
        StoppedRows: On Ctrl-C, with the rows that are finished.
    """
    if rows is None and is_worthwhile(problem, prepared.half):
        all_rows = _by_factor(problem, prepared, sigma)
        if all_rows is not None:
            return all_rows
    asked = np.arange(problem.n) if rows is None else rows
    parts: list[LeftOut] = []
    start = 0
    blocks = gradient_blocks(problem, problem.X if rows is None else _taken(problem, rows))
    try:
        with bar("rows left out", len(blocks)) as advance:
            for g in blocks:
                found = prepared.respond(g)
                here = asked[start : start + len(found.status) // problem.outputs]
                parts.append(leave_block_out(problem, found, sigma, here))
                start += len(here)
                advance("")
    except KeyboardInterrupt:
        raise StoppedRows(start, _joined([*parts, _unfinished(len(asked) - start, problem.outputs)])) from None
    joined = _joined(parts)
    return _judged(problem, joined)


def _judged(problem: Problem, found: LeftOut) -> LeftOut:
    """Return the result with the number of rows for which a first-order step is rough: none for a linear model."""
    high = int(np.sum(found.leverage > ROUGH))
    some = high or bool(np.nanmean(found.leverage) > _SMALL)
    exact = bool(some and _is_linear(problem))
    return replace(found, rough=0 if exact else high, exact=exact)


def _taken(problem: Problem, rows: np.ndarray) -> Any:
    """Return the inputs of some training rows."""
    return problem.X[rows] if problem.scaling is not None else problem.autodiff.take(problem.X, rows)


def _by_factor(problem: Problem, prepared: Prepared, sigma: np.ndarray) -> LeftOut | None:
    """Leave out all rows by products of matrices; None where the solver's own answers differ from the result."""
    assert prepared.half is not None
    with bar("rows left out", 1):
        a, variance = products_of_rows(problem, prepared.half, sigma)
    if not np.all(np.isfinite(a)):
        return None
    found = leave_rows_out_of(problem, a, variance)
    return found if _is_confirmed(problem, prepared, sigma, found) else None


def _is_confirmed(problem: Problem, prepared: Prepared, sigma: np.ndarray, found: LeftOut) -> bool:
    """Whether the solver, which verifies its answers, gives the same at the rows of largest leverage."""
    rows = np.sort(np.argsort(-found.leverage)[:_CONFIRMED])
    answer = prepared.respond(problem.gradients(_taken(problem, rows)))
    alone = leave_block_out(problem, answer, sigma, rows)
    usable = alone.status == Status.CONVERGED
    if not np.array_equal(usable, found.status[rows] == Status.CONVERGED):
        return False
    moved = alone.prediction - problem.fitted_values[rows]
    here = found.prediction[rows] - problem.fitted_values[rows]
    rounding = _SLACK * np.abs(moved[usable]).max(initial=0.0)
    near = np.allclose(here[usable], moved[usable], rtol=_SLACK, atol=rounding)
    return near and np.allclose(found.variance[rows][usable], alone.variance[usable], rtol=100 * _SLACK)


class StoppedRows(KeyboardInterrupt):
    """Ctrl-C during leave-one-out.

    Attributes:
        finished: Number of rows, from the first on, that are finished.
        partial: All rows; those that are not finished are NaN and ``interrupted``.
    """

    def __init__(self, finished: int, partial: LeftOut) -> None:
        super().__init__(finished, partial)
        self.finished = finished
        self.partial = partial


def _joined(parts: list[LeftOut]) -> LeftOut:
    return LeftOut(
        np.concatenate([part.prediction for part in parts]),
        np.concatenate([part.leverage for part in parts]),
        np.concatenate([part.variance for part in parts]),
        np.concatenate([part.status for part in parts]),
    )


def _unfinished(rows: int, outputs: int) -> LeftOut:
    empty = np.full((rows, outputs), np.nan)
    return LeftOut(empty, empty[:, 0], empty, np.full(rows, Status.INTERRUPTED.value))


@contextmanager
def keeping_rows(problem: Problem, levels: np.ndarray, curvature: str, solver: str) -> Iterator[None]:
    """Turn Ctrl-C into an :class:`vhat.Interrupted` whose record holds the rows that are finished.

    Args:
        problem: The training problem.
        levels: As for :func:`describe`.
        curvature: The curvature's name.
        solver: The solver's name.
    """
    try:
        yield
    except StoppedRows as stop:
        keep = " To keep them: except vhat.Interrupted as stop: stop.record" if stop.finished else ""
        raise Interrupted(
            f"{stop.finished} of {problem.n} rows were left out in turn.{keep}",
            _described(problem, stop.partial, levels, curvature, solver),
        ) from None


def describe(problem: Problem, found: LeftOut, levels: np.ndarray, curvature: str, solver: str) -> LeaveOneOut:
    """Return the result in the shape of the model's predictions, and warn of rows that have no answer.

    Args:
        problem: The training problem.
        found: The rows left out, with variances for the relative noise of the fit.
        levels: Mean square of this relative noise, one per output, (K,).
        curvature: The curvature's name.
        solver: The solver's name.
    """
    warn_of_rows(found, few=True)
    return _described(problem, found, levels, curvature, solver)


def _described(problem: Problem, found: LeftOut, levels: np.ndarray, curvature: str, solver: str) -> LeaveOneOut:
    prediction = found.prediction
    residual = problem.targets - prediction
    norm = found.variance / levels
    if problem.squeeze:
        prediction, residual, norm = prediction[:, 0], residual[:, 0], norm[:, 0]
    return LeaveOneOut(
        prediction=prediction,
        residual=residual if problem.loss_derivatives.location else None,
        leverage=found.leverage,
        weighted_norm=norm,
        status=found.status,
        curvature=curvature,
        solver=solver,
        rough=found.rough,
    )


def _is_linear(problem: Problem) -> bool:
    """Whether the predictions are linear in the parameters, tested on one random move as large as the residuals."""
    measured = units(problem)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=problem.p)
    move = problem.native(signs * measured.root / (problem.numpy(measured.scale) * np.sqrt(problem.p)))
    straight = problem.jvp(move[None, :])[0]
    missed = problem.at(problem.theta + move).fitted_values - problem.fitted_values - straight
    return bool(np.all(np.abs(missed).max(axis=0) <= _LINEAR * np.abs(straight).max(axis=0)))


def warn_of_rows(found: LeftOut, *, few: bool = False) -> None:
    """Warn of rows that cannot be left out, or only roughly, with the remedy.

    Args:
        found: The rows left out.
        few: Whether to warn of single rows of very high leverage as well, where no guarantee names them.
    """
    status = found.status
    high = np.flatnonzero(status == HIGH_LEVERAGE)
    if high.size:
        warnings.warn(
            f"{high.size} of {status.size} training rows have leverage at or above 1 ({name_rows(high)}): they alone "
            "hold up their own prediction, what it would be without them is not to be had to first order, and they are "
            "NaN. Refit without them to know, or fit with more weight decay.",
            LeverageWarning,
            stacklevel=outside(),
        )
    elif found.unreliable:
        warnings.warn(
            f"{found.rough} of {status.size} training rows have leverage above {ROUGH}: without one of "
            "them the fit would change by more than a first-order step tells, and errors at new rows are larger than "
            "those that are found here. Keep rows apart to know them, or fit with more weight decay.",
            LeverageWarning,
            stacklevel=outside(),
        )
    alone = np.flatnonzero((found.leverage > ALONE) & (status == Status.CONVERGED))
    if few and found.rough and alone.size and (high.size or not found.unreliable):
        warnings.warn(
            f"{alone.size} of {status.size} training rows have leverage above {ALONE} ({name_rows(alone)}), the "
            f"largest {found.leverage[alone].max():.4g}: without one of them the fit would change by more than a "
            "first-order step tells, and what is said of them may be off by many times. Refit without them to know, or "
            "leave out rows of so much leverage.",
            LeverageWarning,
            stacklevel=outside(),
        )
    failed = np.flatnonzero((status != HIGH_LEVERAGE) & (status != Status.CONVERGED))
    if failed.size:
        told = "; ".join(f"{kind}: {Status(kind).remedy}" for kind in dict.fromkeys(status[failed]))
        warnings.warn(
            f"{failed.size} of {status.size} training rows could not be left out ({name_rows(failed)}) and are NaN. "
            f"{told}.",
            ConvergenceWarning,
            stacklevel=outside(),
        )


def leave_block_out(problem: Problem, found: Response, sigma: np.ndarray, rows: np.ndarray) -> LeftOut:
    """Leave out some training rows, one after the other, given the responses to their own gradients.

    Args:
        problem: The training problem, at its minimum.
        found: The responses, the outputs of one row together.
        sigma: Noise of each training response, (n, K).
        rows: The number of each row, (b,).
    """
    n, K, loss = problem.n, problem.outputs, problem.loss_derivatives
    status = _row_status(found.status.reshape(-1, K))
    solved = (status == Status.CONVERGED)[:, None, None, None]
    image = np.where(solved, found.image.reshape(-1, K, n, K), 0.0)
    here = np.arange(len(image))
    a = image[here, :, rows, :] / n
    curvature = loss.curvature[rows]
    aC = a * curvature[:, None, :] if curvature.ndim == 2 else a @ curvature
    leverage = np.linalg.eigvals(aC).real.max(axis=1)  # real: a C is similar to the symmetric a^1/2 C a^1/2
    leverage[~solved.ravel()] = np.nan
    status = np.where(leverage >= 1 - _SLACK, HIGH_LEVERAGE, status)
    usable = status == Status.CONVERGED
    remaining = np.where(usable[:, None, None], np.eye(K) - aC, np.eye(K))
    moved = np.linalg.solve(remaining, a @ loss.first[rows][:, :, None])[:, :, 0]
    # Sensitivities of the left-out predictions to the other responses, times -n.
    sensitivity = contract(image.reshape(-1, n, K), loss.cross).reshape(image.shape)
    sensitivity[here, :, rows, :] = 0.0  # the row's own response is no longer there
    sensitivity = np.linalg.solve(remaining, sensitivity.reshape(len(here), K, -1)).reshape(image.shape)
    variance = np.sum((sigma * sensitivity) ** 2, axis=(2, 3)) / n
    prediction = problem.fitted_values[rows] + moved
    prediction[~usable] = np.nan
    variance[~usable] = np.nan
    return LeftOut(prediction, leverage, variance, status)


def leave_rows_out_of(problem: Problem, a: np.ndarray, variance: np.ndarray) -> LeftOut:
    """Leave out each training row in turn, from the leverages and variances of the fit to all rows.

    Args:
        problem: The training problem, whose loss is a sum over outputs.
        a: The block ``G_i A^-1 G_i' / n`` of each row, (n, K, K).
        variance: ``n sum_jb sigma_jb^2 (d f_i / d y_jb)(d f_i / d y_jb)'`` of the fit to all rows, over the responses
            of the other rows j, (n, K, K).
    """
    loss = problem.loss_derivatives
    K = problem.outputs
    aC = a * loss.curvature[:, None, :]
    leverage = np.linalg.eigvals(aC).real.max(axis=1)
    usable = leverage < 1 - _SLACK
    remaining = np.where(usable[:, None, None], np.eye(K) - aC, np.eye(K))
    moved = np.linalg.solve(remaining, a @ loss.first[:, :, None])[:, :, 0]
    inverse = np.linalg.inv(remaining)
    spread = np.einsum("ikl,ilm,ikm->ik", inverse, variance, inverse)
    prediction = problem.fitted_values + moved
    prediction[~usable] = np.nan
    spread[~usable] = np.nan
    status = np.where(usable, Status.CONVERGED.value, HIGH_LEVERAGE)
    return _judged(problem, LeftOut(prediction, leverage, spread, status))


def _row_status(status: np.ndarray) -> np.ndarray:
    """Return the status of each row from those of its outputs, (b, K): the first that is not converged."""
    failed = status != Status.CONVERGED
    first = status[np.arange(len(status)), failed.argmax(axis=1)]
    return np.where(failed.any(axis=1), first, Status.CONVERGED.value)
