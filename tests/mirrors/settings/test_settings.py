"""A profile in each client's own words: the real client reads them where it can be had here, a parser where not."""

import base64
import datetime as dt
import email.utils
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import uv
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.load import preset_profile, presets
from envcheck.mirrors.profiles.model import Conda, Credential, HuggingFace, Index, Profile
from envcheck.mirrors.settings import FORMATS, RenderOptions, apt_sources_of, client_file, render, settings_of
from tests.http_server import Answer, Server, Servers, directory
from tests.processes import program, ran
from tests.tables import beside, each

CANARY = "hunter2-canary"
WISH = RenderOptions(variant="cu128", distro="debian", suite="bookworm")
SITE = Profile(
    name="site",
    pypi=[
        Index(url="https://pypi.example:8443/simple"),
        Index(url="https://second.example/simple"),
        Index(url="/srv/wheels", kind="find-links"),
    ],
    pytorch=[Index(url="https://pypi.example:8443/whl/{variant}")],
    hf=HuggingFace(endpoint="https://hf.example/", token="allow"),  # noqa: S106 (a policy)
    apt=["https://apt.example", "https://apt2.example/"],
    conda=Conda(channel_alias="https://conda.example", custom_channels={"pytorch": "https://conda.example/cloud"}),
    npm="https://npm.example/repo/",
    registry="bases.example",
    registries={"docker.io": ["hub.example:5000", "http://10.0.0.1:5001"], "ghcr.io": ["gh.example/proxy"]},
    modelscope="ms.example",
    ca="/etc/site/ca.pem",
    netrc="/etc/site/netrc",
    credentials={
        "pypi.example:8443": Credential(user="joe", password_env="PYPI_PASSWORD"),  # noqa: S106 (a name)
        "hf.example": Credential(token_file="/run/hf token"),  # noqa: S106 (a path)
        "npm.example": Credential(token_env="NPM_TOKEN"),  # noqa: S106 (a name)
        "hub.example:5000": Credential(user="joe", password_env="HUB_PASSWORD"),  # noqa: S106 (a name)
    },
)


def text(form: str, profile: Profile = SITE, wish: RenderOptions = WISH) -> str:
    return next(iter(render(profile, form, wish).files.values()))


def cannot(form: str, profile: Profile = SITE, wish: RenderOptions = WISH) -> str:
    return "\n".join(settings_of(profile, form, wish).notes)


def test_pips_own_parser_reads_pip_conf(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(text("pip"))
    environment = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "pip", "config", "list"]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "global.index-url='https://pypi.example:8443/simple'" in completed.stdout
    assert "global.cert='/etc/site/ca.pem'" in completed.stdout
    assert "/srv/wheels" in completed.stdout


def with_wheels(directory: Path) -> Profile:
    return msgspec.structs.replace(SITE, pypi=[*SITE.pypi[:2], Index(url=str(directory), kind="find-links")])


def test_uv_reads_uv_toml(tmp_path: Path) -> None:
    (tmp_path / "uv.toml").write_text(text("uv", with_wheels(tmp_path)))
    command = [uv.find_uv_bin(), "pip", "compile", "--config-file", str(tmp_path / "uv.toml")]
    command += ["--emit-index-url", "--emit-find-links", "--no-header", "-q", "-"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "UV_NO_CACHE": "1"}
    completed = ran(command, input="", env=environment)
    assert completed.returncode == 0, completed.stderr
    assert "--index-url https://pypi.example:8443/simple\n" in completed.stdout


def test_uv_toml_marks_what_needs_a_login_and_what_is_asked_only_by_name() -> None:
    first, torch = msgspec.toml.decode(text("uv"))["index"]
    assert first["default"]
    assert first["authenticate"] == "always"
    assert torch == {
        "name": "pytorch-mirror",
        "url": "https://pypi.example:8443/whl/cu128",
        "explicit": True,
        "authenticate": "always",
    }


