#!/usr/bin/env bash
# What is too long for every change: sanitizers, fuzzing, the ARM build, lint. Each part's seconds can be set.
#   FUZZ_SECONDS=60 tools/nightly.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./test.sh asan
./test.sh tsan

cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGANGLION_FUZZ=ON \
      -DGANGLION_TESTS=OFF -DGANGLION_TOOLS=OFF -DGANGLION_RUST=OFF -DGANGLION_ONLY_ROOMS="base;platform;kernels;tokenizer;model_config;format;model"
cmake --build build/fuzz
mkdir -p build/fuzz/corpus
build/fuzz/fuzz/gguf_fuzz -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 -max_len=400000 \
      build/fuzz/corpus tests/fixtures/broken
mkdir -p build/fuzz/server_corpus
build/fuzz/fuzz/server_fuzz -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 -max_len=4000 build/fuzz/server_corpus

# The ARM kernels are tested under emulation by ./test.sh; here, whatever else compiles without ARM libraries does.
if command -v aarch64-linux-gnu-g++ >/dev/null; then
  cmake --preset arm64 -DGANGLION_ONLY_ROOMS="base;platform;kernels;sampling;model_config;neuron_cache;format;async_io;neuron_store;planner;model;neuron_stream;profile"
  cmake --build build/arm64
fi

if command -v clang-tidy >/dev/null; then
  cmake --preset release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
  git ls-files 'src/*.cc' ':!*_test.cc' | xargs -P 2 -n 4 clang-tidy -p build/release --quiet
fi
