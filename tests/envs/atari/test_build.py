"""The host library: found, compiled once, and what is said when that cannot be."""

import fcntl
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from rlbatch.envs.atari import BuildError, build
from rlbatch.envs.atari.native_library import load_library
from tests.processes import at_most

# A compiler that knows its version and copies the source to the place of the library.
COMPILER = """#!/bin/sh
test "$1" = --version && echo "copy {version}" && exit
for argument; do
    test "$previous" = -o && target="$argument"
    previous="$argument"
done
{action}
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Puts a compiler of our own in place of the machine's, and an empty cache."""

    def install(action='cp "$argument" "$target"', version=1):
        path = tmp_path / "compiler"
        path.write_text(COMPILER.format(action=action, version=version))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return [str(path)]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(build.LIBRARY_VARIABLE, raising=False)
    install()
    return install


def compiled(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache/rlbatch").iterdir() if path.suffix != ".lock"]


def test_a_library_is_compiled_once_and_said_so_once(compiler, tmp_path, caplog):
    path = build.host_library()
    assert path.read_bytes() == (build.NATIVE / "host.cpp").read_bytes()
    assert compiled(tmp_path) == [path]
    assert build.host_library() == path
    assert [record.message for record in caplog.records] == [
        f"compiling the Atari core, once, to {path}"
    ]


@pytest.mark.parametrize("name", ["host.cpp", "device.cu"])
def test_every_file_that_a_compiler_reads_counts_for_the_key(name, tmp_path):
    native = tmp_path / "native"
    shutil.copytree(build.NATIVE, native)
    source, command = native / name, build.find_compiler()
    listed = [*command, "-std=c++17", "-DRLB_GRID", "-x", "c++", "-MM", str(source)]
    output = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    read = {Path(word) for word in output.replace("\\\n", " ").split()[1:]}
    keys = [build.cache_key(command, source)]
    for path in sorted(native.iterdir()):
        path.write_text(path.read_text() + "\n")
        keys.append(build.cache_key(command, source))
        assert keys[-1] != keys[-2] or path not in read, f"{path.name} does not count"
    assert source in read
    assert len(set(keys)) >= 1 + len(read)


def test_what_the_host_alone_reads_does_not_count_for_kernels(compiler, tmp_path):
    shutil.copytree(build.NATIVE, tmp_path / "native")
    source, command = tmp_path / "native/device.cu", build.find_compiler()
    before = build.cache_key(command, source)
    for name in ("README.md", "host.cpp", "host_batch.h"):
        (tmp_path / "native" / name).write_text("Another text.")
    assert build.cache_key(command, source) == before


def test_the_key_is_that_of_the_sources_wherever_they_lie(compiler, tmp_path):
    shutil.copytree(build.NATIVE, tmp_path / "native")
    command, source = build.find_compiler(), tmp_path / "native/host.cpp"
    assert build.cache_key(command, source) == build.cache_key(command)


def test_compiler_flags_and_processor_count_for_the_key(compiler, monkeypatch):
    keys = [build.cache_key(build.find_compiler())]
    keys.append(build.cache_key(compiler(version=2)))
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-g"])
    keys.append(build.cache_key(build.find_compiler()))
    monkeypatch.setattr(build, "_processor", lambda: "another one")
    keys.append(build.cache_key(build.find_compiler()))
    assert len(set(keys)) == len(keys)


def test_a_compiler_that_fails_leaves_nothing_and_is_quoted(compiler, tmp_path):
    compiler(action='echo "console.h:1: too hard" >&2; exit 3')
    with pytest.raises(BuildError, match=r"(?s)-O2.*got exit status 3\n.*console\.h:1: too hard"):
        build.host_library()
    assert compiled(tmp_path) == []


def test_without_a_compiler_the_message_says_what_to_install(compiler, monkeypatch):
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BuildError, match=r"c\+\+, g\+\+, clang\+\+.*got neither; .*apt install"):
        build.host_library()


def test_a_cache_that_cannot_be_written_is_named(compiler, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.raises(BuildError, match="/dev/null/rlbatch: expected a folder .*XDG_CACHE_HOME"):
        build.host_library()


def test_a_packaged_library_comes_before_the_compiler(compiler, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    packaged = tmp_path / "librlbatch_atari_any.so"
    packaged.touch()
    assert build.host_library() == packaged


def test_the_best_packaged_library_that_the_processor_runs_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    for level in ("v2", "v3", "v4"):
        (tmp_path / f"librlbatch_atari_{level}.so").touch()
    v2, v3 = "sse4_2 popcnt", "avx2 bmi1 bmi2 fma movbe f16c abm"
    v4 = "avx512f avx512bw avx512cd avx512dq avx512vl avx512vbmi"
    levels = {"fpu": None, v2: "v2", f"{v2} {v3}": "v3", f"{v2} {v3} {v4}": "v4"}
    for flags, level in levels.items():
        monkeypatch.setattr(build, "_processor", lambda flags=flags: f"x86_64 {flags}")
        expected = tmp_path / f"librlbatch_atari_{level}.so" if level else None
        assert build.packaged_library() == expected


def test_the_environment_names_another_library(compiler, tmp_path, monkeypatch):
    other = tmp_path / "other.so"
    monkeypatch.setenv(build.LIBRARY_VARIABLE, str(other))
    assert build.host_library() == other
    with pytest.raises(BuildError, match=r"other\.so: expected a library of this version"):
        load_library.__wrapped__()
    other.write_text("no library")
    with pytest.raises(BuildError, match=r"other\.so: expected a library of this version"):
        load_library.__wrapped__()


def test_a_wheel_is_compiled_with_the_same_flags():
    text = (Path(build.__file__).parents[3] / "CMakeLists.txt").read_text()
    by_cmake = {"-std=c++17", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"}
    for flag in set(build.FLAGS) - by_cmake - {"-march=native"}:
        assert flag in text, flag
    for words in ("cxx_std_17", "POSITION_INDEPENDENT_CODE", "VISIBILITY_PRESET hidden", "Threads"):
        assert words in text


def test_the_digest_of_sources_knows_where_files_end(tmp_path):
    def digest(name, **files):
        folder = tmp_path / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_text(content)
        return build.digest_of("c++", source=folder / "a")

    a = '#include "b"\n#  include "c"\n'
    assert digest("0", a=a, b="xy", c="") != digest("1", a=a, b="x", c="y")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def refuse():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(BuildError, match="the user has no home; set XDG_CACHE_HOME"):
        build.cache_folder()


def test_a_library_in_the_cache_may_be_read_by_others(tmp_path):
    with build.appearing(tmp_path / "library"):
        pass
    assert (tmp_path / "library").stat().st_mode & 0o777 == 0o755


def test_one_process_compiles_at_a_time(tmp_path):
    with build.one_at_a_time(tmp_path / "a.so"), (tmp_path / "a.lock").open("w") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_a_process_that_was_killed_left_is_removed(tmp_path):
    left, other = tmp_path / "a.so-1x2y.tmp", tmp_path / "b.so-1x2y.tmp"
    for path in (left, other):
        path.touch()
    with build.one_at_a_time(tmp_path / "a.so"):
        assert not left.exists()
    assert other.exists()


def test_a_full_disk_is_named_with_what_to_set(tmp_path):
    with (
        at_most(resource.RLIMIT_FSIZE, 100),
        pytest.raises(build.CacheError, match=r"got .*File too large.*XDG_CACHE_HOME"),
        build.appearing(tmp_path / "a.cubin") as name,
    ):
        Path(name).write_bytes(bytes(1000))
    assert not list(tmp_path.iterdir())
