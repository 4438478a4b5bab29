"""V by dense linear algebra, for one hidden layer: written out by hand, with no autodiff and no solver of vhat.

With ``f(x) = c + sum_k v_k s(w_k'x + b_k)`` the Hessian of the loss is ``J'J/n + R``, and R couples only the parameters
of one unit: over ``z = (w_k, b_k)`` and ``v_k``, writing ``a`` for the activation's argument and ``x~ = (x, 1)``,

    R_zz = 1/n sum_i r_i v_k s''(a_ik) x~_i x~_i',      R_zv = 1/n sum_i r_i s'(a_ik) x~_i,      R_vv = 0.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import scipy.linalg
from scipy.linalg.blas import dsymv, dsyrk
from scipy.linalg.lapack import dpotrf

from benchmarks.objective import Objective
from benchmarks.problems import CACHE, Trained

POINTS = 1000


class _Layer(NamedTuple):
    """Parameters of the network, float64: units are rows of ``z``."""

    z: np.ndarray
    v: np.ndarray
    c: float


def _activation(name: str, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, first and second derivative."""
    if name == "relu":
        on = (a > 0).astype(float)
        return a * on, on, np.zeros_like(a)
    if name == "tanh":
        t = np.tanh(a)
        slope = 1 - t**2
        return t, slope, -2 * t * slope
    raise ValueError(f"no closed form for {name}")


def _layer(trained: Trained) -> _Layer:
    first, last = trained.params
    z = np.vstack([first["w"], first["b"]]).T.astype(float)
    return _Layer(z, last["w"][:, 0].astype(float), float(last["b"][0]))


def _extended(X: np.ndarray) -> np.ndarray:
    return np.hstack([X, np.ones((len(X), 1))])


def jacobian(trained: Trained, X: np.ndarray) -> np.ndarray:
    """Gradient rows in the order (z of every unit, v, c), Fortran-ordered (rows, p)."""
    layer, rows = _layer(trained), _extended(X)
    value, slope, _ = _activation(trained.setting.activation, rows @ layer.z.T)
    slope *= layer.v
    units, width = layer.z.shape
    J = np.empty((len(X), units * width + units + 1), order="F")
    for j in range(width):
        J[:, j : units * width : width] = slope * rows[:, j, None]
    J[:, units * width : -1] = value
    J[:, -1] = 1.0
    return J


def hessian(trained: Trained) -> tuple[np.ndarray, np.ndarray]:
    """``H + lam`` (its upper triangle), Fortran-ordered (p, p), and the Jacobian over the training rows."""
    layer, rows, n = _layer(trained), _extended(trained.X), len(trained.X)
    units, width = layer.z.shape
    value, slope, second = _activation(trained.setting.activation, rows @ layer.z.T)
    r = value @ layer.v + layer.c - trained.y
    J = jacobian(trained, trained.X)
    H = dsyrk(1.0 / n, J, trans=1)
    own = np.einsum("ik,ia,ib->kab", second * r[:, None] * layer.v, rows, rows, optimize=True) / n
    cross = (slope * r[:, None]).T @ rows / n
    for k in range(units):
        z, v = slice(k * width, (k + 1) * width), units * width + k
        H[z, z] += np.triu(own[k])
        H[z, v] += cross[k]
    H.T.flat[:: len(H) + 1] += trained.setting.lam
    return H, J


def true_norm(trained: Trained) -> np.ndarray:
    """V at the first thousand test points by Cholesky, kept in the cache.

    Raises:
        RuntimeError: When the Hessian is not positive definite, or not the one that JAX has.
    """
    file = CACHE / f"{trained.setting.name}-truth.npy"
    if file.exists():
        return np.load(file)
    H, J = hessian(trained)
    G = jacobian(trained, trained.points(POINTS))
    _check(trained, H, G[:3])
    factor, info = dpotrf(H, lower=0, overwrite_a=1)
    if info:
        raise RuntimeError(f"H + lam is not positive definite: {trained.setting}")
    V = np.concatenate([_norms(factor, J, G[i : i + 100]) for i in range(0, POINTS, 100)])
    np.save(file, V)
    return V


def _check(trained: Trained, H: np.ndarray, G: np.ndarray) -> None:
    """Compare ``g'(H + lam)g`` with products by JAX: a number that the order of the parameters does not change."""
    objective = Objective(trained)
    with jax.enable_x64(True):
        for i, g in enumerate(G):
            v = objective.gradient_of_prediction(objective.theta, trained.points(i + 1)[i])
            found = float(v @ objective.hessian(objective.theta, objective.data, keep=False)(v))
            if abs(g @ dsymv(1.0, H, g) / found - 1) > 1e-10:
                raise RuntimeError(f"the closed form is not the Hessian that JAX has: {trained.setting}")


def _norms(factor: np.ndarray, J: np.ndarray, G: np.ndarray) -> np.ndarray:
    image = J @ scipy.linalg.cho_solve((factor, False), G.T, check_finite=False)
    return np.sum(image**2, axis=0) / len(J)


def error(V: np.ndarray, truth: np.ndarray) -> float:
    """The largest relative error; NaN where a point was not solved."""
    return float(np.max(np.abs(np.asarray(V) / truth[: len(V)] - 1)))
