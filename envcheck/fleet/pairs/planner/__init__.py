"""What is measured next, and what the results so far say: no effects."""
