"""Layers with options: convolutions, pooling, attention and transformers."""
