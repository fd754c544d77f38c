"""Named tensors with a common batch dimension, over one step or over time.

- `DictTensor`: tensors `[B, ...]`.
- `TemporalDictTensor`: tensors `[B, T, ...]` and `lengths [B]`; entries at `t >= lengths[b]` are
  padding.
- `Trajectories`: what a batcher returns, `info` (one row per trajectory) and `trajectories`.

Memory: a method returns a *copy*, a *view* (new tensors over the same bytes) or the *same
object*, and its docstring says which. A container never keeps the dict it was given. Nothing is
cast: the dtype that went in comes out.
"""

from rlbatch.dicttensor.dict_tensor import DictTensor, masked_dicttensor
from rlbatch.dicttensor.temporal_dict_tensor import TemporalDictTensor
from rlbatch.dicttensor.trajectories import Trajectories

__all__ = ["DictTensor", "TemporalDictTensor", "Trajectories", "masked_dicttensor"]
