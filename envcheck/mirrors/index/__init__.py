"""Package indexes: the simple API, and where a locked file is."""
