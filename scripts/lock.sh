#!/bin/sh
# Renews constraints.txt: the newest versions that all extras accept together, on any Python and platform.
#
#   scripts/lock.sh UV
set -eu

header='# Made by `make lock` from pyproject.toml; what CI tests and what `make demo` installs.'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The build backend is pinned too: the editable installation runs without build isolation.
printf 'hatchling>=1.26\neditables>=0.5\n' >"$work/build.in"
"$1" pip compile --quiet --universal --python-version 3.11 --all-extras --upgrade \
    --no-header --no-annotate --output-file "$work/constraints.txt" pyproject.toml "$work/build.in" >/dev/null
{ printf '%s\n' "$header"; cat "$work/constraints.txt"; } >constraints.txt
