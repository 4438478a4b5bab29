"""Sensitivity of predictions to the responses, by differentiating through every step of gradient descent."""

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
from vhat.fit.objective import Fit, penalised
from vhat.intervals.half_width import Values, half_widths
from vhat.intervals.tail import MODERATE
from vhat.methods.base.answering import Answer, FittedToModel, Question
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim, gaussian_noise
from vhat.methods.base.limits import Limits
from vhat.methods.base.method import check_noise
from vhat.models.networks import Network, Params
from vhat.progress import bar
from vhat.variance.noise import Freedom, Noise, estimate_noise, given_noise
from vhat.variance.weighted_norm import gradient_blocks

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["FittedDescent", "UnrolledDescent"]

_REPLAY_TOLERANCE = 1e-6
"""Largest distance between the ends of the replayed descent and of training, relative to the parameters' length."""
_ARRAYS = 4
"""Arrays of derivatives, (n K, p), held at once during the replay."""


@dataclass(frozen=True)
class UnrolledDescent(BaseMethod["FittedDescent"]):
    """Intervals from ``d theta_t / d y``, propagated through every step of gradient descent (forward mode).

    At a minimum it agrees with the implicit formula of :class:`Proposed`. Before the minimum it is the sensitivity of
    the training as it was carried out, including early stopping. It costs one Hessian product per response and step,
    and stores p numbers per response: for small problems. The recipe must be :class:`vhat.fit.GradientDescent`.

    Attributes:
        bound: ``"isoperimetric"`` with its moderate tail, ``"tight"``, ``"theorem"``, ``"chebyshev"`` or
            ``"asymptotic"``, as in :meth:`vhat.FittedModel.interval`.
        noise: Standard deviation of y; None estimates it from the residuals.

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
        needed = _ARRAYS * 8 * problem.n * problem.outputs * problem.p  # bytes
        if needed > problem.memory:
            raise MemoryBudgetError(
                f"UnrolledDescent carries {problem.p} derivatives for each of {problem.n * problem.outputs} responses, "
                f"{needed / 1e9:.1f} GB of a budget of {problem.memory / 1e9:.1f} GB. Use vhat.methods.Proposed."
            )
        steps = int(trained.trace.steps[-1])
        tangent = _replay(recipe, trained.params, steps, data.X, data.y, seed)
        return FittedDescent(self, fitted, steps, tangent)


class _State(NamedTuple):
    """The state of a descent with derivatives.

    Attributes:
        descent: The state of the descent.
        tangent: Derivative of its parameters with respect to every response, leaves (n K, ...).
    """

    descent: DescentState
    tangent: Params


def _replay(recipe: GradientDescent, end: Params, steps: int, X: Any, y: Any, seed: int) -> np.ndarray:
    """Repeat a descent with derivatives, and return ``d theta / d y`` at its end, (n K, p).

    Args:
        recipe: The recipe.
        end: Parameters at the end of training.
        steps: Number of steps that training took.
        X: Rows.
        y: Responses.
        seed: Seed of the first parameters.

    Raises:
        ModelError: When the repeated descent does not end at the same parameters.
    """
    data = check_fits(recipe.network, X, y, seeds=[seed])
    responses = data.y[0].size
    with jax.enable_x64(True), bar("unrolled descent", -(-steps // training.CHUNK)) as advance:
        fit = Fit(*(jnp.asarray(each) for each in (data.X, data.y[0], data.weights[0], recipe.weight_decay)))
        descent = DescentRule().init(jax.tree.map(jnp.asarray, recipe.network.init(seed)))
        tangent = jax.tree.map(lambda leaf: jnp.zeros((responses, *leaf.shape)), descent.params)
        state = _State(descent, tangent)
        remaining = steps
        # The same chunks as in training: the curvature is estimated anew at the start of each.
        while remaining:
            count = min(remaining, training.CHUNK)
            state = _advance(recipe.network, count, fit, state)
            remaining -= count
            advance("")
        leaves = [np.asarray(leaf).reshape(responses, -1) for leaf in jax.tree.leaves(state.tangent)]
        reached = _flat(state.descent.params)
        expected = _flat(end)
    # Negated, so that NaN is refused too.
    if not np.linalg.norm(reached - expected) <= _REPLAY_TOLERANCE * np.linalg.norm(expected):
        raise ModelError(
            "gradient descent, repeated with derivatives, ended at other parameters: it is unstable to rounding "
            "errors, and so are the derivatives. Raise weight_decay, or use vhat.methods.Proposed at a minimum."
        )
    return np.concatenate(leaves, axis=1)


def _flat(params: Params) -> np.ndarray:
    """Return all parameters as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


@partial(jax.jit, static_argnums=(0, 1))
def _advance(network: Network, count: int, fit: Fit, state: _State) -> _State:
    """Take ``count`` steps of the training with their derivatives, treating the step sizes as constants."""
    rule = DescentRule()
    unit = jnp.eye(fit.y.size).reshape(fit.y.size, *fit.y.shape)  # one unit vector per response

    def gradient(params: Params, y: Any) -> Params:
        return jax.grad(penalised, argnums=1)(network, params, fit._replace(y=y))

    def step(state: _State, _: None) -> tuple[_State, None]:
        descent = rule.step(network, fit, state.descent, 1.0)
        accepted = descent.curvature == state.descent.curvature  # a rejected step raises the curvature instead
        step_size = jnp.where(accepted, 1.0 / state.descent.curvature, 0.0)
        # theta' = theta - s grad(theta, y), so d theta'/dy = d theta/dy - s (H d theta/dy + d grad/dy).
        _, derivative = jax.linearize(gradient, state.descent.params, fit.y)
        change = jax.vmap(derivative)(state.tangent, unit)
        tangent = jax.tree.map(lambda t, c: t - step_size * c, state.tangent, change)
        return _State(descent, tangent), None

    prepared = state._replace(descent=rule.prepare(network, fit, state.descent))
    return jax.lax.scan(step, prepared, length=count)[0]


@dataclass(frozen=True, eq=False)
class FittedDescent(FittedToModel):
    """A trained network and the derivative of its parameters with respect to the responses.

    Attributes:
        options: The options.
        fitted: The fitted model.
        steps: Number of steps of the descent.
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
        # The error already includes the noise, so that the bound gets a noise level of one.
        values = Values(n * error**2, n, np.ones(error.shape), None, noise.df)
        tail = MODERATE if self.options.bound == "isoperimetric" else None
        half = half_widths(values, self.options.bound, tail, asked.delta)
        limits = Limits.symmetric(center, half)
        return Answer(self._claim(noise), center, limits, standard_error=error, noise=noise)

    def _noise(self) -> Noise:
        """Return the given noise, or an estimate with the degrees of freedom of this training."""
        problem = self.fitted.problem
        if self.options.noise is not None:
            return given_noise(self.options.noise, problem)
        S = self.sensitivity(problem.X)  # d f(x_i) / d y_j
        effective = np.einsum("ikik->k", S)  # tr S, the effective number of parameters of each output
        squares = np.sum(S**2, axis=(0, 2))
        residual = squares + np.diag(problem.n - 2 * effective)  # |I - S|_F^2, for each pair of outputs
        freedom = Freedom(effective, residual, float(squares.sum()), problem.n, "exact, unrolled")
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
                gaussian_noise(noise),
                tail,
                "step sizes that do not depend on the noise",
            ),
        )
