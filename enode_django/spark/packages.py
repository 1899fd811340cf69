"""The project's own code for executors on other machines: packages that no requirement installs there."""

from __future__ import annotations

import importlib.util
import site
import sysconfig
import zipfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from django.apps import apps

from enode_django.processes.settings_module import settings_module

_LEFT_OUT = {"__pycache__", "node_modules"}
_BEGINNING_OF_TIME = (1980, 1, 1, 0, 0, 0)


def own_packages() -> dict[str, list[Path]]:
    """Return the paths of the top-level packages and modules of the installed apps, of the settings and of this
    package, by name. Those that are installed as requirements are left out."""
    names = {config.name for config in apps.get_app_configs()} | {settings_module(), __package__ or ""}
    found = {name: _places(name) for name in sorted({name.partition(".")[0] for name in names} - {""})}
    return {name: places for name, places in found.items() if places}


def own_directories() -> list[str]:
    """Return the directories from which `own_packages` are imported."""
    return list(dict.fromkeys(str(place.parent) for places in own_packages().values() for place in places))


def zip_packages(directory: Path) -> Path | None:
    """Write a zip file of `own_packages` to ``directory``, named by a digest of its contents. Return its path, None if
    there are none."""
    files = {name: path for places in own_packages().values() for place in places for name, path in _files(place)}
    if not files:
        return None
    content = {name: path.read_bytes() for name, path in sorted(files.items())}
    digest = blake2b(digest_size=8)
    for name, data in content.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    archive = directory / f"enode_packages_{digest.hexdigest()}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in content.items():
            target.writestr(zipfile.ZipInfo(name, _BEGINNING_OF_TIME), data, zipfile.ZIP_DEFLATED)
    return archive


def _places(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return []
    places = list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))
    return [path for path in map(Path, places) if path.exists() and not _is_installed(path.resolve())]


def _is_installed(path: Path) -> bool:
    roots = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        roots.add(site.getusersitepackages())
    return any(path.is_relative_to(Path(root).resolve()) for root in roots)


def _files(place: Path) -> Iterator[tuple[str, Path]]:
    if place.is_file():
        yield place.name, place
        return
    for path in place.rglob("*"):
        parts = path.relative_to(place).parts
        if path.is_file() and not _LEFT_OUT.intersection(parts) and not any(part.startswith(".") for part in parts):
            yield Path(place.name, *parts).as_posix(), path
