"""The driver knows when a GPU needs a reset before it can be trusted, and says so to whoever asks."""

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read
from envcheck.counting import counted

CHECK = Check("the driver asks for no recovery of any GPU", "quick", 0.01, gpus=1)

_SOURCE = (
    "NVML: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (R570 and later); before, NVML_FI_DEV_RESET_STATUS and "
    "NVML_FI_DEV_DRAIN_AND_RESET_STATUS"
)
IMEX = "restart nvidia-imex on all nodes of the domain, once its jobs have ended"
_LIMIT = Limit("none", "", _SOURCE, "equal")


def judge(view: View) -> Outcome:
    """Fail on any action but none, with that action as the remedy; an older driver is read by its reset status."""
    recovery, older = read(view, "recovery_action"), read(view, "reset_status", newer=True)
    asked = older.where(lambda status: status["reset"]) | older.where(lambda status: status["drain_and_reset"])
    words = {gpu: "drain and reset" if status["drain_and_reset"] else "reset the GPU" for gpu, status in asked.items()}
    actions = {**dict.fromkeys(older.values, "none"), **words, **recovery.values}
    findings = [*recovery.lacking(), *(older.lacking() if recovery.silent else [])]
    for gpu, action in actions.items():
        if action != "none":
            # That of an IMEX domain is for its daemons on all its nodes, and no GPU's (dra-driver-nvidia-gpu#1441).
            verdict, fix = (warned, IMEX) if "IMEX" in action else (failed, f"drain the node, then: {action}")
            rule = Rule(verdict, "recovery.asked", "{gpu} {value}", fix, _LIMIT)
            findings += recovery.blame({gpu: action}, rule)
    sound = passed(f"none on {counted(len(actions), 'GPU')}", value="none", limit=_LIMIT)
    return worst(findings, sound if actions else recovery.absent() or sound)
