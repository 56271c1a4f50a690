"""References and cases of the training checks, in plain Python."""
