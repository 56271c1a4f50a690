#!/bin/sh
# own.sh SITE-PACKAGES: envcheck itself, its launcher, and what the image promises, from what is mounted in /run.
# The modes are an image's, whatever the umask of the clone was; COPY would keep those of the clone.
set -eu
from=${ENVCHECK_OWN:-/run}
root=${ENVCHECK_ROOT:-}
umask 022
cp -r --no-preserve=mode "$from/envcheck" "$1/"
find "$1/envcheck" -name __pycache__ -prune -exec rm -rf {} +
install -D -m 644 "$from/matrix.yaml" "$1/envcheck/_data/matrix.yaml"
install -D -m 755 "$(dirname "$0")/launcher.sh" "$root/usr/local/bin/envcheck"
install -D -m 644 "$from/promises.json" "$root/etc/envcheck/promises.json"
