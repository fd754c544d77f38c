"""Plays the kernels' machine code on a CPU: what a GPU would execute, where there is none.

NVRTC makes code for an H100 (sm_90), or for one of the other `ARCHITECTURES`; NVIDIA's
disassembler (`pip install nvidia-cuda-nvdisasm`) turns it into text, this module decodes the text,
and `player.cpp` plays it, in warps of 32 threads:

    with sass.played() as kernels_of:
        env = AtariEnv("pong", n_envs=32)  # Runs on kernels, which the CPU plays.
        ...
        counts = kernels_of("pong").counts("rlb_step")

so that the code itself can be compared with the CPU core, and what it costs can be counted: the
issue slots of every instruction, and how many threads of a warp work in them. Cycles are a model,
with latencies that are assumed (`LATENCIES`, `MISS_LATENCY`), the first-level cache, and the banks
of shared memory, for which threads that load wait.
"""

from scripts.sass.decoder import SassError
from scripts.sass.player import LATENCIES, MISS_LATENCY
from scripts.sass.programs import ARCHITECTURE, ARCHITECTURES, played

__all__ = ["ARCHITECTURE", "ARCHITECTURES", "LATENCIES", "MISS_LATENCY", "SassError", "played"]
