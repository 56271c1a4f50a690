"""Where a run's reports go, and what they are compared with."""
