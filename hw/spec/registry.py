"""Objects by name: our own, and those of other packages and files.

A package declares its objects as entry points of a group, such as ``p4sgd.losses`` (packaging.python.org, Entry points
specification). Files that the environment variable `PLUGINS` names, separated by colons, have them in a dictionary
that is called like the last part of the group in capitals: ``LOSSES = {"pinball": Pinball}``. They are loaded when a
name is looked up that is not ours. What cannot be used is left out, and `Registry.trouble` tells why: a package may
be installed for other reasons. Files are there for us alone, so commands load them first, and stop at a broken one.
"""

import functools
import importlib.metadata
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

PLUGINS = "P4SGD_PLUGINS"


class _Others(NamedTuple, Generic[T]):
    objects: dict[str, T]
    sources: dict[str, str]  # of each object
    problems: dict[str, str]  # by source


class Registry(Mapping[str, T]):
    """Our ``own`` objects by name, then those of others that declare them in a ``group``.

    ``check`` makes an object of what a package or a file has under a name; any exception keeps it out.
    """

    def __init__(self, group: str, own: Mapping[str, T], check: Callable[[str, Any], T]) -> None:
        self._group, self._own, self._check = group, dict(own), check
        self._dictionary = group.rpartition(".")[2].upper()  # in files

    def __getitem__(self, name: str) -> T:
        return self._own[name] if name in self._own else self._others.objects[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._others.objects

    def __len__(self) -> int:
        return len(self._own) + len(self._others.objects)

    @property
    def own(self) -> Mapping[str, T]:
        """Our own objects."""
        return self._own

    @property
    def sources(self) -> Mapping[str, str]:
        """Packages and files of the objects that are not ours: ``package p4sgd-pinball 1.0``, ``file pinball.py``."""
        return self._others.sources

    @property
    def problems(self) -> Mapping[str, str]:
        """Reasons why objects of packages and files are left out, by their source."""
        return self._others.problems

    @property
    def trouble(self) -> str:
        """`problems`, as the end of a message that says that there is no such name; empty if there are none."""
        return "".join(f"; {source} cannot be used: {problem}" for source, problem in self.problems.items())

    @functools.cached_property
    def _others(self) -> _Others[T]:
        found = _Others[T]({}, {}, {})
        for source, load in self._declared():
            try:
                for name, declared in load().items():
                    if name in self._own or name in found.objects:
                        raise ValueError(f"the name {name} is taken")
                    found.objects[name] = self._check(name, declared)
                    found.sources[name] = source
            except (Exception, SystemExit) as error:
                found.problems[source] = _describe(error)
        return found

    def _declared(self) -> Iterator[tuple[str, Callable[[], Mapping[str, Any]]]]:
        """Sources, with functions that load what they declare."""
        for point in importlib.metadata.entry_points(group=self._group):
            source = "" if point.dist is None else f"package {point.dist.name} {point.dist.version}"
            yield source, functools.partial(_load, point)
        for file in _files():
            yield f"file {file}", functools.partial(_dictionary, file, self._dictionary)


def choices(known: Iterable[str]) -> str:
    """The end of a message that there is no such name: the ``known`` ones and, of a registry, what may have others."""
    found = f"choose one of {', '.join(known)}"
    return f"{found}, or of a file in {PLUGINS}{known.trouble}" if isinstance(known, Registry) else found


def _load(point: importlib.metadata.EntryPoint) -> Mapping[str, Any]:
    return {point.name: point.load()}


def _dictionary(file: str, name: str) -> Mapping[str, Any]:
    """A dictionary of a file, which it need not have."""
    found = getattr(_module(file), name, {})
    if not isinstance(found, Mapping):
        raise TypeError(f"{name} is no dictionary")
    return found


def _files() -> list[str]:
    return list(filter(None, os.environ.get(PLUGINS, "").split(os.pathsep)))


def load_files(*registries: Registry[Any]) -> None:
    """Load the files that `PLUGINS` names. An ImportError names the file, and the line of whatever it raises, if one
    cannot be loaded or has what a registry cannot use."""
    names = [registry._dictionary for registry in registries]
    for file in _files():
        try:
            if not any(hasattr(_module(file), name) for name in names):
                raise AttributeError(f"there is no {' or '.join(names)} in it")
        except (Exception, SystemExit) as error:
            path = str(Path(file).resolve())
            own = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == path]
            line = error.lineno if isinstance(error, SyntaxError) else own[-1] if own else None
            where = file if line is None else f"{file}, line {line}"
            text = "there is no such file" if not own and isinstance(error, FileNotFoundError) else _describe(error)
            raise ImportError(f"{where}: {text}") from error
        for problem in (registry.problems.get(f"file {file}") for registry in registries):
            if problem is not None:
                raise ImportError(f"{file}: {problem}")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@functools.cache  # a file may have objects for several registries
def _module(file: str) -> ModuleType:
    name = f"p4sgd_plugin_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(name, Path(file).resolve())
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
