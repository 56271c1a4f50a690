"""Autograd and random numbers of the simulated GPU."""

# ruff: noqa: SLF001 (it stands in for torch: its names, signatures and words)

from __future__ import annotations

from typing import Any

from . import gpu, speed, tensors


def install(torch: Any) -> None:
    """Have what runs inside a backward pass be seen too."""
    graph = torch.autograd.graph
    engine = graph._engine_run_backward
    mode = tensors.mode_of(torch)

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return engine(*args, **kwargs)

    graph._engine_run_backward = torch.autograd._engine_run_backward = run
    _functions_of_autograd(torch)
    _generator(torch)
    then = torch._C.Future.then

    def seen(self: Any, callback: Any) -> Any:
        def called(future: Any) -> Any:
            with mode():
                return callback(future)

        return then(self, called)

    torch._C.Future.then = seen


def _functions_of_autograd(torch: Any) -> None:
    """Keep the marks where autograd hands tensors from C++ to Python: a function's results, and what comes back."""
    function, backward = torch.autograd.Function, torch.autograd.function.BackwardCFunction
    back = backward.apply

    def through(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return super(function, cls).apply(*args, **kwargs)

    # A method of Python's own before 2.14, and C++'s since.
    forth = getattr(function.apply, "__func__", through)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        marks = [tensors.mark_of(t) for t in speed.flat([args, kwargs]) if isinstance(t, torch.Tensor)]
        where = next(filter(None, marks), None)
        actual = forth(cls, *args, **kwargs)
        return actual if where is None else tensors.marked(torch, actual, where)

    def apply_back(self: Any, *args: Any) -> Any:
        saved = [t for t in self.saved_tensors if t is not None]
        where = next(filter(None, map(tensors.mark_of, saved)), None) or gpu.current_of(torch)
        return back(self, *(tensors.marked(torch, one, where) for one in args))

    function.apply, backward.apply = classmethod(apply), apply_back


def _generator(torch: Any) -> None:
    """Have a generator of CUDA's give the CPU's numbers, for tensors of its own device alone."""
    real = torch.Generator

    def new(cls: Any, device: Any = "cpu") -> Any:
        place = gpu.place_of(torch, device)
        made = real.__new__(cls, "cpu" if place is not None else device)
        made.place = place
        return made

    def device(self: Any) -> Any:
        return self.place or torch.device("cpu")

    torch.Generator = type("Generator", (real,), {"__new__": new, "device": property(device)})
