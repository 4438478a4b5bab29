"""Kernel regression with a network's tangent kernel, at its first parameters or at the trained ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from vhat import bounds
from vhat.checks import check_choice, check_count
from vhat.errors import InputError
from vhat.fit.recipe import NetworkRecipe
from vhat.methods.base.answering import Answer, FittedToModel, Question
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim, gaussian_noise
from vhat.methods.base.kernel_smoother import KernelFit, biased_answer, check_bound, fit_kernel, offset
from vhat.methods.base.method import check_level, check_noise
from vhat.methods.base.requirements import require_one_output, require_one_weight, require_square_loss
from vhat.variance.tangent_kernel import tangent_kernel
from vhat.variance.weighted_norm import gradient_blocks, row_curvature

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.problem import Problem
    from vhat.variance.noise import Noise

__all__ = ["FittedTangent", "NeuralTangent"]

_STREAM = 22
"""Number of this method's stream of random numbers."""
_FEATURES = {
    "initialisation": "features that were drawn before y was seen",
    "split": "features from other rows than those of the regression",
    "trained": "features that do not depend on the noise, WHICH TRAINED ONES DO",
}
"""What each kind of features assumes, for the guarantee."""
_WHERE = {
    "initialisation": "initialisation",
    "split": "parameters trained on other rows",
    "trained": "trained parameters",
}
"""The parameters at which the kernel is computed, for the method's name."""


@dataclass(frozen=True)
class NeuralTangent(BaseMethod["FittedTangent"]):
    """Ridge regression on the features ``grad_theta f(x; theta)``, with the weight decay and row weights of the recipe.

    For a linear model the features do not depend on the parameters, and this is ridge regression. The model must have
    one output, the square loss, and decay on every parameter.

    Attributes:
        at: Parameters of the features. ``"trained"``: the result of the recipe; ``"initialisation"``: its first
            parameters, without training, for the recipes of :mod:`vhat.fit`; ``"split"``: its result on some of the
            rows, with the regression on the other rows, whose noise is independent of the features.
        share: Share of the rows on which the features of ``"split"`` are trained.
        norm: A bound on the length of the parameters of the truth, in the metric of the decay; None uses that of the
            fit, a heuristic that is too small.
        noise: Standard deviation of y; None estimates it from the residuals.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> recipe = Minimum(Network((1, 8, 1)), weight_decay=1e-3)
        >>> fit = NeuralTangent(at="initialisation").fit(recipe, x, x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'tangent kernel at initialisation'
    """

    at: Literal["trained", "initialisation", "split"] = "trained"
    norm: float | None = None
    noise: float | None = None
    share: float = 0.5

    def __post_init__(self) -> None:
        check_choice("at", self.at, ("trained", "initialisation", "split"))
        check_level("share", self.share, zero=False)
        check_bound("norm", self.norm)
        check_noise(self.noise)

    def _fit(self, data: Training) -> FittedTangent:
        if self.at == "split":
            return self._fit_split(data)
        fitted = self._at_first_parameters(data) if self.at == "initialisation" else data.fit_once()
        problem = fitted.problem
        decay = _required_decay(fitted)
        with problem.scope():
            rows = np.flatnonzero(problem.numpy(problem.weights))
            gram = _inner_products(fitted, problem.X).cross[np.ix_(rows, rows)]
            loss_curvature = float(row_curvature(problem)[0])
            weighted_curvature = problem.loss_derivatives.curvature[rows, 0]
        # The kernel is in units of the response: divide the decay by the loss's second derivative. The objective
        # divides by all n rows, the regression only by those with weight.
        lam = float(decay.max()) / loss_curvature * problem.n / len(rows)
        y = problem.targets[rows] - offset(problem)
        regression = fit_kernel(gram, y, lam, weighted_curvature / loss_curvature)
        return FittedTangent(self, fitted, regression, rows)

    def _fit_split(self, data: Training) -> FittedTangent:
        """Train the features on the first rows, and regress on the others."""
        method = f"NeuralTangent('split', share={self.share:g})"
        parts = data.split(self.share, stream=_STREAM, method=method, parts="parts")
        fitted = data._replace(X=parts.first.X, y=parts.first.y).fit_once()
        decay = _required_decay(fitted)
        require_one_weight(fitted, "NeuralTangent('split')")
        problem = fitted.problem
        with problem.scope():
            inputs = problem.inputs(parts.rest.X)
            gram = _kernel(problem, inputs)
            loss_curvature = float(row_curvature(problem)[0])
        y = np.reshape(parts.rest.y, (-1, 1)) - offset(problem)
        regression = fit_kernel(gram, y, float(decay.max()) / loss_curvature)
        return FittedTangent(self, fitted, regression, parts.numbers, inputs)

    def _at_first_parameters(self, data: Training) -> FittedModel:
        """Return the network of the recipe at its first parameters.

        Raises:
            InputError: When the recipe is not one of :mod:`vhat.fit`.
        """
        from vhat.fitted.construct import from_jax

        recipe = data.recipe
        if not isinstance(recipe, NetworkRecipe):
            raise InputError(
                "this recipe does not say where its training begins. Use one of vhat.fit, or at='trained'."
            )
        check_count("seed", data.seed)
        first = recipe.network.init(int(data.seed))
        return from_jax(recipe.network, first, data.X, data.y, weight_decay=recipe.weight_decay)


