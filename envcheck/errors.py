"""What can go wrong, each with the exit code it ends the command with and what the user does next."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn


class EnvcheckError(Exception):
    """Base of every error shown to a user: one line saying what and where, and `fix`, saying what to do."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        """Return the single line a user reads."""
        return f"{self.message}; {self.fix}"


class ConfigError(EnvcheckError):
    """A file, option or selector is wrong (exit 2)."""

    exit_code = 2


def refuse(message: str, fix: str, kind: type[EnvcheckError] = ConfigError) -> NoReturn:
    """Raise an error of this kind."""
    raise kind(message, fix=fix)


def refuse_all(wrong: Iterable[ConfigError]) -> None:
    """Raise all that is wrong as one error, a line each; nothing where nothing is."""
    errors = list(wrong)
    if not errors:
        return
    message, fix = errors[-1].message, errors[-1].fix
    if errors[:-1]:
        message = "\n  ".join([f"{len(errors)} inputs are wrong:", *map(str, errors[:-1]), message])
    refuse(message, fix)


def all_of(*calls: Callable[[], Any]) -> list[Any]:
    """Return what each call returns; raise the ConfigErrors of all of them as one."""
    results, wrong = [], []
    for call in calls:
        try:
            results.append(call())
        except ConfigError as error:  # noqa: PERF203 (calls are few)
            wrong.append(error)
        except EnvcheckError:
            refuse_all(wrong)  # what was typed is wrong, whether or not an engine answers
            raise
    refuse_all(wrong)
    return results


class NothingLegalError(EnvcheckError):
    """No cell of the matrix can do what was asked (exit 1)."""

    exit_code = 1


class BuildError(EnvcheckError):
    """An image or environment could not be built (exit 1)."""

    exit_code = 1


class PromiseError(EnvcheckError):
    """What was built is not what its spec promises (exit 1)."""

    exit_code = 1


class UnavailableError(EnvcheckError):
    """Something needed for an answer is not there: an engine, an index, a tool (exit 3)."""


class NotFoundError(UnavailableError):
    """Every source answered, and none has the file (exit 1)."""

    exit_code = 1
