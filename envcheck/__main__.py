"""`python -m envcheck`."""

from envcheck.cli import program

if __name__ == "__main__":
    program()
