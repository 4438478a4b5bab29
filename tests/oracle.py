"""Independent answers: everything here is dense, written straight from the formulas, and uses no code of vhat."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

ACTIVATIONS = {"tanh": jnp.tanh, "softplus": jax.nn.softplus, "relu": jax.nn.relu}


def network(activation, outputs):
    act = ACTIVATIONS[activation]

    def predict(params, X):
        hidden = act(X @ params["w"] + params["b"])
        out = hidden @ params["v"] + params["c"]
        return out[:, 0] if outputs is None else out

    return predict


def random_params(rng, d, width, outputs):
    K = outputs or 1
    return {
        "w": rng.normal(size=(d, width)),
        "b": rng.normal(size=width),
        "v": rng.normal(size=(width, K)) / np.sqrt(width),
        "c": rng.normal(size=K),
    }


def half_square(f, y):
    return 0.5 * jnp.sum((f - y) ** 2)


def log_cosh(f, y):
    return jnp.sum(jnp.logaddexp(f - y, y - f))


def coupled(f, y):
    """A loss of two outputs that does not separate: l_ff and l_fy have off-diagonal entries."""
    r = f - y
    return 0.5 * jnp.sum(r**2) + 0.3 * r[0] * r[1] + 0.05 * jnp.sum(r) ** 4


def dense(predict, params, X, y, x, decay, loss=half_square, weight=None, sigma=1.0, curvature="hessian"):
    """Return V, g'h and 1 - h'Gh/g'h at x, each (points * K,), from explicit matrices in float64."""
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), params))
        X, x, y = jnp.asarray(X), jnp.asarray(x), jnp.asarray(y)
        n = len(y)
        w = jnp.ones(n) if weight is None else jnp.asarray(weight)

        def f(t, Z):
            out = predict(unravel(t), Z)
            return out.reshape(len(Z), -1)

        Y = y.reshape(n, -1)
        K = Y.shape[1]

        def objective(t):
            return jnp.sum(w * jax.vmap(loss)(f(t, X), Y)) / n

        J = jax.jacobian(f)(theta, X)  # (n, K, p)
        F = f(theta, X)
        C = jax.vmap(jax.hessian(loss))(F, Y) * w[:, None, None]
        cross = jax.vmap(jax.jacfwd(jax.grad(loss), argnums=1))(F, Y) * w[:, None, None]
        G = jnp.einsum("iap,iab,ibq->pq", J, C, J) / n
        H = jax.hessian(objective)(theta) if curvature == "hessian" else G
        A = H + jnp.diag(jnp.broadcast_to(jnp.asarray(decay), theta.shape))
        g = jax.jacobian(f)(theta, x).reshape(-1, len(theta))
        h = jnp.linalg.solve(A, g.T).T
        u = jnp.einsum("kp,iap,iab->kib", h, J, cross)
        sigma = jnp.broadcast_to(jnp.asarray(sigma), (n, K))
        V = jnp.sum((sigma * u) ** 2, axis=(1, 2)) / n
        gh = jnp.sum(g * h, axis=1)
        supported = jnp.einsum("kp,pq,kq->k", h, G, h)
        return tuple(np.asarray(a) for a in (V, gh, 1 - supported / gh, jnp.linalg.eigvalsh(A)))
