"""A busy machine is no finding: nothing here asserts how long it takes."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
