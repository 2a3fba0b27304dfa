"""Which sites there are: options, environment or a TOML file, the first of these that says it.

1. `--site NAME=CONNINFO`, once per site;
2. `--config FILE`;
3. `PGMIP_SITES`: `NAME=CONNINFO` per site, on lines of their own or separated by semicolons;
4. `PGMIP_CONFIG`: the name of a file;
5. `pgmip.toml` in the current folder.

    # pgmip.toml
    app = "shop:app"                # for `pgmip sweep`, optional

    [sites]
    store = "service=store"
    bank = "postgresql://pgmip@bank.example/bank"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .errors import CliError, ExitCode

__all__ = ["Config", "load"]

DEFAULT_FILE = "pgmip.toml"
_KEYS = ("app", "sites")


@dataclass(frozen=True, slots=True)
class Config:
    """The sites, by name in the order given, and where the app is, if that was said."""

    sites: Mapping[str, str]
    app: str | None = None

    def required(self) -> Mapping[str, str]:
        """The sites. Raises CliError where there are none."""
        if not self.sites:
            raise _usage(
                "no sites are given",
                f'use --site NAME=CONNINFO, PGMIP_SITES, or a file {DEFAULT_FILE} with a table "sites"',
            )
        return self.sites


def load(sites: Sequence[str] | None, file: Path | None, environ: Mapping[str, str] = os.environ) -> Config:
    """What options, environment and files say. Raises CliError for what cannot be meant."""
    if sites:
        return Config(_parsed(sites, "--site"), _app_of(file, environ))
    if file is not None:
        return _read(file)
    if environ.get("PGMIP_SITES", "").strip():
        words = environ["PGMIP_SITES"].replace(";", "\n").splitlines()
        return Config(_parsed((word for word in words if word.strip()), "PGMIP_SITES"), _app_of(None, environ))
    found = _default_file(environ)
    return Config({}) if found is None else _read(found)


def _app_of(file: Path | None, environ: Mapping[str, str]) -> str | None:
    found = file or _default_file(environ)
    return None if found is None else _read(found).app


def _default_file(environ: Mapping[str, str]) -> Path | None:
    if environ.get("PGMIP_CONFIG"):
        return Path(environ["PGMIP_CONFIG"])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _parsed(words: Iterable[str], where: str) -> dict[str, str]:
    sites: dict[str, str] = {}
    for word in words:
        name, equals, conninfo = word.strip().partition("=")
        if not equals:
            # Not the word itself: it may be a connection string, with a password in it.
            raise _usage(f"{where}: a site is given as NAME=CONNINFO", 'for example store="service=store"')
        _add(sites, name.strip(), conninfo.strip(), where)
    return sites


def _read(file: Path) -> Config:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _usage(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _usage(f"{file} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _usage(f"{file} is not TOML: {error}") from None
    unknown = sorted(content.keys() - set(_KEYS))
    if unknown:
        raise _usage(f"{file}: unknown key {unknown[0]!r}", f"known are {', '.join(_KEYS)}")
    table: Any = content.get("sites", {})
    app: Any = content.get("app")
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise _usage(f'{file}: "sites" has to be a table of NAME = "CONNINFO"')
    if app is not None and not isinstance(app, str):
        raise _usage(f'{file}: "app" has to be a text "MODULE:ATTRIBUTE"')
    sites: dict[str, str] = {}
    for name, conninfo in table.items():
        _add(sites, name, conninfo, str(file))
    return Config(sites, app)


def _add(sites: dict[str, str], name: str, conninfo: str, where: str) -> None:
    if not name:
        raise _usage(f"{where}: a site needs a name")
    if name in sites:
        raise _usage(f"{where}: site {name!r} is given twice")
    try:
        conninfo_to_dict(conninfo)
    except (psycopg.ProgrammingError, UnicodeError) as error:
        raise _usage(f"{where}: site {name!r}: not a connection string: {' '.join(str(error).split())}") from None
    sites[name] = conninfo


def _usage(message: str, hint: str | None = None) -> CliError:
    return CliError(message, ExitCode.USAGE, hint=hint)
