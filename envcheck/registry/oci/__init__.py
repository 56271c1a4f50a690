"""Talk to an OCI registry: references, logins, manifests, blobs, and what is attached to a manifest."""
