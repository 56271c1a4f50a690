"""The sources a profile becomes for apt, read by apt itself: a dead mirror leads to the next."""

import datetime as dt
import email.utils
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envcheck.mirrors.profiles.model import Profile
from envcheck.mirrors.settings import RenderOptions, apt_sources_of, settings_of
from tests.http_server import Server, Servers, directory


@pytest.fixture
def serve(servers: Servers) -> Callable[[Path, str], str]:
    return lambda root, address: servers.start(Server(directory(root), address)).url


RELEASE = "Origin: test\nSuite: {0}\nCodename: {0}\nArchitectures: all amd64 arm64\nComponents: main\nSHA256:\n"


def archive(directory: Path) -> None:
    """Make an archive with one package in every suite, which is there for two of them."""
    control = "Package: from-the-mirror\nVersion: 1\nArchitecture: all\nMaintainer: T <t@t.example>\nDescription: t\n"
    made = directory.with_name("made")
    (made / "DEBIAN").mkdir(parents=True)
    (made / "DEBIAN/control").write_text(control)
    deb = directory / "debian/pool/x.deb"
    deb.parent.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "-b", str(made), str(deb)], check=True, capture_output=True)
    digest = hashlib.sha256(deb.read_bytes()).hexdigest()
    package = f"{control}Filename: pool/x.deb\nSize: {deb.stat().st_size}\nSHA256: {digest}"
    for name, suite in (
        ("debian", "bookworm"),
        ("debian", "bookworm-updates"),
        ("debian-security", "bookworm-security"),
    ):
        place = directory / name / "dists" / suite
        rows = ""
        for kind in ("all", "amd64", "arm64"):
            listed = place / f"main/binary-{kind}/Packages"
            listed.parent.mkdir(parents=True)
            listed.write_text(f"{package}\n\n")
            digest = hashlib.sha256(listed.read_bytes()).hexdigest()
            rows += f" {digest} {listed.stat().st_size} main/binary-{kind}/Packages\n"
        date = email.utils.format_datetime(dt.datetime.now(dt.timezone.utc), usegmt=True)
        (place / "Release").write_text(f"Date: {date}\n" + RELEASE.format(suite) + rows)


def sign(directory: Path, keyring: Path) -> None:
    """Sign every release of an archive with a key of its own, and write what it is known by."""
    if shutil.which("gpg") is None:
        pytest.skip("no gpg on this machine")
    with tempfile.TemporaryDirectory(prefix="envcheck-gpg-") as home:  # its sockets allow no long path
        gpg = ["gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", ""]
        subprocess.run([*gpg, "--quick-gen-key", "test@mirror.example", "ed25519"], check=True, capture_output=True)
        for release in directory.rglob("Release"):
            made = ["--output", str(release.with_name("InRelease")), "--clearsign", str(release)]
            subprocess.run([*gpg, *made], check=True, capture_output=True)
        subprocess.run([*gpg, "--output", str(keyring), "--export"], check=True, capture_output=True)
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)


@pytest.mark.parametrize("first", ["dead", "empty"])
def test_apt_goes_on_to_the_second_mirror_when_the_first_has_it_not(
    tmp_path: Path, serve: Callable[[Path, str], str], first: str
) -> None:
    """Nobody listens there, or it answers 404: of the lists, and of the package itself."""
    apt = shutil.which("apt-get")
    if apt is None:
        pytest.skip("no apt on this machine")
    archive(tmp_path / "www")
    sign(tmp_path / "www", tmp_path / "key.gpg")
    live = serve(tmp_path / "www", "127.0.0.2")
    (tmp_path / "nothing").mkdir()
    other = "http://127.0.0.1:9" if first == "dead" else serve(tmp_path / "nothing", "127.0.0.3")
    for name in ("lists", "state/lists/partial", "cache/archives/partial", "sources", "parts", "conf"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "status").touch()
    files = apt_sources_of([other, live], "debian", "bookworm", str(tmp_path / "lists"))
    stanzas = re.sub(r"(?m)^Signed-By: .*", f"Signed-By: {tmp_path}/key.gpg", files.pop("envcheck.sources"))
    (tmp_path / "parts/envcheck.sources").write_text(stanzas)
    for name, content in files.items():
        (tmp_path / "lists" / name).write_text(content)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": tmp_path / "parts",
        "Dir::Etc::parts": tmp_path / "conf",
        "Dir::State": tmp_path / "state",
        "Dir::State::status": tmp_path / "status",
        "Dir::Cache": tmp_path / "cache",
        "Acquire::Retries": "0",
        "APT::Sandbox::User": "",
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "APT_CONFIG": "/dev/null"}
    completed = subprocess.run([apt, *given, "update"], env=environment, capture_output=True, text=True, check=False)
    output = completed.stdout + completed.stderr
    assert re.search(rf"^Ign:\d+ {re.escape(other)}/debian bookworm InRelease", output, re.MULTILINE), output
    for row in ("debian bookworm", "debian bookworm-updates", "debian-security bookworm-security"):
        assert re.search(rf"^Get:\d+ {re.escape(live)}/{row}/main \w+ Packages", output, re.MULTILINE), output
    actual = [apt, *given, "download", "from-the-mirror"]
    completed = subprocess.run(actual, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert (tmp_path / "from-the-mirror_1_all.deb").read_bytes() == (tmp_path / "www/debian/pool/x.deb").read_bytes()


def test_the_files_of_a_machine_name_each_other() -> None:
    profile = Profile(name="x", apt=["https://a.example", "http://b.example/"], ca="/etc/ca.pem")
    files = settings_of(profile, "apt", RenderOptions(distro="ubuntu", suite="noble")).files
    stanza = files["/etc/apt/sources.list.d/envcheck.sources"]
    assert "URIs: mirror+file:/etc/apt/envcheck/ubuntu.mirrors\n" in stanza
    assert "Suites: noble noble-updates noble-security\n" in stanza
    listed = files["/etc/apt/envcheck/ubuntu.mirrors"]
    assert listed == "https://a.example/ubuntu\tpriority:1\nhttp://b.example/ubuntu\tpriority:2\n"
    assert files["/etc/apt/apt.conf.d/80envcheck"] == 'Acquire::https::a.example::CAInfo "/etc/ca.pem";\n'


def test_a_machine_that_is_neither_debian_nor_ubuntu_is_asked_for_a_suite() -> None:
    for wish in (RenderOptions(distro="fedora", suite="x"), RenderOptions()):
        setting = settings_of(Profile(name="x", apt=["https://a.example"]), "apt", wish)
        assert not setting.files
        assert "Debian and Ubuntu" in setting.notes[0]
