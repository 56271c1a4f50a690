"""An image as the target of a run: the worker runs in a container of it, mounted in and never installed.

It gets what the node has: GPUs, the devices of InfiniBand and RoCE with memory to lock, and, where a launcher says that
ranks span hosts, the host's network, to which the addresses of RoCE belong. Else it has loopback alone, unless it names
an interface.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from envcheck.checks.support import secret_patterns
from envcheck.images.engines import FABRIC, BindMount, ImageInfo, holder
from envcheck.images.promises import IMAGE_PREFIX, with_packages
from envcheck.images.spec import LABEL_PREFIX
from envcheck.node.collect import shown_gpus
from envcheck.runner.launcher import place
from envcheck.runner.local_python import PACKAGE, Handle
from envcheck.runner.schema import ImageFacts, TargetFacts

_STAGING: Final = "/run/envcheck"
_WORKER: Final = f"{_STAGING}/envcheck/runner/worker/main.py"
_PLAN: Final = "/run/envcheck-plan"
# The first that has torch; else the first there is, so that the report can say what it lacks.
_FIND: Final = """
first=
for p in "$VIRTUAL_ENV/bin/python" {venv}/bin/python /opt/conda/bin/python python3 python; do
  p=$(command -v "$p") || continue
  first=${{first:-$p}}
  "$p" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' && exec "$p" -B {worker} {plan}
done
[ -n "$first" ] || {{ echo "no Python in this image"; exit 97; }}
exec "$first" -B {worker} {plan}
"""


class ContainerTarget:
    """A local image, with this machine's GPUs where it has any. Its labels are what it promises."""

    def __init__(self, image: str, *, python: str | None = None, shm_size: str = "8g") -> None:
        self._image, self._python, self._shm_size = image, python, shm_size
        self._engine, info = holder(image)
        self._labels = info.labels
        # NCCL and gloo fail where the interface that an image names is not there, as eth0 without a network.
        self._network: Literal["none", ""] = "" if any(name.endswith("_SOCKET_IFNAME") for name in info.env) else "none"
        self.facts = TargetFacts(
            kind="image",
            name=image,
            chosen=python or "the image's Python",
            image_id=info.id,
            image=image_facts(info, [layer.step for layer in self._engine.history(image)]),
        )

    def start(self, directory: Path) -> Handle:
        """Start a container with the package mounted read-only and the plan's directory writable by any user."""
        return self._engine.run_container(
            self._image,
            argv=self.argv(),
            mounts=[BindMount(PACKAGE, f"{_STAGING}/envcheck"), BindMount(directory, _PLAN, read_only=False)],
            shm_size=self._shm_size,
            gpus=shown_gpus() != 0,
            fabric=Path(FABRIC).is_dir(),
            network="host" if place(os.environ).several_nodes else self._network,
        )

    def argv(self) -> list[str]:
        """Return what the container runs: --python, the Python of an image of ours, or the one a shell finds."""
        python = self._python or (f"{IMAGE_PREFIX}/bin/python" if f"{LABEL_PREFIX}cell" in self._labels else None)
        if python is not None:
            return [python, "-B", _WORKER, _PLAN]
        names = {"venv": IMAGE_PREFIX, "worker": _WORKER, "plan": _PLAN}
        return ["/bin/sh", "-c", _FIND.format(**{k: shlex.quote(v) for k, v in names.items()})]

    def promises(self, environment: Mapping[str, Any]) -> dict[str, str]:  # noqa: ARG002 (labels need no look inside)
        """Return the image's labels of ours."""
        promises = {k: v for k, v in self._labels.items() if k.startswith(LABEL_PREFIX)}
        return with_packages({k.removeprefix(LABEL_PREFIX).replace("-", "_"): v for k, v in promises.items()})


def image_facts(info: ImageInfo, history: list[str]) -> ImageFacts:
    """Return what is kept of an image's configuration: of what may hold a credential, whether it does and where."""
    places = {f"history, {number} from the last": line for number, line in enumerate(history)}
    places |= {f"label {name}": value for name, value in info.labels.items()}
    places |= {"what it starts": " ".join(info.command)}
    return ImageFacts(
        runs_as=info.user,
        program=Path(info.command[0]).name if info.command else "",
        history=len(history),
        secrets=[f"{place}: {name}" for place, text in places.items() for name in secret_patterns.line(text)],
        manifest_digest=info.digests.manifest,
        config_digest=info.digests.config,
        index_digest=info.digests.index,
        repository_digests=list(info.digests.repository),
        diff_ids=info.layers,
    )
