"""The commands of `envcheck store`."""
