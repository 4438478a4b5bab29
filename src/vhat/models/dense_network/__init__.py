"""The library's own networks in NumPy, with derivatives in closed form: nothing is compiled, and JAX is not imported."""

from vhat.models.dense_network.build import is_small, network_problem

__all__ = ["is_small", "network_problem"]
