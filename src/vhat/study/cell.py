"""A cell: the unit of work of the study, with a name and a seed that depend only on its fields."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from vhat.checks import check_choice, check_count
from vhat.errors import InputError

__all__ = ["EVERY_VERSION", "STEPS", "TRUTHS", "VERSIONS", "Cell", "Seeds", "TruthName", "Version", "decay_text"]

Version = Literal["published", "met", "penalised"]
TruthName = Literal["matern", "smooth"]

VERSIONS: tuple[Version, ...] = ("published", "met")
"""The versions in the tables and figures: as published, and at a minimum."""
EVERY_VERSION: tuple[Version, ...] = (*VERSIONS, "penalised")
"""All versions; ``"penalised"`` is as published, but with the decay inside the loss (Adam on L_lam)."""
TRUTHS: tuple[TruthName, ...] = ("matern", "smooth")
"""The paper's truth, which cannot be learned in ten dimensions, and one with a longer length scale, which can."""
STEPS = 10_000
"""Passes over the training data in the paper."""
_METHOD = re.compile(r"[a-z][a-z0-9-]*")
"""Valid names of methods."""


@dataclass(frozen=True)
class Seeds:
    """Seeds of all draws in a cell.

    Attributes:
        train: Training points.
        test: Test points.
        validation: Validation points.
        fit: Training of the models.
    """

    train: int
    test: int
    validation: int
    fit: int


@dataclass(frozen=True)
class Cell:
    """One method on one draw of the data.

    Attributes:
        version: ``"published"``: training and bound of the paper; ``"met"``: at a minimum; ``"penalised"``: as
            published, but trained by Adam on ``L_lam`` in place of AdamW.
        truth: ``"matern"``, the paper's, or ``"smooth"``, the same process with a longer length scale.
        d: Number of inputs.
        n: Number of training points drawn, before those in the box are removed.
        lam: The weight decay.
        method: ``"proposed"``, ``"bootstrap"``, or another of :mod:`vhat.methods` in lower case with hyphens.
        trial: Number of the draw of the data.
        steps: Passes over the training data; fewer than the paper's are marked wherever the cell appears.

    Examples:
        >>> cell = Cell("published", "matern", d=10, n=100, lam=1e-3, method="bootstrap", trial=0)
        >>> cell.key
        'published-matern-d10-n100-lam1e-3-bootstrap-trial0'
    """

    version: Version
    truth: TruthName
    d: int
    n: int
    lam: float
    method: str
    trial: int
    steps: int = STEPS

    def __post_init__(self) -> None:
        check_choice("version", self.version, EVERY_VERSION)
        check_choice("truth", self.truth, TRUTHS)
        for name, least in (("d", 1), ("n", 2), ("trial", 0), ("steps", 1)):
            check_count(name, getattr(self, name), least=least)
        if not 0 < self.lam < math.inf:
            raise InputError(f"lam={self.lam!r} is not a finite number above 0.")
        if not _METHOD.fullmatch(self.method):
            raise InputError(f"method={self.method!r} is not a name such as 'bootstrap' or 'deep-ensemble'.")

    @property
    def key(self) -> str:
        """Name of the result."""
        return self._named(f"-{self.method}")

    @property
    def fit_key(self) -> str:
        """Name of the fit to the data, which all methods share."""
        return f"fit-{self._named('')}"

    def _named(self, method: str) -> str:
        """Return a name from all fields, with ``method`` as the part of the method."""
        reduced = "" if self.steps == STEPS else f"-steps{self.steps}"
        return (
            f"{self.version}-{self.truth}-d{self.d}-n{self.n}-lam{decay_text(self.lam)}{method}"
            f"-trial{self.trial}{reduced}"
        )

    @property
    def seed(self) -> int:
        """Seed of the cell, from its truth, d, n and trial.

        Methods, versions and decays of one trial share it, so that they are compared on the same data and start from
        the same random weights.
        """
        text = f"vhat study: {self.truth}, d={self.d}, n={self.n}, trial={self.trial}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    @property
    def seeds(self) -> Seeds:
        """Seeds of all draws in the cell."""
        return Seeds(*(int(each) for each in np.random.SeedSequence(self.seed).generate_state(4)))

    def config(self) -> dict[str, Any]:
        """Return the fields; ``Cell(**config)`` is the cell."""
        return asdict(self)


def decay_text(lam: float) -> str:
    """Return a decay as short text without loss of digits: ``1e-3``.

    Examples:
        >>> decay_text(1e-3), decay_text(2.5e-4)
        ('1e-3', '2.5e-4')
    """
    digits, power = np.format_float_scientific(lam, trim="-", exp_digits=1).split("e")
    return f"{digits}e{int(power)}"
