"""Packaging of GEAR: distribution `gear-replay`, package `gear`."""

from pathlib import Path

from setuptools import find_packages, setup

readme = Path(__file__).with_name("README.md")

test = [
    "gymnasium>=1.0",
    "hypothesis>=6.100",
    "matplotlib>=3.9",
    "pytest>=8.2",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "scipy>=1.13",
    "torch>=2.4",
]

# Compiles kernels for a GPU, also where there is none: the tests look at what became of them. CUDA 12 is for drivers
# before R580; torch for it comes from an index of its own, so that extra leaves it to the user. CuPy is not needed: the
# driver is called by ctypes.
cuda = ["numba-cuda[cu13]>=0.30; sys_platform == 'linux'"]
cuda12 = ["numba-cuda[cu12]>=0.30; sys_platform == 'linux'"]

watch = ["prometheus-client>=0.19", "rich>=13"]  # gear-server --metrics-port, gear top

setup(
    name="gear-replay",
    version="0.1.0.dev0",
    description="A GPU-centric, distributed experience replay service for reinforcement learning on trajectories",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["gear", "gear.*"]),
    package_data={"gear": ["py.typed", "server/dashboard.json"]},
    python_requires=">=3.10,<3.14",
    install_requires=[
        "numpy>=2.0",
        "numba>=0.61",
        "pyzmq>=26",
        "msgspec>=0.19",
        "ml_dtypes>=0.5",
        "xxhash>=3.0",
        "tomli>=2; python_version < '3.11'",
    ],
    extras_require={
        "torch": ["torch>=2.4"],
        "cuda": [*cuda, "torch>=2.4"],
        "cuda12": cuda12,
        "rdma": ["pyverbs>=44"],
        "ray": ["ray>=2.40"],
        "watch": watch,
        "demo": ["gymnasium>=1.0", "matplotlib>=3.9", "rich>=13", "torch>=2.4"],
        "test": [*test, *watch],
        "ptx": cuda,
        "dev": [*test, *watch, "mypy>=1.14", "ruff>=0.9"],
    },
    entry_points={
        "console_scripts": [
            "gear-server = gear.server.cli:server_main",
            "gear = gear.server.cli:main",
        ]
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
