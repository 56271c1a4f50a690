"""Choose mirrors from measurements."""
