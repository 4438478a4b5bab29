"""The sensitivity of a prediction by differentiating the training itself: gradient descent, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vhat.checks import check_choice, check_count
from vhat.errors import InputError, MemoryBudgetError, ModelError
from vhat.fit import training
from vhat.fit.data import check_fits
from vhat.fit.gradient_descent import DescentRule, DescentState, GradientDescent
from vhat.fit.training import Fit, penalised
from vhat.intervals.half_width import Values, half_widths
from vhat.intervals.tail import MODERATE
from vhat.methods.base.answering import Answer, FittedToModel, Question
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.method import Claim, Limits, check_noise
from vhat.models.networks import Network, Params
from vhat.progress import bar
from vhat.variance.noise import Freedom, Noise, estimate_noise, given_noise
from vhat.variance.weighted_norm import gradient_blocks

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["FittedDescent", "UnrolledDescent"]

_SAME = 1e-6
"""The replayed descent must end where training ended, to this share of the parameters' length."""


@dataclass(frozen=True)
class UnrolledDescent(BaseMethod["FittedDescent"]):
    """``d theta_t / d y``, carried along every step of gradient descent, in place of the implicit formula.

    At a minimum both agree. Before it this is the sensitivity of the training that was really done, early stopping
    included. It costs a Hessian product a response and step, and keeps p numbers a response: for small problems. The
    recipe must be :class:`vhat.fit.GradientDescent`.

    Attributes:
        bound: ``"isoperimetric"`` with its moderate tail, ``"tight"``, ``"theorem"``, ``"chebyshev"`` or
            ``"asymptotic"``, as in :meth:`vhat.FittedModel.interval`.
        noise: The standard deviation of y; None estimates it from the residuals.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import GradientDescent, Network
        >>> x = np.linspace(-1, 1, 12)[:, None]
        >>> recipe = GradientDescent(Network((1, 1)), weight_decay=0.05)
        >>> fit = UnrolledDescent().fit(recipe, x, x[:, 0] + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'unrolled descent (isoperimetric)'
    """

    bound: Literal["isoperimetric", "tight", "theorem", "chebyshev", "asymptotic"] = "isoperimetric"
    noise: float | None = None

    def __post_init__(self) -> None:
        check_choice("bound", self.bound, ("isoperimetric", "tight", "theorem", "chebyshev", "asymptotic"))
        check_noise(self.noise)

    def _fit(self, data: Training) -> FittedDescent:
        from vhat.fitted.construct import from_jax

        recipe = data.recipe
        if not isinstance(recipe, GradientDescent):
            raise InputError(
                f"UnrolledDescent differentiates plain gradient descent, and the recipe is {type(recipe).__name__}. "
                "Use vhat.fit.GradientDescent, or vhat.methods.Proposed, which needs the minimum alone."
            )
        check_count("seed", data.seed)
        seed = int(data.seed)
        trained = recipe.train(data.X, data.y, seeds=[seed])[0]
        fitted = from_jax(recipe.network, trained.params, data.X, data.y, weight_decay=recipe.weight_decay)
        problem = fitted.problem
        needed = 4 * 8 * problem.n * problem.outputs * problem.p  # bytes, for four arrays of derivatives
        if needed > problem.memory:
            raise MemoryBudgetError(
                f"UnrolledDescent carries {problem.p} derivatives for each of {problem.n * problem.outputs} responses, "
                f"{needed / 1e9:.1f} GB of a budget of {problem.memory / 1e9:.1f} GB. Use vhat.methods.Proposed."
            )
        steps = int(trained.trace.steps[-1])
        return FittedDescent(self, fitted, steps, _replay(recipe, trained.params, steps, data.X, data.y, seed))


class _State(NamedTuple):
    """Where the descent is, and the derivative of its parameters with respect to every response, (n K, ...)."""

    descent: DescentState
    tangent: Params


