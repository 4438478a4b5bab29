"""Problems from NumPy functions: any ``predict(theta, X)``, and results of SciPy's ``curve_fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import (
    as_numbers,
    check_loss,
    check_memory,
    check_nonnegative,
    check_targets,
    check_weights,
    decay_factor,
)
from vhat.errors import InputError, MemoryBudgetError
from vhat.models.numpy.autodiff import NumpyAutodiff
from vhat.models.numpy.derivatives import disagreement, refuse_nonlinear
from vhat.models.numpy.inputs import as_array, as_inputs, as_parameters
from vhat.models.numpy.model import CurveFit, Design, Model, takes_inputs_alone
from vhat.models.numpy.probe import probe
from vhat.models.problem import ModelFacts, Problem
from vhat.models.validate import refuse_loss

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["curve_fit_problem", "numpy_problem"]


def numpy_problem(
    predict: Callable[..., Any],
    theta: Any,
    X: Any,
    y: Any,
    *,
    jac: Callable[..., Any] | None = None,
    hess: Callable[..., Any] | None = None,
    weight_decay: Any = 0.0,
    loss: Any = "half_mse",
    sample_weight: Any = None,
    memory: float | None = None,
) -> Problem:
    """Check a NumPy model and its data and return their problem.

    Args:
        predict: ``predict(theta, X) -> (n,)`` or ``(n, outputs)``; a row's prediction depends on that row only.
        theta: The fitted parameters, (p,).
        X: An array with rows on its leading axis, or a pandas object.
        y: Responses, of the shape that ``predict`` returns.
        jac: ``jac(theta, X) -> (n, p)`` or ``(n, outputs, p)``; by default differences of ``predict``, about 20 p
            evaluations of it. A function that can only be called with one argument, ``jac(X)``, declares ``predict``
            linear in theta, up to a term that depends on the inputs only; this is checked at two other vectors.
        hess: ``hess(theta, X) -> (n, p, p)`` or ``(n, outputs, p, p)``; by default differences of ``jac`` if it is
            given, else of ``predict``: about 8 p^2 evaluations, when the exact Hessian is first needed.
        weight_decay: lam, a number or one per parameter, (p,).
        loss: ``"half_mse"``, ``"mse"`` or a twice differentiable ``loss(f_i, y_i)`` of one row.
        sample_weight: One weight per row.
        memory: Budget in bytes.

    Returns:
        The problem.

    Raises:
        InputError: For data, decay or options that cannot be used, and for a jac or hess that is wrong.
        ModelError: For a model that is random, mixes rows, writes into its arguments or is not finite.
        MemoryBudgetError: When the Jacobian would exceed the budget.

    Examples:
        >>> x = np.linspace(0.0, 1.0, 5)
        >>> problem = numpy_problem(lambda t, x: t[0] * np.exp(-t[1] * x), [2.0, 0.5], x, np.ones(5))
        >>> problem.gradients(problem.inputs([0.0])).round(9) + 0.0
        array([[1., 0.]])
    """
    check_loss(loss)
    _check_functions(predict, jac, hess)
    given = as_parameters(theta)
    rows = as_inputs(X)
    point = given.astype(np.float64)  # the dtype of `given` is only reported
    p = len(point)
    output, deterministic = probe(predict, point, rows)
    targets = check_targets(y, output.shape)
    model = Model(predict, _as_function_of_theta(jac, hess), hess, targets.shape[1], output.ndim == 1)
    budget = check_memory(memory)
    _check_budget(model, p, len(targets), budget)
    casts: tuple[str, ...] = ()
    if output.dtype in (np.float32, np.float16):
        casts = (f"predict returns {output.dtype}",)
    accuracy = max(1e-15, disagreement(model, point, rows))
    if model.linear:
        refuse_nonlinear(model, point, rows, output.astype(np.float64).reshape(-1), targets)
    facts = ModelFacts("numpy", str(given.dtype), deterministic, casts, accuracy, accuracy)
    problem = Problem(
        autodiff=NumpyAutodiff(model, p, loss if callable(loss) else None, facts),
        theta=point,
        decay=_decay(weight_decay, p) * decay_factor(loss, model.outputs),
        X=rows,
        targets=targets,
        weights=check_weights(sample_weight, len(targets)),
        memory=budget,
    )
    if callable(loss):
        refuse_loss(problem.loss_derivatives)
    return problem


def _check_functions(predict: Any, jac: Any, hess: Any) -> None:
    """Raise unless predict is a function, and jac and hess are functions or None."""
    for name, function in (("predict", predict), ("jac", jac), ("hess", hess)):
        if not callable(function) and (function is not None or name == "predict"):
            raise InputError(f"{name} must be a function {name}(theta, X); got {type(function).__name__}.")


def _as_function_of_theta(jac: Callable[..., Any] | None, hess: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return jac as ``jac(theta, X)``: a ``Design`` if it takes the inputs alone."""
    if jac is None or not takes_inputs_alone(jac):
        return jac
    if hess is not None:
        raise InputError("jac takes the inputs alone, so the second derivatives of predict are zero: leave hess out.")
    return Design(jac)


