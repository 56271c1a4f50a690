"""Read a node: NVML, /proc, /sys, the environment, the container -> Snapshot."""
