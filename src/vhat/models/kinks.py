"""Operations with a kink (a jump of the derivative) that a model applies to parameter-dependent values.

A traced program is a list of operations. Every value is labelled with the kinked operations that were applied to
parameter-dependent values in its computation. A ReLU of the inputs only, or in a frozen part of the model, adds no
label. The labels are candidates: ``abs(z)**2`` is smooth, and a clamp that is inactive for all rows has no effect.
:mod:`vhat.linalg.curvature.kinks` measures whether a derivative jumps near the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NO_KINKS", "UNKNOWN_KINKS", "KinkedOperations"]


@dataclass(frozen=True)
class KinkedOperations:
    """The kinked operations that a model applies to values which depend on its trainable parameters.

    Attributes:
        names: Their names in the framework, each once, in the order of the program.
        known: Whether all other operations on such values are known to be smooth. If ``names`` is empty as well, the
            structure of the model proves that it has no kinks.
    """

    names: tuple[str, ...] = ()
    known: bool = False

    @property
    def none(self) -> bool:
        """Whether the structure of the model proves that it has no kinks."""
        return self.known and not self.names


NO_KINKS = KinkedOperations(known=True)
UNKNOWN_KINKS = KinkedOperations()
