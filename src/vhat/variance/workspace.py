"""Cache of a fitted model: its linear algebra, its noise, and the choice of the curvature."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from vhat.checks import check_choice
from vhat.errors import CurvatureWarning, InputError, ModelError, NotPositiveDefinite, outside
from vhat.linalg.curvature.definiteness import Definiteness
from vhat.linalg.curvature.kinks import Kinks, find_kinks, way_on
from vhat.linalg.solvers import Solver, pseudo_inverts
from vhat.linalg.solvers.alike_rows import rows_alike
from vhat.linalg.solvers.min_norm import PseudoInverse
from vhat.linalg.workspace import SolverWorkspace
from vhat.models.problem import Curvature
from vhat.progress import bar
from vhat.variance.interpolation import INTERPOLATES, residual_share
from vhat.variance.noise import (
    Freedom,
    Noise,
    estimate_noise,
    given_noise,
    measure_freedom,
    own_noise,
    projected_noise,
    weights_match,
)
from vhat.variance.ridge_refit import RidgeRefit
from vhat.variance.smoother_matrix import freedom_of, smoother_matrix
from vhat.variance.validation import Validation, measure_held_out

__all__ = ["Chosen", "Workspace"]

T = TypeVar("T")

_RECENT_RESULTS = 4
"""Number of results for points in the cache, about ten numbers per point each."""
_ENOUGH_PROJECTED = 30
"""Degrees of freedom from which the noise of a linear model is always estimated from the part of the responses that no
parameter explains. Student's t is then within 4% of the normal quantile at 95%."""
_LEAST_SHARE_PROJECTED = 0.5
"""With fewer degrees of freedom, it is so estimated if they are at least this share of the residual degrees of freedom
of the penalised fit. With a thousand weights and as many rows, a ridge fit may leave hundreds of degrees of freedom
where the projection leaves five."""
_ADDED_SHARE = 0.1
"""Residual degrees of freedom that the exact smoother may have in excess of the Gauss-Newton smoother, as a share of
the latter, before the fit is said to amplify noise. Measured on redraws: of 1619 well-specified curves (nine models, 20
to 50 rows, noise of 2 to 10% of their range) none exceeds 3.2%. The estimated variance relative to the true one, on
curves with more noise and on small networks: 1.01 +- 0.03 for an excess of 5 to 10% (191 fits), 0.82 +- 0.04 (93 fits
of networks) and 0.96 +- 0.04 (58 of curves) for 10 to 20%, 0.8 for 20 to 50% (88), at most a half if the count is
doubled (24). By Gauss-Newton it is 0.9 to 1.3 in all but the last three of these fits."""
_ADDED_MOST = 1.0
"""Largest excess in degrees of freedom. A direction that moves twice as far as Gauss-Newton predicts adds one; those
1619 curves add at most 0.51."""
_PROPORTIONAL = 1e-9
"""Relative spread of a ratio over rows up to which two quantities are proportional: rounding."""
_HELD_OUT = "held-out noise"
"""Cache key of the noise estimated from validation rows."""
_SPAN = "span"
"""Cache key of the workspaces of solvers that accept a singular matrix."""
_EQUAL = "equal"
"""``noise="equal"``: all rows have the same noise."""
_BY_WEIGHTS = "weights"
"""``noise="weights"``: sample weights are inverse noise variances."""


@dataclass(frozen=True)
class Chosen:
    """The curvature in use, and the reason for a fallback.

    Attributes:
        curvature: ``"hessian"`` or ``"ggn"``.
        definite: The smallest eigenvalue of ``A`` and its sign.
        reason: The reason why Gauss-Newton replaces the exact Hessian; else empty.
        kinks: The kinks of the model in words, if it has any; else empty.
        span: The assumptions of inverting the matrix on the span of the training gradients alone; else empty.
    """

    curvature: Curvature
    definite: Definiteness
    reason: str = ""
    kinks: str = ""
    span: str = ""


