#!/usr/bin/env bash
# Builds and runs every test.
#   ./test.sh [release | debug | asan | tsan] [ctest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
preset=${1:-release}
shift || true

tools/install_packages.sh clang-format libbenchmark-dev g++-aarch64-linux-gnu qemu-user googletest \
  opencl-headers ocl-icd-opencl-dev pocl-opencl-icd mesa-opencl-icd
# OpenCL drivers are not built for sanitizers.
opencl=ON
[[ $preset == *san ]] && opencl=OFF
cmake --preset "$preset" -DGANGLION_TESTS=ON -DGANGLION_OPENCL=$opencl >/dev/null
cmake --build "build/$preset"
if [[ ! -d ../shared/fixtures ]]; then
  echo "NOTE: ../shared/fixtures is not here: tests on other people's vocabularies and templates, and on the larger models, are skipped"
fi
# The temporary directory decides which file system the tests see.
ctest --test-dir "build/$preset" --output-on-failure --timeout 1200 -j 2 "$@"
