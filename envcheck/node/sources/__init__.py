"""Read signals from one source each: NVML, /proc, /sys, kernel log, containers."""
