"""A step of the host's as one CUDA graph, which the device replays without it."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UP_CALLS = 3


def captured(
    step: Callable[[], object], rewind: Callable[[], object], device: torch.device
) -> Callable[[], None]:
    """Capture a step in a CUDA graph and return what replays it on the current stream.

    ``rewind`` leaves the state that a step starts from, in the memory that it was in. The step is
    taken a few times first: what it does once (load modules, ask heuristics, allocate workspaces)
    cannot be captured. The last of these may not wait for the device: no graph can hold that, and
    a capture that fails spoils torch's allocator. Raises what the step or its capture raises.

    What is returned holds the graph. Keep it as long as any that was captured beside it: from
    torch 2.12 on a graph that goes away frees the cuBLAS workspaces of its stream
    (pytorch/pytorch#193402), and streams come from a pool.
    """
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                rewind()
                step()
            rewind()
            torch.cuda.set_sync_debug_mode("error")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            rewind()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
    return graph.replay
