"""Proof that a program is affine in the parameters, one operation at a time.

A traced program is a list of operations. A table names the arguments in which an operation is linear: *terms*, in
which it is jointly linear (``a + b``), and *factors*, in which it is linear one at a time (``a b``). A result is
affine in the parameters if each argument that depends on them is affine and is a term or a factor, and at most one
such argument is a factor. Any other use of a dependent value counts as not affine.

A numerical test at one point would not do: ReLU and the absolute value are linear almost everywhere.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

__all__ = ["Dependence", "Linearity", "combine"]


class Dependence(IntEnum):
    """How a value of a program depends on parameters and inputs. Each class includes those before it."""

    CONSTANT = 0
    """Depends on neither parameters nor inputs."""
    INPUT = 1
    """Depends on the inputs only."""
    AFFINE = 2
    """An affine function of the parameters; its coefficients may depend on the inputs."""
    OTHER = 3
    """Not proved to be affine in the parameters."""


@dataclass(frozen=True)
class Linearity:
    """The arguments in which an operation is linear, by position or name.

    Attributes:
        terms: Arguments in which it is linear jointly with each other and with one factor.
        factors: Arguments in which it is linear if no other factor depends on the parameters.
    """

    terms: Container[Any] = ()
    factors: Container[Any] = ()


def combine(arguments: Mapping[Any, Dependence], linearity: Linearity | None) -> Dependence:
    """Return how the result of an operation depends on the parameters.

    Args:
        arguments: The dependence of each argument, by the position or name that ``linearity`` uses.
        linearity: The arguments in which the operation is linear; None for an operation that is not in the table.
    """
    strongest = max(arguments.values(), default=Dependence.CONSTANT)
    if strongest < Dependence.AFFINE:
        return strongest  # the operation does not use the parameters
    if strongest > Dependence.AFFINE or linearity is None:
        return Dependence.OTHER
    dependent = [name for name, dependence in arguments.items() if dependence >= Dependence.AFFINE]
    if not all(name in linearity.terms or name in linearity.factors for name in dependent):
        return Dependence.OTHER
    factors = [name for name in dependent if name in linearity.factors]
    return Dependence.AFFINE if len(factors) <= 1 else Dependence.OTHER
