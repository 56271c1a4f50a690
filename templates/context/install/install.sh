#!/bin/sh
# install.sh GROUP VENV: GROUP's lock into VENV, from the first source that has all of it, each file held to its hash.
# uv falls back to no second index when the first fails: this loop does. sources.tsv: GROUP, NAME, KIND, URL.
# Where no mirror is given there is none: then the wheels that are given, and the default index of uv.
# Everything that this script reads belongs to GROUP alone: another group's sources change no layer of this one.
set -u
group=$1
venv=$2
here=$(cd "$(dirname "$0")" && pwd)
uv=${ENVCHECK_UV:-/run/uv}
lock=${ENVCHECK_LOCK:-/run/$group.lock}
from=${ENVCHECK_FROM:-/run/from}
wheels=${ENVCHECK_WHEELS-/run/wheels}
export UV_NO_CONFIG=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-60}" UV_HTTP_RETRIES="${UV_HTTP_RETRIES:-3}"
export UV_CACHE_DIR="${ENVCHECK_CACHE:-/root/.cache/uv}"
unset UV_INDEX UV_INDEX_URL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_FIND_LINKS UV_TORCH_BACKEND UV_COMPILE_BYTECODE
ca=$from/ca.pem
[ -r "$ca" ] || ca=${ENVCHECK_CA:-/run/secrets/ca.pem}
if [ -r "$ca" ]; then
    unset SSL_CERT_DIR
    export SSL_CERT_FILE="$ca"
fi
netrc=${ENVCHECK_NETRC:-/run/secrets/netrc}
if [ -r "$netrc" ]; then export NETRC="$netrc"; fi

say() { echo "envcheck: $group: $*" >&2; }

# A link that a mirror signed is a secret while it holds, and uv repeats all of it where it fails: this log is kept.
hidden() { sed -u 's,\(://[^[:space:]?]*\)?[^[:space:]`'"'"'")]*,\1?...,g' >&2; }

attempt() { # attempt KIND URL
    case $1 in
    carried) set -- --no-index ;;
    simple) set -- --default-index "$2" ;;
    find-links) set -- --no-index --find-links "$2" ;;
    torch-backend) set -- --torch-backend "$2" ;;
    default) set -- ;;
    *) say "unknown kind of source $1"; return 2 ;;
    esac
    for directory in "$wheels" "$from/wheels"; do
        if [ -d "$directory" ]; then set -- "$@" --find-links "$directory"; fi
    done
    "$uv" pip install --python "$venv/bin/python" --no-deps --require-hashes --only-binary :all: --no-progress \
        "$@" -r "$lock"
}

open_directories() { # where os.sh lets a group add packages, it may also add to what these brought: bin, share, etc
    [ -k "$venv" ] || return 0
    find "$venv" -name site-packages -prune -o -type d ! -perm -1020 -exec chgrp --reference="$venv" {} + -exec chmod 1775 {} +
}

source_of() { # source_of NAME URL: what is said of it; a path of its URL may be nobody's business
    case $2 in
    *://*) host=${2#*://} && echo "$1 (${host%%/*})" ;;
    *) echo "$1" ;;
    esac
}

sources() { # its rows of sources.tsv
    if [ -r "$from/sources.tsv" ]; then cat "$from/sources.tsv" && return; fi
    if ls "$wheels"/*.whl >/dev/null 2>&1; then printf '%s\tfiles-given\tcarried\t-\n' "$group"; fi
    index=$(sed -n 's/^# index: //p' "$lock")
    case $index in
    pytorch/*) printf '%s\tpytorch-default\ttorch-backend\t%s\n' "$group" "${index#*/}" ;;
    *) printf '%s\tpypi-default\tdefault\t-\n' "$group" ;;
    esac
}

rc=1
tab=$(printf '\t')
while IFS="$tab" read -r for name kind url <&3; do
    [ "$for" = "$group" ] || continue
    rc=$({ { attempt "$kind" "$url"; echo "$?" >&4; } 2>&1 | hidden; } 4>&1 3<&-)
    if [ "$rc" = 0 ]; then
        say "used $(source_of "$name" "$url")"
        rm -f "$venv/.lock"
        open_directories
        exec "$venv/bin/python" -I -B "$here/bytecode.py" "$venv/lib"
    fi
    say "$(source_of "$name" "$url") failed rc=$rc"
done 3<<SOURCES
$(sources)
SOURCES
# Why the local file was not taken outranks why the last mirror did not answer.
if [ -r "$from/refused.tsv" ]; then
    while IFS="$tab" read -r for name <&3; do
        if [ "$for" = "$group" ]; then say "hash mismatch: the local $name is not the file that was locked"; fi
    done 3<"$from/refused.tsv"
fi
say "no source had all of $group.lock"
exit "$rc"
