"""The commands of `envcheck images`."""
