#!/usr/bin/env bash
# Run tests/rdma where there is an RDMA device: on this host if it has one, else in the virtual machine that has.
#   test.sh PYTHON [PYTEST ARGUMENT...]
# RDMA_ALL=1 runs what takes long in that machine too, rates beside perftest's, and a server and a client in two of them.
# RDMA_VM_SECONDS: how long the suite may take in it (900, with RDMA_ALL 2400).
# RDMA_SETUP=no installs no packages.  Where the machine cannot be made, or takes long to start, it says why and ends with 0.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd); python=$1; shift
cache=${RDMA_VM_CACHE:-/var/cache/rdma-vm}; start=60
skip() { echo "test-rdma: skipped: $*"; exit 0; }
chosen=(-m "not slow"); limit=900
[[ -n ${RDMA_ALL:-} ]] && { chosen=(); limit=2400; }
# The suite stands alone: the conftest above it compiles kernels and counts processes, which costs minutes in the machine.
suite=(-m pytest -q -p no:cacheprovider --confcutdir=tests/rdma -o timeout=600 --durations=8 "${chosen[@]}" tests/rdma "$@")
cd "$root" || exit 2

if [[ -n $(ls /sys/class/infiniband 2>/dev/null) ]]; then exec "$python" "${suite[@]}"; fi

[[ $(uname -m) == x86_64 ]] || skip "the machine is one of x86-64, this is $(uname -m)"
grep -q '^VERSION_CODENAME=bookworm' /etc/os-release 2>/dev/null || skip "it is made from packages of Debian 12"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || skip "Debian's pyverbs is for Python 3.11"
(($(awk '/^MemAvailable/{print $2}' /proc/meminfo) > 4 << 20)) || skip "it takes 3 GiB of memory, and less than 4 are free"
[[ $EUID == 0 ]] || skip "making it needs root"
log=$(mktemp)
timeout 180 "$here/setup.sh" "$cache" >"$log" 2>&1 || { why=$(tail -1 "$log"); rm "$log"; skip "$here/setup.sh: $why"; }
rm "$log"
# The machine's processor is another one than this one: kernels that are compiled here for any x86-64 are found there.
export NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= PYTHONPATH="$root:$cache/python"
"$python" -m compileall -q gear tests/rdma
"$python" -c 'from gear.server.warm import warm; warm()' || exit 1
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
passed=(-e NUMBA_CPU_NAME -e NUMBA_CPU_FEATURES -e PYTHONDONTWRITEBYTECODE -e PYTHONUNBUFFERED)
there=$(printf '%q ' "$python" "${suite[@]}")
[[ -n ${RDMA_ALL:-} ]] && there="$there && $python tools/rdma_vm/rates.py"
"$here/run.sh" -C "$root" -t "${RDMA_VM_SECONDS:-$limit}" -b "$start" "${passed[@]}" -- "$there"
status=$?
((status == 125)) && skip "the machine did not start, see above"
((status == 126)) && skip "the machine took more than $start s to start"
[[ $status == 0 && -n ${RDMA_ALL:-} ]] || exit $status
keys=$(mktemp -d)/keys
trap 'rm -rf "$(dirname "$keys")"' EXIT
"$python" -c 'import sys; from pathlib import Path; from gear.server.keys import make_keys; make_keys(Path(sys.argv[1]))' "$keys"
export GEAR_CURVE_KEYS=$keys GEAR_RDMA=clear  # beyond loopback there are always keys
passed+=(-e GEAR_CURVE_KEYS -e GEAR_RDMA)
pair="$python -m tests.rdma.pair"
"$here/pair.sh" -C "$root" -t "${RDMA_VM_SECONDS:-1500}" "${passed[@]}" -- "$pair server 10.77.0.1" "$pair client 10.77.0.1"
