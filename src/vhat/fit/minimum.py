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
    from vhat.fit.training import Glance, Trained
    from vhat.fitted.model import FittedModel
    from vhat.models.problem import Problem

__all__ = ["Minimum"]

_PLATEAU = 0.02
"""Warm-up goes on while so large a share of the objective is gained in one chunk of steps."""
_NEARLY_SINGULAR = 1e-8
"""A smallest eigenvalue below this, without unit, leaves V to the decay or to rounding (as in the audit)."""
_LEAST_SHARE = 1e-6
"""A decay of this share of the largest curvature of a parameter is seen beside it by products and solves."""


@dataclass(frozen=True)
class Minimum(NetworkRecipe):
    """Train to a minimum of ``L_lam = L + lam/2 |theta|^2`` and certify it: what the intervals assume.

    A warm-up in float32 (Adam on ``L_lam``) goes on as long as it pays, a few hundred steps on easy data and up to
    ``warmup`` on hard ones. ``fitted.polish()`` then descends in float64 until the gradient vanishes and the
    smallest eigenvalue of ``H + lam`` is positive: of all eigenvalues where there are few parameters, by Lanczos
    iterations (strong evidence, no proof) where there are thousands. The record is in ``fitted.polished``, and
    ``fitted.audit()`` says which it was.

    Attributes:
        network: What is trained; its activation must be smooth.
        weight_decay: lam of the objective and of the fitted model. Too small a lam leaves directions that the data
            do not determine: the recipe then warns or refuses, naming a lam that would do.
        warmup: The most steps of Adam.
        learning_rate: The rate of Adam.
        gtol: The relative gradient to reach, without unit.
        max_steps: The most Newton steps.

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
            seeds: One seed a fit.
            sample_weights: Weights of the rows in each fit, (fits, n). A resample with replacement is its counts.
            targets: Responses of each fit in place of ``y``, (fits, n) or (fits, n, outputs).

        Returns:
            One fitted model a seed.

        Raises:
            InputError: When the data cannot be used.
            ModelError: When the warm-up diverges.
            PolishError: When there is no certified minimum to be reached, with a lam that would do.
        """
        warm = super().many(X, y, seeds=seeds, sample_weights=sample_weights, targets=targets)
        found = []
        with bar("minima", len(warm)) as advance:
            for fit, fitted in enumerate(warm):
                name = f"fit {fit}: " if len(warm) > 1 else ""
                found.append(self.certify(fitted, name))
                advance("")
        return found

    def resume(self, params: Any, X: Any, y: Any, *, sample_weight: Any = None) -> FittedModel:
        """Go on from parameters that are known, such as the minimum under another decay: no draw, no warm-up.

        Args:
            params: In the structure of ``network.init``.
            X: Rows, (n, inputs).
            y: Responses, (n,) or (n, outputs).
            sample_weight: One weight a row, or None.

        Returns:
            The fitted model.

        Raises:
            InputError: When the data or the parameters cannot be used.
            PolishError: When there is no certified minimum to be reached, with a lam that would do.
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

    def _schedule(self, seen: Sequence[Glance]) -> np.ndarray | None:
        """Hold the rate while a chunk of steps pays, let it fall to zero along one more, and end."""
        from vhat.fit.training import CHUNK

        left = self.warmup - len(seen) * CHUNK
        settled = _settled([glance.objective for glance in seen])
        if left <= 0 or (settled is not None and len(seen) > settled + 1):
            return None
        rates = np.full(min(left, CHUNK), self.learning_rate)
        falls = settled is not None or left <= CHUNK
        return rates * (1 - np.arange(len(rates)) / len(rates)) if falls else rates

    def certify(self, warm: FittedModel, name: str = "") -> FittedModel:
        """Move one fit to its minimum, and say what the certificate leaves open.

        Args:
            warm: The model where a first descent has ended.
            name: What messages call the fit, where there are several.

        Raises:
            PolishError: When there is no certified minimum to be reached, with a lam that would do.
        """
        from vhat.fitted.model import FittedModel

        try:
            record = warm.polish(gtol=self.gtol, max_steps=self.max_steps).polished
        except (PolishError, NotPositiveDefinite) as error:
            lam = _rounded_up(_enough_at(warm.problem, self.weight_decay))
            # a network of this recipe has no kinks and no normalisation: what polish advises for those is left out
            finding = error.finding if isinstance(error, PolishError) else str(error).rstrip(".")
            raise PolishError(
                f"{name}{finding}",
                "Use fewer units, give more rows, or let Minimum take more steps (max_steps=). Or: raise "
                f"weight_decay={self.weight_decay!r} to about {lam}.",
            ) from error
        assert record is not None
        if record.definiteness.verdict != "positive" or record.definiteness.value < _NEARLY_SINGULAR:
            warnings.warn(name + self._barely(record), ConditioningWarning, stacklevel=outside())
        # The warm-up is nobody's model: how far polish moved from it says nothing, so it is not carried along.
        return FittedModel(record.problem, polished=record)

    def _barely(self, record: Polished) -> str:
        """Say that the data and lam hardly determine some direction, and which lam would."""
        sign = record.definiteness
        with record.problem.scope():
            length = float(np.sum(record.problem.numpy(sign.vector) ** 2))
        # x'(A + d)x = mu + d |x|^2 for the eigenvector x
        lam = self.weight_decay + max(_NEARLY_SINGULAR - sign.value, 0.0) / length
        found = (
            f"the smallest eigenvalue of H + lam, {sign.value:.1e} without unit, is close to rounding"
            if np.isfinite(sign.error)
            else f"the smallest eigenvalue of H + lam did not settle (last value {sign.value:.1e} without unit)"
        )
        lam = max(lam, 2 * self.weight_decay)
        return (
            f"the gradient vanishes, but {found}: the data do not determine every direction at "
            f"weight_decay={self.weight_decay!r}, and intervals rest on the decay there. Raise weight_decay to about "
            f"{_rounded_up(lam)}."
        )


def _settled(objectives: Sequence[float]) -> int | None:
    """Return the first chunk that gained less than the plateau's share on the best before it."""
    best = math.inf
    for chunk, objective in enumerate(objectives):
        if objective > (1 - _PLATEAU) * best:
            return chunk
        best = min(best, objective)
    return None


def _enough_at(problem: Problem, lam: float) -> float:
    """A lam that is not lost beside the curvature of the data here, and ten times the one that failed."""
    with problem.scope():
        curvature = float(np.max(problem.numpy(problem.diagonal())))
    return max(10 * lam, _LEAST_SHARE * curvature)


def _rounded_up(lam: float) -> str:
    """Write lam with one digit, rounded up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(lam))
    digit = next(digit for digit in (1, 2, 5, 10) if lam <= digit * power * (1 + 1e-9))
    return f"{digit * power:.0e}"
