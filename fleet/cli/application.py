"""Find the user's app by its `MODULE:APP`."""

import os
import sys
import traceback
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import click

from fleet.errors import ConfigurationError

if TYPE_CHECKING:
    from fleet.app import Fleet

VARIABLE = "FLEET_APP"


def load_app(path: str | None) -> "Fleet":
    """Import the app that `path`, or else FLEET_APP, names; modules are looked for in the current directory too."""
    from fleet.app import Fleet

    path = path or os.environ.get(VARIABLE)
    if not path:
        raise click.UsageError(f"no app was named: give MODULE:APP, such as shop.tasks:app, or set {VARIABLE}")
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigurationError(f"the app {path!r} is not of the form MODULE:APP, such as shop.tasks:app")
    module = _import(module_name)
    app = getattr(module, attribute, None)
    if app is None:
        found = sorted(name for name, value in vars(module).items() if isinstance(value, Fleet))
        hint = f"; it has: {', '.join(found)}" if found else "; it has no Fleet at all"
        raise ConfigurationError(f"module {module_name!r} has no {attribute!r}{hint}")
    if not isinstance(app, Fleet):
        raise ConfigurationError(f"{path} is a {type(app).__name__}, not a Fleet")
    return app


def _import(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - sys.path takes strings
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {error.name!r}, neither installed nor in the current directory {here}"
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigurationError:
    """Say where in the user's code the import ended."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    words = traceback.format_exception_only(error)[-1].strip()
    return ConfigurationError(f"importing {name!r} failed: {words} ({last.filename}, line {last.lineno})")
