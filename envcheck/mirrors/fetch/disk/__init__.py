"""A download on disk: partial file, journal, running hash."""
