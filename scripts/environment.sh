#!/bin/sh
# Makes the virtual environment of this checkout and installs telegrad into it, once.
#
#   scripts/environment.sh VENV EXTRAS      PYTHON: the interpreter, else the first that is new enough
#
# What is missing on the machine is said in one line, with the remedy. Nothing is installed again
# while the stamp of what was asked for is newer than pyproject.toml and constraints.txt.
set -eu

venv=$1
extras=$2
stamp="$venv/.installed-$extras"
log="$venv/install.log"

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# Prints the version of an interpreter as 3.11; nothing where it does not run.
version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 ||
            fail "PYTHON=$PYTHON is not there; name a Python of 3.11 or later, for instance: make PYTHON=/usr/bin/python3.12 test"
        new_enough "$PYTHON" ||
            fail "PYTHON=$PYTHON is Python $(version_of "$PYTHON"), telegrad needs 3.11 or later"
        return
    fi
    for PYTHON in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if new_enough "$PYTHON"; then return; fi
    done
    found=$(version_of python3)
    fail "telegrad needs Python 3.11 or later (found: ${found:-none}); install one and say where it is: make PYTHON=/path/to/python3 demo"
}

# An environment of another Python than the one asked for, or of one that is gone, is made anew.
usable() {
    [ -x "$venv/bin/python" ] && new_enough "$venv/bin/python" || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$venv/bin/python")" ]
}

installed() {
    for other in "$stamp" "$venv/.installed-dev,examples,rl"; do
        if [ -f "$other" ] && [ "$other" -nt pyproject.toml ] && [ "$other" -nt constraints.txt ]; then
            return 0
        fi
    done
    return 1
}

make_venv() {
    find_python
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON cannot make virtual environments; install its venv module, on Debian and Ubuntu: sudo apt install python3-venv"
    rm -rf "$venv"
    "$PYTHON" -m venv "$venv" >/dev/null 2>&1 ||
        fail "$PYTHON -m venv $venv failed; is there space, and is this directory yours to write? (see: $PYTHON -m venv $venv)"
}

# pip's own words go to a file; the user gets the one line that matters.
quietly() {
    "$venv/bin/python" -m pip --quiet install --constraint constraints.txt "$@" >>"$log" 2>&1 || explain
}

explain() {
    if grep -Eiq 'NewConnectionError|NameResolution|ConnectTimeout|ReadTimeout|Connection to .* timed out|ProxyError|SSLError|CERTIFICATE|is being ignored|conflicting dependencies|from versions: none' "$log"; then
        fail "no package index that has the pinned versions can be reached; check the network, or name a mirror: PIP_INDEX_URL=https://... make demo (pip's words are in $log)"
    fi
    reason=$(grep -i 'error' "$log" | head -n 1)
    fail "pip could not install telegrad: ${reason:-no reason given} (all of it is in $log)"
}

if usable && installed; then exit 0; fi
if ! usable; then make_venv; fi
rm -f "$venv"/.installed-* "$log"

what='cryptography, grpcio, msgpack, numpy, protobuf, scikit-learn'
case $extras in
    *dev*) what="$what, and what lint, types and tests need" ;;
    docs) what='cryptography, grpcio, msgpack, numpy, protobuf, scipy, and what the documentation site needs' ;;
esac
printf 'installing into %s: telegrad, %s (versions: constraints.txt)\n' "$venv" "$what"

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0 PIP_RETRIES="${PIP_RETRIES:-2}"
build_with='hatchling editables'
# One package of the tests has no wheel; the setuptools of an older venv cannot make one.
case $extras in *dev*) build_with="$build_with setuptools" ;; esac
# shellcheck disable=SC2086  # several words
quietly $build_with
quietly --no-build-isolation --editable ".[$extras]"
touch "$stamp"
