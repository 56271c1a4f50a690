"""The commands that publish proofs beside images, and pull by them."""
