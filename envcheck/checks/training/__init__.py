"""Small trainings and the same computed in plain Python."""
