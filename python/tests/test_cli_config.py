"""How the sites are given to the command line, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pgmip.cli.commands import app
from pgmip.cli.config import load
from pgmip.cli.errors import CliError, ExitCode
from pgmip.cli.output import age, visible

TOML = """
app = "shop:app"

[sites]
store = "service=store"
bank = "host=/tmp dbname='a b'"
"""
SITES = {"store": "service=store", "bank": "host=/tmp dbname='a b'"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PGMIP_SITES", "PGMIP_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_the_first_that_says_it_counts(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('[sites]\nfrom = "service=file"\n')
    environ = {"PGMIP_SITES": "from=service=environment", "PGMIP_CONFIG": str(file)}
    Path("pgmip.toml").write_text('[sites]\nfrom = "service=default"\n')
    assert load(["from=service=option"], file, environ).sites == {"from": "service=option"}
    assert load(None, file, environ).sites == {"from": "service=file"}
    assert load(None, None, environ).sites == {"from": "service=environment"}
    assert load(None, None, {"PGMIP_CONFIG": str(file)}).sites == {"from": "service=file"}
    assert load(None, None, {}).sites == {"from": "service=default"}


def test_the_app_comes_from_a_file_whatever_the_sites_come_from() -> None:
    Path("pgmip.toml").write_text(TOML)
    assert load(None, None, {}).app == "shop:app"
    assert load(["a=service=a"], None, {}).app == "shop:app"
    assert load(None, None, {"PGMIP_SITES": "a=service=a"}).app == "shop:app"
    assert load(None, None, {}).sites == SITES
    assert list(load(None, None, {}).sites) == ["store", "bank"], "the order given"


@pytest.mark.parametrize(
    "text",
    ["store=service=store;bank=host=/tmp dbname='a b'", "\n store=service=store\n\nbank = host=/tmp dbname='a b';"],
)
def test_environment(text: str) -> None:
    assert load(None, None, {"PGMIP_SITES": text}).sites == SITES


def test_no_sites() -> None:
    with pytest.raises(CliError, match="no sites"):
        load(None, None, {"PGMIP_SITES": " "}).required()
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == ExitCode.USAGE
    assert "no sites are given" in result.stderr
    assert "--site" in result.stderr


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("[sites", "is not TOML"),
        ("site = 1", "unknown key 'site'"),
        ("sites = 'store'", "table of NAME"),
        ("[sites]\nstore = 5", "table of NAME"),
        ("app = 3", '"app" has to be'),
        ('[sites]\n"" = "service=a"', "needs a name"),
        ('[sites]\nstore = "no such = thing = here"', "site 'store': not a connection string"),
        (b"\xff", "is not UTF-8"),
        (None, "cannot read"),
    ],
)
def test_files_that_are_wrong(content: str | bytes | None, what: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.write_text(content)
    result = CliRunner().invoke(app, ["status", "--config", str(file)])
    assert result.exit_code == ExitCode.USAGE
    assert what in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--site", "store"], "NAME=CONNINFO"),
        (["--site", "=service=a"], "needs a name"),
        (["--site", "a=service=a", "--site", "a=service=b"], "given twice"),
        (["--site", "a=password=s3cret colour=red"], "not a connection string"),
        (["--site", "a=postgresql://u:s3cret@h:port/d?x=1"], "not a connection string"),
    ],
)
def test_options_that_are_wrong(words: list[str], what: str) -> None:
    result = CliRunner().invoke(app, ["status", *words])
    assert result.exit_code == ExitCode.USAGE
    assert what in result.stderr
    assert "s3cret" not in result.output


def test_options_that_do_not_exist() -> None:
    for words in (["nonsense"], ["status", "--nonsense"], ["show"], ["top", "--interval", "never"]):
        assert CliRunner().invoke(app, words).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("xid", ["", "x" * 129, "a\0b", "\udcff"])
def test_names_that_are_no_xid(xid: str) -> None:
    for command in ("show", "resolve"):
        result = CliRunner().invoke(app, [command, xid, "--site", "a=service=a"])
        assert result.exit_code == ExitCode.USAGE, command
        assert "XID" in result.stderr


def test_version_and_help() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("pgmip 0")
    for name in ("status", "top", "show", "resolve", "sweep", "doctor", "enable", "disable", "bench", "demo"):
        result = CliRunner().invoke(app, [name, "--help"])
        assert result.exit_code == ExitCode.OK
        assert "--json" in result.stdout


def test_what_is_not_ours_is_shown_harmless() -> None:
    assert visible("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"
    assert visible("schön [red]") == "schön [red]"
    assert visible("\u202e") == "\\u202e"


def test_ages() -> None:
    assert [age(s) for s in (None, 0, 9.96, 35, 119, 180, 7300, 200_000)] == [
        "-", "0.0 s", "10.0 s", "35 s", "119 s", "3.0 min", "2.0 h", "2 d",
    ]  # fmt: skip
