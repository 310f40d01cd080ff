#!/usr/bin/env bash
# Two VMs, one wire, one RoCEv2 device each: a genuine two-host test.
#   pair.sh [-C DIR] [-t SECONDS] [-m MiB] [-o OUTDIR] [-e NAME]... -- 'SERVER CMD' 'CLIENT CMD'
# SERVER runs on 10.77.0.1, CLIENT on 10.77.0.2 (one vCPU each).  They boot at the same time: the client must retry its
# TCP connect for ~60 s.  Output is prefixed "1| " and "2| ".  Exit: client's status if not 0, else the server's.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd); args=(-c 1); out=
while (($#)); do case $1 in -o) out=$2; shift 2;; -[Ctme]) args+=("$1" "$2"); shift 2;; --) shift; break;; *) break;; esac; done
(($# == 2)) || { sed -n 2,6p "$0"; exit 2; }
d=$(mktemp -d "${TMPDIR:-/tmp}/rdma-pair.XXXXXX"); sock=$d/wire
trap 'rm -rf "$d"' EXIT
o() { [[ -n $out ]] && echo -o "$out/$1"; }
# a unix-socket wire: no port on the host, nothing leaves this machine
RDMA_VM_NODE=1 RDMA_VM_NET="stream,server=on,addr.type=unix,addr.path=$sock" "$here/run.sh" "${args[@]}" $(o 1) -- "$1" > >(sed -u 's/^/1| /') 2>&1 & a=$!
for _ in $(seq 100); do [[ -S $sock ]] && break; sleep 0.05; done
RDMA_VM_NODE=2 RDMA_VM_NET="stream,server=off,addr.type=unix,addr.path=$sock" "$here/run.sh" "${args[@]}" $(o 2) -- "$2" > >(sed -u 's/^/2| /') 2>&1 & b=$!
wait $b; rb=$?
((rb)) && kill -TERM $a 2>/dev/null                 # its trap stops its qemu
wait $a; ra=$?
echo "server exit $ra, client exit $rb"
((rb)) && exit $rb; exit $ra
