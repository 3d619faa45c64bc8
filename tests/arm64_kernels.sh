#!/usr/bin/env bash
# Builds the kernels for aarch64 and runs their tests under emulation, on a processor for each ARM table. Needs the
# packages g++-aarch64-linux-gnu, qemu-user and googletest; exits 77, for "skipped", without them.
#   tests/arm64_kernels.sh BUILD_DIR [JOBS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
jobs=${2:-2}

for needed in aarch64-linux-gnu-g++ qemu-aarch64 /usr/src/googletest/CMakeLists.txt; do
  [[ -e $needed ]] || command -v "$needed" >/dev/null || { echo "skipped: no $needed"; exit 77; }
done
cmake --preset arm64 -B "$build" -DGANGLION_TESTS=ON -DGANGLION_ONLY_ROOMS="base;kernels" >/dev/null
cmake --build "$build" --target kernels_test --parallel "$jobs"
python3 tests/tidy/tidy.py kernel_objects "$build"

# A processor, and the tables that it must have.
run() {
  echo "== $1: $2"
  GANGLION_TEST_TABLES=$2 qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$1" "$build/src/kernels/kernels_test" --gtest_brief=1
}
run cortex-a72 "neon reference"
run cortex-a76 "dotprod neon reference"
run max "i8mm dotprod neon reference"
