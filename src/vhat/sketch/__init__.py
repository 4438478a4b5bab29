"""Intervals at a cost that does not depend on the training data, and without them.

- :mod:`vhat.sketch.roots`: the quadratic forms of an interval, as rows that a gradient is multiplied with;
- :mod:`vhat.models.stand_in`: the model on made-up rows in place of its training rows;
- :mod:`vhat.sketch.persistence`: a sketch as a document, and back;
- :mod:`vhat.sketch.sketch`: the object that a user holds.
"""
