"""The fitted model that a user holds: no mathematics, only delegation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from vhat import limits
from vhat.audit import Audit, audit_fit, moved_by, stationarity_line
from vhat.errors import ConvergenceWarning, InputError, NotMinimumWarning, name_rows
from vhat.interval import Interval
from vhat.minimise.polish import Polished, polish
from vhat.noise import Noise
from vhat.norm import Measured, WeightedNorm, gradient_blocks, measure
from vhat.problem import Array, Problem
from vhat.progress import steps_shown
from vhat.solve import Plan, Prepared, Solver, Status, choose
from vhat.solve.kernel import newton_metric
from vhat.tail import Tail
from vhat.workspace import Chosen, Workspace, outside

__all__ = ["FittedModel"]

F = TypeVar("F", bound=Callable[..., Any])


def _scoped(method: F) -> F:
    """Run a public method in the framework's float64 scope."""

    @wraps(method)
    def run(self: FittedModel, *args: Any, **kwargs: Any) -> Any:
        with self.problem.scope():
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]


class FittedModel:
    """A model, its parameters and its training data, ready to say how far its predictions can be trusted.

    Made by :func:`vhat.from_jax`, :func:`vhat.from_torch`, :func:`vhat.from_numpy` or :func:`vhat.from_curve_fit`.

    Attributes:
        problem: The training problem behind the front end.
        polished: The record of the polish that led here, or None.
        given: The problem at the parameters that the user gave, where polish has moved them; else None.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        noise_shape: np.ndarray | None = None,
        polished: Polished | None = None,
        given: Problem | None = None,
    ) -> None:
        self.problem = problem
        self.polished = polished
        self.given = given
        shape = np.ones((problem.n, problem.outputs)) if noise_shape is None else noise_shape
        self._work = Workspace(problem, shape / np.sqrt(np.mean(shape**2)))

    def __repr__(self) -> str:
        problem = self.problem
        decay = problem.numpy(problem.decay)
        lam = f"{decay.max():.3g}" if np.ptp(decay) == 0 else f"{decay.min():.3g} to {decay.max():.3g}"
        kind = type(problem).__name__.removesuffix("Problem").lower()
        return f"FittedModel({kind}, n={problem.n}, outputs={problem.outputs}, p={problem.p}, lam={lam})"

    # -- the model -------------------------------------------------------------------------
    @property
    def params(self) -> Any:
        """The parameters in the user's own structure."""
        with self.problem.scope():
            return self.problem.params

    @_scoped
    def predict(self, x: Any) -> np.ndarray:
        """Return the model's predictions in float64, (points,) or (points, outputs)."""
        return self._shaped(self.problem.predict(self.problem.inputs(x)))

    def write_to(self, module: Any) -> None:
        """Copy the parameters into a torch module of the same architecture (after :meth:`polish`).

        Raises:
            InputError: When the model did not come from torch, or the module does not match.
        """
        write = getattr(self.problem, "write_to", None)
        if write is None:
            raise InputError("write_to is for models from from_torch; read fitted.params instead.")
        write(module)

    def release(self) -> None:
        """Free the matrices and factorisations that were kept for reuse."""
        self._work.release()

    # -- intervals ---------------------------------------------------------------------------
    @_scoped
    def plan(self, x: Any, *, solver: Solver | str = "auto") -> Plan:
        """Say which solver would answer for ``x``, what it will take, and why."""
        inputs = self.problem.inputs(x)
        return choose(self.problem, self.problem.count(inputs) * self.problem.outputs, solver)

    @_scoped
    def weighted_norm(
        self, x: Any, *, solver: Solver | str = "auto", curvature: str = "auto", shortcut: bool = False
    ) -> WeightedNorm:
        """Compute V at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            solver: ``"auto"``, or :class:`vhat.Dense`, :class:`vhat.Dual` or :class:`vhat.CG` with its options.
            curvature: ``"hessian"``, ``"ggn"`` or ``"auto"``.
            shortcut: Return ``g'h`` in place of V: equal to it when the fit interpolates without decay, above it
                where ``R + lam`` is positive, and without the pass over the training rows' noise.

        Returns:
            V with a record per point.

        Raises:
            InputError: For inputs or options that cannot be used.
            NotPositiveDefinite: When no positive definite curvature is available.
        """
        inputs = self.problem.inputs(x)
        chosen, prepared = self._ready(solver, curvature, self.problem.count(inputs) * self.problem.outputs)
        found = measure(self.problem, prepared, gradient_blocks(self.problem, inputs), self._work.shape)
        self._report(found)
        value = found.shortcut if shortcut else found.variance / np.tile(self._levels(), self.problem.count(inputs))
        return WeightedNorm(
            value=self._shaped(value),
            unsupported=self._shaped(found.unsupported),
            status=self._shaped(found.status),
            residual=self._shaped(found.residual),
            steps=self._shaped(found.steps),
            curvature=chosen.curvature,
            solver=prepared.name,
        )

    def _levels(self) -> np.ndarray:
        """Mean square of the noise shape of each output, (K,)."""
        levels: np.ndarray = np.mean(self._work.shape**2, axis=0)
        return levels

    @_scoped
    def interval(
        self,
        x: Any,
        delta: float = 0.05,
        *,
        simultaneous: bool | str = False,
        bound: str = "tight",
        tail: Tail | None = None,
        target: str = "mean",
        noise: Any = None,
        observation_noise: Any = None,
        bias: Any = None,
        solver: Solver | str = "auto",
        curvature: str = "auto",
        seed: int = 0,
    ) -> Interval:
        """Compute a confidence interval for the prediction at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss: 0.05 asks for 95% confidence.
            simultaneous: False for each point alone; True or ``"union"`` for all at once by the union bound;
                ``"sup-t"`` for all at once with ``bound="asymptotic"``.
            bound: ``"tight"``, ``"theorem"``, ``"sharp"``, ``"empirical"``, ``"chebyshev"`` or ``"asymptotic"``.
            tail: The tail of V over the noise: None neglects it, or :class:`vhat.Tail`.
            target: ``"mean"`` for the expected prediction, ``"observation"`` for a new response.
            noise: Standard deviation of the training responses: a number, one per row, or None to estimate it.
            observation_noise: Standard deviation of a new response, where it differs from ``noise``.
            bias: None, ``"plug-in"``, or a bound on the absolute bias to be added.
            solver: ``"auto"``, or :class:`vhat.Dense`, :class:`vhat.Dual` or :class:`vhat.CG` with its options.
            curvature: ``"hessian"``, ``"ggn"`` or ``"auto"``.
            seed: Seed of random probes and of the sup-t simulation.

        Returns:
            The interval, with its evidence in ``guarantee``.

        Raises:
            InputError: For inputs or options that cannot be used.
            NoiseError: When the noise has to be estimated and the fit interpolates.
            NotPositiveDefinite: When no positive definite curvature is available.
        """
        options = limits.Options(delta, simultaneous, bound, tail, target, observation_noise, bias, seed)
        inputs = self.problem.inputs(x)
        center = self._shaped(self.problem.predict(inputs))
        blocks = gradient_blocks(self.problem, inputs)
        points = np.asarray(inputs) if isinstance(inputs, np.ndarray) else _as_array(x)
        return self._interval(options, center, blocks, noise, solver, curvature, points=points, per_output=True)

    @_scoped
    def functional(
        self,
        q: Callable[[Any], Any],
        delta: float = 0.05,
        *,
        simultaneous: bool | str = False,
        bound: str = "tight",
        tail: Tail | None = None,
        noise: Any = None,
        bias: Any = None,
        solver: Solver | str = "auto",
        curvature: str = "auto",
        seed: int = 0,
    ) -> Interval:
        """Compute a confidence interval for any differentiable function of the parameters.

        Args:
            q: ``q(params)`` in the user's own structure, returning a scalar or ``(k,)``: a parameter, a difference,
                a slope, an average over a population.
            delta: As in :meth:`interval`, like the options that follow.
            simultaneous: As in :meth:`interval`.
            bound: As in :meth:`interval`.
            tail: As in :meth:`interval`.
            noise: As in :meth:`interval`.
            bias: As in :meth:`interval`.
            solver: As in :meth:`interval`.
            curvature: As in :meth:`interval`.
            seed: As in :meth:`interval`.

        Returns:
            An interval of shape () or (k,).

        Raises:
            InputError: When q returns something else than a scalar or one axis, or is not differentiable.
        """
        options = limits.Options(delta, simultaneous, bound, tail, bias=bias, seed=seed)
        value = self.problem.functional(q)
        return self._interval(options, value.value, [value.gradient], noise, solver, curvature, per_output=False)

    @_scoped
    def sensitivity(self, x: Any, *, solver: Solver | str = "auto", curvature: str = "auto") -> np.ndarray:
        """Return ``d f(x) / d y``: how much each prediction leans on each training response.

        Returns:
            Shape (points, n); with several outputs (points, outputs, n, outputs).

        Raises:
            NotConverged: When a point's solve fails.
        """
        inputs = self.problem.inputs(x)
        _, prepared = self._ready(solver, curvature, self.problem.count(inputs) * self.problem.outputs)
        blocks = gradient_blocks(self.problem, inputs)
        found = measure(self.problem, prepared, blocks, self._work.shape, rows=True)
        self._report(found)
        assert found.sensitivity is not None
        found.sensitivity[found.status != Status.CONVERGED] = np.nan
        if self.problem.squeeze:
            return found.sensitivity[:, :, 0]
        K = self.problem.outputs
        return found.sensitivity.reshape(-1, K, self.problem.n, K)

    @_scoped
    def covariance(self, *, noise: Any = None, curvature: str = "auto", seed: int = 0) -> np.ndarray:
        """Return the first-order covariance of the parameters, (p, p), in the order of the flat vector.

        ``1/n^2 sum_ib sigma_ib^2 (A^-1 j_ib)(A^-1 j_ib)'``, the sandwich of the inverse regularised Hessian; for
        ``curvature="ggn"`` and no decay it is the classical ``sigma^2 (J'J)^-1``.

        Raises:
            MemoryBudgetError: When p is too large for a dense matrix.
        """
        from vhat.solve import Dense

        problem = self.problem
        chosen, prepared = self._ready(Dense(), curvature, problem.p)
        level = self._work.noise(noise, chosen.curvature, seed)
        identity = problem.native(np.eye(problem.p))
        found = measure(problem, prepared, [identity], level.values, rows=True)
        assert found.sensitivity is not None
        rows = (found.sensitivity * level.values).reshape(problem.p, -1)
        covariance: np.ndarray = rows @ rows.T
        return covariance

    # -- evidence ------------------------------------------------------------------------------
    @_scoped
    def audit(self, *, noise: Any = None, curvature: str = "auto", refits: int = 0, seed: int = 0) -> Audit:
        """Check what the theorem assumes of this fitted model, one line an assumption.

        Args:
            noise: As in :meth:`interval`.
            curvature: As in :meth:`interval`.
            refits: How many times to refit under perturbed responses to probe that the minimum moves continuously.
            seed: Seed of the random directions.

        Returns:
            The audit; it prints as a table.
        """
        return audit_fit(self._work, noise=noise, curvature=curvature, refits=refits, seed=seed, given=self.given)

    @_scoped
    def polish(self, *, gtol: float = 1e-10, max_steps: int = 1000, warmup: int = 1000, seed: int = 0) -> FittedModel:
        """Go to the nearest certified minimum: vanishing gradient and a positive definite Hessian.

        Args:
            gtol: Relative gradient to reach, without unit.
            max_steps: Newton steps after which to give up.
            warmup: L-BFGS steps before Newton; left out where the gradient is small already.
            seed: Seed of the eigenvalue certificate.

        Returns:
            A new fitted model at the minimum, its record in ``polished``. This one is unchanged, and so is the
            user's module: predict with ``polished.predict``, or copy the parameters by :meth:`write_to`. How far the
            predictions moved stands in the audit and in every guarantee.

        Raises:
            PolishError: When there is no certified minimum to be reached: kinks, or too few steps.
        """
        with steps_shown("polish") as show:
            record = polish(
                self.problem,
                gtol=gtol,
                max_steps=max_steps,
                warmup=warmup,
                metric=newton_metric(self.problem),
                progress=show,
                seed=seed,
            )
        given = self.problem if self.given is None else self.given
        return FittedModel(record.problem, noise_shape=self._work.shape, polished=record, given=given)

    # -- inside ----------------------------------------------------------------------------------
    def _shaped(self, rows: np.ndarray) -> np.ndarray:
        """Give flat rows the shape that the model's predictions have."""
        columns = rows.reshape(-1, self.problem.outputs)
        return columns[:, 0].copy() if self.problem.squeeze else columns.copy()

    def _ready(self, solver: Solver | str, curvature: str, rows: int) -> tuple[Chosen, Prepared]:
        plan = choose(self.problem, rows, solver)
        chosen = self._work.choose_curvature(curvature)
        return chosen, self._work.prepared(plan.solver, chosen.curvature)

    def _interval(
        self,
        options: limits.Options,
        center: np.ndarray,
        blocks: Iterable[Array],
        noise: Any,
        solver: Solver | str,
        curvature: str,
        *,
        points: np.ndarray | None = None,
        per_output: bool,
    ) -> Interval:
        if options.target == "observation":
            _require_residuals(self.problem)
        chosen, prepared = self._ready(solver, curvature, center.size)
        level = self._work.noise(noise, chosen.curvature, options.seed)
        stationary = self._warn_unless_minimum(level, chosen, options.seed)
        keep = options.simultaneous == "sup-t"
        found = measure(self.problem, prepared, blocks, level.values, rows=keep)
        self._report(found)
        reference = level.level if per_output else np.asarray(level.overall)
        df = level.df if per_output or level.df is None else np.asarray(np.min(level.df))
        if self.problem.squeeze and per_output:
            reference, df = reference[0], None if df is None else df[0]
        standing = limits.Standing(
            curvature=chosen.curvature,
            solver=prepared.name,
            reason=chosen.reason,
            stationary=stationary,
            definite=chosen.definite.verdict,
            decided=chosen.definite.method != "lanczos",
            moved=None if self.given is None else moved_by(self.given, self.problem, level),
            subject="prediction" if per_output else "functional",
        )
        return limits.build(found, center, level, np.asarray(reference), df, self.problem.n, options, standing, points)

    def _warn_unless_minimum(self, level: Noise, chosen: Chosen, seed: int) -> bool:
        """Check stationarity once for each noise level; warn once."""
        key = ("stationarity", chosen.curvature, level.overall, seed)
        line = self._work.keep(key, lambda: stationarity_line(self._work, chosen.curvature, level, seed))
        if line.verdict == "fails" and self._work.first("warned stationarity"):
            warnings.warn(f"{line}", NotMinimumWarning, stacklevel=outside())
        return line.verdict == "holds"

    def _report(self, found: Measured) -> None:
        """Warn of rows that failed, by name and with the remedy."""
        failed = np.flatnonzero(found.status != Status.CONVERGED)
        if failed.size:
            kinds = dict.fromkeys(found.status[failed])
            told = "; ".join(f"{kind}: {Status(kind).remedy}" for kind in kinds)
            rows = np.unique(failed // (1 if self.problem.squeeze else self.problem.outputs))
            warnings.warn(
                f"{failed.size} of {found.status.size} predictions have no interval ({name_rows(rows)}) and are NaN. "
                f"{told}.",
                ConvergenceWarning,
                stacklevel=outside(),
            )


def _as_array(x: Any) -> np.ndarray | None:
    """Keep points for plotting where they are one numeric array."""
    try:
        array = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array


def _require_residuals(problem: Problem) -> None:
    if not problem.loss_derivatives.location:
        raise InputError(
            "target='observation' needs a prediction on the scale of y, and this loss is not a function of f - y: what "
            "f predicts is not the mean of a response. Ask for target='mean', and map it to responses yourself."
        )