@dataclass(eq=False)
class Workspace(SolverWorkspace):
    """A problem with its cache: its linear algebra, its degrees of freedom and its noise.

    The cache depends on the problem alone. The most recent results for points are cached separately.

    Attributes:
        shape: Relative noise of each training response, (n, K), root mean square one.
        decay_chosen: Whether the weight decay was chosen with the training responses.
        validation: Rows that training did not fit, or None; the noise is estimated from them if none is given.
        refit: How the penalty was found, if the model is the linearisation of another; else None.
    """

    shape: np.ndarray
    decay_chosen: bool = False
    validation: Validation | None = field(default=None, repr=False)
    refit: RidgeRefit | None = field(default=None, repr=False)
    _recent: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict, repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_recent": OrderedDict()}

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result cached under ``key``; the first request calls ``make``. The least recent is removed."""
        if key not in self._recent:
            self._recent[key] = make()
        self._recent.move_to_end(key)
        while len(self._recent) > _RECENT_RESULTS:
            self._recent.popitem(last=False)
        found: T = self._recent[key]
        return found

    def release(self) -> None:
        """Clear matrices, factorisations and recent results; they are computed again when needed."""
        super().release()
        self._recent.clear()

    # -- degrees of freedom --------------------------------------------------------------------
    def freedom(self, curvature: Curvature, seed: int, kind: str | None = None) -> Freedom:
        """Return the traces of the smoother under a :meth:`noise_shape`; they do not depend on the points' solver."""
        solver = self.own_solver(curvature)

        def find() -> Freedom:
            with bar("degrees of freedom", 1):
                shape = self.noise_shape(kind)
                matrix = self.smoother_matrix(curvature) if rows_alike(self.problem, shape) else None
                if matrix is not None:
                    return freedom_of(matrix, self.problem.n)
                return measure_freedom(self.problem, solver, shape, seed)

        return self.keep(("freedom", curvature, seed, kind), find)

    def smoother_matrix(self, curvature: Curvature) -> np.ndarray | None:
        """Return the p x p matrix with the traces of the smoother, for equal row weights; None without a factor."""

        def find() -> np.ndarray | None:
            if not self.solver.forms_matrix:
                return None
            return smoother_matrix(self.problem, self.own_solver(curvature), self.matrix("ggn"))

        return self.keep(("smoother", curvature), find)

    def residual_freedom(self, curvature: Curvature, seed: int, kind: str | None = None) -> Freedom:
        """Return the degrees of freedom from which the noise is estimated.

        The smoother of a penalised fit should shrink. The exact smoother may amplify instead, ``|S|_F^2 > tr S``, if
        the minimum is near a fold or the model nearly interpolates. First-order theory then counts too many residual
        degrees of freedom, and the noise would be estimated too small. In this case the Gauss-Newton smoother is used,
        which always shrinks.
        """
        if not self.amplifies(curvature, seed, kind):
            return self.freedom(curvature, seed, kind)
        shrinking = self.freedom("ggn", seed, kind)
        return replace(shrinking, method=f"{shrinking.method}, by Gauss-Newton: the fit amplifies some noise")

    def amplifies(self, curvature: Curvature, seed: int, kind: str | None = None) -> bool:
        """Return whether the exact smoother amplifies noise and counts too many residual degrees of freedom.

        A direction of the fit that moves ``1/(1 - b)`` times as far as Gauss-Newton predicts adds ``(b/(1 - b))^2`` to
        ``|I - S|_F^2``. This is negligible for the curvature of an ordinary model, and large near a fold.
        """
        exact = self.freedom(curvature, seed, kind)
        if curvature == "ggn" or exact.own <= float(exact.effective.sum()):
            return False
        try:
            # With weights a smoother is oblique, and |S|_F^2 > tr S is possible without a fold. The comparison is
            # therefore with the Gauss-Newton smoother under the same weights.
            reference = float(np.trace(self.freedom("ggn", seed, kind).residual))
        except NotPositiveDefinite:
            return False
        excess = float(np.trace(exact.residual)) - reference
        return excess > min(_ADDED_SHARE * reference, _ADDED_MOST)

    @property
    def decay_from_data(self) -> bool:
        """Whether there is a penalty that depends on the training responses.

        Either the decay was chosen with the responses, or an estimator standardised them. Standardised responses set
        the unit of the decay and the value towards which it shrinks, even if the number was given. Without decay the
        scaling of the responses has no effect.
        """
        penalised = bool(np.any(self.problem.numpy(self.problem.decay) > 0))
        return penalised and (self.decay_chosen or self.problem.scaling is not None)

    # -- noise ---------------------------------------------------------------------------------
    def noise_shape(self, kind: str | None) -> np.ndarray:
        """Return the relative noise of each training response, (n, K), root mean square one.

        Args:
            kind: None for the shape of this model, ``"equal"`` for equal noise, ``"weights"`` for sample weights that
                are inverse variances.
        """
        if kind is None:
            return self.shape
        if kind == _EQUAL:
            return np.ones_like(self.shape)
        weights = self._row_weights()
        counted = weights > 0
        # The loss does not depend on a row of weight zero: its noise does not matter, but must be a number.
        shape = np.where(counted, 1 / np.sqrt(np.where(counted, weights, 1.0)), 1.0)
        shape = shape / np.sqrt(np.mean(shape[counted] ** 2))
        return np.broadcast_to(shape[:, None], self.shape.shape).copy()

    def check_noise_shape(self, kind: str | None) -> str | None:
        """Return the kind of a :meth:`noise_shape`, after checking it.

        Raises:
            InputError: For an unknown word.
        """
        if kind not in (None, _EQUAL, _BY_WEIGHTS):
            raise InputError(
                f"noise={kind!r} is not known. Give the standard deviation of y, one number or one a row; None to "
                "estimate it; 'weights' or 'equal' to estimate it and say what sample weights mean."
            )
        return kind

    @property
    def weights_vary(self) -> bool:
        """Whether the positive sample weights differ, and no shape of the noise was given."""
        weights = self._row_weights()
        counted = weights[weights > 0]
        shape_given = bool(np.any(self.shape != self.shape[0]))
        return not shape_given and bool(np.ptp(counted) > _PROPORTIONAL * np.max(counted))

    def weights_match(self, noise: Noise) -> bool:
        """Return whether the sample weights are the inverse variances of the noise, up to a factor."""
        return weights_match(self.problem, noise.values)

    def _row_weights(self) -> np.ndarray:
        return np.asarray(self.problem.numpy(self.problem.weights), dtype=np.float64)

    def noise(self, given: Any, curvature: Curvature, seed: int) -> Noise:
        """Return the given noise, or its estimate.

        Args:
            given: A level, one per row, or per row and output; None, ``"equal"`` or ``"weights"`` to estimate it.
            curvature: The curvature of the smoother, which determines the residual degrees of freedom.
            seed: Seed of random probes for the degrees of freedom.
        """
        if given is not None and not isinstance(given, str):
            return given_noise(given, self.problem)
        self.check_noise_shape(given)
        if self.validation is not None:
            return self._held_out(self.validation, curvature, given)
        deviations = self.own_deviations() if given is None else None
        if deviations is not None:
            return own_noise(deviations)
        return self.residual_noise(given, curvature, seed)

    def own_deviations(self) -> np.ndarray | None:
        """Return the noise of the training responses predicted by the model, (n, K); None if it predicts none.

        It is predicted at the parameters that were given: polish changes the mean and not the variances.
        """
        return self.keep("own noise", lambda: self.problem.own_noise(self.problem.X))

    def own_factor(self, noise: Noise) -> np.ndarray | None:
        """Return the ratio of the noise to the noise that the model predicts, (K,).

        None if the model predicts no noise, if the user gave the noise, or if the ratio differs between rows.
        """
        deviations = self.own_deviations()
        if deviations is None or noise.given:
            return None
        ratio = noise.values / deviations
        if np.all(np.ptp(ratio, axis=0) <= _PROPORTIONAL * ratio[0]):
            factor: np.ndarray = ratio[0]
            return factor
        return None

    def residual_noise(self, given: str | None, curvature: Curvature, seed: int) -> Noise:
        """Return the noise estimated from the residuals of the training rows.

        Args:
            given: None, ``"equal"`` or ``"weights"``: how it varies over the rows.
            curvature: The curvature of the smoother, which determines the residual degrees of freedom.
            seed: Seed of random probes for the degrees of freedom.
        """
        projected = self._projected(given)
        if projected is not None and self._prefers(projected, curvature, seed, given):
            return projected
        return estimate_noise(self.problem, self.residual_freedom(curvature, seed, given), self.noise_shape(given))

    def _held_out(self, rows: Validation, curvature: Curvature, kind: str | None) -> Noise:
        """Return the noise estimated from validation rows."""
        solver = self.own_solver(curvature)

        def find() -> Noise:
            return measure_held_out(self.problem, solver, rows, self.noise_shape(kind), equal=kind == _EQUAL)

        return self.keep((_HELD_OUT, curvature, kind), find)

    def with_validation(self, rows: Validation) -> Workspace:
        """Return the workspace with other validation rows; cached values that do not depend on them are shared."""
        cache: dict[Hashable, Any] = {}
        for key, value in self._cache.items():
            # These depend on the rows, themselves or through a workspace of their own. Retrainings of a
            # recipe depend on them by the unit of their perturbations, which is compared before they are used again.
            if not (isinstance(key, tuple) and key[0] in (_HELD_OUT, _SPAN)):
                cache[key] = value
        return replace(self, validation=rows, _cache=cache, _events=set(), _recent=OrderedDict())

    def _projected(self, kind: str | None) -> Noise | None:
        """Return the noise of a linear model from the part that no parameter explains; None if unavailable."""
        if not self.problem.linear:
            return None
        return self.keep(("projected", kind), lambda: projected_noise(self.problem, self.noise_shape(kind)))

    def _prefers(self, projected: Noise, curvature: Curvature, seed: int, kind: str | None) -> bool:
        """Return whether the projection leaves enough degrees of freedom to be used in place of the residuals."""
        assert projected.df is not None
        df = float(np.min(projected.df))
        if df >= _ENOUGH_PROJECTED:
            return True
        freedom = self.residual_freedom(curvature, seed, kind)
        return df >= _LEAST_SHARE_PROJECTED * float(np.min(np.diag(freedom.residual)))

    # -- curvature -----------------------------------------------------------------------------
    def choose_curvature(self, asked: str, *, quiet: bool = False) -> Chosen:
        """Choose between the exact Hessian and Gauss-Newton.

        Args:
            asked: ``"auto"``, ``"hessian"`` or ``"ggn"``.
            quiet: Give no warning, because the caller does.

        Raises:
            NotPositiveDefinite: When ``asked`` is ``"hessian"`` and it is indefinite or singular, or when even the
                Gauss-Newton matrix is singular.
        """
        check_choice("curvature", asked, ("auto", "hessian", "ggn"))
        if pseudo_inverts(self.solver):
            return self._on_span(asked)
        if asked == "ggn":
            return Chosen("ggn", self._require("ggn"))
        kinked = self.kinks.verdict == "kinked"
        if asked == "hessian":
            return Chosen("hessian", self._require("hessian"), kinks=self.kinks.told if kinked else "")
        if kinked:
            return self._with_kinks(quiet)
        try:
            sign = self.definiteness("hessian")
        except ModelError as error:  # second derivatives by differences that do not converge
            reason = f"the exact Hessian could not be computed ({error})"
        else:
            if sign.verdict != "indefinite" and not sign.singular:
                return Chosen("hessian", sign)
            fault = "is singular to rounding" if sign.singular else "has a negative eigenvalue"
            reason = (
                f"H + lam {fault} ({sign.value:.2g} in unit-free scale): these parameters are not a certified minimum "
                "of the objective described, and the Gauss-Newton matrix takes the Hessian's place"
            )
        chosen = Chosen("ggn", self._require("ggn"), reason)
        if not quiet and self.first("warned curvature"):
            warnings.warn(
                f"{reason}. fitted.linearised(validation=(X, y)) takes a network that was stopped early as it is; "
                "fitted.polish() goes on to a true minimum; curvature='ggn' accepts this.",
                CurvatureWarning,
                stacklevel=outside(),
            )
        return chosen

    def for_solver(self, solver: Solver | str) -> Workspace:
        """Return the workspace to use with a solver: this one, unless the solver accepts a singular ``A``.

        For such a solver it is a workspace that uses it for its own systems (noise, stationarity) too, because no other
        solver can.
        """
        if not pseudo_inverts(solver) or self.solver == solver:
            return self

        def make() -> Workspace:
            return replace(self, twin=None, _cache={"solver": solver}, _events=set(), _recent=OrderedDict())

        return self.keep((_SPAN, solver), make)

    def _on_span(self, asked: str) -> Chosen:
        """Choose Gauss-Newton for a solver that inverts it on the span of the training gradients.

        Raises:
            InputError: For the exact Hessian, which has no such inverse.
        """
        if asked == "hessian":
            raise InputError(
                f"solver={self.solver!r} inverts the Gauss-Newton matrix: leave curvature='auto' or 'ggn'."
            )
        prepared = self.own_solver("ggn")
        assert isinstance(prepared, PseudoInverse)
        smallest = float((prepared.sizes[-1] / prepared.sizes[0]) ** 2)
        definite = Definiteness(smallest, 0.0, "positive", 0, "eigh", self.problem.native(prepared.basis[-1]))
        share = residual_share(self.problem)
        verdict = "interpolates" if share <= INTERPOLATES else "DOES NOT INTERPOLATE, so that this is not the Hessian"
        span = (
            f"minimum-norm moves on the span of the training gradients ({prepared.rank} of {self.problem.p} "
            f"directions) from a start that does not depend on these responses; without decay the fit {verdict} "
            f"(residuals are {share:.2g} of the responses' spread)"
        )
        return Chosen("ggn", definite, span=span)

    @property
    def kinks(self) -> Kinks:
        """Kinks near the parameters; cached."""
        return self.keep("kinks", lambda: find_kinks(self.problem))

    def _with_kinks(self, quiet: bool) -> Chosen:
        """Choose Gauss-Newton for a model with kinks, whose effect a Hessian would leave out."""
        kinks = self.kinks.told
        reason = (
            f"the model has {kinks} near its parameters, so that it has no Hessian there in the sense of the theory, "
            "and the Gauss-Newton matrix takes its place"
        )
        if not quiet and self.first("warned curvature"):  # before the solves, which may take minutes
            warnings.warn(
                f"{reason}. {way_on(self.problem)} curvature='ggn' accepts this.",
                CurvatureWarning,
                stacklevel=outside(),
            )
        return Chosen("ggn", self._require("ggn"), reason, kinks)

    def _require(self, curvature: Curvature) -> Definiteness:
        """Return the definiteness of ``A``.

        Raises:
            NotPositiveDefinite: When it is indefinite or singular.
        """
        sign = self.definiteness(curvature)
        if curvature == "hessian" and (sign.verdict == "indefinite" or sign.singular):
            kind = "singular to rounding" if sign.singular else "indefinite"
            found = f"H + lam is {kind}: its smallest eigenvalue is {sign.value:.3g} in unit-free scale."
            if self.kinks.verdict == "kinked":
                raise NotPositiveDefinite(
                    f"{found} The model has {self.kinks.told}, of which a Hessian knows nothing: use curvature='ggn'. "
                    f"{way_on(self.problem)}"
                )
            raise NotPositiveDefinite(
                f"{found} The parameters are not a minimum: check weight_decay and loss with fitted.audit(), or use "
                "curvature='ggn'. fitted.linearised(validation=(X, y)) takes a model that was stopped early as it is; "
                "fitted.polish() goes on to a minimum."
            )
        if curvature == "ggn" and (sign.verdict == "indefinite" or sign.singular):
            raise NotPositiveDefinite(
                f"the Gauss-Newton matrix plus weight decay is singular to rounding (smallest eigenvalue "
                f"{sign.value:.2g} in unit-free scale): the data do not determine every parameter. A network as it "
                "is: fitted.linearised(validation=(X, y)). Otherwise give weight decay, or remove redundant "
                "parameters; a fit that interpolates without decay: solver=vhat.MinimumNorm()."
            )
        return sign
