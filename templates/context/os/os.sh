#!/bin/sh
# os.sh PACKAGE...: the distribution's packages, the user, and two empty environments.
set -eu
sh "$(dirname "$0")/packages.sh" "$@"

# Written by hand: useradd would put today's date into /etc/shadow. Some bases have a user of this number already.
sed -i '/^[^:]*:[^:]*:1000:/d' /etc/passwd /etc/group
echo 'envcheck:x:1000:1000::/home/envcheck:/bin/sh' >>/etc/passwd
echo 'envcheck:x:1000:' >>/etc/group
# Any --user may write here, as in /tmp.
install -d -m 1777 -o 1000 -g 1000 /home/envcheck

# pip comes from the lock. The distribution's pip and setuptools are older, and setuptools would lie under the lock's.
python3 -m venv --without-pip /opt/venv
python3 -m venv --without-pip /opt/envcheck
# The default user may add packages, and with the sticky bit remove or replace only their own.
find /opt/venv -type d -exec chgrp 1000 {} + -exec chmod 1775 {} +
find /opt/venv /opt/envcheck -depth -name __pycache__ -exec rm -rf {} +
