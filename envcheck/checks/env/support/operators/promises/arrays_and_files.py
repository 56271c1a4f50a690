"""NumPy arrays that share memory with tensors, and files that are saved and loaded."""

from __future__ import annotations

import importlib.util
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.operators.operator_trial import version
from envcheck.checks.env.support.operators.promises.random_numbers import Promise

# Safe loading is an option since 1.13, and the default since 2.6 (torch.load's documentation).
SAFE_BY_DEFAULT = (2, 6)


def numpy_bridge(torch: Any, _: Any, source: random.Random) -> str:
    """Judge torch and NumPy both ways, where NumPy is installed: values, dtypes, strides, and one memory for both."""
    if importlib.util.find_spec("numpy") is None:
        return ""
    numpy, wrong = importlib.import_module("numpy"), list[str]()
    for dtype in ("float32", "float64", "int64", "int32", "uint8", "bool"):
        numbers = [source.randint(0, 1) if dtype == "bool" else source.randint(0, 200) for _ in range(24)]
        values: list[Any] = [bool(v) if dtype == "bool" else v for v in numbers]
        turned = [v for column in range(6) for v in values[column::6]]
        made = seeded_numbers.tensor(torch, values, (4, 6), dtype)
        array = numpy.array(values, dtype=dtype).reshape(4, 6)
        for name, tensor, right in (("", made, values), ("turned ", made.t(), turned)):
            there = tensor.numpy()
            if str(there.dtype) != dtype or there.shape != tuple(tensor.shape) or there.ravel().tolist() != right:
                wrong.append(f"a {name}{dtype} tensor becomes another array")
        for name, given, right in (("", array[:, ::2], values[::2]), ("turned ", array.T, turned)):
            back = torch.from_numpy(given)
            if str(back.dtype) != f"torch.{dtype}" or seeded_numbers.read(back) != right:
                wrong.append(f"a {name}{dtype} array becomes another tensor")
        made.numpy()[1, 2] = made.new_tensor(1).item()
        if seeded_numbers.read(made)[8] != 1:
            wrong.append("an array of a tensor is a copy of it")
        for how in ("from_numpy", "as_tensor"):
            tensor = getattr(torch, how)(array)
            array[2, 3] = not array[2, 3]
            if seeded_numbers.read(tensor)[15] != array[2, 3].item():
                wrong.append(f"{how} copies its array")
    return "; ".join(wrong)


def exchanged(torch: Any, _: Any, source: random.Random) -> str:
    """Judge that DLPack hands a tensor over as it is, in the same memory. On the CPU: with a GPU's it never ran."""
    values = [float(source.randint(0, 200)) for _ in range(12)]
    made = seeded_numbers.tensor(torch, values, (3, 4), "float32")
    from torch.utils import dlpack

    forms = {"from_dlpack": dlpack.from_dlpack(dlpack.to_dlpack(made)), "torch.from_dlpack": torch.from_dlpack(made)}
    right = [v for column in range(4) for v in values[column::4]]
    forms["from_dlpack of a turned tensor"] = torch.from_dlpack(made.t()).t()
    wrong = [name for name, came in forms.items() if seeded_numbers.read(came) != values]
    if seeded_numbers.read(torch.from_dlpack(made.t())) != right:
        wrong.append("the order of a turned tensor")
    made[1, 2] = -1.0
    wrong += [f"{name} copies" for name, came in forms.items() if seeded_numbers.read(came)[6] != -1.0]
    return ", ".join(wrong)


def saved_files(torch: Any, device: Any, source: random.Random) -> str:
    """Judge that what is saved is loaded again, every dtype and layout, and a module's state with it."""
    path = Path(tempfile.mkdtemp(dir=".")) / "saved.pt"  # ranks share their directory
    state: dict[str, Any] = {}
    for dtype in ("float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"):
        numbers = [source.randint(0, 1) for _ in range(12)]
        values: list[Any] = [bool(v) if dtype == "bool" else v for v in numbers]
        state[dtype] = seeded_numbers.tensor(
            torch, values, (3, 4), dtype, device, source.choice(seeded_numbers.LAYOUTS)
        )
    state["noise"] = seeded_numbers.tensor(
        torch, seeded_numbers.rounded(seeded_numbers.uniform(source, 99), "float32"), (99,), "float32"
    )
    torch.save(state, path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    wrong = [
        n
        for n, was in state.items()
        if seeded_numbers.read(loaded[n]) != seeded_numbers.read(was) or loaded[n].dtype != was.dtype
    ]
    if wrong or set(loaded) != set(state):
        return f"{', '.join(wrong) or 'an entry'} is loaded otherwise than it was saved"
    layer, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    torch.save(layer.state_dict(), path)
    other.load_state_dict(torch.load(path, weights_only=True))
    same = all(seeded_numbers.read(a) == seeded_numbers.read(b) for a, b in zip(layer.parameters(), other.parameters()))
    return "" if same else "a module's state is loaded otherwise than it was saved"


class Code:
    """An object whose unpickling runs code: it writes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        """Have the unpickler call open()."""
        return open, (str(self.mark), "w")


def safe_loading(torch: Any, _: Any, __: random.Random) -> str:
    """Judge that loading weights refuses code: asked for, and since 2.6 by default."""
    directory = Path(tempfile.mkdtemp(dir="."))
    mark, path = directory / "code-has-run", directory / "hostile.pt"
    torch.save({"weights": torch.zeros(2), "code": Code(mark)}, path)
    calls: dict[str, dict[str, Any]] = {"with weights_only=True": {"weights_only": True}}
    if version(torch) >= SAFE_BY_DEFAULT:
        calls["by default"] = {}
    for how, options in calls.items():
        try:
            torch.load(path, **options)
        except pickle.UnpicklingError:
            pass
        else:
            return f"torch.load {how} loaded a file that holds code"
        if mark.exists():
            return f"torch.load {how} ran the code of a file"
    return ""


PROMISES: dict[str, Promise] = {
    "NumPy": numpy_bridge,
    "DLPack": exchanged,
    "save and load": saved_files,
    "safe loading": safe_loading,
}
