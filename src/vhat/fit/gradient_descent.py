"""Plain gradient descent with the step size of the descent lemma."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vhat.checks import check_count, check_tolerance
from vhat.errors import NotMinimumWarning, name_rows, outside
from vhat.fit import training
from vhat.fit.data import Fits
from vhat.fit.objective import Fit, inner, penalised, value_and_gradient
from vhat.fit.recipe import NetworkRecipe
from vhat.fit.training import Schedule, Snapshot, Trained, alignment, run
from vhat.models.networks import Network, Params

__all__ = ["DescentRule", "GradientDescent"]

_POWER_STEPS = 30
"""Iterations of the power method in each chunk of steps."""
_CURVATURE_MARGIN = 1.05
"""Safety factor on the curvature, which the power method approaches from below."""
_CURVATURE_GROWTH = 1.25
"""Factor on the curvature after a rejected step."""
_ROUNDING_UNITS = 16
"""Increase of the objective that counts as rounding, in units of its machine precision."""


@dataclass(frozen=True)
class GradientDescent(NetworkRecipe):
    """Minimise ``L_lam = L + lam/2 |theta|^2`` by ``theta -= grad L_lam / beta``, in float64.

    ``beta`` is the largest curvature of ``L_lam`` found so far by the power method on Hessian products. It is raised
    after every step that does not lower the objective by ``|grad L_lam|^2 / (2 beta)``, as the descent lemma
    guarantees. Thus the gradient tends to zero, and ``-<grad L, theta>/|theta|^2`` tends to lam. The number of steps is
    of the order of ``beta/lam``: this recipe is slow, and kept for comparison. :class:`Minimum` is the fast one.

    Attributes:
        network: The network to train.
        weight_decay: lam of the objective and of the fitted model.
        steps: Largest number of passes over the data.
        tol: Stop at this alignment ``|grad L + lam theta| / (lam |theta|)``.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Network
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> recipe = GradientDescent(Network((1, 3, 1)), weight_decay=0.05)
        >>> trace = recipe.train(x, x[:, 0] ** 3, seeds=[0])[0].trace
        >>> bool(trace.alignment[-1] <= 1e-8)
        True
    """

    steps: int = 100_000
    tol: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, least=1)
        check_tolerance("tol", self.tol)

    def _train(self, fits: Fits) -> list[Trained]:
        trained = run(
            self.network,
            DescentRule(),
            fits,
            [self._schedule(seed) for seed in fits.seeds],
            decay=self.weight_decay,
            dtype="float64",
            label="gradient descent",
            chunks=-(-self.steps // training.CHUNK),
        )
        self._warn_unconverged(trained, fits.seeds)
        return trained

    def _least_gradient(self, seed: int) -> float:
        """Return the gradient norm below which a fit has converged, whatever its alignment.

        If the minimum is at zero, gradient and parameters vanish together, and their ratio does not.
        """
        size = float(np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(self.network.init(seed)))))
        return self.tol**2 * self.weight_decay * size

    def _schedule(self, seed: int) -> Schedule:
        """Return the schedule of one fit: step sizes ``1 / beta`` until convergence or the last step."""
        least_gradient = self._least_gradient(seed)

        def schedule(snapshots: Sequence[Snapshot]) -> np.ndarray | None:
            remaining = self.steps - len(snapshots) * training.CHUNK
            if remaining <= 0:
                return None
            if snapshots:
                last = snapshots[-1]
                if alignment(last, self.weight_decay) <= self.tol or last.gradient_norm <= least_gradient:
                    return None
            return np.ones(min(remaining, training.CHUNK))

        return schedule

    def _warn_unconverged(self, trained: Sequence[Trained], seeds: Sequence[int]) -> None:
        """Warn of fits that used all steps without reaching ``tol``."""
        alignments = np.array([end.trace.alignment[-1] for end in trained])
        gradients = np.array([end.trace.gradient_norm[-1] for end in trained])
        least_gradients = [self._least_gradient(seed) for seed in seeds]
        unconverged = np.flatnonzero((alignments > self.tol) & (gradients > least_gradients))
        if unconverged.size:
            which = f" ({name_rows(unconverged, noun='fit')})" if len(trained) > 1 else ""
            warnings.warn(
                f"gradient descent stopped after steps={self.steps} with |grad L + lam theta| = "
                f"{alignments[unconverged].max():.1e} lam |theta|, above tol={self.tol:.1e}{which}. Raise steps, raise "
                "weight_decay, or use vhat.fit.Minimum.",
                NotMinimumWarning,
                stacklevel=outside(),
            )


class DescentState(NamedTuple):
    """The state of a descent.

    Attributes:
        params: The parameters.
        value: ``L_lam`` at these.
        slope: ``grad L_lam`` at these.
        curvature: ``beta``, the largest curvature so far.
        direction: The vector of the power method, of length one.
    """

    params: Params
    value: Any
    slope: Params
    curvature: Any
    direction: Params


@dataclass(frozen=True)
class DescentRule:
    """Gradient steps of length ``1 / beta``, as in the descent lemma."""

    def init(self, params: Params) -> DescentState:
        """Return the first state; ``prepare`` fills in value, gradient and curvature."""
        leaves, structure = jax.tree.flatten(params)
        rng = np.random.default_rng(0)
        drawn = [jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype) for leaf in leaves]
        direction = jax.tree.unflatten(structure, drawn)
        zero = jnp.zeros((), leaves[0].dtype)
        return DescentState(params, zero, jax.tree.map(jnp.zeros_like, params), zero, direction)

    def prepare(self, network: Network, fit: Fit, state: DescentState) -> DescentState:
        """Evaluate the objective, and continue the power method for the largest curvature."""

        def objective(params: Params) -> Any:
            return penalised(network, params, fit)

        value, slope = value_and_gradient(network, state.params, fit, penalty=True)

        def power_step(_: Any, now: tuple[Params, Any]) -> tuple[Params, Any]:
            # A Hessian product: the derivative of the gradient in the current direction.
            _, image = jax.jvp(jax.grad(objective), (state.params,), (now[0],))
            length = jnp.sqrt(inner(image, image))
            return jax.tree.map(lambda leaf: leaf / length, image), length

        unit = jnp.sqrt(inner(state.direction, state.direction))
        start = (jax.tree.map(lambda leaf: leaf / unit, state.direction), unit)
        direction, largest = jax.lax.fori_loop(0, _POWER_STEPS, power_step, start)
        curvature = jnp.maximum(state.curvature, _CURVATURE_MARGIN * largest)
        return DescentState(state.params, value, slope, curvature, direction)

    def step(self, network: Network, fit: Fit, state: DescentState, rate: Any) -> DescentState:
        """Return the state after a step of length ``rate / beta``.

        If the objective does not decrease as the lemma says, keep the parameters and raise ``beta``.
        """
        stride = rate / state.curvature
        trial = jax.tree.map(lambda theta, g: theta - stride * g, state.params, state.slope)
        value, slope = value_and_gradient(network, trial, fit, penalty=True)
        predicted_decrease = inner(state.slope, state.slope) / (2 * state.curvature)
        rounding = _ROUNDING_UNITS * jnp.finfo(value.dtype).eps * state.value
        accepted = value <= state.value - predicted_decrease + rounding  # also False for NaN

        def choose(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, old)

        return DescentState(
            choose(trial, state.params),
            choose(value, state.value),
            choose(slope, state.slope),
            jnp.where(accepted, state.curvature, _CURVATURE_GROWTH * state.curvature),
            state.direction,
        )
