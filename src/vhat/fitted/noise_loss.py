"""Losses with the noise as an argument: noise in the inputs, multiplicative noise, several noises per row.

With ``L = 1/n sum_i l_i(theta, z_i) + 1/2 theta'Lam theta``, ``A = hess L`` and ``G_i = d/dz grad l_i`` at the observed
noise, a minimum moves by ``d theta/d z_i = -A^-1 G_i / n``, so that a functional q of it has

    d q/d z_i = -h'G_i / n,      h = A^-1 grad q,      V = 1/n sum_i |G_i'h|^2,

and the bounds hold for noise of standard deviation 1. The square loss with noise in the responses is the special case
``G_i = -sigma grad f(x_i)``. Matrices are dense, which limits this to models of few parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from vhat.checks import check_choice, check_count, check_delta, check_memory
from vhat.errors import InputError, MemoryBudgetError, ModelError, NotMinimumWarning, NotPositiveDefinite, outside
from vhat.intervals.estimated_tail import EstimatedTail, Redraws
from vhat.intervals.guarantee import BOUNDS_IN_WORDS, assumed_of_norm
from vhat.intervals.half_width import Values, half_widths
from vhat.intervals.options import Options
from vhat.intervals.tail import Tail
from vhat.level import level_text
from vhat.linalg.memory import in_words

__all__ = ["NoiseLossInterval", "NoiseLossModel", "from_noise_loss"]

_STATIONARY = 0.01
"""Largest distance to the minimum, as a share of the spread that the noise gives the parameters."""
_BOUNDS = ("isoperimetric", "tight", "asymptotic", "chebyshev")


@dataclass(frozen=True, eq=False)
class NoiseLossInterval:
    """Intervals for functionals of the parameters, shape () or (k,).

    Attributes:
        center: The functional at the fitted parameters.
        half_width: Half the width.
        standard_error: ``sqrt(V/n)``, its first-order standard deviation over the noise.
        weighted_norm: V.
        delta: Probability of a miss.
        bound: The bound in use.
        guarantee: What the interval covers and what it assumes.
    """

    center: np.ndarray
    half_width: np.ndarray
    standard_error: np.ndarray
    weighted_norm: np.ndarray
    delta: float
    bound: str
    guarantee: str = field(repr=False)

    @property
    def lower(self) -> np.ndarray:
        """The lower limits."""
        return np.asarray(self.center - self.half_width)

    @property
    def upper(self) -> np.ndarray:
        """The upper limits."""
        return np.asarray(self.center + self.half_width)


@dataclass(frozen=True, eq=False)
class NoiseLossModel:
    """A minimum of a loss of the noise, with its derivatives.

    Attributes:
        params: The fitted parameters in the user's own structure.
        theta: The same as a flat vector, (p,).
        gradient: Gradient of the penalised objective, (p,).
        hessian: ``A``, its Hessian, (p, p).
        noise_gradients: ``G``, (n, m, p), m noises a row.
    """

    params: Any = field(repr=False)
    theta: np.ndarray
    gradient: np.ndarray = field(repr=False)
    hessian: np.ndarray = field(repr=False)
    noise_gradients: np.ndarray = field(repr=False)
    _unravel: Callable[[Any], Any] = field(repr=False)

    @property
    def n(self) -> int:
        """How many rows there are."""
        return len(self.noise_gradients)

    @cached_property
    def _factor(self) -> tuple[np.ndarray, bool]:
        try:
            factor: tuple[np.ndarray, bool] = scipy.linalg.cho_factor(self.hessian, lower=True)
        except np.linalg.LinAlgError as error:
            raise NotPositiveDefinite(
                f"the Hessian of the objective is not positive definite at these parameters ({error}): they are no "
                "minimum. Train on, or give weight_decay."
            ) from error
        return factor

    @property
    def offset(self) -> float:
        """Distance to the minimum over the spread that the noise gives the parameters, in the metric of A."""
        step = scipy.linalg.cho_solve(self._factor, self.gradient)
        G = self.noise_gradients.reshape(-1, len(self.theta))
        spread = float(np.sum(G * scipy.linalg.cho_solve(self._factor, G.T).T)) / self.n**2
        length = max(float(self.gradient @ step), 0.0)
        return float(np.sqrt(length / spread)) if spread > 0 else np.inf

    def sensitivity(self, q: Callable[[Any], Any]) -> np.ndarray:
        """Return ``d q / d z``, (k, n, m), or (n, m) for a scalar q."""
        value, gradient = self._functional(q)
        found = self._moved(gradient)
        return found[0] if value.ndim == 0 else found

    def functional(
        self,
        q: Callable[[Any], Any],
        delta: float = 0.05,
        *,
        bound: str = "isoperimetric",
        tail: Tail | str | None = None,
    ) -> NoiseLossInterval:
        """Compute an interval for the mean of ``q(params)`` over fresh noise.

        Args:
            q: A JAX function of the parameters, returning a scalar or (k,): ``lambda p: predict(p, x)``.
            delta: Probability of a miss.
            bound: ``"isoperimetric"``, ``"tight"``, ``"asymptotic"`` or ``"chebyshev"``.
            tail: How V varies over the noise: None is a moderate tail for ``"isoperimetric"``, none elsewhere;
                ``"constant"`` and ``"any"`` as in :meth:`vhat.FittedModel.interval`, or :class:`vhat.Tail`.

        Raises:
            InputError: For options that cannot be used.
            NotPositiveDefinite: When the parameters are no minimum.

        Warns:
            NotMinimumWarning: When the gradient does not vanish beside what the noise does.
        """
        delta = check_delta(delta)
        check_choice("bound", bound, _BOUNDS)
        if isinstance(tail, Redraws | EstimatedTail) or (isinstance(tail, str) and tail == "estimated"):
            raise InputError("tail='estimated' follows refits, which there are none of here. Give vhat.Tail(v, c).")
        options = Options(delta, bound=bound, tail=tail)  # refuses a tail that this bound cannot use
        value, gradient = self._functional(q)
        offset = self.offset
        if offset > _STATIONARY:
            warnings.warn(
                f"the parameters are {offset:.2g} of the noise's own spread away from a minimum: train on.",
                NotMinimumWarning,
                stacklevel=outside(),
            )
        variance = np.sum(self._moved(gradient) ** 2, axis=(1, 2)).reshape(value.shape)
        norm = np.asarray(self.n * variance)
        values = Values(norm=norm, n=self.n, noise=np.ones(value.shape), fresh=None, df=None)
        return NoiseLossInterval(
            center=value,
            half_width=half_widths(values, bound, options.known_tail, delta),
            standard_error=np.sqrt(variance),
            weighted_norm=norm,
            delta=delta,
            bound=bound,
            guarantee=_sentence(options, minimum=offset <= _STATIONARY),
        )

    def _moved(self, gradient: np.ndarray) -> np.ndarray:
        """Return ``-h'G_i/n`` of gradient rows (k, p), (k, n, m)."""
        h = scipy.linalg.cho_solve(self._factor, gradient.T).T
        return np.asarray(-np.einsum("kp,imp->kim", h, self.noise_gradients) / self.n)

    def _functional(self, q: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return a functional and its gradient rows, (k, p)."""
        import jax
        import jax.numpy as jnp

        with jax.enable_x64(True):
            point = jnp.asarray(self.theta)
            value = np.asarray(q(self._unravel(point)), dtype=np.float64)
            if value.ndim > 1:
                raise InputError(f"q returns shape {value.shape}; give a scalar or (k,).")
            gradient = np.asarray(jax.jacrev(lambda t: jnp.asarray(q(self._unravel(t))))(point), dtype=np.float64)
        return value, gradient.reshape(-1, len(self.theta))


def from_noise_loss(
    loss: Callable[[Any, Any, Any], Any],
    params: Any,
    rows: Any,
    *,
    weight_decay: float = 0.0,
    noises: int = 1,
    memory: float | None = None,
) -> NoiseLossModel:
    """Return the model of a minimum of a loss whose noise is an argument (JAX, few parameters).

    Args:
        loss: ``loss(params, row, z)`` of one row, a scalar, twice differentiable in ``params`` and once in z. z, of
            shape (noises,), is a change of the row's noise in standard deviations; zero is the observed noise. Noise
            of size s in the inputs: ``(predict(params, row["x"] + s * z) - row["y"])**2 / 2``.
        params: The fitted parameters, any pytree of floating-point arrays: a minimum of the mean of the losses at
            z = 0 plus the penalty.
        rows: The rows for the loss, a pytree of arrays with one leading row axis.
        weight_decay: lam of ``lam/2 |params|^2``.
        noises: Number of independent standard normal noises of a row.
        memory: Budget in bytes.

    Returns:
        The model: ``.functional(q, delta)`` and ``.sensitivity(q)``.

    Raises:
        InputError: For rows or options that cannot be used.
        ModelError: When a derivative is not finite.
        MemoryBudgetError: When the dense matrices do not fit.

    Examples:
        >>> import numpy as np, vhat
        >>> x, s = np.linspace(1, 2, 20), 0.05
        >>> rows = {"x": x, "y": 2.0 * x}
        >>> model = vhat.from_noise_loss(
        ...     lambda p, row, z: (p * (row["x"] + s * z[0]) - row["y"]) ** 2 / 2, np.array(2.0), rows
        ... )
        >>> f"{float(model.functional(lambda p: 3.0 * p).standard_error):.4f}"
        '0.0438'
    """
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    check_count("noises", noises, least=1)
    if not isinstance(weight_decay, int | float | np.number) or not 0 <= weight_decay < np.inf:
        raise InputError(f"weight_decay={weight_decay!r} is not a finite number of at least 0.")
    with jax.enable_x64(True):
        data = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), rows)
        counts = {int(leaf.shape[0]) if leaf.ndim else 0 for leaf in jax.tree.leaves(data)}
        if len(counts) != 1 or 0 in counts:
            raise InputError("rows must be arrays that share one leading axis, with at least one row.")
        (n,) = counts
        theta, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), params))
        _require_memory(n, noises, theta.size, check_memory(memory))
        observed = jnp.zeros(noises)

        def objective(t: Any) -> Any:
            losses = jax.vmap(lambda row: jnp.asarray(loss(unravel(t), row, observed)).reshape(()))(data)
            return jnp.mean(losses) + 0.5 * weight_decay * jnp.sum(t**2)

        def gradient_of_row(row: Any, z: Any) -> Any:
            return jax.grad(lambda t: jnp.asarray(loss(unravel(t), row, z)).reshape(()))(theta)

        gradient = np.asarray(jax.grad(objective)(theta))
        hessian = np.asarray(jax.hessian(objective)(theta))
        mixed = np.asarray(jax.vmap(lambda row: jax.jacfwd(lambda z: gradient_of_row(row, z))(observed))(data))
    for name, part in (("gradient", gradient), ("Hessian", hessian), ("derivative in the noise", mixed)):
        if not np.isfinite(part).all():
            raise ModelError(f"the {name} of the loss is not finite at these parameters.")
    symmetric = (hessian + hessian.T) / 2
    return NoiseLossModel(params, np.asarray(theta), gradient, symmetric, mixed.transpose(0, 2, 1), unravel)


def _require_memory(n: int, noises: int, p: int, budget: int) -> None:
    need = 8 * (4 * p**2 + 3 * n * noises * p)
    if need > budget:
        raise MemoryBudgetError(
            f"{n:,} rows, {noises} noises and {p:,} parameters need {in_words(need)} of dense matrices; the budget is "
            f"{in_words(budget)}. from_noise_loss is for models of few parameters; or raise memory=."
        )


def _sentence(options: Options, *, minimum: bool) -> str:
    """Compose the guarantee."""
    assumed = [
        "independent standard normal noise that enters the loss as described",
        *assumed_of_norm(options, options.bound),
        "one minimum that moves continuously with the noise",
    ]
    if not minimum:
        assumed.insert(0, "that the parameters are a minimum, WHICH THEY ARE NOT")
    return (
        f"Nominal {level_text(options.delta)} for the mean of this functional over fresh noise, not the truth behind "
        f"it, by {BOUNDS_IN_WORDS[options.bound]}; assumed: {', '.join(assumed)}."
    )