def test_variables_name_the_index_of_torch_that_they_cannot_set() -> None:
    own = Profile(
        name="x", pypi=[Index(url="https://a.example/simple")], pytorch=[Index(url="https://a.example/whl/{variant}")]
    )
    note = "torch needs its own index: uv pip install --index-url https://a.example/whl/{variant} torch (never"
    assert note in cannot("env", own, RenderOptions())
    assert "{variant} is cu128, cpu" in cannot("env", own, RenderOptions())
    assert "whl/cu128 torch (never --extra-index-url)" in cannot("env", own)
    links = Profile(name="x", pytorch=[Index(url="/srv/wheels", kind="find-links")])
    assert "--find-links /srv/wheels torch" in cannot("env", links, RenderOptions())


def test_what_stays_in_an_image_names_no_file_of_this_machine() -> None:
    wish = msgspec.structs.replace(WISH, local=False)
    assert client_file(SITE, "pip", wish) == "[global]\nindex-url = https://pypi.example:8443/simple\n"
    assert "/srv" not in client_file(SITE, "uv", wish)


def test_the_environment_of_hugging_face_and_model_scope() -> None:
    lines = dict(line.split("=", 1) for line in text("hf").splitlines())
    assert lines["HF_ENDPOINT"] == "https://hf.example"
    assert lines["HF_HUB_DISABLE_XET"] == "1"
    assert lines["MODELSCOPE_DOMAIN"] == "ms.example"
    assert "HF_HUB_DISABLE_IMPLICIT_TOKEN" not in lines
    never = msgspec.structs.replace(SITE, hf=HuggingFace(endpoint="https://hf.example", etag_timeout=90))
    for line in ("DISABLE_IMPLICIT_TOKEN=1", "ETAG_TIMEOUT=90", "DOWNLOAD_TIMEOUT=60"):
        assert f"HF_HUB_{line}\n" in text("hf", never)


def test_conda_and_npm() -> None:
    assert yaml.safe_load(text("conda")) == {
        "channel_alias": "https://conda.example",
        "custom_channels": {"pytorch": "https://conda.example/cloud"},
        "ssl_verify": "/etc/site/ca.pem",
    }
    assert text("npm").splitlines() == [
        "registry=https://npm.example/repo/",
        "cafile=/etc/site/ca.pem",
        "//npm.example/repo/:_authToken=${NPM_TOKEN}",
    ]


def test_registries_of_several_upstreams() -> None:
    assert msgspec.toml.decode(text("buildkitd"))["registry"] == {
        "docker.io": {"mirrors": ["hub.example:5000", "10.0.0.1:5001"]},
        "ghcr.io": {"mirrors": ["gh.example/proxy"]},
        "hub.example:5000": {"ca": ["/etc/site/ca.pem"]},
        "10.0.0.1:5001": {"http": True},
        "gh.example": {"ca": ["/etc/site/ca.pem"]},
    }
    assert json.loads(text("daemon")) == {
        "registry-mirrors": ["https://hub.example:5000", "http://10.0.0.1:5001"],
        "insecure-registries": ["10.0.0.1:5001"],
    }
    assert msgspec.toml.decode(text("registries"))["registry"] == [
        {
            "prefix": "docker.io",
            "location": "docker.io",
            "mirror": [{"location": "hub.example:5000"}, {"location": "10.0.0.1:5001", "insecure": True}],
        },
        {"prefix": "ghcr.io", "location": "ghcr.io", "mirror": [{"location": "gh.example/proxy"}]},
    ]


SAID = beside(__file__)["said"]


@each("form", FORMATS)
def test_what_a_setting_cannot_do_is_said(form: str) -> None:
    assert [words for words in SAID[form] if words not in cannot(form)] == []


@each("form", FORMATS)
def test_a_profile_that_says_nothing_of_a_client_is_told_so(form: str) -> None:
    with pytest.raises(ConfigError, match="empty: "):
        render(Profile(name="empty"), form, WISH)


@each("name", sorted(presets()))
def test_every_preset_has_a_form_and_no_form_breaks(name: str) -> None:
    profile = preset_profile(name, presets()[name])
    assert any(settings_of(profile, form, WISH).files for form in FORMATS)
    assert "None" not in json.dumps([msgspec.to_builtins(settings_of(profile, form, WISH)) for form in FORMATS])


def shell(script: str, name: str = "sh", **environment: str) -> dict[str, str]:
    """Return the environment after a shell has evaluated a script; each of its lines must end well."""
    plain = ["-f"] if name == "zsh" else []
    argv, own = [program(name), *plain, "-uec", 'eval "$1"; env -0', "sh", script], {"PATH": os.environ["PATH"]}
    completed = ran(argv, env={**own, **environment}, errors="surrogateescape")
    assert completed.returncode == 0, completed.stderr
    return dict(entry.split("=", 1) for entry in completed.stdout.split("\0") if "=" in entry)


