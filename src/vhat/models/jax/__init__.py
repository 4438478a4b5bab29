"""JAX functions as problems."""

from vhat.models.jax.build import jax_problem
from vhat.models.jax.problem import JaxProblem

__all__ = ["JaxProblem", "jax_problem"]
