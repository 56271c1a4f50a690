"""Watches the GPUs and the processes of a command while it runs, and says what slowed it."""
