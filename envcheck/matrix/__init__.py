"""Facts and choices, and what follows from them: matrix.yaml -> Matrix -> Resolution."""
