"""Compiles, into the cache, the native library and the kernels of all games for the GPU at hand.

    python -m scripts.gpu_compile

Prints how long that took, as one JSON object.
"""

from __future__ import annotations

import json
import threading
import time

import torch

from rlbatch.envs.atari import GAMES, build, device_code


def main() -> None:
    """Compiles with all cores."""
    started = time.perf_counter()
    library = threading.Thread(target=build.host_library)
    library.start()
    device_code.compile_kernels(list(GAMES.values()), torch.device("cuda"))
    library.join()
    seconds = time.perf_counter() - started
    print(json.dumps({"benchmark": "gpu_compile", "n_games": len(GAMES), "seconds": seconds}))


if __name__ == "__main__":
    main()
