"""Proofs beside images: what an OCI registry holds of them."""
