"""The simulator of journals: brokers' cores over a simulated key space, network and disks."""
