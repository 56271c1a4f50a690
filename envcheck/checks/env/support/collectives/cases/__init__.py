"""The cases of the check `collectives`."""
