"""Linear algebra: curvature operators, the certificate of the smallest eigenvalue, and the solvers."""
