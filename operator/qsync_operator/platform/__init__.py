"""Platforms, the only code of the controller with side effects."""
