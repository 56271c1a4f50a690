#!/bin/sh
# packages.sh PACKAGE...: the distribution's packages, from the profile's apt mirrors or the base's own sources.
# What the base has already is not asked for, so that a complete base builds without a network.
set -eu
mirror=/run/mirror
export DEBIAN_FRONTEND=noninteractive
# A package that adds a user would put today's date into /etc/shadow.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-631152000}"

say() { echo "envcheck: os: $*" >&2; }

missing=
for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done

apt() { # apt [OPTION...]: install what is missing with these options; lists and archives never reach a layer
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    mkdir -p "$scratch/lists/partial" "$scratch/archives/partial"
    set -- -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache::Archives=$scratch/archives" \
        -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=" -o "Acquire::Retries=2" "$@"
    for ca in /run/secrets/ca.pem "$mirror/ca.pem"; do
        if [ -r "$ca" ]; then set -- "$@" -o "Acquire::https::CaInfo=$ca"; fi
    done
    if [ -r /run/secrets/netrc ]; then set -- -o "Dir::Etc::netrc=/run/secrets/netrc" "$@"; fi
    rc=0
    # shellcheck disable=SC2086 # the packages are words
    { apt-get -qq "$@" update && apt-get -qq "$@" install -y --no-install-recommends $missing; } || rc=$?
    rm -rf "$scratch"
    return "$rc"
}

if [ -n "$missing" ]; then
    rc=1
    if [ -d "$mirror/apt" ]; then
        rc=0
        apt -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$mirror/apt" || rc=$?
        if [ "$rc" = 0 ]; then say "used the profile's apt mirrors"; else say "the profile's apt mirrors failed rc=$rc"; fi
    fi
    if [ "$rc" != 0 ] && [ -e "$mirror/closed" ]; then
        say "the profile is closed: the base's own apt sources are not asked"
        exit "$rc"
    fi
    if [ "$rc" != 0 ]; then
        apt || { rc=$?; say "the base's own apt sources failed rc=$rc"; exit "$rc"; }
        say "used the base's own apt sources"
    fi
fi

# openssh-server makes host keys when it is installed: all containers of an image would share them.
rm -f /etc/ssh/ssh_host_*
rm -rf /var/log/* /var/cache/ldconfig/aux-cache /var/cache/apt/*.bin /var/lib/apt/lists/* /var/cache/debconf/*-old \
    /var/lib/dpkg/*-old
