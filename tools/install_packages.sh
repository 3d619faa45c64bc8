#!/usr/bin/env bash
# Installs the Debian packages that a build needs and those named as arguments, if missing. Needs root or sudo for that.
set -euo pipefail

packages=(g++ cmake ninja-build libpcre2-dev liburing-dev nlohmann-json3-dev libcli11-dev libgtest-dev libboost-dev libcurl4-openssl-dev binutils python3
          python3-pip curl ca-certificates "$@")
# Chat templates and grammars are a small Rust library; any cargo since 1.87 will do.
command -v cargo >/dev/null || packages+=(cargo-web rustc-web)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
# A pip that is not Debian's will do as well.
if [[ " ${missing[*]} " == *" python3-pip "* ]] && python3 -m pip --version >/dev/null 2>&1; then
  missing=("${missing[@]/python3-pip/}")
fi
missing=(${missing[@]})
[[ ${#missing[@]} -eq 0 ]] && exit 0

sudo=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || { echo "install_packages: need root or sudo to install: ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
