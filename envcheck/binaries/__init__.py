"""Native libraries and the wheels that hold them, read without loading them. Standard library only, Python >= 3.9.

The check `extensions` reads installed libraries inside foreign interpreters, and `envcheck matrix wheel` reads those of
a wheel with the same code. What is read is not trusted: sizes and offsets are compared with the file before use.
"""
