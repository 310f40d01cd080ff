#!/usr/bin/env bash
# Run tests/rdma where there is an RDMA device: on this host if it has one, else in the virtual machine that has.
#   test.sh PYTHON [PYTEST ARGUMENT...]
# Where the machine cannot be made it says why and ends with 0.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd); python=$1; shift
cache=${RDMA_VM_CACHE:-/var/cache/rdma-vm}
skip() { echo "test-rdma: skipped: $*"; exit 0; }
# The suite stands alone: the conftest above it compiles kernels and counts processes, which costs minutes in the machine.
suite=(-m pytest -q -p no:cacheprovider --confcutdir=tests/rdma -o timeout=600 --durations=8 tests/rdma "$@")
cd "$root" || exit 2

if [[ -n $(ls /sys/class/infiniband 2>/dev/null) ]]; then exec "$python" "${suite[@]}"; fi

[[ $(uname -m) == x86_64 ]] || skip "the machine is one of x86-64, this is $(uname -m)"
grep -q '^VERSION_CODENAME=bookworm' /etc/os-release 2>/dev/null || skip "it is made from packages of Debian 12"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || skip "Debian's pyverbs is for Python 3.11"
if [[ ! -s $cache/initrd.cpio ]]; then
  [[ $EUID == 0 ]] || skip "installing the packages needs root (then: $here/setup.sh)"
  "$here/setup.sh" >/tmp/rdma-vm-setup.$$ 2>&1 || { tail -5 /tmp/rdma-vm-setup.$$; skip "$here/setup.sh failed"; }
  rm -f /tmp/rdma-vm-setup.$$
fi
# The machine's processor is another one than this one: kernels that are compiled here for any x86-64 are found there.
export NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= PYTHONPATH="$root:$cache/python"
"$python" -c 'from gear.server.warm import warm; warm()' || exit 1
# The software device does not confine writers; the tests trust themselves.
export GEAR_RDMA_WRITES=trusted PYTHONDONTWRITEBYTECODE=1
options=(-e NUMBA_CPU_NAME -e NUMBA_CPU_FEATURES -e GEAR_RDMA_WRITES -e PYTHONDONTWRITEBYTECODE)
"$here/run.sh" -C "$root" -t "${RDMA_VM_SECONDS:-900}" "${options[@]}" -- "$python" "${suite[@]}"
status=$?
((status == 125)) && skip "the machine did not start, see above"
exit $status
