"""The fitted model: a facade that delegates every call."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vhat.checks import LARGEST, check_choice
from vhat.errors import InputError, PolishError
from vhat.evidence.acquire import Acquisition, acquire
from vhat.evidence.audit import Audit, audit_fit
from vhat.evidence.fisher import FisherInformation, find_fisher
from vhat.evidence.leave_one_out import LeaveOneOut
from vhat.evidence.minimise.polish import Polished
from vhat.evidence.minimise.watched_polish import polish_watched
from vhat.fitted.generalised_freedom import RETRAININGS
from vhat.fitted.linearise import find_ridge
from vhat.fitted.recipes import Recipe
from vhat.intervals.ask import about_functional, about_predictions, checked_inputs, shaped
from vhat.intervals.build import build
from vhat.intervals.calibrate import Calibrated, OwnInterval
from vhat.intervals.confidence_set import ConfidenceSet, find_set
from vhat.intervals.estimated_tail import EstimatedTail, Redraws
from vhat.intervals.interval import Interval
from vhat.intervals.left_out import find_leave_one_out
from vhat.intervals.make_calibration import calibrate
from vhat.intervals.noise_shape import NoiseShape
from vhat.intervals.options import Options
from vhat.intervals.parameter_covariance import parameter_covariance
from vhat.intervals.prepare import ready
from vhat.intervals.tail import Tail
from vhat.intervals.uniform import UniformBound, find_uniform
from vhat.intervals.weighted_norm import find_sensitivity, find_weighted_norm
from vhat.linalg.solvers import Plan, Solver, choose
from vhat.models.loaders import is_loader, read_pair
from vhat.models.problem import Problem
from vhat.models.tangent import TangentAutodiff, tangent_problem
from vhat.sketch.sketch import PROBES, Sketch, make_sketch
from vhat.variance.relative_noise import relative_noise
from vhat.variance.ridge_refit import EarlyStopping, RidgeRefit
from vhat.variance.tangent_kernel import kernels_along, tangent_kernel
from vhat.variance.validation import Validation, check_validation
from vhat.variance.weighted_norm import WeightedNorm, gradient_blocks
from vhat.variance.workspace import Workspace

__all__ = ["FittedModel"]

F = TypeVar("F", bound=Callable[..., Any])


def _scoped(method: F) -> F:
    """Run a public method in the framework's float64 scope."""

    @wraps(method)
    def run(self: FittedModel, *args: Any, **kwargs: Any) -> Any:
        with self.problem.scope():
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]


def _of_same_model(method: F) -> F:
    """Run a public method in the framework's float64 scope, once the model is known to predict as it did when given.

    :meth:`FittedModel.interval` needs no such check: its question makes it, for sketches as well. The audit has a line
    on it instead.
    """

    @wraps(method)
    def run(self: FittedModel, *args: Any, **kwargs: Any) -> Any:
        with self.problem.scope():
            self.problem.refuse_changed()
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]


