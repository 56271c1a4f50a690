"""Where a process of envcheck starts: by its name, or as `python -m envcheck`."""

import signal


def main() -> None:
    """Run the command line. A Ctrl-C while it is imported ends the process as a signal does, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from envcheck import cli  # noqa: PLC0415 (what takes long comes after the handler)

    cli.main()


if __name__ == "__main__":
    main()
