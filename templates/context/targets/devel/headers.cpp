// What torch.compile and every extension include: the headers of the Python in /opt/venv.
#include <Python.h>
