"""Bad input is one line, in every command: what is wrong, where, what to do; it ends with 2, and nothing is written."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tables import each

Run = Callable[..., tuple[int, str, str]]
DATA = Path(__file__).parents[1] / "data"
REPORT = DATA / "reports/cpu.json"
CELL = "torch2.13.0-cpu-py311"
IMAGE = f"registry.example:5000/torch@sha256:{'a' * 64}"
# What is typed, and words of the line.
RESOLVE = [
    ("--gpu name", "no GPU named 'name' in the matrix"),
    ("--cc 12", "--cc 12 is not a compute capability"),
    ("--gpu H10", "no GPU named 'H10' in the matrix; did you mean H100"),
    ("--driver newest", "--driver newest is not a driver version; write it as nvidia-smi prints it"),
    ("--torch 2.10.0a0+b4e4ee81d3.nv25.12", "is NVIDIA's own, in its containers alone; give its release"),
    ("--cuda 12", "--cuda '12' is neither a CUDA version nor a variant; write it as 12.8, cu128 or cpu"),
    ("--torch 2.8.0+cu128 --cuda 12.6", "cu128 has CUDA 12.8, --cuda says 12.6; give one of the two"),
    ("--driver 12.4", "--driver 12.4: that is nvidia-smi's CUDA version, not the driver's; give its Driver"),
    ("--base-cuda pytorch/pytorch:2.8.0", "--base-cuda 'pytorch/pytorch:2.8.0' is no tag of nvidia/cuda"),
    ("--torch newer", "--torch 'newer' is not a version requirement; write 2.8"),
    (f"--torch {'9' * 5000}", "9' is not a version requirement; write 2.8"),
    (f"--with vllm=={'9' * 5000}", "9' is not a requirement; write it as vllm"),
    ("--python three", "--python three is not a Python version; write it as 3.12"),
    ("--cc 9", "--cc 9 is not a compute capability; write it as 9.0"),
    ("--gpu H100 --gpu GB200", "are on different host architectures"),
    ("--extensions nosuch", "--extensions is for the extensions of --with, and there are none"),
    ("--third-party", "--third-party is for the extensions of --with, and there are none"),
    ("--gpus A100", "--gpus"),
    ("--gpu", "'--gpu' requires an argument; see `envcheck resolve --help`"),
    ("--base-cuda 1.0", "what nvidia/cuda of CUDA 1.0 demands is not in the matrix; use one of 11.4"),
    *(
        (f"--with {name}", f"did you mean {meant}")
        for name, meant in (("flash-atn", "flash-attn"), ("conv1d", "causal-"))
    ),
    ("--with numpy", "those that are known: apex, auto-gptq"),
    ("--with vllm --gpu H100 --extensions ../empty", "give a file like the shipped extensions.yaml"),
    ("--with vllm --gpu H100 --extensions ../bad", "../bad:1: not YAML"),
    # Digits of other scripts.
    *((f"--torch {torch}", torch) for torch in ("२.8", "'>=2.٨'")),
    *((f"--cuda {cuda}", cuda) for cuda in ("12.८", "cu12८")),
    *(("--driver ५70.124.06", "५70.124.06"), ("--python 3.1२", "3.1२"), ("--cc ९.0", "९.0")),
]
RUN = [
    ("--shm-size 1g", "envcheck: --shm-size needs --image: it is the size of /dev/shm in a container; give"),
    *((f"--only {it}", "did you mean all-reduce or all-reduce-bandwidth or collectives or") for it in ("nccl", "NCCL")),
    ("--only dpp --only a0b", "no check is named a0b or dpp; a0b: see `envcheck checks`; dpp: did you"),
    ("--only dpp", "envcheck: no check is named dpp; did you mean ddp"),
    ("--only ddp --skip ddp", "no check is left to run"),
    ("--python /none", "envcheck: no Python at /none; give --python the path"),
    ("--python /bin/ls", "envcheck: /bin/ls is not a Python: it said "),
    ("--output a --html ./a", "envcheck: --output and --html are both a; give each a file of its own"),
    ("--requirements ''", "Invalid value for '--requirements': the value is empty, perhaps that of a variable"),
    ("--checks .", "/cwd contains no check; put files into its node/ and env/"),
    ("--budget 60s --repeat 2", "envcheck: --budget and --repeat exclude each other; give one of them"),
    ("--redact --resume", "envcheck: --redact and --resume exclude each other; give one of them"),
    ("--budget 0s", "envcheck: Invalid value for '--budget': '0s' must be more than 0"),
    ("--image none --only nope", "envcheck: no check is named nope; did you mean nouveau"),
    ("--timeout nan", "envcheck: Invalid value for '--timeout': 'nan' is not a number"),
]
# What a dry run refuses as well, and both before anything is said. `bad` holds `{,`.
UNREADY = [
    ("--baseline no.json", "cannot read no.json: No such file or directory"),
    ("--baseline ../bad", "bad is not a report"),
    *(("--requirements no.toml", words) for words in ("no requirements at no.toml", "hgx-h100")),
    ("--requirements ../bad", "bad: Invalid statement"),
    ("--resume --output ../bad", "bad is not a report"),
    *(
        (f"{option} no/file", f"cannot write to no: No such file or directory; give {option}")
        for option in ("--output", "--html", "--summary")
    ),
]
IMAGES = [
    ("--format github --json", "--format and --json exclude each other"),
    ("--format github --repository me/torch:1", "has the tag '1', and each image has a tag of its own"),
    ("--format bake --repository 'Not A Name'", "'Not A Name' is not a valid image name"),
    ("--platform linux/arm64", "--platform is for --format"),
    ("--images none", "does not exist"),
    ("torch2.4.1-cu121-py310 --target jupyter", "no selected cell is published as jupyter"),
    ("sbom torch2.4.1-cu121-py310 --target jupyter", "torch2.4.1-cu121-py310 is not published as jupyter; choose"),
    ("sbom torch2.13*", "'torch2.13*' names 5 cells; name one at a time, e.g. torch2.13.0-cpu-py311"),
    ("sbom torch1.0", "no published cell is named 'torch1.0'"),
    (f"sbom {CELL} --images .", f"{CELL} has no lock; run `envcheck lock {CELL}`"),
]
BUILD = [
    ("torch2.8.0-cu118-py312 --platform linux/amd64", "the matrix lists no such wheel for x86_64; did you mean"),
    ("torch2.99.0-cpu-py311", "no published cell is named 'torch2.99.0-cpu-py311'; did you mean"),
    ("torch2.13.0-cpu-py39", "did you mean torch2.13.0-cpu-py311"),
    ("torch2.14.1-cpu-py314", "no base image has Python 3.14"),
    ("torch2.14.1-cpu-py312 --mirror auto", "has none yet; name the mirror"),
    ("torch2.8.0", "torch2.8.0 names 16 published cells; this machine runs torch2.8.0-cpu-py310, torch2.8.0-c"),
    ("torch2.8.0-cu128", "name one; `envcheck images 'torch2.8.0-cu128-*'`"),
    ("torch2.13.0-cu130-*", "'torch2.13.0-cu130-*' names 4 cells; build one at a time, e.g. torch2.13.0"),
    (f"{CELL} --mirror nosuch", "no mirror profile 'nosuch'"),
    (f"{CELL} --images /no/such", "'/no/such' does not exist"),
    (f"{CELL} --images .", f"has no lock; run `envcheck lock {CELL}`"),
    (f"{CELL} --store x --with 'e @ https://x.example/e.whl'", "names a URL"),
]
RENDER = [
    *((words, "go together") for words in ("--mirror none", "--output x")),
    ("--mirror none --output x --check", "give one of them"),
    ("torch2.13* --mirror none --output x", "one cell, and 5 are selected"),
    ("torch2.13.0-cpu", f"did you mean {CELL}"),
    (f"{CELL} --mirror nun --output x", "no mirror profile 'nun'"),
    ("--images none", "does not exist"),
]
READ = ("versions", "gc", "release --rollback", "export -o /no/such")
STORE = [
    *((f"--store none {words}", "none: there is no store; pass the right store") for words in READ),
    *((f"--store .. {words}", "not a store") for words in READ),
    ("--store ../empty versions", "is a file"),
    ("--store ../empty/below import .", "cannot read bundle.sha256"),
    ("--store ../store release", "nothing to release; name a CELL"),
    ("--store ../store release torch9*", "no published cell"),
    (f"--store ../store release {CELL} --mirror nosuch", "no mirror profile"),
]
MIRROR = [
    *((words, "; ") for words in ("show tunna", "show tuna --format npm", "show tuna --variant '12.8; rm'", "show")),
    *((words, "; ") for words in ("use user", "use nowhere.yaml", "env nowhere.yaml")),
    ("probe", "expected one cell or --lock, found none"),
    ("probe 'torch*'", "names"),
    ("probe tuna", "tuna"),
    (f"probe {CELL} torch2.13.0-cpu-py312", "each mirror as --mirror NAME"),
]
FLEET = [
    ("prometheus", "the host list '' names no node"),
    ("prometheus --hosts n1 --python /opt/v", "--python has no place in the files for Prometheus"),
    ("slurm --hosts n1 --python /opt/v", "--hosts has no place in the files for Slurm"),
    ("kubernetes --hosts n1", "--hosts has no place in the files for Kubernetes"),
    *(
        (f"slurm --image {IMAGE} {option}", f"{option.split()[0]} has no place in the files for Slurm")
        for option in ("--env NCCL_DEBUG=INFO", "--queue a", "--drain", "--namespace foo")
    ),
    *(
        (f"kubernetes --image {IMAGE} {option} 5", f"{option} has no place in the files for Kubernetes")
        for option in ("--scripts", "--program", "--max-drained", "--reports")
    ),
]
PAIRS = [
    ("n1", "names 1 node"),
    ("n[2-1]", "range"),
    ("n[1-2] --launch 'ssh {nodes}'", "{command}"),
    ("n[1-2] --launch 'no-such-launcher {nodes} {command}'", "not on PATH"),
    ("n[1-2] --state nosuch/x.json", "there is no directory nosuch"),
    ("n[1-5] --launch '{command} {nodes}' --state ../bad", "not a state"),
]
CONVERT = [
    ("none.json --format junit", "cannot read none.json"),
    ("../bad --format junit", "bad is not a report"),
    ("../empty --format junit", "empty is empty"),
    (f"{REPORT} --format pdf", "'pdf'"),
    (f"{REPORT} --format junit --output no/such/j.xml", "no/such"),
]
OTHERS = [
    *((word, f"did you mean '{meant}'?") for word, meant in (("resolv", "resolve"), ("validate", "run"))),
    *((word, f"did you mean '{meant}'?") for word, meant in (("install", "build"), ("sbom", "images sbom"))),
    *((f"key new {name}", "cannot hold a private key") for name in ("b.pub", ".", "/")),
    ("key new key --password", "set ENVCHECK_KEY_PASSWORD"),
    ("checks temperature --level static", "leave one of them out"),
    (f"resolve --from {DATA}/pinned/setup.sh --torch 2.8", "the file says it"),
    ("--matrix none resolve --no-here", "No such file or directory; give a readable file with --matrix"),
    ("--matrix /dev/zero resolve --no-here", "envcheck: /dev/zero: longer than 64 MiB; name the file that was meant\n"),
    ("report show /dev/zero", "envcheck: /dev/zero: longer than 128 MiB; name the file that was meant\n"),
    *(
        (f"matrix show {row}", f"no row of the matrix meets {row}; ask for less")
        for row in ("--torch 9", "--python 3.99")
    ),
    ("matrix show --torch 2.8 --cuda cu132", "no row of the matrix meets --torch 2.8 --cuda cu132; ask for less"),
]
COMMANDS = {
    "resolve --no-here": RESOLVE,
    "run": RUN,
    "run --only shm": UNREADY,
    "run --only shm --dry-run": UNREADY,
    "images": IMAGES,
    "build --engine venv": BUILD,
    "render": RENDER,
    "store": STORE,
    "mirror": MIRROR,
    "fleet render": FLEET,
    "fleet pairs --nodes": PAIRS,
    "report convert": CONVERT,
    "": OTHERS,
}


@each("typed, words", [(f"{command} {row[0]}", row[1]) for command, rows in COMMANDS.items() for row in rows])
def test_it_is_one_line_with_exit_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, words: str
) -> None:
    (tmp_path / "cwd").mkdir(exist_ok=True)
    (tmp_path / "bad").write_text("{,")
    (tmp_path / "empty").touch()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("ENVCHECK_HOME", str(tmp_path / "home"))
    code, out, err = run(*shlex.split(typed))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("envcheck: ")
    assert words in err
    assert list((tmp_path / "cwd").iterdir()) == []
