"""The native code for the processor: `native/` compiled into the host library.

A wheel brings it along. In a checkout it is compiled on first use into a cache folder, under a name
that covers all it is made from: sources, flags, compiler and processor. `native_library.py` loads
it; `device_code.py` keeps what is compiled for GPUs in the same folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

NATIVE = Path(__file__).parent / "native"

# No contraction: a fused multiply-add rounds once where ALE rounds twice. CMakeLists.txt has the
# same flags, except that a wheel is not built for the processor at hand.
FLAGS = (
    "-std=c++17 -O2 -march=native -fPIC -shared -ffp-contract=off -fno-exceptions -fno-rtti "
    # GCC 12 keeps the CPU core's registers in vectors otherwise, at half the speed.
    "-fno-tree-slp-vectorize -fno-gcse "
    "-pthread -fvisibility=hidden -Wall -Wextra"
).split()

# Names another library file, used as it is: the sanitizers' build.
LIBRARY_VARIABLE = "RLBATCH_ATARI_LIBRARY"

LIBRARY_NAME = "librlbatch_atari"
_COMPILERS = ("c++", "g++", "clang++")
_COMPILE_TIMEOUT_S = 600

_log = logging.getLogger(__name__)

# The libraries of a wheel, the best first, and what Linux calls the instructions that they
# need; see CMakeLists.txt. Source: x86-64 psABI 1.0, section 3.1.1.
_LEVELS = {
    "v4": "avx512f avx512bw avx512cd avx512dq avx512vl avx512vbmi avx2 bmi1 bmi2 fma movbe".split(),
    "v3": "avx2 bmi1 bmi2 fma movbe f16c abm".split(),
    "v2": "sse4_2 popcnt".split(),
    "any": [],
}


class BuildError(RuntimeError):
    """What is compiled is missing and cannot be made; the message says what to install."""


class CacheError(BuildError):
    """There is no folder for what is compiled; the message says how to name another one."""


def host_library() -> Path:
    """Returns the file of the host library: named, packaged, cached or compiled now.

    Raises:
        BuildError: There is no library, and none can be compiled.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Path(named)
    packaged = packaged_library()
    if packaged:
        return packaged
    compiler = find_compiler()
    path = cache_folder() / f"{LIBRARY_NAME}-{cache_key(compiler)}.so"
    return made_once(path, "the Atari core", lambda: compile_library(path, compiler))


def packaged_library() -> Path | None:
    """Returns the best of a wheel's libraries that this processor can run; None in a checkout."""
    known = _processor().split()
    for level, needed in _LEVELS.items():
        path = NATIVE / f"{LIBRARY_NAME}_{level}.so"
        if path.exists() and set(needed).issubset(known):
            return path
    return None


def made_once(path: Path, what: str, make: Callable[[], None]) -> Path:
    """Returns a file of the cache folder, which is made first where it is not there."""
    if not path.exists():
        with one_at_a_time(path):
            if not path.exists():  # Nobody has made it meanwhile.
                _log.warning("compiling %s, once, to %s", what, path)
                make()
    return path


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lets other processes that want the same file wait for it rather than make it as well."""
    with contextlib.ExitStack() as stack:
        # Without a lock, where there cannot be one, it is only made twice.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(path.with_suffix(".lock"), "w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.warning("waiting for another process, which makes %s", path)
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in path.parent.glob(f"{path.name}-*.tmp"):  # By one that was killed.
                left.unlink(missing_ok=True)
        yield


def find_compiler() -> list[str]:
    """Returns the command of a C++ compiler: $CXX, or the first of the usual ones.

    Raises:
        BuildError: There is none.
    """
    named = os.environ.get("CXX", "").split()
    for command in (named, *([name] for name in _COMPILERS)):
        if command and shutil.which(command[0]):
            return command
    raise BuildError(
        "rlbatch.envs.atari: expected a prebuilt library (in rlbatch's wheels for Linux) or a C++ "
        f"compiler ($CXX, {', '.join(_COMPILERS)}), got neither; install one, such as with "
        "`apt install g++` or `conda install cxx-compiler`"
    )


def cache_folder() -> Path:
    """Returns the user's folder for compiled libraries, which need not exist yet.

    Raises:
        CacheError: The user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base or Path.home() / ".cache", "rlbatch")
    except RuntimeError as error:
        raise CacheError(
            "rlbatch.envs.atari: expected a folder for compiled libraries, got none: the user has "
            "no home; set XDG_CACHE_HOME"
        ) from error


def cache_key(compiler: Sequence[str], source: Path = NATIVE / "host.cpp") -> str:
    """Returns a digest of all that a compiled library depends on.

    The processor is part of it: a home directory may be shared by machines of different kinds,
    and code for the newest of them does not run on the others.

    Args:
        compiler: The compiler's command.
        source: What is compiled.
    """
    version = _run([*compiler, "--version"]).stdout
    return digest_of(version, " ".join([*compiler, *FLAGS]), _processor(), source=source)


def digest_of(*parts: str, source: Path) -> str:
    """Returns a digest of the parts, of a source file, and of all that it includes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part}\0".encode())
    for path in _with_included(source):
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:24]


def _with_included(source: Path) -> list[Path]:
    """Returns a source file and the files beside it that it includes, or that these include."""
    found = [source]
    for path in found:  # Which grows.
        names = re.findall(rb'^\s*#\s*include\s*"(.+?)"', path.read_bytes(), re.MULTILINE)
        beside = (path.with_name(name.decode()) for name in names)
        found += [other for other in dict.fromkeys(beside) if other not in found]
    return sorted(found)


def compile_library(
    target: Path,
    compiler: Sequence[str] | None = None,
    flags: Sequence[str] = (),
    source: Path = NATIVE / "host.cpp",
) -> None:
    """Compiles a library into a file, which appears complete or not at all.

    Args:
        target: The file; its folder is made.
        compiler: The compiler's command; what `find_compiler` finds if None.
        flags: Added to `FLAGS`.
        source: What is compiled.

    Raises:
        BuildError: There is no compiler, it fails, or the folder cannot be written.
    """
    compiler = compiler or find_compiler()
    with appearing(target) as name:
        command = [*compiler, *FLAGS, *flags, "-o", name, str(source)]
        result = _run(command)
        if result.returncode:
            raise BuildError(
                f"{' '.join(command)}: expected a library, got exit status {result.returncode}\n"
                f"{result.stderr[-4000:]}"
            )


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[str]:
    """Gives the name of a file to write, which becomes the target if all goes well.

    Raises:
        CacheError: The folder cannot be written, or is full.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder: os.replace is atomic within one file system only.
        handle, name = tempfile.mkstemp(suffix=".tmp", prefix=f"{target.name}-", dir=target.parent)
        os.close(handle)
        try:
            yield name
            with open(name, "rb") as file:
                os.fsync(file.fileno())  # Whole, also after a power cut.
            os.chmod(name, 0o755)
            os.replace(name, target)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise CacheError(
            f"{target.parent}: expected a folder to write the compiled library to, got {error}; "
            "the environment variable XDG_CACHE_HOME names another one"
        ) from error


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(command: Sequence[str]) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: expected a compiler that works, got {error}") from error


def _processor() -> str:
    """Names the processor as far as the choice of instructions goes."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    words = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    found = {line.partition(":")[0].strip(): line.partition(":")[2] for line in lines}
    return " ".join([platform.machine(), *(found.get(word, "") for word in words)])
