"""``A = H + lam`` as an operator: its natural scale, its sign, and the inner products that stand for it."""

from vhat.linalg.curvature.operator import Operator, assemble, scale

__all__ = ["Operator", "assemble", "scale"]
