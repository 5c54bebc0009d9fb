"""A second shell around the same core: simulated network, disks, clocks, clients."""
