"""Does a proof cover a node: its GPU, how many, its driver and architecture, as data."""

from __future__ import annotations

from typing import Final

from envcheck.errors import ConfigError
from envcheck.matrix.facts.gpu_names import find_gpu
from envcheck.matrix.facts.model import Cell, HostArch, Matrix
from envcheck.matrix.facts.versions import branch, key
from envcheck.matrix.resolver.resolve import Query, resolve
from envcheck.matrix.resolver.verdict import FORWARD, LEGAL
from envcheck.node.snapshot import Snapshot
from envcheck.registry.proofs.refusals import ProofRefusal, Rejection
from envcheck.registry.proofs.statement import ProofFacts
from envcheck.struct_types import LightRecord

_ARCHS: Final[dict[str, HostArch]] = {"x86_64": "x86_64", "aarch64": "aarch64"}


class NodeFacts(LightRecord, frozen=True):
    """What a node is, or is to be. `models` are the different ones; `driver` and `arch` None are not asked about.

    A driver that could not be read is "", which no proof covers.
    """

    models: tuple[str, ...] = ()
    gpus: int = 0
    driver: str | None = None
    arch: str | None = None
    mig: bool = False


def node_of(snapshot: Snapshot) -> NodeFacts:
    """Return the facts of the node that the snapshot was taken on; a GPU whose model cannot be read is called "?"."""
    names = {str(gpu.signal("name").value or "?") for gpu in snapshot.gpus}
    driver = snapshot.signal("driver.version").value
    return NodeFacts(
        models=tuple(sorted(names)),
        gpus=len(snapshot.gpus),
        driver=driver if isinstance(driver, str) else "",
        arch=str(snapshot.signal("host.arch").value or ""),
        mig=any(gpu.signal("mig_mode").value == "on" for gpu in snapshot.gpus),
    )


def as_proven(facts: ProofFacts) -> NodeFacts:
    """Return the node that a proof was made on, for who asks about no node."""
    covers = facts.covers
    models = () if covers.gpu is None else (covers.gpu,)
    return NodeFacts(models, covers.gpus, covers.driver, covers.arch, covers.mig)


def uncovered(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> Rejection | None:
    """Return why a proof does not cover the node, None where it does. A proof on a CPU covers its architecture."""
    covers = facts.covers
    if node.arch is not None and node.arch != covers.arch:
        return Rejection(ProofRefusal.WRONG_ARCH, f"proven on {covers.arch}, not on {node.arch or 'an unknown one'}")
    if facts.mode != "gpu":
        return None
    return _other_gpus(facts, node, matrix) or _other_driver(facts, node, matrix)


def concerns(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> bool:
    """Tell whether a failed run says something about the node: on fewer or more of its GPUs, on its driver or older.

    A run that failed before it could say which GPU or driver it was on concerns every one.
    """
    covers = facts.covers
    if node.arch is not None and node.arch != covers.arch:
        return False
    if facts.mode == "cpu" or covers.gpu is None:
        return True
    if node.gpus and (covers.mig != node.mig or not any(_same(covers.gpu, m, matrix) for m in node.models)):
        return False
    try:
        return not (covers.driver and node.driver) or key(node.driver) >= key(covers.driver)
    except ValueError:
        return True


def _other_gpus(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> Rejection | None:
    covers, wrong = facts.covers, ProofRefusal.WRONG_GPU
    if not node.gpus or not node.models:
        return Rejection(wrong, f"proven on {covers.gpu}, and this node shows no GPU")
    uncovered = [model for model in node.models if covers.gpu is None or not _same(covers.gpu, model, matrix)]
    if uncovered:
        return Rejection(wrong, f"proven on {covers.gpu}, not on {' and '.join(uncovered)}")
    if covers.mig != node.mig:
        return Rejection(wrong, f"proven with MIG {_switch(covers.mig)}, and it is {_switch(node.mig)} here")
    if node.gpus > covers.gpus:
        proven = f"{covers.gpus} GPU{'' if covers.gpus == 1 else 's'}"
        return Rejection(ProofRefusal.TOO_FEW_GPUS, f"proven on {proven}, and this node has {node.gpus}")
    return None


def _other_driver(facts: ProofFacts, node: NodeFacts, matrix: Matrix) -> Rejection | None:
    proven, node_driver = facts.covers.driver, node.driver
    if node_driver is None:
        return None
    if not node_driver or proven is None:
        return Rejection(ProofRefusal.DRIVER_UNSUPPORTED, "the driver of this node or of the proof is not known")
    try:
        if key(node_driver) < key(proven):
            return Rejection(ProofRefusal.DRIVER_TOO_OLD, f"proven on driver {proven}, and this node has {node_driver}")
        why = _unsupported(facts, node_driver, proven, matrix)
    except (ConfigError, ValueError) as error:
        why = f"cannot be resolved for driver {node_driver[:40]}: {error}"
    return Rejection(ProofRefusal.DRIVER_UNSUPPORTED, why) if why else None


def _unsupported(facts: ProofFacts, node_driver: str, proven: str, matrix: Matrix) -> str:
    """Return why today's resolver does not say that the cell runs here as it was proven; "" where it does."""
    verdict, reason = _verdict(facts, node_driver, matrix)
    forward = (verdict if node_driver == proven else _verdict(facts, proven, matrix)[0]) == FORWARD
    if verdict not in LEGAL:
        return f"{facts.cell} on driver {node_driver}: {verdict}: {reason}"
    if forward and branch(node_driver) != branch(proven):
        return f"proven with forward compatibility on R{branch(proven)}, which says nothing of R{branch(node_driver)}"
    if verdict == FORWARD and not forward:
        return f"{facts.cell} needs forward compatibility on driver {node_driver}, and was proven without"
    return ""


def _verdict(facts: ProofFacts, driver: str, matrix: Matrix) -> tuple[str, str]:
    """Return what the resolver says today of the proof's cell and GPU on a driver, and why."""
    cell = Cell.parse(facts.cell or "")
    if cell is None:
        return "no-wheel", f"{facts.cell!r} is not a cell"
    gpu = facts.covers.gpu or ""
    is_known = find_gpu(matrix, gpu) is not None
    query = Query(
        torch=f"=={cell.torch}",
        variant=cell.variant,
        python=cell.python,
        driver=driver,
        gpus=[gpu] if is_known else [],
        cc=[] if is_known or facts.covers.cc is None else [facts.covers.cc],
        arch=_ARCHS.get(facts.covers.arch),
    )
    resolution = resolve(matrix, query)
    return resolution.verdict, "; ".join(resolution.reasons[:1])


def _same(one: str, other: str, matrix: Matrix) -> bool:
    """Tell whether two names mean one model: by the matrix, else by the letter."""
    models = find_gpu(matrix, one), find_gpu(matrix, other)
    return models[0] == models[1] if all(models) else one == other


def _switch(on: bool) -> str:  # noqa: FBT001 (a fact)
    return "on" if on else "off"
