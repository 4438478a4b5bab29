"""JAX functions as problems."""

from vhat.frontends.jax.door import jax_problem
from vhat.frontends.jax.problem import JaxProblem

__all__ = ["JaxProblem", "jax_problem"]
