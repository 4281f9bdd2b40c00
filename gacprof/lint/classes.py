"""placeholder"""

from collections.abc import Iterator

from gacprof.checkpoint.coverage import Gap


def class_gaps(sizes: object, engine: object) -> Iterator[Gap]:
    return iter(())
