"""The commands of `envcheck key`."""
