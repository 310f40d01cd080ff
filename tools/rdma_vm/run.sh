#!/usr/bin/env bash
# Boot a throw-away VM with a real RoCEv2 device (kernel rdma_rxe) and run a command in it.
#
#   run.sh [-C DIR] [-t SECONDS] [-b SECONDS] [-m MiB] [-c CPUS] [-o OUTDIR] [-e NAME]... [-a tcg|kvm] [--] CMD [ARG...]
#
# The VM's root is this machine's root, read-only, with a tmpfs laid over it: the same Python, venvs and project at
# the same paths; what the command writes is lost, except under $VM_OUT (/run/rdma-vm/out in the VM, OUTDIR here).
# Exit status: the command's; 124 on timeout; 125 if the VM broke before or while running it; 126 if the command had not
# begun within -b seconds.
# -e NAME passes an environment variable.  Command's stdout+stderr come on stdout; kernel log: $VM_LOG or OUTDIR/console.log.
# Two-host use: RDMA_VM_NET='socket,listen=127.0.0.1:PORT' or 'socket,connect=...' with RDMA_VM_NODE=1|2 (10.77.0.NODE).
set -euo pipefail
CACHE=${RDMA_VM_CACHE:-/var/cache/rdma-vm}
dir=$PWD; limit=300; begin=100000; mem=3072; cpus=2; out=; accel=tcg; pass=(PATH LANG LC_ALL VIRTUAL_ENV CI PYTHONPATH PYENV_VERSION)
while (($#)); do case $1 in
  -C) dir=$2; shift 2;; -t) limit=$2; shift 2;; -b) begin=$2; shift 2;; -m) mem=$2; shift 2;; -c) cpus=$2; shift 2;;
  -o) out=$2; shift 2;; -e) pass+=("$2"); shift 2;; -a) accel=$2; shift 2;; --) shift; break;; -*) echo "bad option $1" >&2; exit 2;;
  *) break;; esac; done
(($#)) || { echo "usage: $0 [options] -- CMD [ARG...]" >&2; exit 2; }
[[ -s $CACHE/vmlinuz && -s $CACHE/initrd.cpio ]] || { echo "run setup.sh first" >&2; exit 125; }
x=$(mktemp -d "${TMPDIR:-/tmp}/rdma-vm.XXXXXX"); qpid=
cleanup() { [[ -n $qpid ]] && { kill -9 "$qpid"; wait "$qpid"; } 2>/dev/null; rm -rf "$x"; }   # only the qemu started here
trap cleanup EXIT; trap 'exit 143' TERM INT
mkdir -p "$x/s/out"; [[ -n $out ]] && mkdir -p "$out"
{ for n in "${pass[@]}"; do [[ -v $n ]] && printf 'export %s=%q\n' "$n" "${!n}"; done
  printf 'export VM_OUT=/run/rdma-vm/out RDMA_VM=1 VM_NODE=%q\n' "${RDMA_VM_NODE:-0}"
  printf 'VM_CWD=%q\nVM_IP=%q\nVM_NIC=%q\n' "$(cd "$dir" && pwd)" "10.77.0.$(( ${RDMA_VM_NODE:-0} ? RDMA_VM_NODE : 1 ))" "${RDMA_VM_NET:+eth0}"
} > "$x/s/env"
{ echo ': > /run/rdma-vm/begun'; if (($# == 1)); then printf '%s\n' "$1"; else printf '%q ' "$@"; echo; fi; } > "$x/s/cmd"
machine=${RDMA_VM_MACHINE:-q35}; bus=pci; [[ $machine == microvm* ]] && bus=device
net=(-nic none)
if [[ -n ${RDMA_VM_NET:-} ]]; then
  net=(-netdev "${RDMA_VM_NET%%,*},id=n0,${RDMA_VM_NET#*,}" -device "virtio-net-$bus,netdev=n0,mac=52:54:00:77:00:0$RDMA_VM_NODE,host_mtu=4200"); fi
case $accel in
  tcg) acc=(-accel tcg,thread=multi,tb-size=512 -cpu "${RDMA_VM_CPU:-max}");;
  kvm) acc=(-accel kvm -cpu host);; esac
log=${VM_LOG:-${out:+$out/console.log}}; log=${log:-$x/console.log}
qemu-system-x86_64 -M "$machine" "${acc[@]}" -smp "$cpus" -m "$mem" -nodefaults -no-user-config -no-reboot -display none \
  -kernel "$CACHE/vmlinuz" -initrd "$CACHE/initrd.cpio" \
  -append "console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on no_timer_check tsc=reliable raid=noautodetect ${RDMA_VM_APPEND:-}" \
  -serial "file:$log" \
  -device "virtio-serial-$bus" -chardev "file,id=o,path=$x/stdout" -device virtserialport,chardev=o,name=out \
  -fsdev local,id=f0,path=/,security_model=none,readonly=on,multidevs=remap -device "virtio-9p-$bus,fsdev=f0,mount_tag=hostroot" \
  -fsdev "local,id=f1,path=$x/s,security_model=none" -device "virtio-9p-$bus,fsdev=f1,mount_tag=xfer" \
  "${net[@]}" </dev/null 2>"$x/qemu.err" &
qpid=$!
touch "$x/stdout"; tail -c +1 -f --pid="$qpid" "$x/stdout" & tpid=$!
start=$SECONDS; state=ok
while kill -0 "$qpid" 2>/dev/null; do
  ((SECONDS - start >= limit)) && { state=timeout; kill -9 "$qpid" 2>/dev/null; break; }
  ((SECONDS - start >= begin)) && [[ ! -e $x/s/begun ]] && { state=slow; kill -9 "$qpid" 2>/dev/null; break; }
  sleep 0.2
done
wait "$qpid" 2>/dev/null || true; qpid=
wait "$tpid" 2>/dev/null || true
[[ -n $out ]] && cp -r "$x/s/out/." "$out/" 2>/dev/null || true
if [[ $state == slow ]]; then echo "rdma_vm: nothing ran within ${begin}s" >&2; exit 126; fi
if [[ $state == timeout ]]; then echo "rdma_vm: timeout after ${limit}s" >&2; tail -15 "$log" >&2; exit 124; fi
if [[ ! -s $x/s/rc ]]; then echo "rdma_vm: the VM stopped without a status" >&2; cat "$x/qemu.err" >&2; tail -30 "$log" >&2; exit 125; fi
[[ -n ${RDMA_VM_TIMES:-} ]] && grep '^vm:' "$log" >&2
exit "$(cat "$x/s/rc")"
