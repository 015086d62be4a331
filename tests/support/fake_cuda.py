"""CUDA's streams and graphs on a CPU, for the graph decoder: a replay repeats the recorded step."""

from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from countdown_rl.inference import graph_decoder

READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item")


class Stream:
    def wait_stream(self, other: "Stream") -> None:
        pass


class FakeCuda(TorchDispatchMode):
    """While it is entered, a read by the host raises in a capture and where synchronization is an error.

    A capture that fails leaves its stream the current one, as in torch 2.11 to 2.13. *on_capture* is called in each
    capture, and *on_replay* with the logits of each replay.
    """

    def __init__(self, monkeypatch: Any) -> None:
        super().__init__()
        self.main = self.stream = Stream()
        self.mode, self.captures, self.replays = 0, 0, 0
        self.recording: Any = None
        self.on_capture = self.on_replay = lambda *_: None
        self._next = graph_decoder._Steps._next
        monkeypatch.setattr(graph_decoder._Steps, "_next", lambda *step: self._recorded(*step))
        fake = self

        class Graph:
            def __init__(self) -> None:
                self.step = self.logits = None

            def replay(self) -> None:
                fake.replays += 1
                self.logits.copy_(fake._next(*self.step))
                fake.on_replay(self.logits)

            def pool(self) -> None:
                return None

            def register_generator_state(self, generator: Any) -> None:
                pass

        calls: dict[str, Any] = {
            "Stream": Stream,
            "CUDAGraph": Graph,
            "stream": self._in_stream,
            "graph": self._graph,
        }
        calls |= {"current_stream": lambda: self.stream, "get_sync_debug_mode": lambda: self.mode}
        calls |= {"set_sync_debug_mode": lambda mode: setattr(self, "mode", mode)}
        for name, value in calls.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def _recorded(self, *step: Any) -> Any:
        logits = self._next(*step)
        if self.recording is not None:
            self.on_capture()
            self.recording.step, self.recording.logits = step, logits
        return logits

    @contextmanager
    def _in_stream(self, stream: Stream) -> Any:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def _graph(self, graph: Any, pool: Any = None, capture_error_mode: str = "global") -> Any:
        before, self.stream, self.recording = self.stream, Stream(), graph
        try:
            yield
        except RuntimeError as error:
            self.recording = None
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            ) from error
        self.captures += 1
        self.stream, self.recording = before, None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (self.recording or self.mode) and any(name in str(func) for name in READS):
            raise RuntimeError("called a synchronizing CUDA operation")
        return func(*args, **(kwargs or {}))
