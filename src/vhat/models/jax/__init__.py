"""JAX functions as problems."""

from vhat.models.jax.build import jax_problem

__all__ = ["jax_problem"]
