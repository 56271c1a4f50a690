"""What an image stands on: the registry's base where it answers, else one bootstrapped from the apt mirror."""

import contextlib
import functools
import hashlib
import json
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from envcheck.errors import BuildError, UnavailableError
from envcheck.images.engines import subprocesses
from envcheck.images.targets import OS_PACKAGES
from envcheck.matrix.facts.model import Base, HostArch
from envcheck.mirrors.profiles.host_config import AptSource, apt_sources, base_urls, ca_bundle
from envcheck.mirrors.profiles.model import Profile

# BuildKit asks the registry of a name before it looks for it among the engine's own images: this one asks nobody.
REPOSITORY: Final = "localhost/envcheck/base"
DEB_ARCH: Final[dict[HostArch, str]] = {"x86_64": "amd64", "aarch64": "arm64"}
# Files newer than this get this date (1 January 1990: zip files know no earlier decade), so that two runs are equal.
EPOCH: Final = 631152000
_TIMEOUT: Final = 900.0
# What the distributions' own slim images leave out (debuerreotype, scripts/.slimify-excludes); licences stay. dpkg
# keeps to it in the image too.
_LEFT_OUT: Final = (
    "/usr/share/doc/*",
    "/usr/share/groff/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
)
# The base's own apt sources are copied from the examples.
_KEPT: Final = ("/usr/share/doc/*/copyright", "/usr/share/doc/apt/examples/*")
# There the package usrmerge brings all of perl (47 MB); mmdebstrap's hook merges /usr beforehand, without it.
_USRMERGE_NEEDS_PERL: Final = ("bookworm",)
_MERGED_USR: Final = Path("/usr/share/mmdebstrap/hooks/merged-usr")
_SECURITY: Final = {"debian": "debian-security", "ubuntu": "ubuntu"}


def reference(base: Base, arch: HostArch, packages: Sequence[str] = OS_PACKAGES) -> str:
    """Return the reference of the bootstrapped base, which does not depend on where its packages come from."""
    recipe = json.dumps([base.distro, base.suite, arch, packages, EPOCH, _LEFT_OUT, _KEPT])
    return f"{REPOSITORY}:{base.suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def recipe(
    base: Base,
    arch: HostArch,
    packages: Sequence[str],
    sources: Sequence[str],
    ca: str | None,
    tar: Path,
    *,
    hooks: Path | None = None,
) -> list[str]:
    """Return the command that bootstraps a base from apt source lines; it keeps the distribution's own, not these."""
    example = "usr/share/doc/apt/examples"
    keep_own = (
        f'cd "$1" && rm -f etc/apt/sources.list etc/apt/apt.conf.d/99mmdebstrap && '
        f"if [ -f {example}/{base.distro}.sources ]; then "
        f"cp {example}/{base.distro}.sources etc/apt/sources.list.d/; "
        f"elif [ -f {example}/sources.list ]; then cp {example}/sources.list etc/apt/sources.list; fi"
    )
    return [
        "mmdebstrap",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        f"--architectures={DEB_ARCH[arch]}",
        *([f'--aptopt=Acquire::https::CAInfo "{ca}"'] if ca else []),
        *(f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT),
        *(f"--dpkgopt=path-include={path}" for path in _KEPT),
        *([f"--hook-dir={hooks}"] if hooks else []),
        f"--customize-hook={keep_own}",
        # openssh-server makes host keys when it is installed: all containers of an image would share them.
        '--customize-hook=rm -f "$1"/etc/ssh/ssh_host_*',
        base.suite,
        str(tar),
        *sources,
    ]


def source_lines(base: Base, mirrors: Sequence[str], *, serves: Callable[[str], bool]) -> list[str]:
    """Return apt source lines for a suite: release, updates and security, each where a mirror serves it.

    `serves` tells whether a directory below `dists/` is there. No mirror with the release is an UnavailableError.
    """
    components = "main universe" if base.distro == "ubuntu" else "main"
    suites = [
        (base.distro, base.suite),
        (base.distro, f"{base.suite}-updates"),
        (_SECURITY[base.distro], f"{base.suite}-security"),
    ]
    lines = []
    for archive, suite in suites:
        mirror = next((m for m in mirrors if serves(f"{m.rstrip('/')}/{archive}/dists/{suite}")), None)
        if mirror is not None:
            lines.append(f"deb {mirror.rstrip('/')}/{archive} {suite} {components}")
        elif suite == base.suite:
            message = f"no registry answers for {base.image}, and no apt mirror known here serves {base.suite}"
            fix = (
                f"name a registry or an apt mirror of {base.distro} in a mirror profile, or take another Python's cell"
            )
            raise UnavailableError(message, fix=fix)
    return lines


def mirrors_for(base: Base, profile: Profile, sources: Sequence[AptSource]) -> list[str]:
    """Return the mirrors of a distribution: the profile's, else, unless it is closed, those of this machine's apt."""
    suites = dict.fromkeys([base.suite, *(suite for source in sources for suite in source.suites)])
    local = [mirror for suite in suites for mirror in base_urls(sources, base.distro, suite)]
    return list(dict.fromkeys(profile.apt or ([] if profile.closed else local)))


def serves(url: str, ca: str | None = None) -> bool:
    """Tell whether an apt archive's directory has a Release file; ten seconds is the most it may take to say so."""
    trusted = ssl.create_default_context()
    if ca:
        trusted.load_verify_locations(ca)
    try:
        # Profiles and base_urls let only http and https through.
        with urllib.request.urlopen(f"{url}/InRelease", timeout=10, context=trusted):  # noqa: S310
            return True
    except (urllib.error.URLError, TimeoutError, ValueError):
        return False


def bootstrap(base: Base, arch: HostArch, packages: Sequence[str], profile: Profile, tar: Path) -> None:
    """Make the base's root file system as `tar`, from the profile's or this machine's apt mirror (about 20 s)."""
    mirrors = mirrors_for(base, profile, apt_sources())
    sources = source_lines(base, mirrors, serves=functools.partial(serves, ca=profile.ca))
    # An old mmdebstrap has no such hook, and the base is larger then.
    hooks = _MERGED_USR if base.suite in _USRMERGE_NEEDS_PERL and _MERGED_USR.is_dir() else None
    https = any("https:" in line for line in sources)
    with _readable(ca_bundle(profile) if https else None) as ca:
        argv = recipe(base, arch, packages, sources, ca, tar, hooks=hooks)
        result = subprocesses.stream(argv, timeout=_TIMEOUT, env={"SOURCE_DATE_EPOCH": str(EPOCH)})
    if result.status != 0 or not tar.exists():
        message = f"the base {base.suite} could not be bootstrapped: {_why(result.output)}"
        raise BuildError(message, fix="check the apt mirror; mmdebstrap needs root or user namespaces")


@contextlib.contextmanager
def _readable(roots: str | None) -> Iterator[str | None]:
    """Give a file of these roots that apt can read: it fetches as a user of its own, who may not see the site's."""
    if roots is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="envcheck-roots-") as scratch:
        Path(scratch).chmod(0o755)
        bundle = Path(scratch) / "ca.pem"
        bundle.write_text(roots)
        bundle.chmod(0o644)
        yield str(bundle)


def _why(output: str) -> str:
    """Return apt's first complaint: what comes last is mmdebstrap's own, that it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    complaint = next((line for line in lines if "Could not load certificates" in line or line.startswith("E: ")), None)
    return complaint or (lines or ["it took too long"])[-1]
