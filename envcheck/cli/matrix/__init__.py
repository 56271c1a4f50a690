"""The commands of `envcheck matrix`."""
