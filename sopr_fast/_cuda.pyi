from typing import Any

version: str
keywords: dict[str, tuple[str, ...]]
architectures: str
compiler: str
kmeans_bin: int

def SegmentEncoder(**fields: Any) -> Any: ...
def segment_encoder_workspace(problem: Any) -> int: ...
def __getattr__(kernel: str) -> Any: ...
