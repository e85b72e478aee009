#!/bin/bash
# Unpacks Debian packages into build/tools, without installing them: a service of theirs would start and listen.
set -euo pipefail
cd "$(dirname "$0")/.."
for package in "$@"; do
  folder=build/tools/$package
  [[ ! -d $folder ]] || continue
  rm -rf "$folder.new"
  mkdir -p "$folder.new"
  # As in tools.sh: the lists may be absent or old, which new ones answer, once. Not by apt's own user, which can't write here.
  download=(apt-get download -q -o APT::Sandbox::User=root "$package")
  (cd "$folder.new" && { "${download[@]}" || { apt-get update -q && "${download[@]}"; }; }) >&2
  dpkg-deb -x "$folder.new"/*.deb "$folder.new"
  rm "$folder.new"/*.deb
  mv "$folder.new" "$folder"
done
