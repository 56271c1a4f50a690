#!/bin/sh
# build_wheel.sh PYTHON SOURCE OUT: the sdist in SOURCE becomes a wheel in OUT, compiled against the torch of PYTHON.
# Without a network, without isolation: what the build needs is in SOURCE/wheels, held to the hashes of SOURCE/build.lock.
set -eu
python=$1
source=$2
out=$3
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "envcheck: extension: $*" >&2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME="$work" TMPDIR="$work" PIP_NO_INDEX=1 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONFIG_FILE=/dev/null
export UV_OFFLINE=1 PATH="$(dirname "$python"):$PATH"
unset PYTHONPATH PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TARGET PIP_REQUIRE_VIRTUALENV
while IFS== read -r name value; do export "$name=$value"; done <"$source/environment"
if [ -e "$source/build.lock" ]; then
    "$python" -I -m pip install --quiet --no-deps --no-cache-dir --require-hashes --find-links "$source/wheels" \
        --target "$work/requires" -r "$source/build.lock"
    export PYTHONPATH="$work/requires" PATH="$work/requires/bin:$PATH"
fi
mkdir -p "$out"
rc=0
say "compiling without a network, $MAX_JOBS at once${TORCH_CUDA_ARCH_LIST:+, for GPUs of $TORCH_CUDA_ARCH_LIST}"
"$python" -m pip wheel --verbose --no-deps --no-build-isolation --no-cache-dir --wheel-dir "$out" "$source"/sdist/*.tar.gz || rc=$?
if [ "$rc" != 0 ]; then
    say "pip ended with $rc"
    exit "$rc"
fi
unset PYTHONPATH
exec "$python" -I -B "$here/torch_symbols.py" "$out"