def test_a_shell_takes_it_and_looks_secrets_up_itself(tmp_path: Path) -> None:
    file = tmp_path / 'hf\'s "token" $(x) `y`'
    file.write_text(f"{CANARY}-hf\n")
    token = Credential(token_file=str(file))
    profile = msgspec.structs.replace(SITE, credentials={**SITE.credentials, "hf.example": token})
    script = text("env", profile)
    assert CANARY not in script
    data = shell(script, PYPI_PASSWORD=f"{CANARY} '\"$x")
    assert data["UV_DEFAULT_INDEX"] == "pypi-mirror=https://pypi.example:8443/simple"
    assert data["UV_INDEX_PYPI_MIRROR_USERNAME"] == "joe"
    assert data["UV_INDEX_PYPI_MIRROR_PASSWORD"] == f"{CANARY} '\"$x"
    assert data["HF_TOKEN"] == f"{CANARY}-hf"
    assert data["NETRC"] == "/etc/site/netrc"
    assert data["NPM_CONFIG_REGISTRY"] == "https://npm.example/repo/"


def after(data: dict[str, str]) -> tuple[str, ...]:
    return tuple(data["ENVCHECK_MIRROR_SET"].split())


SHELLS = ["sh", "bash", "dash", pytest.param("zsh", marks=pytest.mark.tools)]


@pytest.mark.parametrize("program", SHELLS)
def test_what_one_profile_set_is_gone_with_the_next(program: str, tmp_path: Path) -> None:
    """Two profiles one after the other, the first one twice; then none."""
    (tmp_path / "token").write_text(f"{CANARY}-site\n")
    site = msgspec.structs.replace(
        with_wheels(tmp_path), credentials={"hf.example": Credential(token_file=str(tmp_path / "token"))}
    )
    other = Profile(name="x", npm="https://n.example", hf=HuggingFace(endpoint="https://o.example"))
    own = {"MINE": 'it\'s "mine" $(x) `y`\n\\'}
    clean = shell("", program, **own)
    first = shell(text("env", site), program, **own)
    assert shell(text("env", site, RenderOptions(before=after(first))), program, **first) == first
    assert (first["HF_TOKEN"], first["UV_FIND_LINKS"]) == (f"{CANARY}-site", str(tmp_path))
    second = shell(text("env", other, RenderOptions(before=after(first))), program, **first)
    assert second["HF_ENDPOINT"] == "https://o.example"
    assert not {"HF_TOKEN", "PIP_INDEX_URL"} & second.keys()
    assert shell(text("env", Profile(name="none"), RenderOptions(before=after(second))), program, **second) == clean


