"""What training over several ranks splits and saves, for the checks `fsdp` and `checkpoint`."""
