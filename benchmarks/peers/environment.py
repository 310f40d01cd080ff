"""The environments of the peers: `benchmarks/.venvs/<peer>`, made from the pins in `requirements/<peer>.txt`.

A stamp in the environment says which pins it was made from; other pins make it anew. Where `finish_<peer>.py` is there
the environment's own Python runs it at the end. What cannot be installed is reported with pip's last words.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".venvs"
REQUIREMENTS = Path(__file__).parent / "requirements"

PYTHONS = {"reverb": ("3.11", "3.10")}
"""Where not every Python will do: those that a peer has wheels for."""


class NotInstalled(Exception):
    """A peer has no environment, and why."""


def python_of(peer: str) -> Path:
    """The Python of a peer's environment, which is made if it is not there.

    Raises
    ------
    NotInstalled
        If that failed.
    """
    pins = REQUIREMENTS / f"{peer}.txt"
    if not pins.exists():
        known = ", ".join(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))
        raise NotInstalled(f"expected one of {known}, got {peer!r}")
    environment = FOLDER / peer
    stamp, python = environment / ".stamp", environment / "bin" / "python"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == digest):
        if environment.is_symlink():  # shared with another clone, whose pins may be others
            environment.unlink()
        elif environment.exists():
            shutil.rmtree(environment)
        _run([_base(peer), "-m", "venv", str(environment)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--requirement", str(pins)])
        finish = Path(__file__).parent / f"finish_{peer}.py"
        if finish.exists():
            _run([str(python), str(finish)], {**os.environ, "PATH": f"{python.parent}:{os.environ.get('PATH', '')}"})
        stamp.write_text(digest)
    return python


def _base(peer: str) -> str:
    versions = PYTHONS.get(peer)
    if versions is None or f"{sys.version_info[0]}.{sys.version_info[1]}" in versions:
        return sys.executable
    for version in versions:
        found = shutil.which(f"python{version}")
        if found and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
            return found
    raise NotInstalled(f"{peer} has wheels for Python {' and '.join(versions)} only, and none is on the PATH")


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotInstalled(said[-1] if said else f"{command[0]} ended with {done.returncode}")
