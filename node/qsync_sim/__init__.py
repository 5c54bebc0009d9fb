"""The simulator: the production core with simulated networks, disks, clocks and clients."""
