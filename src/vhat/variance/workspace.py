"""What a fitted model has worked out once and keeps: its linear algebra, the noise, which curvature is used."""

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

_REMEMBERED = 4
"""Answers to questions about points that are remembered: some ten numbers a point each."""
_ENOUGH_PROJECTED = 30
"""Degrees of freedom from which the noise of a linear model is always read off what no parameter explains: Student's t
is then within 4% of the normal quantile at 95%."""
_LEAST_SHARE_PROJECTED = 0.5
"""With fewer, it is where they are at least this share of what the penalised fit leaves to its residuals. Of a thousand
weights and as many rows, a ridge may leave hundreds of degrees of freedom where the projection leaves five."""
_ADDED_SHARE = 0.1
"""Share of the residual degrees of freedom, as Gauss-Newton counts them, that the exact smoother may add before the fit
is said to amplify noise. Measured on redraws: of 1619 well-specified curves (nine models, 20 to 50 rows, noise of 2 to
10% of their range) none adds more than 3.2%. The estimated variance, as a share of the true one, on curves with more
noise and on small networks: 1.01 +- 0.03 where 5 to 10% are added (191 fits), 0.82 +- 0.04 (93 fits of networks) and
0.96 +- 0.04 (58 of curves) where 10 to 20% are, 0.8 where 20 to 50% are (88), at most a half where the count is doubled
(24). By Gauss-Newton it is 0.9 to 1.3 in all of these but the last three fits."""
_ADDED_MOST = 1.0
"""Degrees of freedom that it may add, however many there are. One is what a direction adds that moves twice as far as
Gauss-Newton says; those 1619 curves add 0.51 at most."""
_ONE_FACTOR = 1e-9
"""Relative spread of a ratio over rows that counts as rounding."""
_HELD_OUT = "held-out noise"
"""Under which the noise that validation rows tell is kept."""
_SPAN = "span"
"""Under which the workspaces of solvers that take a singular matrix are kept."""
_EQUAL = "equal"
_BY_WEIGHTS = "weights"


@dataclass(frozen=True)
class Chosen:
    """The curvature that is used, and why it is not the one that was hoped for.

    Attributes:
        curvature: ``"hessian"`` or ``"ggn"``.
        definite: What is known of the sign of ``A``.
        reason: Empty, or why Gauss-Newton took the place of the exact Hessian.
        kinks: The kinks of the model in words, where it has some; else empty.
        span: Where the matrix is inverted on the span of the training gradients alone, what that takes for granted;
            else empty.
    """

    curvature: Curvature
    definite: Definiteness
    reason: str = ""
    kinks: str = ""
    span: str = ""


