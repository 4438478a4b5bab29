"""The operator ``A = H + lam``: its unit-free scale, its smallest eigenvalue, its preconditioners, and kinks."""

from vhat.linalg.curvature.operator import Operator, assemble, scale

__all__ = ["Operator", "assemble", "scale"]
