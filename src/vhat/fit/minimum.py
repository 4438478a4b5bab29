"""The default recipe: a certified minimum of the penalised objective."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_count, check_tolerance
from vhat.errors import ConditioningWarning, InputError, NotPositiveDefinite, PolishError, outside
from vhat.fit.data import Fits, check_fits
from vhat.fit.recipe import NetworkRecipe, check_positive
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.evidence.minimise.polish import Polished
    from vhat.fit.training import Snapshot, Trained
    from vhat.fitted.model import FittedModel
    from vhat.models.problem import Problem

__all__ = ["Minimum"]

_PLATEAU = 0.02
"""Relative decrease of the objective per chunk of steps below which the warm-up ends."""
_NEARLY_SINGULAR = 1e-8
"""Smallest eigenvalue, in units of the parameters' curvatures, below which V depends on the decay or on rounding (as in
the audit)."""
_LEAST_DECAY = 1e-6
"""Smallest suggested decay, in units of the largest curvature of a parameter: less is lost in the rounding of products
and solves."""


@dataclass(frozen=True)
class Minimum(NetworkRecipe):
    """Train to a minimum of ``L_lam = L + lam/2 |theta|^2`` and certify it, as the intervals assume.

    A warm-up in float32 (Adam on ``L_lam``) runs until the objective stops decreasing: a few hundred steps on easy
    data, up to ``warmup`` on hard ones. ``fitted.polish()`` then minimises in float64 until the gradient vanishes and
    the smallest eigenvalue of ``H + lam`` is positive. With few parameters all eigenvalues are computed; with
    thousands, Lanczos iterations estimate the smallest (strong evidence, no proof). The record is in
    ``fitted.polished``, and ``fitted.audit()`` says which method was used.

    Attributes:
        network: The network to train; its activation must be smooth.
        weight_decay: lam of the objective and of the fitted model. If lam is too small to determine the directions that
            the data leave open, the recipe warns or refuses, and suggests a larger value.
        warmup: Largest number of Adam steps.
        learning_rate: Learning rate of Adam.
        gtol: Relative gradient to reach, without unit.
        max_steps: Largest number of Newton steps.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Network
        >>> x = np.linspace(-2, 2, 40)[:, None]
        >>> y = np.sin(2 * x[:, 0]) + 0.1 * np.cos(60 * x[:, 0])
        >>> fitted = Minimum(Network((1, 8, 1)), weight_decay=1e-3)(x, y, seed=0)
        >>> fitted.audit()["smallest eigenvalue"].verdict
        'holds'
        >>> fitted.polished.relative_gradient <= 1e-10
        True
    """

    warmup: int = 10_000
    learning_rate: float = 1e-2
    gtol: float = 1e-10
    max_steps: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network.activation == "relu":
            raise InputError(
                'activation="relu" has kinks, and a network with kinks has no minimum that could be certified. Use '
                '"tanh", "softplus", "gelu" or "silu", or train with vhat.fit.AdamW and ask for curvature="ggn".'
            )
        check_count("warmup", self.warmup)
        check_positive("learning_rate", self.learning_rate)
        check_tolerance("gtol", self.gtol)
        check_count("max_steps", self.max_steps, least=1)

    def many(
        self, X: Any, y: Any, *, seeds: Sequence[int], sample_weights: Any = None, targets: Any = None
    ) -> list[FittedModel]:
        """Train many fits, each to its own certified minimum; the warm-up is one compiled loop.

        Args:
            X: Rows, (n, inputs), shared by all fits.
            y: Responses, (n,) or (n, outputs).
            seeds: One seed per fit.
            sample_weights: Row weights of each fit, (fits, n). For a resample with replacement, the counts of the rows.
            targets: Responses of each fit in place of ``y``, (fits, n) or (fits, n, outputs).

        Returns:
            One fitted model per seed.

        Raises:
            InputError: When the data cannot be used.
            ModelError: When the warm-up diverges.
            PolishError: When no certified minimum is reached; it suggests a larger lam.
        """
        warmed_up = super().many(X, y, seeds=seeds, sample_weights=sample_weights, targets=targets)
        certified = []
        with bar("minima", len(warmed_up)) as advance:
            for fit, fitted in enumerate(warmed_up):
                name = f"fit {fit}: " if len(warmed_up) > 1 else ""
                certified.append(self.certify(fitted, name))
                advance("")
        return certified

    def resume(self, params: Any, X: Any, y: Any, *, sample_weight: Any = None) -> FittedModel:
        """Start from given parameters, such as the minimum for another decay, without warm-up.

        Args:
            params: Parameters in the structure of ``network.init``.
            X: Rows, (n, inputs).
            y: Responses, (n,) or (n, outputs).
            sample_weight: Row weights, (n,), or None.

        Returns:
            The fitted model.

        Raises:
            InputError: When the data or the parameters cannot be used.
            PolishError: When no certified minimum is reached; it suggests a larger lam.
        """
        from vhat.fitted.construct import from_jax

        check_fits(self.network, X, y, seeds=[0], sample_weights=None if sample_weight is None else [sample_weight])
        start = from_jax(self.network, params, X, y, weight_decay=self.weight_decay, sample_weight=sample_weight)
        return self.certify(start)

    def _train(self, fits: Fits) -> list[Trained]:
        from vhat.fit.adam_steps import AdamRule
        from vhat.fit.training import CHUNK, run

        return run(
            self.network,
            AdamRule(decoupled=False),
            fits,
            [self._schedule] * len(fits),
            decay=self.weight_decay,
            label="warm-up",
            chunks=-(-self.warmup // CHUNK),
        )

    def _schedule(self, snapshots: Sequence[Snapshot]) -> np.ndarray | None:
        """Return a constant rate until the objective reaches a plateau, then one chunk with a linear fall to zero."""
        from vhat.fit.training import CHUNK

        remaining = self.warmup - len(snapshots) * CHUNK
        plateau = _plateau([snapshot.objective for snapshot in snapshots])
        if remaining <= 0:
            return None
        if plateau is not None and len(snapshots) > plateau + 1:
            return None
        rates = np.full(min(remaining, CHUNK), self.learning_rate)
        last_chunk = plateau is not None or remaining <= CHUNK
        if last_chunk:
            return rates * (1 - np.arange(len(rates)) / len(rates))
        return rates

    def certify(self, warmed_up: FittedModel, name: str = "") -> FittedModel:
        """Move one fit to its minimum, and warn if the minimum is nearly singular.

        Args:
            warmed_up: The model at the end of a first descent.
            name: Name of the fit in messages, if there are several.

        Raises:
            PolishError: When no certified minimum is reached; it suggests a larger lam.
        """
        from vhat.fitted.model import FittedModel

        try:
            record = warmed_up.polish(gtol=self.gtol, max_steps=self.max_steps).polished
        except (PolishError, NotPositiveDefinite) as error:
            lam = _rounded_up(_sufficient_decay(warmed_up.problem, self.weight_decay))
            # Networks of this recipe have no kinks and no normalisation: omit polish's advice about those.
            finding = error.finding if isinstance(error, PolishError) else str(error).rstrip(".")
            raise PolishError(
                f"{name}{finding}",
                "Use fewer units, give more rows, or let Minimum take more steps (max_steps=). Or: raise "
                f"weight_decay={self.weight_decay!r} to about {lam}.",
            ) from error
        assert record is not None
        if record.definiteness.verdict != "positive" or record.definiteness.value < _NEARLY_SINGULAR:
            warnings.warn(name + self._nearly_singular(record), ConditioningWarning, stacklevel=outside())
        # The model is made anew without the path of the polish: its distance from the warm-up has no meaning.
        return FittedModel(record.problem, polished=record)

    def _nearly_singular(self, record: Polished) -> str:
        """Return the warning that data and decay hardly determine some direction, with a lam that would."""
        smallest = record.definiteness
        with record.problem.scope():
            square = float(np.sum(record.problem.numpy(smallest.vector) ** 2))
        # For the eigenvector x with eigenvalue mu, x'(A + d)x = mu + d |x|^2: choose d to reach the threshold.
        lam = self.weight_decay + max(_NEARLY_SINGULAR - smallest.value, 0.0) / square
        lam = max(lam, 2 * self.weight_decay)
        value = f"{smallest.value:.1e} without unit"
        if np.isfinite(smallest.error):
            finding = f"the smallest eigenvalue of H + lam, {value}, is close to rounding"
        else:
            finding = f"the smallest eigenvalue of H + lam did not settle (last value {value})"
        return (
            f"the gradient vanishes, but {finding}: the data do not determine every direction at "
            f"weight_decay={self.weight_decay!r}, and intervals rest on the decay there. Raise weight_decay to about "
            f"{_rounded_up(lam)}."
        )


def _plateau(objectives: Sequence[float]) -> int | None:
    """Return the number of the first chunk that decreased the best objective by less than ``_PLATEAU``; else None."""
    best = math.inf
    for chunk, objective in enumerate(objectives):
        if objective > (1 - _PLATEAU) * best:
            return chunk
        best = min(best, objective)
    return None


def _sufficient_decay(problem: Problem, lam: float) -> float:
    """Return a decay large enough beside the curvature of the data, and at least ten times ``lam``, which failed."""
    with problem.scope():
        curvature = float(np.max(problem.numpy(problem.diagonal())))
    return max(10 * lam, _LEAST_DECAY * curvature)


def _rounded_up(lam: float) -> str:
    """Return lam as text with one digit, rounded up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(lam))
    digit = next(digit for digit in (1, 2, 5, 10) if lam <= digit * power * (1 + 1e-9))
    return f"{digit * power:.0e}"
