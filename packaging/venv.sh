#!/bin/bash
# packaging/venv.sh VENV: a virtual environment that holds exactly what requirements.lock pins, hashes checked,
# and that imports sparkd from this checkout. Does nothing when it is up to date with the lock and with this script.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
stamp=$venv/made-from
cat requirements.lock packaging/venv.sh | cmp -s - "$stamp" && exit 0

# The first Python of at least 3.11 that can make virtual environments.
find_python() {
  local candidate
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
    "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$candidate" && return
  done
  return 1
}

if [[ ! -x $venv/bin/python ]]; then
  python=$(find_python) || { packaging/tools.sh && python=$(find_python); } || {
    echo "no Python of at least 3.11 with venv and ensurepip (on Debian and Ubuntu: apt-get install python3-venv)" >&2
    exit 1
  }
  "$python" -m venv "$venv"
fi
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$PWD/src" >"$site/sparkd.pth"
printf '#!%s -IB\nfrom sparkd.tools.cli.main import main\n\nraise SystemExit(main())\n' "$PWD/$venv/bin/python" >"$venv/bin/sparkd"
chmod 755 "$venv/bin/sparkd"
cat requirements.lock packaging/venv.sh >"$stamp"
