#!/usr/bin/env bash
# For the other scripts of this folder, which source it: where they work, and their environments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"; printf "\n%s: %d s\n" "$0" "$SECONDS"' EXIT
export VMSST_TEST_DATA=${VMSST_TEST_DATA:-$PWD/../shared/data}
outside=$PATH
# uv does not compile the modules that it installs; if this is set, every process compiles them.
unset PYTHONDONTWRITEBYTECODE

step() { printf '\n== %s (%s)\n' "$1" "$(date -u +%T)"; }

# environment NAME ARGUMENTS: makes a virtual environment the current one, after an installation
# with these arguments of `uv pip install`, which takes a third of the time of pip.
environment() {
  [[ -d $work/uv ]] || { python3 -m venv "$work/uv" && "$work/uv/bin/pip" install -q uv; }
  python3 -m venv "$work/$1"
  "$work/uv/bin/uv" pip install -q --python "$work/$1/bin/python" "${@:2}"
  export PATH="$work/$1/bin:$outside"
}