@dataclass(eq=False)
class Workspace(SolverWorkspace):
    """A problem with its caches: its linear algebra, its degrees of freedom and its noise.

    Everything that is kept is a function of the problem alone; answers about points are remembered for a while.

    Attributes:
        shape: Relative noise of each training response, (n, K), root mean square one.
        decay_chosen: Whether the weight decay was chosen with the training responses.
        validation: Rows that training did not fit, or None; they tell the noise where none is given.
        refit: Where the model is the linearisation of another, how its penalty was found; else None.
    """

    shape: np.ndarray
    decay_chosen: bool = False
    validation: Validation | None = field(default=None, repr=False)
    refit: RidgeRefit | None = field(default=None, repr=False)
    _recent: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict, repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_recent": OrderedDict()}

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is remembered under ``key``, made on the first request; the oldest of a few is forgotten."""
        if key not in self._recent:
            self._recent[key] = make()
        self._recent.move_to_end(key)
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
        found: T = self._recent[key]
        return found

    def release(self) -> None:
        """Forget matrices, factorisations and recent answers; they are made again when needed."""
        super().release()
        self._recent.clear()

    # -- degrees of freedom --------------------------------------------------------------------
    def freedom(self, curvature: Curvature, seed: int, kind: str | None = None) -> Freedom:
        """The traces of the smoother, whatever solver the points are given to, under a :meth:`noise_shape`."""
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
        """The p x p matrix whose traces are those of the smoother where all rows are alike; None without a factor."""

        def find() -> np.ndarray | None:
            if not self.solver.forms_matrix:
                return None
            return smoother_matrix(self.problem, self.own_solver(curvature), self.matrix("ggn"))

        return self.keep(("smoother", curvature), find)

    def residual_freedom(self, curvature: Curvature, seed: int, kind: str | None = None) -> Freedom:
        """The freedom from which the noise is read off.

        The smoother of a penalised fit should shrink. Where the exact one amplifies (``|S|_F^2 > tr S``: the minimum is
        near a fold, or the model nearly interpolates) first-order theory counts too many residual degrees of freedom
        and the noise comes out too small; the Gauss-Newton smoother, which always shrinks, takes its place.
        """
        if not self.amplifies(curvature, seed, kind):
            return self.freedom(curvature, seed, kind)
        shrinking = self.freedom("ggn", seed, kind)
        return replace(shrinking, method=f"{shrinking.method}, by Gauss-Newton: the fit amplifies some noise")

    def amplifies(self, curvature: Curvature, seed: int, kind: str | None = None) -> bool:
        """Whether the exact smoother amplifies noise so that it counts too many residual degrees of freedom.

        A direction of the fit that moves ``1/(1 - b)`` times as far as Gauss-Newton says adds ``(b/(1 - b))^2`` to
        ``|I - S|_F^2``: nothing to speak of for the curvature of an ordinary model, many for a minimum near a fold.
        """
        exact = self.freedom(curvature, seed, kind)
        if curvature == "ggn" or exact.own <= float(exact.effective.sum()):
            return False
        try:
            # with weights a smoother is oblique and |S|_F^2 > tr S without any fold: compare like with like
            least = float(np.trace(self.freedom("ggn", seed, kind).residual))
        except NotPositiveDefinite:
            return False
        added = float(np.trace(exact.residual)) - least
        return added > min(_ADDED_SHARE * least, _ADDED_MOST)

    @property
    def decay_from_data(self) -> bool:
        """Whether there is a penalty that is known to depend on the training responses.

        Either it was chosen with them, or it is that of an estimator, which standardises the responses: the unit of its
        decay and the value towards which it shrinks are theirs, even where the number was given. Without decay the
        scaling of the responses changes nothing.
        """
        penalised = bool(np.any(self.problem.numpy(self.problem.decay) > 0))
        return penalised and (self.decay_chosen or self.problem.scaling is not None)

    # -- noise ---------------------------------------------------------------------------------
    def noise_shape(self, kind: str | None) -> np.ndarray:
        """The relative noise of each training response, (n, K), root mean square one.

        Args:
            kind: None for the shape of this model, ``"equal"`` for rows that are alike, ``"weights"`` for sample
                weights that are inverse variances.
        """
        if kind is None:
            return self.shape
        if kind == _EQUAL:
            return np.ones_like(self.shape)
        weights = self._row_weights()
        # A row of weight zero is not seen by the loss: its noise does not matter, but must be a number.
        spread = np.where(weights > 0, 1 / np.sqrt(np.where(weights > 0, weights, 1.0)), 1.0)
        spread = spread / np.sqrt(np.mean(spread[weights > 0] ** 2))
        return np.broadcast_to(spread[:, None], self.shape.shape).copy()

    def check_noise_shape(self, kind: str | None) -> str | None:
        """Return the kind of a :meth:`noise_shape`.

        Raises:
            InputError: For a word that is not known.
        """
        if kind not in (None, _EQUAL, _BY_WEIGHTS):
            raise InputError(
                f"noise={kind!r} is not known. Give the standard deviation of y, one number or one a row; None to "
                "estimate it; 'weights' or 'equal' to estimate it and say what sample weights mean."
            )
        return kind

    @property
    def weights_vary(self) -> bool:
        """Whether the sample weights of rows that count differ, and no shape of the noise was described."""
        weights = self._row_weights()
        counted = weights[weights > 0]
        described = bool(np.any(self.shape != self.shape[0]))
        return not described and bool(np.ptp(counted) > 1e-9 * np.max(counted))

    def weights_match(self, noise: Noise) -> bool:
        """Whether the sample weights are the inverse variances of the noise, up to a factor."""
        return weights_match(self.problem, noise.values)

    def _row_weights(self) -> np.ndarray:
        return np.asarray(self.problem.numpy(self.problem.weights), dtype=np.float64)

    def noise(self, given: Any, curvature: Curvature, seed: int) -> Noise:
        """The noise that was given, or its estimate.

        Args:
            given: A level, one per row, or per row and output; None, ``"equal"`` or ``"weights"`` to estimate it.
            curvature: The curvature whose smoother left the residuals their freedom.
            seed: Seed of random probes of that freedom.
        """
        if given is not None and not isinstance(given, str):
            return given_noise(given, self.problem)
        self.check_noise_shape(given)
        if self.validation is not None:
            return self._held_out(self.validation, curvature, given)
        if given is None and (deviations := self.own_deviations()) is not None:
            return own_noise(deviations)
        return self.residual_noise(given, curvature, seed)

    def own_deviations(self) -> np.ndarray | None:
        """Return the noise of the training responses as the model itself predicts it, (n, K); None where it does not.

        It is that of the parameters that were given: polish moves the mean and leaves the variances.
        """
        return self.keep("own noise", lambda: self.problem.own_noise(self.problem.X))

    def own_factor(self, noise: Noise) -> np.ndarray | None:
        """Return by how much the noise exceeds what the model itself predicts, (K,).

        None where it is not a multiple of that: the model predicts no noise, or the user gave it.
        """
        deviations = self.own_deviations()
        if deviations is None or noise.source == "given":
            return None
        ratio = noise.values / deviations
        return ratio[0] if np.all(np.ptp(ratio, axis=0) <= _ONE_FACTOR * ratio[0]) else None

    def residual_noise(self, given: str | None, curvature: Curvature, seed: int) -> Noise:
        """Estimate the noise from the residuals.

        Args:
            given: None, ``"equal"`` or ``"weights"``: how it varies over the rows.
            curvature: The curvature whose smoother left the residuals their freedom.
            seed: Seed of random probes of that freedom.
        """
        projected = self._projected(given)
        if projected is not None and self._suffices(projected, curvature, seed, given):
            return projected
        return estimate_noise(self.problem, self.residual_freedom(curvature, seed, given), self.noise_shape(given))

    def _held_out(self, rows: Validation, curvature: Curvature, kind: str | None) -> Noise:
        """The noise that validation rows tell."""
        solver = self.own_solver(curvature)

        def find() -> Noise:
            return measure_held_out(self.problem, solver, rows, self.noise_shape(kind))

        return self.keep((_HELD_OUT, curvature, kind), find)

    def with_validation(self, rows: Validation) -> Workspace:
        """Return the same with other validation rows; what does not depend on them is shared."""
        theirs = (_HELD_OUT, _SPAN)  # what depends on the rows, itself or through a workspace of its own
        kept = {key: made for key, made in self._kept.items() if not (isinstance(key, tuple) and key[0] in theirs)}
        return replace(self, validation=rows, _kept=kept, _told=set(), _recent=OrderedDict())

    def _projected(self, kind: str | None) -> Noise | None:
        """The noise of a linear model from what no parameter explains; None where there is none."""
        if not self.problem.linear:
            return None
        return self.keep(("projected", kind), lambda: projected_noise(self.problem, self.noise_shape(kind)))

    def _suffices(self, projected: Noise, curvature: Curvature, seed: int, kind: str | None) -> bool:
        """Whether a projection keeps enough degrees of freedom to be preferred to the residuals of the fit."""
        assert projected.df is not None
        left = float(np.min(projected.df))
        if left >= _ENOUGH_PROJECTED:
            return True
        freedom = self.residual_freedom(curvature, seed, kind)
        return left >= _LEAST_SHARE_PROJECTED * float(np.min(np.diag(freedom.residual)))

    def choose_curvature(self, asked: str, *, quiet: bool = False) -> Chosen:
        """Decide between the exact Hessian and Gauss-Newton; ``quiet`` leaves the warning to the caller.

        Raises:
            NotPositiveDefinite: When ``asked`` is ``"hessian"`` and it is indefinite or singular, or when even the
                Gauss-Newton matrix is singular.
        """
        check_choice("curvature", asked, ("auto", "hessian", "ggn"))
        if pseudo_inverts(self.solver):
            return self._on_the_span(asked)
        if asked == "ggn":
            return Chosen("ggn", self._require("ggn"))
        kinked = self.kinks.verdict == "kinked"
        if asked == "hessian":
            return Chosen("hessian", self._require("hessian"), kinks=self.kinks.told if kinked else "")
        if kinked:
            return self._across_kinks(quiet)
        try:
            sign = self.definiteness("hessian")
        except ModelError as error:  # second derivatives by differences that do not settle
            reason = f"the exact Hessian is not to be had ({error})"
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
        """Return the workspace in which a solver answers: this one, unless the solver takes a singular ``A``.

        Then it is one whose own systems (noise, stationarity) that solver answers too: no other can.
        """
        if not pseudo_inverts(solver) or self.solver == solver:
            return self

        def make() -> Workspace:
            return replace(self, twin=None, _kept={"solver": solver}, _told=set(), _recent=OrderedDict())

        return self.keep((_SPAN, solver), make)

    def _on_the_span(self, asked: str) -> Chosen:
        """Choose Gauss-Newton for minima that form a surface, and say whether the fit interpolates.

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
        met = "interpolates" if share <= INTERPOLATES else "DOES NOT INTERPOLATE, so that this is not the Hessian"
        span = (
            f"minimum-norm moves on the span of the training gradients ({prepared.rank} of {self.problem.p} "
            f"directions) from a start that does not depend on these responses; without decay the fit {met} "
            f"(residuals are {share:.2g} of the responses' spread)"
        )
        return Chosen("ggn", definite, span=span)

    @property
    def kinks(self) -> Kinks:
        """What is known of kinks near the parameters; looked for once."""
        return self.keep("kinks", lambda: find_kinks(self.problem))

    def _across_kinks(self, quiet: bool) -> Chosen:
        """Choose Gauss-Newton for a model with kinks: its Hessian leaves out what the kinks do, and is not formed."""
        told = self.kinks.told
        reason = (
            f"the model has {told} near its parameters, so that it has no Hessian there in the sense of the theory, "
            "and the Gauss-Newton matrix takes its place"
        )
        if not quiet and self.first("warned curvature"):  # at once: the solves may take minutes
            warnings.warn(
                f"{reason}. {way_on(self.problem)} curvature='ggn' accepts this.",
                CurvatureWarning,
                stacklevel=outside(),
            )
        return Chosen("ggn", self._require("ggn"), reason, told)

    def _require(self, curvature: Curvature) -> Definiteness:
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