def _required_decay(fitted: FittedModel) -> np.ndarray:
    """Return the decay of every parameter, (p,), after checking the model.

    Raises:
        InputError: When there are several outputs, another loss than the square loss, or a parameter without decay.
    """
    problem = fitted.problem
    require_one_output(problem.outputs, "NeuralTangent")
    require_square_loss(fitted, "NeuralTangent")
    with problem.scope():
        decay = problem.numpy(problem.decay)
    if not np.all(decay > 0):
        raise InputError("NeuralTangent needs weight decay on every parameter: raise it above 0 in the recipe.")
    return decay


def _kernel(problem: Problem, inputs: Any, others: Any = None) -> np.ndarray:
    """Return the tangent kernel in the metric of the decay between two sets of points, (m, m2)."""
    kernel = tangent_kernel(problem, inputs, others, metric=problem.decay.max() / problem.decay)
    return kernel.reshape(len(kernel), -1)


class _Products(NamedTuple):
    """Kernel values at test points.

    Attributes:
        cross: With the training rows, (points, n).
        diagonal: Of each point with itself, (points,).
    """

    cross: np.ndarray
    diagonal: np.ndarray


def _inner_products(fitted: FittedModel, inputs: Any) -> _Products:
    """Return ``k(x, x_i)`` and ``k(x, x)`` for the tangent kernel ``k = g(x)' diag(max(lam)/lam) g(x')``.

    With one decay for all parameters this is ``g(x)'g(x')``; parameters with less decay have more weight.
    """
    problem = fitted.problem
    cross = []
    diagonal = []
    scale = problem.decay / problem.decay.max()
    for g in gradient_blocks(problem, inputs):
        scaled = g / scale
        cross.append(problem.jvp(scaled)[:, :, 0])
        diagonal.append(problem.numpy((g * scaled).sum(1)))
    return _Products(np.concatenate(cross), np.concatenate(diagonal))


@dataclass(frozen=True, eq=False)
class FittedTangent(FittedToModel):
    """A network's tangent kernel, and the regression with it.

    Attributes:
        options: The options.
        fitted: The network at the parameters of the kernel.
        regression: The kernel regression.
        rows: Numbers of its rows: without those of weight zero, and those that trained the features of ``"split"``.
        inputs: The inputs of these rows for ``"split"``; None if they are rows of the fitted model.
    """

    options: NeuralTangent
    fitted: FittedModel = field(repr=False)
    regression: KernelFit
    rows: np.ndarray = field(repr=False)
    inputs: Any = field(default=None, repr=False)

    def _answer(self, asked: Question) -> Answer:
        """Compute limits about the kernel regression."""
        problem = self.fitted.problem
        products = self._products(problem.inputs(asked.x))
        predicted = self.regression.predict(products.cross, products.diagonal)
        noise = self.regression.noise(self.options.noise)
        norm = self.options.norm
        if norm is None:
            norm = float(self.regression.norm[0])
        error = predicted.response[:, None] * noise.level
        return biased_answer(
            self._claim(noise, norm),
            offset(problem) + predicted.center,
            bias=norm * predicted.power[:, None],
            noise_half_width=bounds.asymptotic(1.0, 1, 1.0, asked.delta, df=noise.df) * error,
            standard_error=error,
            noise=noise,
            squeeze=problem.squeeze,
        )

    def _products(self, inputs: Any) -> _Products:
        """Return the kernel of points with the rows of the regression and with themselves."""
        problem = self.fitted.problem
        products = _inner_products(self.fitted, inputs)
        if self.inputs is None:
            return _Products(products.cross[:, self.rows], products.diagonal)
        return _Products(_kernel(problem, inputs, self.inputs), products.diagonal)

    def _claim(self, noise: Noise, norm: float) -> Claim:
        options = self.options
        length = f"a truth whose parameters have length at most {norm:.3g}"
        if options.norm is None:
            length += ", WHICH IS ONLY THAT OF THE FIT"
        proved = options.at != "trained" and options.norm is not None and options.noise is not None
        return Claim(
            name=f"tangent kernel at {_WHERE[options.at]}",
            covers="the regression function, if it is linear in these features",
            by="the quantile of the noise and the norm's bound on the bias of the kernel regression",
            assumed=(_FEATURES[options.at], length, gaussian_noise(noise)),
            response="a new response, if the regression function is linear in these features",
            nominal=not proved,
        )
