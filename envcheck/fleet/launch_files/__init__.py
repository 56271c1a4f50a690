"""Files that have Slurm or Kubernetes start envcheck on many nodes: rendered, and applied by whoever read them."""
