"""Mirror profiles: where pip, PyTorch wheels, Hugging Face, apt and the registry are reached."""
