"""Solvers for ``(H + lam) h = g`` with blocks of right-hand sides: one algorithm per file, one interface.

Options (:class:`CG`, :class:`Dense`, ...) are prepared once for a problem and a curvature. The prepared solver takes
any number of right-hand sides and gives each row its own status and true residual.
"""

from vhat.linalg.solvers.cg import CG
from vhat.linalg.solvers.dense import Dense
from vhat.linalg.solvers.dual import Dual
from vhat.linalg.solvers.interface import Prepared, Solution, Solver, Status, pseudo_inverts
from vhat.linalg.solvers.min_norm import MinimumNorm
from vhat.linalg.solvers.nystrom import Nystrom
from vhat.linalg.solvers.plan import Plan, choose
from vhat.linalg.solvers.primal import Primal

__all__ = [
    "CG",
    "Dense",
    "Dual",
    "MinimumNorm",
    "Nystrom",
    "Plan",
    "Prepared",
    "Primal",
    "Solution",
    "Solver",
    "Status",
    "choose",
    "pseudo_inverts",
]
