"""Where an example saves its picture, checked before anything is learned."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def picture(text: str) -> Path:
    """The argparse type of ``--output``: a file that can be written."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} of {text} does not exist; make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; name another file")
    return path
