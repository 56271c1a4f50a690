# A login shell's /etc/profile has just set PATH to the distribution's own; terminals of JupyterLab are login shells.
PATH=${START_JUPYTER_PATH:-/opt/venv/bin:$PATH}
