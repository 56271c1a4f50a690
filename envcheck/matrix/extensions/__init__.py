"""Native extensions of torch: what each release binds to, and which of them fit together on a machine."""
