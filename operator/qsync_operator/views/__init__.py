"""Views of a cluster that every program shows to people: pure functions of its status."""