def _replay(recipe: GradientDescent, end: Params, steps: int, X: Any, y: Any, seed: int) -> np.ndarray:
    """Return ``d theta / d y`` after ``steps``, (n K, p).

    Raises:
        ModelError: When the descent does not end where it ended before.
    """
    data = check_fits(recipe.network, X, y, seeds=[seed])
    responses = data.y[0].size
    with jax.enable_x64(True), bar("unrolled descent", -(-steps // training.CHUNK)) as advance:
        fit = Fit(*(jnp.asarray(each) for each in (data.X, data.y[0], data.weights[0], recipe.weight_decay)))
        descent = DescentRule().begin(jax.tree.map(jnp.asarray, recipe.network.init(seed)))
        tangent = jax.tree.map(lambda leaf: jnp.zeros((responses, *leaf.shape)), descent.params)
        state = _State(descent, tangent)
        left = steps
        while left:
            count = min(left, training.CHUNK)
            state = _advance(recipe.network, count, fit, state)
            left -= count
            advance("")
        leaves = [np.asarray(leaf).reshape(responses, -1) for leaf in jax.tree.leaves(state.tangent)]
        reached = _flat(state.descent.params)
        expected = _flat(end)
    # Written so that NaN is refused too.
    if not np.linalg.norm(reached - expected) <= _SAME * np.linalg.norm(expected):
        raise ModelError(
            "gradient descent, run again with derivatives, ended elsewhere: its way is unstable to rounding, and so "
            "are the derivatives. Raise weight_decay, or use vhat.methods.Proposed at a minimum."
        )
    return np.concatenate(leaves, axis=1)


def _flat(params: Params) -> np.ndarray:
    """Return all parameters as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


@partial(jax.jit, static_argnums=(0, 1))
def _advance(network: Network, count: int, fit: Fit, state: _State) -> _State:
    """Take ``count`` steps as training takes them, with their derivatives; step sizes are held constant."""
    rule = DescentRule()
    unit = jnp.eye(fit.y.size).reshape(fit.y.size, *fit.y.shape)  # one response moved at a time

    def slope(params: Params, y: Any) -> Params:
        return jax.grad(penalised, argnums=1)(network, params, fit._replace(y=y))

    def step(now: _State, _: None) -> tuple[_State, None]:
        descent = rule.step(network, fit, now.descent, 1.0)
        kept = descent.curvature == now.descent.curvature  # a step that is not kept raises the curvature instead
        stride = jnp.where(kept, 1.0 / now.descent.curvature, 0.0)
        _, push = jax.linearize(slope, now.descent.params, fit.y)
        change = jax.vmap(push)(now.tangent, unit)
        tangent = jax.tree.map(lambda t, c: t - stride * c, now.tangent, change)
        return _State(descent, tangent), None

    opened = state._replace(descent=rule.open(network, fit, state.descent))
    return jax.lax.scan(step, opened, length=count)[0]


@dataclass(frozen=True, eq=False)
class FittedDescent(FittedToModel):
    """A trained network and the derivative of its parameters with respect to the responses.

    Attributes:
        options: The options.
        fitted: The fitted model.
        steps: How many steps the descent took.
        tangent: ``d theta / d y``, (n K, p).
    """

    options: UnrolledDescent
    fitted: FittedModel = field(repr=False)
    steps: int
    tangent: np.ndarray = field(repr=False)

    def sensitivity(self, x: Any) -> np.ndarray:
        """Return ``d f(x) / d y``, (points, outputs, n, outputs)."""
        problem = self.fitted.problem
        with problem.scope():
            inputs = problem.inputs(x)
            rows = [problem.numpy(g) @ self.tangent.T for g in gradient_blocks(problem, inputs)]
        return np.concatenate(rows).reshape(-1, problem.outputs, problem.n, problem.outputs)

    def _answer(self, asked: Question) -> Answer:
        """Compute limits from the sensitivity to the responses."""
        noise = self._noise()
        center = self.fitted.predict(asked.x)
        n = self.fitted.problem.n
        error = np.sqrt(np.sum((self.sensitivity(asked.x) * noise.values) ** 2, axis=(2, 3))).reshape(center.shape)
        # A weighted norm that holds the noise already, so that the bound's own is one.
        values = Values(n * error**2, n, np.ones(error.shape), None, noise.df)
        tail = MODERATE if self.options.bound == "isoperimetric" else None
        half = half_widths(values, self.options.bound, tail, asked.delta)
        return Answer(
            self._claim(noise), center, Limits(center - half, center + half), standard_error=error, noise=noise
        )

    def _noise(self) -> Noise:
        """Return the noise that was given, or its estimate with the degrees of freedom of this training."""
        problem = self.fitted.problem
        if self.options.noise is not None:
            return given_noise(self.options.noise, problem)
        S = self.sensitivity(problem.X)  # d f(x_i) / d y_j
        effective = np.einsum("ikik->k", S)
        size = np.sum(S**2, axis=(0, 2))
        residual = size + np.diag(problem.n - 2 * effective)  # |I - S|_F^2, output by output
        freedom = Freedom(effective, residual, float(size.sum()), problem.n, "exact, unrolled")
        return estimate_noise(problem, freedom, np.ones_like(problem.targets))

    def _claim(self, noise: Noise) -> Claim:
        bound = self.options.bound
        tail = "a V that hardly varies with the noise, tail neglected"
        if bound == "isoperimetric":
            tail = "that V has a lighter tail than a chi-square with 8 degrees of freedom over 8"
        return Claim(
            name=f"unrolled descent ({bound})",
            covers=f"the mean over fresh noise of what {self.steps} steps of descent predict, not the truth behind it",
            by=f"the {bound} bound with V, the squared sensitivity to the responses, in place of its expectation",
            assumed=(
                f"Gaussian noise, its level {noise.source}",
                tail,
                "step sizes that do not depend on the noise",
            ),
        )
