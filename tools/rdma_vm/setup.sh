#!/usr/bin/env bash
# Install step: everything run.sh needs, from Debian's packages only.  Re-runnable; ~40 s on a bare machine, 15 s with the packages in place.
#   setup.sh [CACHE_DIR]      (default: $RDMA_VM_CACHE or /var/cache/rdma-vm)
# RDMA_SETUP=no installs and downloads nothing: it ends with 3 and says what is missing.
# Leaves in CACHE_DIR (74 MB): vmlinuz (an ELF), initrd.cpio (busybox + ~25 kernel modules + an /init), VERSION, python.
# The host's own root file system is what the VM runs on (shared read-only), so there is no rootfs to build.
set -euo pipefail
CACHE=${1:-${RDMA_VM_CACHE:-/var/cache/rdma-vm}}
HERE=$(cd "$(dirname "$0")" && pwd)
export DEBIAN_FRONTEND=noninteractive
mkdir -p "$CACHE"

pkgs=(qemu-system-x86 busybox-static kmod cpio iproute2 binutils   # the VM
      rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest python3-pyverbs) # the RDMA user space
missing=()
for p in "${pkgs[@]}"; do dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p"); done
if [[ ${RDMA_SETUP:-} == no ]]; then
  ((${#missing[@]})) && { echo "not installed: ${missing[*]}"; exit 3; }
  [[ -s $CACHE/vmlinuz ]] || { echo "no kernel in $CACHE"; exit 3; }
fi
if ((${#missing[@]})); then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The kernel: linux-image-amd64 has rdma_rxe.ko; linux-image-cloud-amd64 has not.  Only unpacked, never installed.
if [[ ! -s $CACHE/vmlinuz ]]; then
  apt-cache show linux-image-amd64 >/dev/null 2>&1 || apt-get update -qq
  img=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/{print $2; exit}')
  tmp=$(mktemp -d "$CACHE/dl.XXXX"); chmod 755 "$tmp"
  (cd "$tmp" && apt-get download -qq "$img" 2>/dev/null && dpkg-deb -x "$img"_*.deb k)
  ver=${img#linux-image-}
  # keep only what is used: 400 MB -> ~15 MB
  mkdir -p "$CACHE/mods"
  depmod -b "$tmp/k" "$ver"
  for m in virtio_pci virtio_mmio virtio_console virtio_net virtio_blk 9pnet_virtio 9p overlay veth dummy sch_netem \
           crc32_generic crc32_pclmul rdma_rxe ib_uverbs rdma_ucm rdma_cm; do
    modprobe -d "$tmp/k" -S "$ver" --show-depends "$m" | awk '$1=="insmod"{print $2}'
  done | awk '!seen[$0]++' > "$tmp/order"
  : > "$CACHE/mods/order"
  while read -r ko; do
    cp "$ko" "$CACHE/mods/"; basename "$ko" >> "$CACHE/mods/order"
    strip --strip-debug "$CACHE/mods/$(basename "$ko")" 2>/dev/null || true
  done < "$tmp/order"
  # Debian's vmlinuz is xz: inflating it under TCG costs ~4 s a boot.  Take the ELF out; qemu starts it by PVH.
  python3 - "$tmp/k/boot/vmlinuz-$ver" "$CACHE/vmlinuz" <<'PY' || cp "$tmp/k/boot/vmlinuz-$ver" "$CACHE/vmlinuz"
import lzma, sys
b = open(sys.argv[1], "rb").read()
i = b.index(b"\xfd7zXZ\x00")
o = lzma.LZMADecompressor().decompress(b[i:])
assert o[:4] == b"\x7fELF"
open(sys.argv[2], "wb").write(o)
PY
  echo "$ver" > "$CACHE/VERSION"
  rm -rf "$tmp"
fi

# The initramfs: busybox, the modules, our /init.  Not compressed: it is small and TCG inflates slowly.
r=$(mktemp -d)
mkdir -p "$r"/{bin,mods,proc,sys,dev,lower,rw,new,x}
cp /bin/busybox "$r/bin/busybox"
for a in sh mount mkdir cat insmod ip switch_root reboot sleep echo ln grep date sync; do ln -s busybox "$r/bin/$a"; done
cp "$CACHE"/mods/* "$r/mods/"
install -m755 "$HERE/init.sh" "$r/init"
install -m755 "$HERE/stage2.sh" "$r/stage2"
made=$(mktemp "$CACHE/initrd.XXXX")
(cd "$r" && find . | cpio -o -H newc --quiet) > "$made"
mv "$made" "$CACHE/initrd.cpio"             # at once: another one may be starting from it
rm -rf "$r"

# pyverbs alone, to put on the path of another Python of the same version than Debian's.
mkdir -p "$CACHE/python"
rm -rf "$CACHE/python/pyverbs"
cp -r /usr/lib/python3/dist-packages/pyverbs "$CACHE/python/"