class FittedModel:
    """A model, its parameters and its training data, with confidence intervals for its predictions.

    Made by :func:`vhat.from_jax`, :func:`vhat.from_torch`, :func:`vhat.from_numpy` or :func:`vhat.from_curve_fit`.

    Attributes:
        problem: The training problem behind the front end.
        polished: The record of the polish that made this model, or None. There is none under another penalty, of whose
            minimum it says nothing.
        given: The problem at the parameters that the user gave, where polish has moved them; else None.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        noise_shape: np.ndarray | None = None,
        polished: Polished | None = None,
        given: Problem | None = None,
        decay_chosen: bool = False,
        refit: RidgeRefit | None = None,
        validation: Validation | None = None,
    ) -> None:
        self.problem = problem
        self.polished = polished
        self.given = given
        relative = relative_noise(problem, noise_shape)
        self._work = Workspace(problem, relative, decay_chosen=decay_chosen, refit=refit, validation=validation)
        # The cache of the model that was linearised. The first call of linearised() on a linearisation makes it.
        self._before: Workspace | None = None

    def __repr__(self) -> str:
        problem = self.problem
        decay = problem.numpy(problem.decay)
        lam = f"{decay.max():.3g}" if np.ptp(decay) == 0 else f"{decay.min():.3g} to {decay.max():.3g}"
        free = int(np.sum(decay == 0))
        if 0 < free < problem.p:
            lam += f", {free} of {problem.p} without"
        kind = problem.autodiff.framework
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
        return shaped(self.problem, self.problem.predict(self.problem.inputs(x)))

    def write_to(self, module: Any) -> None:
        """Copy the parameters into a torch module of the same architecture (after :meth:`polish`).

        Raises:
            InputError: When the model did not come from torch, or the module does not match.
        """
        write = getattr(self.problem.autodiff, "write_to", None)
        if write is None:
            raise InputError("write_to is for models from from_torch; read fitted.params instead.")
        write(module, self.problem.theta)

    def release(self) -> None:
        """Free the matrices and factorisations that were kept for reuse."""
        self._work.release()

    @property
    def workspace(self) -> Workspace:
        """The cache of this model: curvature, factorisations, noise level."""
        return self._work

    def save(self, directory: str | os.PathLike[str], *, data: str = "copy", factorisation: bool = False) -> None:
        """Save this model for :func:`vhat.load`: safetensors and JSON, no pickle, no code.

        A model in the directory is replaced without asking, completely or, if this call is interrupted, not at all: the
        new one is written beside it as the next version (``v0002``), ``vhat.json`` is pointed to it, and only then is
        the old version removed. Old versions are not kept: give a new directory to keep both models. Your own files and
        folders in the directory stay as they are.

        Args:
            directory: A new or empty directory, or one that was saved to before; one that holds anything else is
                refused.
            data: ``"copy"`` keeps the training data; ``"reference"`` keeps their checksum alone, and ``load`` asks for
                them.
            factorisation: Whether to keep the computed matrix or kernel, so that it is not computed again.

        Raises:
            StoreError: When the directory cannot be written, or a part of the model cannot be saved.
        """
        from vhat.store import save

        save(self, directory, data=data, factorisation=factorisation)

    @_scoped
    def save_calibrated(self, directory: str | os.PathLike[str], calibration: dict[str, Any]) -> None:
        """Save this model with the record of a calibration: see :meth:`vhat.Calibrated.save`."""
        from vhat.store import save

        save(self, directory, calibration=calibration)

    @_scoped
    def scale_weight_decay(self, factor: float) -> FittedModel:
        """Return the same parameters under ``factor`` times the weight decay. A computed kernel is shared.

        The parameters are a minimum for one decay only: polish the result, or use ``curvature="ggn"``.

        Raises:
            InputError: When the factor is not positive and finite.
        """
        if not isinstance(factor, int | float | np.number) or not 0 < factor <= LARGEST:
            raise InputError(f"factor={reprlib.repr(factor)} is not a positive number of usable size.")
        if self._work.refit is not None:
            return self.linearised(factor * self.problem.numpy(self.problem.decay))
        moved = FittedModel(
            self.problem.with_decay(factor * self.problem.decay),
            noise_shape=self._work.shape,
            given=self.given,
            decay_chosen=self._work.decay_chosen,
            validation=self._work.validation,
        )
        if self._work.kept("kernel") is not None:  # the same for any multiple of the decay
            moved._work.twin = self._work
        return moved

    # -- intervals ---------------------------------------------------------------------------
    @_scoped
    def plan(self, x: Any, *, solver: Solver | str = "auto", curvature: str = "auto") -> Plan:
        """Return the solver for ``x``, its memory and cost, and the reason for the choice.

        Args:
            x: Test inputs, shaped like the training inputs.
            solver: As in :meth:`weighted_norm`.
            curvature: As in :meth:`weighted_norm`; the cost of ``"auto"`` is that of the exact Hessian.
        """
        check_choice("curvature", curvature, ("auto", "hessian", "ggn"))
        inputs = self.problem.inputs(x)
        return choose(self.problem, self.problem.count(inputs) * self.problem.outputs, solver, curvature)

    @_of_same_model
    def weighted_norm(
        self, x: Any, *, solver: Solver | str = "auto", curvature: str = "auto", shortcut: bool = False
    ) -> WeightedNorm:
        """Compute V at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            solver: ``"auto"``, or :class:`vhat.Dense`, :class:`vhat.Primal`, :class:`vhat.Dual`,
                :class:`vhat.Nystrom` or :class:`vhat.CG`; :class:`vhat.MinimumNorm` for fits that interpolate without
                decay.
            curvature: ``"hessian"``, ``"ggn"`` or ``"auto"``.
            shortcut: Return ``c g'h`` in place of V, ``c`` the second derivative of the loss of a row (1 for the half
                squared error without weights): equal to V when the fit interpolates without decay, above it where
                ``R + lam`` is positive, if all rows that count have one weight.

        Returns:
            V with a record per point.

        Raises:
            InputError: For inputs or options that cannot be used.
            NotPositiveDefinite: When no positive definite curvature is available.
            Interrupted: On Ctrl-C during the solves; the points that are finished are in its ``record``.
        """
        return find_weighted_norm(self._work, x, solver, curvature, shortcut=shortcut)

    @_scoped
    def interval(
        self,
        x: Any,
        delta: float = 0.05,
        *,
        simultaneous: bool | str = False,
        bound: str = "isoperimetric",
        tail: Tail | EstimatedTail | Redraws | str | None = None,
        target: str = "mean",
        noise: Any = None,
        observation_noise: Any = None,
        bias: Any = None,
        solver: Solver | str = "auto",
        curvature: str = "auto",
        shortcut: bool = False,
        seed: int = 0,
    ) -> Interval:
        """Compute a confidence interval for the prediction at every point.

        Args:
            x: Test inputs, shaped like the training inputs; or a torch DataLoader or Dataset of them, with responses or
                without: rows come in the order of the dataset, also where the loader shuffles.
            delta: Probability of a miss: 0.05 asks for 95% confidence.
            simultaneous: False for each point alone; True or ``"union"`` for all at once by the union bound;
                ``"sup-t"`` for all at once with ``bound="asymptotic"``.
            bound: ``"isoperimetric"``, ``"asymptotic"``, ``"tight"``, ``"empirical"``, ``"chebyshev"``,
                ``"theorem"`` or ``"sharp"``: see the table.
            tail: How V varies over the noise. None assumes a moderate tail (no more than that of a chi-square with 8
                degrees of freedom; the older bounds neglect it); ``"constant"``; ``"any"``, no assumption;
                :class:`vhat.Tail`; ``"estimated"``, or :class:`vhat.Redraws`, takes E[V] and the spread of V from
                refits under redrawn responses.
            target: ``"mean"`` for the expected prediction, ``"observation"`` for a new response.
            noise: Standard deviation of the training responses: a number, or one per row. None estimates it, equal in
                every row (or as the model was given its shape), or takes it from the model's variance head where it has
                one; ``"weights"`` estimates it with the sample weights as
                inverse variances; ``"equal"`` says that rows of different weight have equal noise.
            observation_noise: Standard deviation of a new response, where it differs from ``noise``. By default that of
                the training responses, where it is the same in all rows, or what the model's variance head says at x.
            bias: None, ``"plug-in"``, or a bound on the absolute bias to be added.
            solver: ``"auto"``, or :class:`vhat.Dense`, :class:`vhat.Primal`, :class:`vhat.Dual`,
                :class:`vhat.Nystrom` or :class:`vhat.CG`; :class:`vhat.MinimumNorm` for fits that interpolate without
                decay.
            curvature: ``"hessian"``, ``"ggn"`` or ``"auto"``.
            shortcut: Take ``c g'h`` in place of V, as :meth:`weighted_norm` does.
            seed: Seed of random probes and of the sup-t simulation.

        Returns:
            The interval, with its evidence in ``guarantee``.

        Raises:
            InputError: For inputs or options that cannot be used.
            NoiseError: When the noise has to be estimated and the fit interpolates.
            NotPositiveDefinite: When no positive definite curvature is available.

        A model that is linear in its parameters by structure is answered exactly (``band.bound == "exact"``): by the
        normal distribution, or by Student's t where the noise is estimated.

        **The bounds**, all about the mean of the prediction over Gaussian noise (``docs/bounds.md`` derives them). Each
        is a theorem about E[V]; with V in its place, as here unless ``tail="estimated"``, none has a proved level.

        ================= =========================== ======================================= ==========================
        bound             needs                       promises                                when to use it
        ================= =========================== ======================================= ==========================
        ``isoperimetric`` how much V varies: a        the level, if E[V] and the tail are     the default
                          moderate tail by default,   known; an estimated noise level is
                          or nothing (``"any"``)      allowed for; 1.14 times the textbook's
                                                      width at 95%
        ``asymptotic``    nothing more                the level as n grows (exact for linear  the textbook's width, and
                                                      models without decay)                   sup-t bands
        ``tight``         a tail of V, neglected      the same, by a weaker inequality; 1.4   to compare with earlier
                          unless it is given          times the textbook's width              results
        ``empirical``     a tail known beforehand     the level, without E[V] being known     when V must not stand for
                                                                                              its mean
        ``chebyshev``     nothing more                the level whatever the tail, if E[V] is seldom: ``tail="any"``
                                                      known                                   promises it in less width
        ``theorem``       as ``tight``                the published bound, 1.57 times         to reproduce results
                                                      ``tight``; unproved where v, c > 0
        ``sharp``         as ``tight``                the same before its root is split       to reproduce results
        ================= =========================== ======================================= ==========================
        """
        options = Options(delta, simultaneous, bound, tail, target, observation_noise, bias, seed)
        question = about_predictions(self.problem, x, options, shortcut=shortcut)
        return build(self._work, question, noise, solver, curvature, given=self.given)

    @_of_same_model
    def sketch(
        self,
        probes: int = PROBES,
        seed: int = 0,
        *,
        noise: Any = None,
        solver: Solver | str = "auto",
        curvature: str = "auto",
        audit: bool = False,
        digests: bool = True,
        engine: Any = None,
    ) -> Sketch:
        """Compute once what later intervals need from the training data, which these then do not use any more.

        For up to 2,000 parameters V stays exact where the solver factorises a matrix. Otherwise it is estimated by
        random probes, each one solve: its relative standard deviation is ``sqrt(2 / probes)``, that of a width half as
        much (4.4% for 256), and the level allows for it.

        Args:
            probes: How many random probes, at least 8; not used where V stays exact.
            seed: Draws them.
            noise: As in :meth:`interval`.
            solver: As in :meth:`interval`.
            curvature: As in :meth:`interval`; with the exact Hessian and probes, ``unsupported`` is that of the
                Gauss-Newton matrix.
            audit: Whether to audit the model and keep the result with the sketch.
            digests: Whether to keep eight bytes a training row, so that a training row is refused as a calibration
                row. A row with few possible values can be found again from them: leave them out where rows are
                confidential.
            engine: A ``distributed.Client``: the workers of its Dask cluster make the sums over the training rows, with
                :class:`vhat.Primal` as the solver. Those of :class:`vhat.Rows` are read by the workers.

        Returns:
            The sketch: ``.interval(x)``, ``.calibrate(X, y)``, ``.save(directory)``.

        Raises:
            InputError: For options that cannot be used.
            MemoryBudgetError: When the probes do not fit.
            NotConverged: When the solver does not reach its tolerance.
            Interrupted: On Ctrl-C; a second call goes on where the first one stopped.

        Examples:
            >>> import numpy as np, vhat
            >>> x = np.linspace(0, 4, 30)
            >>> y = 2.0 * np.exp(-x) + 0.01 * np.cos(30 * x)
            >>> fitted = vhat.from_numpy(lambda q, x: q[0] * np.exp(-q[1] * x), [2.0, 1.0], x, y).polish()
            >>> sketch = fitted.sketch()
            >>> bool(np.allclose(sketch.interval([1.0, 2.0]).lower, fitted.interval([1.0, 2.0]).lower))
            True
        """
        found = self.audit(noise=noise, curvature=curvature, seed=seed) if audit else None
        return make_sketch(
            self._work,
            probes=probes,
            seed=seed,
            noise=noise,
            solver=solver,
            curvature=curvature,
            given=self.given,
            audit=found,
            digests=digests,
            engine=engine,
        )

    @_of_same_model
    def functional(
        self,
        q: Callable[[Any], Any],
        delta: float = 0.05,
        *,
        simultaneous: bool | str = False,
        bound: str = "isoperimetric",
        tail: Tail | EstimatedTail | Redraws | str | None = None,
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
            An interval of shape () or (k,). Where model and ``q`` are both linear in the parameters by structure it is
            exact, as in :meth:`interval`; of a NumPy function q that cannot be known.

        Raises:
            InputError: When q returns something else than a scalar or one axis, or is not differentiable.
        """
        options = Options(delta, simultaneous, bound, tail, bias=bias, seed=seed)
        question = about_functional(self.problem, q, options)
        return build(self._work, question, noise, solver, curvature, given=self.given)

    @_of_same_model
    def sensitivity(self, x: Any, *, solver: Solver | str = "auto", curvature: str = "auto") -> np.ndarray:
        """Return ``d f(x) / d y``, the sensitivity of each prediction to each training response.

        Returns:
            Shape (points, n); with several outputs (points, outputs, n, outputs).

        Warns:
            ConvergenceWarning: Of points whose solve failed; their rows are NaN.
        """
        return find_sensitivity(self._work, x, solver, curvature)

    @_of_same_model
    def tangent_kernel(self, x: Any, x2: Any = None, *, along: Any = None) -> np.ndarray:
        """Return the tangent kernel ``k(a, b) = grad f(a)' grad f(b)``, at the fitted parameters or along a training.

        At the initial parameters it is the neural tangent kernel, at those of a later step the kernel of that moment,
        up to a factor 1/n that some papers include.

        Args:
            x: Inputs, m points, shaped like the training inputs.
            x2: Other inputs, m2 points; None for ``x`` itself.
            along: Parameters that were recorded during training, (steps, p), each a flat vector in the order of
                :meth:`covariance` (``jax.flatten_util.ravel_pytree``, ``torch.nn.utils.parameters_to_vector``); None
                for the fitted ones.

        Returns:
            Shape (m, m2); with several outputs (m, outputs, m2, outputs). With ``along`` there is a first axis for the
            steps.

        Raises:
            InputError: For inputs or recorded parameters that cannot be used.
            MemoryBudgetError: When the kernels themselves do not fit.

        Examples:
            >>> import numpy as np, vhat
            >>> x, y = np.array([0.0, 1.0, 2.0]), np.array([0.1, 0.9, 2.1])
            >>> fitted = vhat.from_numpy(lambda q, x: q[0] + q[1] * x, [0.0, 1.0], x, y)
            >>> fitted.tangent_kernel([1.0, 2.0], [0.0, 3.0]).round(6)
            array([[1., 4.],
                   [1., 7.]])
        """
        inputs = self.problem.inputs(x)
        other = None if x2 is None else checked_inputs(self.problem, "x2", x2)
        if along is None:
            return tangent_kernel(self.problem, inputs, other)
        return kernels_along(self.problem, along, inputs, other)

    @_of_same_model
    def covariance(self, *, noise: Any = None, curvature: str = "auto", seed: int = 0) -> np.ndarray:
        """Return the first-order covariance of the parameters, (p, p), in the order of the flat vector.

        ``1/n^2 sum_ib sigma_ib^2 (A^-1 j_ib)(A^-1 j_ib)'``, the sandwich of the inverse regularised Hessian; for
        ``curvature="ggn"`` and no decay it is the classical ``sigma^2 (J'J)^-1``.

        Raises:
            MemoryBudgetError: When p is too large for a dense matrix.
        """
        return parameter_covariance(self._work, noise, curvature, seed).matrix

    @_of_same_model
    def confidence_set(
        self, delta: float = 0.05, *, noise: Any = None, curvature: str = "auto", seed: int = 0
    ) -> ConfidenceSet:
        """Return Wald's confidence set of the parameters of a small model: an ellipsoid.

        ``(theta - theta_hat)' Cov^-1 (theta - theta_hat) <= q`` with the covariance of :meth:`covariance`, q a quantile
        of chi-square, or of F where the noise was estimated.

        Args:
            delta: Probability of a miss.
            noise: As in :meth:`interval`.
            curvature: As in :meth:`interval`; ``"ggn"`` without decay is the textbook's set.
            seed: Seed of random probes.

        Returns:
            The set: ``.contains(theta)``, ``.project(i, j)``, ``.plot(i, j)``.

        Raises:
            MemoryBudgetError: When p is too large for a dense matrix.
            NotPositiveDefinite: When the data do not move the parameters in every direction.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        return find_set(self._work, delta, noise=noise, curvature=curvature, seed=seed)

    @_of_same_model
    def uniform(
        self,
        delta: float = 0.05,
        *,
        region: Any = "sphere",
        lipschitz: float | str = "weights",
        eps: float | None = None,
        bound: str = "tight",
        tail: Tail | None = None,
        noise: Any = None,
        solver: Solver | str = "auto",
        curvature: str = "auto",
        seed: int = 0,
    ) -> UniformBound:
        """Compute one half width that holds for every input of a sphere or a box at once.

        The bound at the points of a cover, by the largest V over the region, plus what the gap can change between them.

        Args:
            delta: Probability of a miss anywhere in the region.
            region: ``"sphere"``, the unit sphere of R^d, or the corners ``(lower, upper)`` of a box, (d,) each.
            lipschitz: A Lipschitz constant of ``x -> f(x) - E f(x)``, a number; or, for networks of ``vhat.fit``,
                ``"weights"`` (twice the product of the norms of their layers) or ``"objective"`` (from the value of the
                penalised objective, far larger).
            eps: Radius of the cover; None takes ``noise / (n lipschitz)``, at most the size of the region.
            bound: ``"tight"``, ``"theorem"`` or ``"sharp"``.
            tail: How V varies over the noise; None neglects it.
            noise: As in :meth:`interval`.
            solver: As in :meth:`interval`.
            curvature: As in :meth:`interval`.
            seed: Seed of the search for the largest V.

        Returns:
            The half width, its parts, and in ``guarantee`` what was assumed.

        Raises:
            InputError: For several outputs, inputs that are not one array, and options that cannot be used.
            NotConverged: When V has no value at some points of the region.
        """
        return find_uniform(
            self._work,
            delta,
            region=region,
            lipschitz=lipschitz,
            eps=eps,
            bound=bound,
            tail=tail,
            noise=noise,
            solver=solver,
            curvature=curvature,
            seed=seed,
        )

    # -- leave-one-out, calibration, acquisition --------------------------------------------------
    @_of_same_model
    def leave_one_out(self, *, curvature: str = "auto", seed: int = 0) -> LeaveOneOut:
        """Predict every training row by the model without that row, to first order and without refits.

        ``y - f_-i = (y - f) / (1 - S_ii)`` with ``S = df/dy``; weights, other losses and several outputs (all of a row
        are left out together) by the same first-order step. Exact for models linear in their parameters.

        Args:
            curvature: As in :meth:`interval`.
            seed: Seed of the check that the parameters are a minimum.

        Returns:
            Predictions, residuals and leverages of the training rows, with a status each.

        Raises:
            NotPositiveDefinite: When no positive definite curvature is available.
        """
        return find_leave_one_out(self._work, curvature, seed)

    @_of_same_model
    def calibrate(
        self,
        X_cal: Any,
        y_cal: Any = None,
        *,
        noise: Any = None,
        observation_noise: Any = None,
        noise_shape: NoiseShape | str = "constant",
        solver: Solver | str = "auto",
        curvature: str = "auto",
        seed: int = 0,
    ) -> Calibrated:
        """Calibrate observation intervals with responses that the fit has not seen, which includes its bias.

        Args:
            X_cal: Calibration inputs that training did not see, or a torch DataLoader of inputs and responses; or
                ``"loo"``: the training rows, each left out in turn (5,000 of them, drawn by ``seed``, where there are
                more and the solver has no factorisation).
            y_cal: Their responses; None with a DataLoader.
            noise: As in :meth:`interval`. It shapes the widths; the level of a split calibration holds for any value.
            observation_noise: Standard deviation of the calibration responses, where it differs from ``noise``: a
                number, which ``.interval(x)`` then uses for new responses too; or one per row, and
                ``.interval(x, observation_noise=...)`` needs that of the new ones.
            noise_shape: ``"constant"``: one noise level, so that all widths are rescaled alike. ``"prediction"``, with
                ``"loo"`` alone: noise that varies with the prediction, where the left-out errors show that it does (see
                :class:`~vhat.intervals.noise_shape.NoiseShape`); where rows have noise levels of their own, these are
                kept and nothing else is estimated. For calibration rows, the ``noise_shape`` of such a
                calibration: made before these rows were seen, it leaves their level exact.
            solver: As in :meth:`interval`.
            curvature: As in :meth:`interval`.
            seed: As in :meth:`interval`.

        Returns:
            The calibrated model: ``.interval(x, delta)``, with its guarantee in ``.guarantee``.

        Raises:
            InputError: For data that cannot be used, or that training has seen (a few copies, as coarse tables have
                them, are warned of).
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        base = OwnInterval(self, {"noise": noise, "solver": solver, "curvature": curvature, "seed": seed})
        return calibrate(
            self._work,
            base,
            X_cal,
            y_cal,
            noise=noise,
            observation_noise=observation_noise,
            noise_shape=noise_shape,
            curvature=curvature,
            seed=seed,
        )

    @_of_same_model
    def acquire(self, pool: Any, k: int = 1, *, solver: Solver | str = "auto", curvature: str = "auto") -> Acquisition:
        """Choose the k points of a pool whose measurement reduces the variance of the pool's predictions most.

        The choice is greedy: each point is chosen as if the earlier ones had been measured, so that they spread out.

        Args:
            pool: Inputs at which a response could be had, shaped like the training inputs.
            k: How many to choose.
            solver: As in :meth:`interval`.
            curvature: As in :meth:`interval`.

        Returns:
            The choice: ``.indices`` into the pool, the most useful first.

        Raises:
            InputError: For a pool that cannot be used or holds fewer than k points.
            MemoryBudgetError: When the pool is too large for its kernel.
        """
        inputs = checked_inputs(self.problem, "pool", pool)
        _, prepared = ready(self._work, solver, curvature, self.problem.count(inputs) * self.problem.outputs)
        return acquire(self.problem, prepared, gradient_blocks(self.problem, inputs), k)

    # -- evidence ------------------------------------------------------------------------------
    @_scoped
    def audit(self, *, noise: Any = None, curvature: str = "auto", refits: int = 0, seed: int = 0) -> Audit:
        """Check the assumptions of the theory for this fitted model, one line per assumption.

        Args:
            noise: As in :meth:`interval`.
            curvature: As in :meth:`interval`.
            refits: Number of refits under perturbed responses, to test that the minimum moves continuously.
            seed: Seed of the random directions.

        Returns:
            The audit; it prints as a table.
        """
        return audit_fit(self._work, noise=noise, curvature=curvature, refits=refits, seed=seed, given=self.given)

    @_of_same_model
    def fisher(
        self, *, noise: Any = None, curvature: str = "auto", curvature_bound: float | None = None, seed: int = 0
    ) -> FisherInformation:
        """Return the Fisher information of a small model, and the sandwich matrix of V compared with its inverse.

        Args:
            noise: As in :meth:`interval`.
            curvature: As in :meth:`interval`, for the sandwich at the decay of the training.
            curvature_bound: A bound C on ``|hess f(x_i)|``; None forms the Hessian of every training row and takes the
                largest operator norm.
            seed: Seed of random probes.

        Returns:
            Matrix, damping and ratios, with a sentence in ``told``.

        Raises:
            InputError: For another loss than the half squared error, sample weights, or several outputs.
            MemoryBudgetError: When p is too large for dense matrices.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        return find_fisher(self._work, noise=noise, curvature=curvature, curvature_bound=curvature_bound, seed=seed)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        delta: float = 0.05,
        held_out: Any = None,
        response: str | tuple[str, ...] | None = None,
        columns: tuple[str, ...] | None = None,
        noise: Any = None,
        max_unsupported: float = 0.5,
        refits: int = 0,
        seed: int = 0,
        force: bool = False,
    ) -> Path:
        """Write a self-contained HTML report: audit, intervals, calibration, importance of columns.

        It needs no network and no other file. All of its numbers are results of the methods of this class.

        Args:
            path: The file, such as ``"report.html"``.
            delta: Probability of a miss of every interval on the page.
            held_out: ``(X, y)`` that training did not see, or a torch DataLoader of them, for the calibration; without
                them the training rows are left out in turn, and the page says so.
            response: What y is called, with its unit; or one name an output.
            columns: The names of the columns, where the training inputs had none.
            noise: As in :meth:`interval`.
            max_unsupported: Predictions with more than this share of unsupported freedom are listed as abstained.
            refits: As in :meth:`audit`.
            seed: Seed of random probes, and of the choice of rows where there are too many to show.
            force: Write over a file that is there.

        Returns:
            The file.

        Raises:
            InputError: For options, held-out rows or a path that cannot be used, and for inputs that are not one array.
        """
        from vhat import report

        if is_loader(held_out):
            held_out = read_pair(self.problem, held_out, call="held_out=(X, y)")
        options = report.Options(delta, held_out, response, noise, max_unsupported, refits, seed)
        names = None if columns is None else tuple(columns)
        return report.write(report.Subject(self, columns=names), path, options, force=force)

    @_of_same_model
    def polish(
        self,
        *,
        gtol: float = 1e-10,
        max_steps: int = 1000,
        warmup: int = 1000,
        beyond_early_stopping: bool = False,
        seed: int = 0,
    ) -> FittedModel:
        """Descend to the nearest certified minimum: vanishing gradient and a positive definite Hessian.

        Where the model has validation rows (:meth:`with_validation`), their error is compared with that of the model at
        every step. The descent is given up once it is clearly higher: training was stopped for a reason, and
        :meth:`linearised` takes the model as it is. A linear model, whose minimum is one solve away, is always solved.

        Args:
            gtol: Relative gradient to reach, without unit.
            max_steps: Newton steps after which to give up.
            warmup: L-BFGS steps before Newton; left out where the gradient is small already.
            beyond_early_stopping: Whether to continue to the minimum although the validation error rises.
            seed: Seed of the eigenvalue certificate.

        Returns:
            A new fitted model at the minimum, with a record in ``polished``. This one is unchanged, and so is the
            user's module: predict with ``polished.predict``, or copy the parameters by :meth:`write_to`. The audit and
            every guarantee say how far the predictions moved.

        Warns:
            EarlyStoppingWarning: When validation rows (:meth:`with_validation`) are predicted worse at the minimum.

        Raises:
            PolishError: When there is no certified minimum to be reached: kinks, or too few steps; and when validation
                rows are predicted clearly worse on the way there. Where the minimum itself was reached and then
                refused, the error's ``record`` is the fitted model there.
        """
        if self._work.refit is not None:  # at its minimum by construction
            return self
        try:
            record = polish_watched(
                self.problem,
                self._work.validation,
                gtol=gtol,
                max_steps=max_steps,
                warmup=warmup,
                beyond_early_stopping=beyond_early_stopping,
                seed=seed,
            )
        except PolishError as refusal:
            if isinstance(refusal.record, Polished):  # a minimum was reached and refused: hand it on as a fitted model
                refusal.record = self._polished(refusal.record)
            raise
        return self._polished(record)

    def _polished(self, record: Polished) -> FittedModel:
        """Return the fitted model at a minimum."""
        return FittedModel(
            record.problem,
            noise_shape=self._work.shape,
            polished=record,
            given=self.problem if self.given is None else self.given,
            decay_chosen=self._work.decay_chosen,
            validation=self._work.validation,
        )

    @_scoped
    def with_validation(self, X_val: Any, y_val: Any = None) -> FittedModel:
        """Return the same model with rows that training did not fit.

        Where ``noise`` is None it is estimated from them: ``sigma^2 = mean of (f - y)^2 / (1 + V/n)``, bias included.
        :meth:`linearised` chooses its penalty by them, :meth:`polish` compares their errors before and after, and
        :meth:`audit` has a line *early stopping*. Rows that only decided when training stopped may be used; rows of
        :meth:`calibrate` should be others.

        Args:
            X_val: Inputs, shaped like the training inputs; or, for a torch module, a DataLoader or Dataset, with no
                ``y_val``.
            y_val: Their responses.

        Returns:
            A new fitted model; this one is unchanged.

        Raises:
            InputError: For rows that cannot be used, or that are all training rows.

        Warns:
            CalibrationWarning: Of some that are training rows.
        """
        moved = copy(self)
        moved._work = self._work.with_validation(check_validation(self.problem, X_val, y_val))
        return moved

    def linearised(
        self,
        weight_decay: float | str | np.ndarray | EarlyStopping = "auto",
        *,
        validation: Any = None,
        recipe: Recipe | None = None,
        likelihood: str = "auto",
        retrainings: int = RETRAININGS,
        seed: int = 0,
    ) -> FittedModel:
        """Return the model's linearisation around its parameters: the same predictions, and intervals for any network.

        A network that was stopped early, or has kinks, is no minimum of an objective that could be named, and an
        interval of refits cannot follow it. Its tangent model ``f(x; a) + grad f(x; a)'(theta - a)`` under a ridge
        penalty can be refitted exactly: the predictions stay those of the network, nothing is trained, and the width is
        that of the ridge refit under fresh noise. How wide that is depends on the penalty lam, or what comes to the
        same, on the degrees of freedom ``tr S_lam`` of the refit.

        Args:
            weight_decay: lam of ``1/(2n) sum |f - y|^2 + lam/2 |theta - a - c|^2``, with c such that the parameters are
                the minimum: a number, or one per parameter of the flat vector; ``vhat.EarlyStopping(step_size, steps)``
                for plain gradient descent, ``1/(step size x steps)``; ``"auto"`` finds its size by
                ``recipe`` or, without one, by the validation rows: a multiple of the model's own decay if every
                parameter has one, else of one number for each array of parameters, the mean of ``diag(J'CJ/n)`` over
                it (for each entry, where the only array is a vector).
            validation: Inputs and responses ``(X, y)`` that training did not fit, or a DataLoader for a torch module;
                by default those of :meth:`with_validation`. They choose lam by their likelihood beside the size of the
                training residuals, and tell the noise.
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``, the training that led to this model. It is
                called once with the responses and ``retrainings`` times with responses perturbed by 0.3 noise levels,
                all with one seed, and lam is chosen such that the refit has the degrees of freedom measured in this
                way. X are NumPy arrays, in the structure in which the model takes them. After Ctrl-C a second call
                continues.
            likelihood: ``"auto"``, the one under which validation errors and training residuals are more likely of
                ``"normal"`` and ``"t4"``, Student's t with four degrees of freedom, which outliers move less.
            retrainings: Number of trainings under perturbed responses; six give the degrees of freedom to some 13%.
            seed: The seed of the recipe, of the perturbations, and of the sample of training rows on which the path of
                lam is followed.

        Returns:
            A fitted model of the linearisation. Its guarantee says that it is a ridge refit, and how lam was found.

        Raises:
            InputError: For ``"auto"`` without validation rows and recipe, and for a lam that is not positive.
            Interrupted: On Ctrl-C during the retrainings.
        """
        with self.problem.scope():
            self.problem.refuse_changed()
            rows = self._work.validation if validation is None else check_validation(self.problem, validation)
            # The linearisation of a linearisation is that of the original model.
            origin = self._before_linearisation()
        # Outside the scope: a recipe is the user's own training.
        refit = find_ridge(
            origin, weight_decay, rows, recipe, likelihood=likelihood, retrainings=retrainings, seed=seed
        )
        with self.problem.scope():
            problem = tangent_problem(origin.problem, origin.problem.native(refit.weight_decay))
            shape = self._work.shape
            return FittedModel(problem, noise_shape=shape, given=self.given, refit=refit, validation=rows)

    def _before_linearisation(self) -> Workspace:
        """Return the cache of the model that was linearised, or of this model where it is no linearisation.

        It is one and the same at every call: after Ctrl-C, the retrainings of a recipe that are finished are in it.
        """
        tangent = self.problem.autodiff
        if not isinstance(tangent, TangentAutodiff):
            return self._work
        if self._before is None:
            self._before = Workspace(tangent.origin(self.problem), self._work.shape)
        return self._before
