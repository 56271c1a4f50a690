#!/bin/sh
# envcheck has an environment of its own, so that the user's packages are not its packages; what it looks at is the user's.
ENVCHECK_RUN_PYTHON="${ENVCHECK_RUN_PYTHON-/opt/venv/bin/python}" exec /opt/envcheck/bin/python -I -m envcheck "$@"
