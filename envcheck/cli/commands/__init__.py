"""The commands of the top level: one module each, imported when that command runs."""
