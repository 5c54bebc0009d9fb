"""Models and fakes around the operator, its platforms and its plan."""
