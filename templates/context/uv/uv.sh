#!/bin/sh
# uv.sh FILE: the uv of /run/uv.lock as FILE, held to its hash: from /run/wheels, else from the default index of pip.
set -eu
lock=${ENVCHECK_LOCK:-/run/uv.lock}
wheels=${ENVCHECK_WHEELS:-/run/wheels}
ca=${ENVCHECK_CA:-/run/secrets/ca.pem}
scratch=$(mktemp -d)
python3 -m venv "$scratch"

fetch() { # fetch [OPTION...]
    if [ -r "$ca" ]; then set -- --cert "$ca" "$@"; fi
    "$scratch/bin/python" -m pip --isolated --disable-pip-version-check install --quiet --no-cache-dir --no-deps \
        --require-hashes --only-binary :all: "$@" -r "$lock"
}

if ls "$wheels"/uv-*.whl >/dev/null 2>&1; then fetch --no-index --find-links "$wheels"; else fetch; fi
cp "$scratch/bin/uv" "$1"
rm -rf "$scratch"
