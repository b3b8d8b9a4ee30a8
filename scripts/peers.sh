#!/bin/sh
# Makes one environment for each peer that the benchmarks compare telegrad with.
#
#   scripts/peers.sh VENV PEER...      VENV-bench-PEER is made from benchmarks/peers/PEER.txt
#
# They are kept apart from telegrad's and from each other: the peers pin one another's dependencies.
# What draws the figures, `plots`, is one of them.
# A peer that cannot be installed is said in one line and left out; the others are measured.
#
# torch==2.13.0 is measured on the CPU. Where the package index has it built for CUDA alone, it
# brings gigabytes: name an index of CPU builds with PIP_EXTRA_INDEX_URL.
set -eu

venv=$1
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0

for peer in "$@"; do
    requirements="benchmarks/peers/$peer.txt"
    made="$venv-bench-$peer"
    if [ -f "$made/.installed" ] && [ "$made/.installed" -nt "$requirements" ]; then continue; fi
    printf 'installing into %s: %s\n' "$made" "$(grep -v '^#' "$requirements" | tr '\n' ' ')"
    rm -rf "$made"
    "$venv/bin/python" -m venv "$made"
    if "$made/bin/python" -m pip --quiet install --requirement "$requirements" >"$made/install.log" 2>&1; then
        touch "$made/.installed"
    else
        printf 'warning: %s is left out, pip could not install it (its words are in %s)\n' \
            "$peer" "$made/install.log" >&2
    fi
done
