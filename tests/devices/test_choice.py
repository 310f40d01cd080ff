"""Which GPUs `--devices` means, and what is said where they, their driver or packages are not what they should be."""

from __future__ import annotations

import json
import subprocess

import pytest

from gear.devices import choice, seam
from gear.devices.driver import Driver
from gear.devices.report import report
from gear.errors import DeviceError
from gear.server import config


@pytest.fixture
def packages(monkeypatch):
    """Versions of installed distributions, as a dict to change; numba-cuda can be imported if it has one."""
    there = {"numba-cuda": "0.30.4", "nvidia-cuda-nvrtc": "13.0.88"}
    monkeypatch.setattr(choice, "version_of", lambda name: there.get(name, ""))
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda name: there.get(name.replace("_", "-")))
    return there


SECOND = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("devices", "numbers"), [("1", [1]), ("1,0", [1, 0]), (SECOND, [1]), (f"0,{SECOND}", [0, 1]), ("cuda", [0, 1])]
)
def test_devices_are_named_by_number_by_uuid_or_all_at_once(library, packages, devices, numbers):
    assert [device.number for device in choice.choose(devices)] == numbers
    checked = config.check_devices(devices)
    assert checked == ",".join(map(str, numbers))
    assert config.shard_count(checked) == len(numbers)
    assert config.gpus_of(checked, None)[1] == (1 << 30) * 8 // 10


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("7", f"GPU 7 is not there \\(found: 0 .*, 1 \\({SECOND}\\)"),
        ("0,GPU-beef", "GPU GPU-beef is not there"),
        ("1,1", f"{SECOND} is named twice"),
        (f"1,{SECOND}", f"{SECOND} is named twice"),
        ("0,tpu", "expected 'cpu', 'cpu:N' or GPU numbers"),
    ],
)
def test_a_device_that_is_not_there_is_refused_by_name(library, packages, devices, message):
    with pytest.raises(DeviceError, match=message):
        choice.choose(devices)


PART, OTHER = (f"MIG-00000000-0000-0000-0000-00000000000{n}" for n in (1, 5))


def test_parts_of_a_card_are_named_by_their_uuids_also_those_that_only_another_process_sees(
    library, packages, monkeypatch
):
    library.parts.add(1)
    asked = []

    def run(command, *, env, **_):
        asked.append(env["CUDA_VISIBLE_DEVICES"])
        told = [[0, OTHER, "Card 1 MIG 1g.5gb", [9, 0], 1 << 29, True, True]] if asked[-1] == OTHER else []
        return subprocess.CompletedProcess(command, 0, json.dumps(told).encode())

    monkeypatch.setattr(subprocess, "run", run)
    assert config.check_devices(f"{PART},{OTHER}") == f"{PART},{OTHER}"
    assert asked == [OTHER]
    assert config.gpus_of(f"{PART},{OTHER}", None) == ((PART, OTHER), (1 << 29) * 8 // 10)
    with pytest.raises(DeviceError, match="GPU MIG-beef is not there"):
        choice.choose("MIG-beef")


def test_a_part_is_known_by_its_name_where_it_is_the_only_device(library, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", PART)
    assert [device.uuid[:3] for device in Driver().devices()] == ["GPU", "MIG"]


def test_a_driver_older_than_the_toolkit_is_refused_naming_both_versions(library, packages):
    library.version = 12040
    with pytest.raises(DeviceError, match=r"knows CUDA 12\.4 and the toolkit that is installed is CUDA 13\.0.*cu12"):
        choice.choose("0")
    packages["nvidia-cuda-nvrtc"], packages["nvidia-cuda-nvrtc-cu12"] = "", "12.9.86"
    assert len(choice.choose("0")) == 1


def test_missing_packages_are_named(library, packages):
    del packages["numba-cuda"]
    with pytest.raises(DeviceError, match=r"numba-cuda.*is not installed; pip install 'gear-replay\[cuda\]'"):
        choice.choose("0")


def test_a_budget_that_a_device_has_not_is_refused_with_both_sizes(library, packages):
    with pytest.raises(DeviceError, match=r"2\.00 GiB \(2147483648 bytes\): GPU 1 .* has 1\.00 GiB \(1073741824 bytes"):
        config.gpus_of("1", 2 << 30)
    with pytest.raises(DeviceError, match="--device-memory is for GPUs"):
        config.gpus_of("cpu:2", 1 << 20)


def test_without_a_driver_it_is_said_what_works_all_the_same():
    seam.driver.cache_clear()
    with pytest.raises(DeviceError, match=r"GPU 0 is not there \(found: no GPU: no CUDA driver is installed here"):
        choice.choose("0")
    text = report()
    assert "no GPU: no CUDA driver is installed here" in text
    assert "gear-server --devices cpu and every client with device=None or 'cpu' work without one" in text


def test_the_report_tries_each_door(library, packages):
    library.results["cuMemHostRegister_v2"] = 2
    text = report()
    assert "driver: knows CUDA 13.0" in text
    assert "GPU 1: Card 1, 1.00 GiB, compute capability 9.0" in text
    assert "mapped host memory: no: 2.00 MiB" in text
    assert "CUDA IPC: no: another process could not open it" in text
    for line in ("RDMA: no: ", "GPUDirect RDMA: no: "):
        assert f"{line}this host has no RDMA device" in text
