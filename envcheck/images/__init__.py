"""Resolution -> Image: spec, lock, render, plan, engines."""
