#!/bin/sh
# setup.sh: what people who work in an image need: the start script, a shell that has a history, a place for their code.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
install -m 755 "$here/start-jupyter" /usr/local/bin/start-jupyter
install -m 644 "$here/profile.sh" /etc/profile.d/start-jupyter.sh
# JupyterLab asks the internet for news and newer versions, or asks whether it may: not unless somebody turns it on.
install -D -m 644 "$here/overrides.json" /opt/venv/share/jupyter/lab/settings/overrides.json
sed -i '/^envcheck:/s,:/bin/sh$,:/bin/bash,' /etc/passwd
# A new volume mounted here takes this mode: any --user may write into it.
install -d -m 1777 /workspace/code
