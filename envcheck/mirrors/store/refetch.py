"""Fetch the objects that a store has lost again, from the sources that the contents name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.index.locate import LockedPackage, locate
from envcheck.mirrors.profiles.model import Profile, network_indexes
from envcheck.mirrors.store.manifest import Contents, Wheel
from envcheck.mirrors.store.objects import Store


def refetch(
    store: Store, missing: set[str], contents: Contents, profile: Profile, options_for: Callable[[str], TransferOptions]
) -> dict[str, str]:
    """Fetch these objects through a profile, one by one; map the digest of each that failed to the reason.

    A wheel's METADATA is not fetched: `verify` reads it out of the wheel.
    """
    reasons = {}
    wheels = {wheel.sha256: wheel for wheel in contents.wheels if wheel.sha256 in missing}
    files = {str(file.sha256): (model, file) for model in contents.models for file in model.files}
    for digest in sorted(missing & {*wheels, *files}):
        name = wheels[digest].name if digest in wheels else files[digest][1].path
        locate_file = (
            _wheel_source(wheels[digest], profile, options_for)
            if digest in wheels
            else _model_file_source(*files[digest], profile)
        )
        try:
            store.put(locate_file(), options_for(name))
        except (PromiseError, UnavailableError) as error:
            reasons[digest] = error.message
    return reasons


def _wheel_source(
    wheel: Wheel, profile: Profile, options_for: Callable[[str], TransferOptions]
) -> Callable[[], WantedFile]:
    """Return a function that asks the indexes where a wheel is."""

    def locate_wheel() -> WantedFile:
        need = LockedPackage(wheel.project, (wheel.sha256,), wheel.index, wheel.version)
        # Any directory of this machine may have the file: its hash decides.
        directories = [index for index in [*profile.pypi, *profile.pytorch] if index.local is not None]
        indexes = {
            "pypi": [*network_indexes(profile.pypi, closed=profile.closed), *directories],
            "pytorch": [*network_indexes(profile.pytorch, closed=profile.closed), *directories],
        }
        (located,) = locate([need], indexes, options_for(wheel.name).client)
        return WantedFile(located.urls, wheel.sha256, wheel.size, Path(wheel.name), located.local)

    return locate_wheel


def _model_file_source(
    model: hub_revision.Revision, file: hub_revision.HubFile, profile: Profile
) -> Callable[[], WantedFile]:
    """Return a function that returns where a model's file is."""

    def locate_file() -> WantedFile:
        if not profile.hf.endpoints:
            message = f"{file.path}: the mirror profile has no hf.endpoint"
            raise UnavailableError(message, fix="give --mirror a profile that names one")
        ref = hub_revision.Reference(model.kind, model.repo, model.revision)
        urls = tuple(hub_revision.file_url(endpoint, ref, file.path) for endpoint in profile.hf.endpoints)
        return WantedFile(urls, str(file.sha256), file.size, Path(Path(file.path).name))

    return locate_file
