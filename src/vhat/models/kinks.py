"""Operations at which a derivative may jump, and which of them a model's parameters pass through.

A traced program is a list of operations. A value carries the names of the kinked operations that parameter-dependent
numbers have passed through on their way to it; a ReLU of the inputs alone, or in a frozen part, leaves none. Names are
candidates: ``abs(z)**2`` is smooth, and a clamp that is far from acting is no kink either. Whether a derivative does
jump near the parameters is measured by :mod:`vhat.linalg.curvature.kinks`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NO_KINKS", "UNKNOWN_KINKS", "KinkedOperations"]


@dataclass(frozen=True)
class KinkedOperations:
    """The kinked operations of a model that act on numbers which depend on its trainable parameters.

    Attributes:
        names: What they are called in the framework, each once, in the order of the program.
        known: Whether every other operation on such numbers is known to be smooth. Without names, True says that
            the model has no kinks by its structure.
    """

    names: tuple[str, ...] = ()
    known: bool = False

    @property
    def none(self) -> bool:
        """Whether the model has no kinks by its structure."""
        return self.known and not self.names


NO_KINKS = KinkedOperations(known=True)
UNKNOWN_KINKS = KinkedOperations()
