"""Proof that a program is affine in the parameters, one operation at a time.

A traced program is a list of operations. Each operation is listed with the arguments in which it is linear: *terms*,
in which it is linear jointly (``a + b``), and *factors*, in which it is linear one at a time (``a b``). A result is
affine in the parameters if every argument that depends on them is affine, is a term or a factor, and at most one of
them is a factor. Every other use of a dependent value counts as not affine: ReLU and absolute values are linear
almost everywhere, and no evaluation near one point could tell them from a linear model.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

__all__ = ["Dependence", "Linearity", "combine"]


class Dependence(IntEnum):
    """How a value of a program depends on the parameters; the larger of two holds for both."""

    CONSTANT = 0
    """On neither parameters nor inputs."""
    INPUT = 1
    """On the inputs alone."""
    AFFINE = 2
    """An affine function of the parameters, whose coefficients may depend on the inputs."""
    OTHER = 3
    """In a way that was not proved to be affine."""


@dataclass(frozen=True)
class Linearity:
    """The arguments in which an operation is linear, by position or name.

    Attributes:
        terms: Jointly with each other and with one factor.
        factors: One at a time, while the other factors do not depend on the parameters.
    """

    terms: Container[Any] = ()
    factors: Container[Any] = ()


def combine(arguments: Mapping[Any, Dependence], linearity: Linearity | None) -> Dependence:
    """Return how the result of an operation depends on the parameters.

    Args:
        arguments: The dependence of each argument, by the position or name that ``linearity`` uses.
        linearity: Where the operation is linear; None for an operation that is not listed.
    """
    most = max(arguments.values(), default=Dependence.CONSTANT)
    if most < Dependence.AFFINE:
        return most
    dependent = [name for name, found in arguments.items() if found >= Dependence.AFFINE]
    if most > Dependence.AFFINE or linearity is None:
        return Dependence.OTHER
    factors = [name for name in dependent if name in linearity.factors]
    listed = all(name in linearity.terms or name in linearity.factors for name in dependent)
    return Dependence.AFFINE if listed and len(factors) <= 1 else Dependence.OTHER