def test_a_token_of_one_profile_goes_to_no_other_profiles_host(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{CANARY}-first\n")
    allow = HuggingFace(endpoint="https://hf.example", token="allow")  # noqa: S106 (a policy)
    by_file = Credential(token_file=str(tmp_path / "token"))
    by_name = Credential(token_env="HF_TOKEN")  # noqa: S106 (a name)
    first = shell(text("env", Profile(name="x", hf=allow, credentials={"hf.example": by_file})))
    assert first["HF_TOKEN"] == f"{CANARY}-first"
    second = Profile(name="y", hf=allow, credentials={"hf.example": by_name})
    assert shell(text("env", second, RenderOptions(before=after(first))), **first)["HF_TOKEN"] == ""


WILD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@settings(max_examples=200)
@given(WILD, WILD)
def test_no_value_of_a_profile_gets_out_of_its_quotes(value: str, file: str) -> None:
    credential = Credential(user=value, password_env="P")  # noqa: S106 (a name)
    profile = Profile(name="x", npm=value, netrc=file, pypi=[Index(url=f"https://a.example/{value}")])
    profile = msgspec.structs.replace(profile, credentials={"a.example": credential})
    words = shlex.split(text("env", profile))
    at = words.index(f"PIP_INDEX_URL=https://a.example/{value}")
    assert (words[at - 1], words[at + 1]) == ("export", "export")
    assert f"NPM_CONFIG_REGISTRY={value}" in words
    assert f"NETRC={file}" in words


OF_CLIENTS = RenderOptions(variant="cpu", distro="debian", suite="bookworm")
NOWHERE = "http://127.0.0.1:9"
PIP = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir", "--retries", "0"]
ASK = "from huggingface_hub import HfApi\nHfApi().model_info('o/r')"


@pytest.fixture
def mirror(servers: Servers) -> Server:
    return servers.start(Server(lambda _: Answer(404)))


def run(argv: list[str], home: Path, data: Mapping[str, str]) -> None:
    """Run a client that can reach the loopback alone, with nothing of this machine's configuration."""
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C", "no_proxy": "127.0.0.1"}
    plain |= {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "UV_NO_CACHE": "1"}
    subprocess.run(argv, env={**data, **plain}, cwd=home, capture_output=True, check=False, timeout=120)


@pytest.mark.tools
def test_a_netrc_reaches_pip_and_uv_and_not_huggingface_hub(mirror: Server, hub_python: Path, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login joe password {CANARY}\n")
    (tmp_path / "netrc").chmod(0o600)
    profile = Profile(
        name="x",
        netrc=str(tmp_path / "netrc"),
        pypi=[Index(url=f"{mirror.url}/simple")],
        hf=HuggingFace(endpoint=mirror.url),
    )
    assert "a netrc does not reach huggingface_hub" in cannot("hf", profile, OF_CLIENTS)
    data = shell(text("env", profile, OF_CLIENTS))
    run([str(hub_python), "-c", ASK], tmp_path, data)
    assert mirror.logins == {None}
    login = "Basic " + base64.b64encode(f"joe:{CANARY}".encode()).decode()
    for command in ([*PIP, "alpha"], [uv.find_uv_bin(), "pip", "install", "--target", "x", "alpha"]):
        mirror.requests.clear()
        run(command, tmp_path, data)
        assert login in mirror.logins


@pytest.mark.tools
@pytest.mark.parametrize(("policy", "sent"), [("never", {None}), ("allow", {f"Bearer {CANARY}"})])
def test_a_token_goes_to_the_mirror_only_where_the_profile_allows_it(
    mirror: Server, hub_python: Path, tmp_path: Path, policy: str, sent: set[str | None]
) -> None:
    profile = Profile(name="x", hf=HuggingFace(endpoint=mirror.url, token="allow" if policy == "allow" else "never"))
    message = {"never": "HF_TOKEN is not sent to", "allow": "HF_TOKEN is sent to"}[policy]
    assert f"{message} {mirror.url.removeprefix('http://')}" in cannot("hf", profile, OF_CLIENTS)
    data = shell(text("env", profile, OF_CLIENTS), HF_TOKEN=CANARY)
    run([str(hub_python), "-c", ASK], tmp_path, data)
    assert [path for path in mirror.paths if "/o/r" in path]
    assert mirror.logins == sent


SUITES = ("debian bookworm", "debian bookworm-updates", "debian-security bookworm-security")
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
    for row in SUITES:
        name, suite = row.split()
        place, rows = directory / name / "dists" / suite, ""
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
    tmp_path: Path, servers: Servers, first: str
) -> None:
    """Nobody listens there, or it answers 404: of the lists, and of the package itself."""
    apt = shutil.which("apt-get")
    if apt is None:
        pytest.skip("no apt on this machine")
    archive(tmp_path / "www")
    sign(tmp_path / "www", tmp_path / "key.gpg")
    live = servers.start(Server(directory(tmp_path / "www"), "127.0.0.2")).url
    empty = servers.start(Server(lambda _: Answer(404), "127.0.0.3")).url
    other = NOWHERE if first == "dead" else empty
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
    completed = ran([apt, *given, "update"], env=environment)
    output = completed.stdout + completed.stderr
    assert re.search(rf"^Ign:\d+ {re.escape(other)}/debian bookworm InRelease", output, re.MULTILINE), output
    for row in SUITES:
        assert re.search(rf"^Get:\d+ {re.escape(live)}/{row}/main \w+ Packages", output, re.MULTILINE), output
    completed = ran([apt, *given, "download", "from-the-mirror"], cwd=tmp_path, env=environment)
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
