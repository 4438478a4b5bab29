"""Plain gradient descent with the step of the descent lemma."""

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
from vhat.fit.recipe import NetworkRecipe
from vhat.fit.training import Fit, Glance, Schedule, Trained, alignment, inner, penalised, run, value_and_gradient
from vhat.models.networks import Network, Params

__all__ = ["DescentRule", "GradientDescent"]

_POWER_STEPS = 30
_MARGIN = 1.05
"""The power method comes from below: so much is added to the curvature that it found."""
_BACKTRACK = 1.25


@dataclass(frozen=True)
class GradientDescent(NetworkRecipe):
    """Descend ``L_lam = L + lam/2 |theta|^2`` by ``theta -= grad L_lam / beta``, in float64, until it is aligned.

    ``beta`` is the largest curvature of ``L_lam`` met so far, by the power method on Hessian products, and more where
    a step did not lower the objective by ``|grad L_lam|^2 / (2 beta)``, as the descent lemma says it must. So the
    gradient tends to zero and ``-<grad L, theta>/|theta|^2`` to lam. It takes of the order of ``beta/lam`` steps:
    a slow way to a minimum, kept for comparison. :class:`Minimum` is the quick one.

    Attributes:
        network: What is trained.
        weight_decay: lam of the objective and of the fitted model.
        steps: The most passes over the data.
        tol: The alignment ``|grad L + lam theta| / (lam |theta|)`` to reach.

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
        ends = run(
            self.network,
            DescentRule(),
            fits,
            [self._schedule(seed) for seed in fits.seeds],
            decay=self.weight_decay,
            dtype="float64",
            label="gradient descent",
            chunks=-(-self.steps // training.CHUNK),
        )
        self._warn_unaligned(ends, fits.seeds)
        return ends

    def _floor(self, seed: int) -> float:
        """Below this gradient nothing is left: where the minimum is at zero, gradient and decay vanish together."""
        size = float(np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(self.network.init(seed)))))
        return self.tol**2 * self.weight_decay * size

    def _schedule(self, seed: int) -> Schedule:
        floor = self._floor(seed)

        def schedule(seen: Sequence[Glance]) -> np.ndarray | None:
            left = self.steps - len(seen) * training.CHUNK
            if left <= 0 or (
                seen and (alignment(seen[-1], self.weight_decay) <= self.tol or seen[-1].gradient_norm <= floor)
            ):
                return None
            return np.ones(min(left, training.CHUNK))

        return schedule

    def _warn_unaligned(self, ends: Sequence[Trained], seeds: Sequence[int]) -> None:
        last = np.array([end.trace.alignment[-1] for end in ends])
        slopes = np.array([end.trace.gradient_norm[-1] for end in ends])
        short = np.flatnonzero((last > self.tol) & (slopes > [self._floor(seed) for seed in seeds]))
        if short.size:
            which = f" ({name_rows(short, noun='fit')})" if len(ends) > 1 else ""
            warnings.warn(
                f"gradient descent stopped after steps={self.steps} with |grad L + lam theta| = "
                f"{last[short].max():.1e} lam |theta|, above tol={self.tol:.1e}{which}. Raise steps, raise "
                "weight_decay, or use vhat.fit.Minimum.",
                NotMinimumWarning,
                stacklevel=outside(),
            )


class DescentState(NamedTuple):
    """Where the descent is.

    Attributes:
        params: The parameters.
        value: ``L_lam`` there.
        slope: ``grad L_lam`` there.
        curvature: ``beta``, the largest curvature met.
        direction: Where the power method stands, of length one.
    """

    params: Params
    value: Any
    slope: Params
    curvature: Any
    direction: Params


@dataclass(frozen=True)
class DescentRule:
    """The step of the descent lemma."""

    def begin(self, params: Params) -> DescentState:
        """Return a state that knows nothing yet of the objective."""
        leaves, structure = jax.tree.flatten(params)
        rng = np.random.default_rng(0)
        drawn = [jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype) for leaf in leaves]
        direction = jax.tree.unflatten(structure, drawn)
        zero = jnp.zeros((), leaves[0].dtype)
        return DescentState(params, zero, jax.tree.map(jnp.zeros_like, params), zero, direction)

    def open(self, network: Network, fit: Fit, state: DescentState) -> DescentState:
        """Look at the objective, and estimate the curvature by the power method from where it stood."""

        def objective(params: Params) -> Any:
            return penalised(network, params, fit)

        value, slope = value_and_gradient(network, state.params, fit, penalty=True)

        def turn(_: Any, now: tuple[Params, Any]) -> tuple[Params, Any]:
            _, image = jax.jvp(jax.grad(objective), (state.params,), (now[0],))
            length = jnp.sqrt(inner(image, image))
            return jax.tree.map(lambda leaf: leaf / length, image), length

        unit = jnp.sqrt(inner(state.direction, state.direction))
        start = (jax.tree.map(lambda leaf: leaf / unit, state.direction), unit)
        direction, found = jax.lax.fori_loop(0, _POWER_STEPS, turn, start)
        return DescentState(state.params, value, slope, jnp.maximum(state.curvature, _MARGIN * found), direction)

    def step(self, network: Network, fit: Fit, state: DescentState, rate: Any) -> DescentState:
        """Step by ``rate / beta``; where the lemma's decrease does not come, stay and raise ``beta``."""
        stride = rate / state.curvature
        trial = jax.tree.map(lambda theta, g: theta - stride * g, state.params, state.slope)
        value, slope = value_and_gradient(network, trial, fit, penalty=True)
        promised = inner(state.slope, state.slope) / (2 * state.curvature)
        rounding = 16 * jnp.finfo(value.dtype).eps * state.value
        kept = value <= state.value - promised + rounding  # also False for NaN

        def choose(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(kept, a, b), new, old)

        return DescentState(
            choose(trial, state.params),
            choose(value, state.value),
            choose(slope, state.slope),
            jnp.where(kept, state.curvature, _BACKTRACK * state.curvature),
            state.direction,
        )
