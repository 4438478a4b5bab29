"""Intervals at a cost that does not depend on the training data, and without them.

- :mod:`vhat.sketch.roots`: square roots of the quadratic forms of an interval;
- :mod:`vhat.models.placeholder_rows`: the model on placeholder rows in place of its training rows;
- :mod:`vhat.sketch.persistence`: a sketch as a document, and back;
- :mod:`vhat.sketch.sketch`: the public class :class:`vhat.Sketch`.
"""
