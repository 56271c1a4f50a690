"""The commands of `envcheck mirror`."""
