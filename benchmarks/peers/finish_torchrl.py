"""TorchRL's wheel is linked against another torch than the pinned one; its compiled part is built anew from the source
that lies in the wheel. Run by the Python of its environment once it is installed; needs a C++ compiler.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path


def main() -> None:
    """Build it and put it in place."""
    from torch.utils import cpp_extension

    package = Path(sysconfig.get_path("purelib")) / "torchrl"
    target = next(package.glob("_torchrl*.so"))
    sources = [str(package / "csrc" / name) for name in ("pybind.cpp", "utils.cpp")]
    with tempfile.TemporaryDirectory() as folder:
        cpp_extension.load("_torchrl", sources, build_directory=folder, extra_cflags=["-O3"], is_python_module=True)
        shutil.copyfile(Path(folder) / "_torchrl.so", target)


if __name__ == "__main__":
    sys.exit(main())
