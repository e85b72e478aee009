#!/bin/bash
# Installs the Debian packages of tools.txt, and those named, that are missing. Without root it names them and fails.
set -euo pipefail
mapfile -t wanted < <(grep -v '^#' "$(dirname "$0")/tools.txt")
wanted+=("$@")
missing=()
for package in "${wanted[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0
if ((EUID != 0)); then
  echo "missing: ${missing[*]} (as root: apt-get install ${missing[*]})" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -q -y --no-install-recommends "${missing[@]}")
# The lists may be absent or old: a failed first attempt is answered by new lists, once.
"${install[@]}" || { apt-get update -q && "${install[@]}"; }
