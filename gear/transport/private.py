"""Files that hold a secret: read only where nobody but their owner can.

What such a file holds is never part of an error.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from gear.errors import AuthenticationError

MOST_BYTES = 1 << 16
"""Of such a file: far more than a secret and what stands around it take."""


def read_private(path: str | os.PathLike[str], what: str) -> bytes:
    """What the file holds; of one that is too large, `MOST_BYTES` + 1 bytes.

    Parameters
    ----------
    path : str or os.PathLike
    what : str
        How errors name it, such as ``--token-file token``.

    Raises
    ------
    AuthenticationError
        If it cannot be read, or others than its owner may use it.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if not mode & (stat.S_IRWXG | stat.S_IRWXO):
                return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise AuthenticationError(f"{what}: {error.strerror}") from None
    raise AuthenticationError(
        f"{what}: its mode is {mode:04o}, expected that only its owner can read it; chmod 600 {shlex.quote(str(path))}"
    )


def write_private(path: Path, content: str) -> None:
    """Make a file of mode 0600, whatever the umask.

    Raises
    ------
    FileExistsError
        If there is one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
