"""Printing for people."""

import os
import sys


def show(text: str) -> None:
    """Print, content with a reader that stops early (`--help | head`)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