def _decay(weight_decay: Any, p: int) -> np.ndarray:
    """Return lam, (p,)."""
    decay = as_numbers("weight_decay", weight_decay)
    if decay.shape not in ((), (p,)):
        raise InputError(f"weight_decay has shape {decay.shape}; give a number or one per parameter, ({p},).")
    check_nonnegative("weight_decay", decay)
    return np.broadcast_to(decay, (p,)).copy()


def _check_budget(model: Model, p: int, n: int, memory: int) -> None:
    """Raise if J, the arrays needed to compute it, and four p x p matrices would exceed the budget."""
    copies = 2 if model.jac is not None else 6  # differences keep values, errors and extrapolations
    need = 8 * (copies * n * model.outputs * p + 4 * p**2)
    if need > memory:
        raise MemoryBudgetError(
            f"the Jacobian of {n} rows, {model.outputs} outputs and {p} parameters needs {need / 1e9:.3g} GB, and "
            f"the budget is {memory / 1e9:.3g} GB. Raise memory=, or write the model in JAX or torch and use "
            "from_jax or from_torch, which form no Jacobian."
        )


def curve_fit_problem(
    f: Callable[..., Any], popt: Any, x: Any, y: Any, sigma: Any = None
) -> tuple[Problem, np.ndarray | None]:
    """Return the problem of a fit by ``scipy.optimize.curve_fit``: lam = 0, weights ``1/sigma_i^2``.

    The weights are divided by their mean, so that sigma may have any unit: a constant factor changes neither the
    minimum nor the interval. As with SciPy's ``absolute_sigma=False``, sigma gives the noise up to a scale s that is
    estimated: ``noise_i = s sigma_i``.

    Args:
        f: ``f(x, *params) -> (n,)``.
        popt: The fitted parameters.
        x: ``(n,)``; ``(k, n)`` for k predictors, as SciPy takes them; or rows on the leading axis, as in a data
            frame. Test points are given in the same form.
        y: Responses, (n,).
        sigma: None, or the relative standard deviation of each response, (n,) or a number.

    Returns:
        The problem, and sigma as (n,) or None.

    Raises:
        InputError: For data that cannot be used; for a covariance matrix in sigma; for both results of curve_fit.
        ModelError: As `numpy_problem`.
    """
    if not callable(f):
        raise InputError(f"f must be a function f(x, *params); got {type(f).__name__}.")
    if isinstance(popt, tuple) and np.ndim(popt[0] if popt else 0) > 0:
        raise InputError(
            f"popt is a tuple of {len(popt)}, as curve_fit returns it: give popt alone, the first of them "
            "(popt, pcov = curve_fit(...)). The covariance is computed again."
        )
    targets = as_numbers("y", y)
    if targets.ndim != 1:
        raise InputError(f"y has shape {targets.shape}; curve_fit takes one axis, (n,).")
    n = len(targets)
    if hasattr(x, "iloc"):
        rows = x
        rows_last = False
    else:
        rows = as_array(x, "x")
        # (n, n) is read as SciPy reads it, with rows last; with more axes, a leading axis of n is that of the rows.
        rows_last = rows.ndim > 1 and rows.shape[-1] == n and (rows.ndim == 2 or rows.shape[0] != n)
    if rows_last:
        rows = np.moveaxis(rows, -1, 0)
    shape = _noise_shape(sigma, n)
    weights = None if shape is None else (1 / shape**2) / np.mean(1 / shape**2)
    return numpy_problem(CurveFit(f, rows_last), popt, rows, targets, sample_weight=weights), shape


def _noise_shape(sigma: Any, n: int) -> np.ndarray | None:
    """Return sigma as (n,)."""
    if sigma is None:
        return None
    shape = as_numbers("sigma", sigma)
    if shape.ndim == 2:
        raise InputError(
            f"sigma has shape {shape.shape}: a covariance of the responses is not covered, only independent "
            f"noise. Give the standard deviations, ({n},), if correlations may be neglected."
        )
    if shape.shape not in ((), (1,), (n,)):
        raise InputError(f"sigma has shape {shape.shape}; there are {n} rows, so give shape ({n},).")
    if not np.all(np.isfinite(shape)) or not np.all(shape > 0):
        raise InputError("sigma must be finite and above 0 in every row.")
    return np.broadcast_to(shape, (n,)).copy()
