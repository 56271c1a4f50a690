"""Plan a build, name its result, and read its labels back."""
