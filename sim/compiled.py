"""Compiled loops: `numba.njit` with a cache, and a remark when Numba has to compile.

Numba keeps compiled code in ``$NUMBA_CACHE_DIR``, else beside the source, else in ``numba`` in the user's cache folder.
Callers pass scratch arrays to loops that most runs need, because loading a loop that allocates arrays imports more of
Numba.
"""

import contextlib
import functools
import hashlib
import inspect
import logging
import pickle
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numba
from numba.core import caching, event, serialize
from numba.core.runtime.nrt import rtsys

from p4sgd.sim.cache import check_private
from p4sgd.sim.ending import interrupt

_remark = functools.cache(logging.getLogger(__name__).info)  # logs a text once

_purposes: dict[Any, str] = {}  # what compiled functions are, by function


def compiled(purpose: str, **options: Any) -> Callable[[Any], Any]:
    """`numba.njit` with a cache, or without one where Numba finds no folder for it.

    When Numba compiles a function of a ``purpose``, such as ``the emulator's loops``, for the first time because the
    cache does not have it, this is logged. ``options`` are those of `numba.njit`.
    """

    def decorate(function: Any) -> Any:
        _purposes[function] = purpose
        dispatcher = numba.njit(**options)(function)
        with contextlib.suppress(RuntimeError):  # there is no folder
            dispatcher._cache = _Cache(function)  # as `cache=True` does
        dispatcher.compile = _interrupts_deferred()(dispatcher.compile)
        return dispatcher

    return decorate


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defer KeyboardInterrupt, by whichever signal, until the block ends; of nested blocks, the innermost.

    LLVM calls Python from C, and llvmlite frees what it holds in destructors: there the exception would be lost, or
    become another error.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in signal.valid_signals()}
    deferred = {number: each for number, each in handlers.items() if each in (signal.default_int_handler, interrupt)}

    def note(number: int, frame: FrameType | None) -> None:
        _arrived.append(lambda: deferred[number](number, frame))

    for number in deferred:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in deferred.items():
            signal.signal(number, handler)
        if _arrived:
            first = _arrived[0]
            _arrived.clear()
            first()


_arrived: list[Callable[[], object]] = []  # what signals that wait are to do


_SIM, _SPEC = Path(__file__).parent, Path(__file__).parents[1] / "hw" / "spec"


class _Cache(caching.FunctionCache):
    """Numba's cache with a checksum, which does without a file that it cannot use or write: then loops are compiled.

    Numba itself unpickles whatever a file has, runs damaged code, and looks only at changes of the function's module.
    Here compiled code also counts no longer if any module beside it or in `p4sgd.sim` changes, whose functions it may
    call, or any of `p4sgd.hw.spec`, whose numbers are constants of it. A file is a checksum of all that and of the
    rest, which is a pickle; the signature is in its name.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        folders = (Path(inspect.getfile(function)).parent, _SIM, _SPEC)
        self._stamp = (numba.__version__, self._impl.locator.get_source_stamp(), *map(_modules, folders))

    def load_overload(self, signature: Any, target: Any) -> Any:
        # Numba's own method first imports all that it compiles with, and SciPy's linear algebra, which takes as long as
        # to import Numba itself. What is loaded needs only the runtime; who compiles imports the rest then.
        rtsys.initialize(target)
        key = self._index_key(signature, target.codegen())
        try:
            check_private(Path(self.cache_path))
            content = self._file(key).read_bytes()
        except OSError:
            return None
        digest, pickled = content[:_DIGEST_BYTES], memoryview(content)[_DIGEST_BYTES:]
        if digest != self._digest(key, pickled):
            return None
        return self._impl.rebuild(target, pickle.loads(pickled))

    def save_overload(self, signature: Any, result: Any) -> None:
        if not self._impl.check_cachable(result):
            return
        key = self._index_key(signature, result.codegen)
        pickled = serialize.dumps(self._impl.reduce(result))
        scratch = Path(self.cache_path, f"{secrets.token_hex(8)}.tmp")
        try:
            self._impl.locator.ensure_cache_path()
            check_private(scratch.parent)
            scratch.write_bytes(self._digest(key, pickled) + pickled)
            scratch.replace(self._file(key))
        except OSError as error:
            remedy = "set NUMBA_CACHE_DIR to another folder, or they are compiled in every run"
            _remark(f"cannot keep compiled loops in {self.cache_path}: {error.strerror}; {remedy}")
            with contextlib.suppress(OSError):
                scratch.unlink()

    def _file(self, key: Any) -> Path:
        signature, machine, _ = key
        name = hashlib.sha256(repr((signature, machine)).encode()).hexdigest()[:24]
        return Path(self.cache_path, f"{self._impl.filename_base}.{name}.nbc")

    def _digest(self, key: Any, pickled: Any) -> bytes:
        checksum = hashlib.sha256(repr((self._stamp, key)).encode())
        checksum.update(pickled)
        return checksum.digest()


_DIGEST_BYTES = hashlib.sha256().digest_size


@functools.cache
def _modules(folder: Path) -> str:
    """A checksum of the modules in a folder and below."""
    checksum = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        checksum.update(path.read_bytes())
    return checksum.hexdigest()


class _Compilations(event.Listener):
    def on_start(self, event: Any) -> None:
        dispatcher = event.data["dispatcher"]
        purpose = _purposes.get(dispatcher.py_func)
        if purpose and dispatcher.stats.cache_path:
            _remark(f"compiling {purpose}: some seconds, once on this machine")
        elif purpose:
            remedy = "to keep them, set NUMBA_CACHE_DIR to a folder that you may write"
            _remark(f"compiling {purpose}: some seconds in every run; {remedy}")

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Compilations())
