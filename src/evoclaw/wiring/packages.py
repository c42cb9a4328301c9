"""Loads tools and providers of installed Python packages, by their entry points.

Only of packages that the settings name: to install a package must not give it a place in runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.core.ports import Provider
    from evoclaw.executors.own_tools import LoadTools
    from evoclaw.providers.http import Http
    from evoclaw.providers.registry import ProviderFactory

TOOLS_GROUP = "evoclaw.tools"
PROVIDERS_GROUP = "evoclaw.providers"


def tool_loaders(
    packages: Sequence[str], writable: Iterable[Path | str] = ()
) -> Mapping[str, LoadTools]:
    """What loads the tools of each package; nothing is imported yet.

    Args:
        packages: The names of the packages.
        writable: The folders that calls can change; code in them is not loaded.
    """
    folders = [Path(path).expanduser() for path in writable]
    return {f"package {name}": partial(_package_tools, name, folders) for name in packages}


def package_providers(packages: Sequence[str]) -> dict[str, ProviderFactory]:
    """The providers of some packages, by the prefix of their models."""
    from evoclaw.providers.models.local import is_local_name
    from evoclaw.providers.registry import ENDPOINTS

    found: dict[str, ProviderFactory] = {}
    for package in packages:
        for point in _entry_points(package, PROVIDERS_GROUP):
            if point.name in found or point.name in ENDPOINTS or is_local_name(point.name):
                raise ConfigError(
                    f"the Python package {package!r} has a provider {point.name!r}, and there is "
                    "one of that name already; remove the package from `provider_packages`"
                )
            loaded = _load(package, point)
            if not callable(loaded):
                raise ConfigError(
                    f"the Python package {package!r}: the provider {point.name!r} must be a "
                    "function that creates a provider"
                )
            found[point.name] = _checked_factory(package, loaded)
    return found


def _checked_factory(package: str, create: Callable[..., Any]) -> ProviderFactory:
    def checked(model: str, *, http: Http, env: Mapping[str, str]) -> Provider:
        try:
            provider = create(model, http=http, env=env)
        except ConfigError:
            raise
        except Exception as problem:
            # The package may raise anything; a model that cannot be used must not end a service.
            raise ConfigError(
                f"the Python package {package!r} cannot create a provider of {model!r}: "
                f"{type(problem).__name__}: {problem}"
            ) from problem
        if not (hasattr(provider, "stream") and hasattr(provider, "profile")):
            raise ConfigError(
                f"the Python package {package!r} created no provider of {model!r}, but "
                f"{type(provider).__name__}"
            )
        return provider

    return checked


def _package_tools(package: str, writable: Sequence[Path]) -> list[BoundTool]:
    found: list[BoundTool] = []
    for point in _entry_points(package, TOOLS_GROUP):
        _refuse_writable(point, writable)
        value = _load(package, point)
        values = vars(value).values() if isinstance(value, ModuleType) else (value,)
        tools = [tool for tool in values if isinstance(tool, BoundTool)]
        if not tools:
            raise ConfigError(
                f"its entry point {point.name!r} names neither a function with @tool nor a module "
                "with one"
            )
        found += [tool for tool in tools if tool not in found]
    if any(bound.tool.isolated for bound in found):
        raise ConfigError(
            "it has isolated tools, but its code is imported into this process; put them into a "
            "file of your own"
        )
    return found


def _refuse_writable(point: EntryPoint, writable: Sequence[Path]) -> None:
    """Refuse code that calls can change: it would run in this process at the next start."""
    spec = find_spec(point.module.partition(".")[0])
    files = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    for file in filter(None, files):
        for folder in writable:
            if Path(file).resolve().is_relative_to(folder.resolve()):
                raise ConfigError(
                    f"its code '{file}' is inside '{folder}', where calls can change it; "
                    "install it into another folder, and not as editable"
                )


def _entry_points(package: str, group: str) -> Iterator[EntryPoint]:
    try:
        points = distribution(package).entry_points.select(group=group)
    except (PackageNotFoundError, ValueError):
        raise ConfigError(
            f"the Python package {package!r} is not installed beside evoclaw; install it, or "
            "remove it from the settings"
        ) from None
    if not points:
        raise ConfigError(f"the Python package {package!r} has no entry point of {group!r}")
    yield from points


def _load(package: str, point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as problem:
        # The package may raise anything when it is imported.
        raise ConfigError(
            f"the Python package {package!r}: {point.value} cannot be loaded: "
            f"{type(problem).__name__}: {problem}"
        ) from problem
