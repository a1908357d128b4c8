#!/usr/bin/env bash
# The one folder that is all of oarlock on a machine: bash dist/folder.sh DIR
#
# DIR gets the program, the shared object, the object's two names, and the header of its extension; it may be copied anywhere, by whatever tool (one that
# follows links included), and DIR/oarlock runs from there. It is made of the release build, which is built if need be.
# The last line names what a machine must have: `needs glibc VERSION or newer`.
set -euo pipefail
[ $# = 1 ] || { echo "usage: bash dist/folder.sh DIR" >&2; exit 2; }
folder=$1
cd_back=$PWD
cd "$(dirname "$0")/.."
cargo build --release --locked -q -p oarlock
built=${CARGO_TARGET_DIR:-target}/release
case $folder in /*) ;; *) folder=$cd_back/$folder ;; esac

mkdir -p "$folder"
# A program that runs from there keeps what it has.
for file in "$built/oarlock" "$built/deps/liboarlock_capi.so"; do
  install -m 755 "$file" "$folder/.new" && mv -f "$folder/.new" "$folder/$(basename "$file")"
done
for name in librdmacm.so.1 libibverbs.so.1; do
  ln -sfn liboarlock_capi.so "$folder/.new" && mv -fT "$folder/.new" "$folder/$name"
done
if command -v strip >/dev/null; then strip --strip-debug "$folder/oarlock" "$folder/liboarlock_capi.so"; fi
install -m 644 LICENSE-MIT LICENSE-APACHE "$folder/"
install -d -m 755 "$folder/include/oarlock"
install -m 644 dist/include/oarlock/memory_events.h "$folder/include/oarlock/"

if command -v readelf >/dev/null; then
  floor=$(readelf -WV "$folder/oarlock" "$folder/liboarlock_capi.so" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  echo "needs glibc ${floor#GLIBC_} or newer"
fi
