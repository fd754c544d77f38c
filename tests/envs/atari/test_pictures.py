"""Pictures as runs hold the same pixels as pictures of pixels, whatever is drawn."""

import subprocess
from pathlib import Path

from rlbatch.envs.atari import build


def test_pictures_hold_the_pixels_that_are_drawn(tmp_path: Path) -> None:
    program = tmp_path / "pictures"
    source = Path(__file__).with_name("pictures.cpp")
    flags = "-std=c++17 -O1 -g -Wall -Wextra -DRLB_GRID -fsanitize=address,undefined".split()
    flags += ["-fno-sanitize-recover", f"-I{build.NATIVE}"]
    command = [*build.find_compiler(), *flags, "-o", str(program), str(source)]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    result = subprocess.run([str(program)], capture_output=True, text=True, timeout=250)
    assert (result.returncode, result.stdout) == (0, "equal\n"), result.stdout + result.stderr
