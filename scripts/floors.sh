#!/bin/sh
# Makes an environment with the lowest versions that pyproject.toml allows.
#
#   scripts/floors.sh VENV FLOORS      VENV has uv; FLOORS is made
set -eu

"$1/bin/uv" venv --quiet --clear --python "$1/bin/python" "$2"
printf 'installing into %s: telegrad with the lowest versions that pyproject.toml allows\n' "$2"
"$1/bin/uv" pip install --quiet --python "$2/bin/python" --resolution lowest-direct --editable '.[dev,examples,rl]'
