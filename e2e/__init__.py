"""Programs that try whole clusters: the demo, scenarios, campaigns of faults, and benchmarks."""
