"""What loads data: data sets, samplers and loaders, each counted in plain Python."""
