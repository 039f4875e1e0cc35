"""A step's artifacts that Ray's pods download and upload themselves, where they share no volume."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.retries import wait_with_jitter
from kfp_mindspore.stores.artifact_store import SECRET_PREFIX, STORES_VARIABLE, ArtifactStore, StoreError, join_uri
from kfp_mindspore.stores.mirror import ArtifactMirror

_POLL_SECONDS = 0.5
# A store that restarts loses no training.
_ATTEMPTS = 6


@dataclass(frozen=True)
class Handover:
    """A step's artifacts in the pods; the options are the flags of `python -m kfp_mindspore.podside.artifacts`.

    Args:
        download: URIs and the paths that they get on each node.
        upload: Rank 0's paths, and their URIs.
        mkdir: Directories that the command expects.
        checkpoints: The URI for Ray's checkpoints; empty for none.
        keep_checkpoints: Whether they outlast a successful training.
    """

    download: Sequence[Sequence[str]] = ()
    upload: Sequence[Sequence[str]] = ()
    mkdir: Sequence[str] = ()
    checkpoints: str = ""
    keep_checkpoints: bool = False

    @contextlib.contextmanager
    def use(self, rank: int, local_rank: int) -> Iterator[None]:
        """Run the block, a worker's command, with its inputs downloaded; upload its outputs, also after a failure.

        The command does not see the stores' secrets.

        Args:
            rank: The worker's rank.
            local_rank: Its rank on its node.
        """
        with _explain_errors():
            environment = dict(os.environ)
            store = ArtifactStore.from_environment(environment)
            for name in environment:
                if name == STORES_VARIABLE or name.startswith(SECRET_PREFIX):
                    del os.environ[name]
            for uri, path in self.download:
                # One worker downloads for its node; when that fails, Ray ends them all.
                while local_rank and not Path(path).exists():
                    time.sleep(_POLL_SECONDS)
                if not Path(path).exists():
                    print(f"downloaded {uri}: {store.download(uri, Path(path))} files", flush=True)
            mirrors = [
                ArtifactMirror(store, Path(path), uri, store.list_files(uri)) for path, uri in self.upload if rank == 0
            ]
        for directory in (*self.mkdir, *(str(Path(path).parent) for path, _ in self.upload)):
            Path(directory).mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            from tenacity import Retrying, retry_if_exception, stop_after_attempt

            with _explain_errors():
                for mirror in mirrors:
                    for attempt in Retrying(
                        stop=stop_after_attempt(_ATTEMPTS),
                        wait=wait_with_jitter(1.0, 15.0),
                        retry=retry_if_exception(lambda error: isinstance(error, StoreError) and error.retryable),
                        reraise=True,
                    ):
                        with attempt:
                            mirror.sync(final=True)

    def delete_checkpoints(self) -> None:
        """Delete the checkpoints of a training that has succeeded, unless they are kept."""
        if self.checkpoints and not self.keep_checkpoints:
            with _explain_errors():
                store = ArtifactStore.from_environment(os.environ)
                for name in store.list_files(self.checkpoints):
                    store.delete(join_uri(self.checkpoints, name))


@contextlib.contextmanager
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise (KfpMindSporeError if error.retryable else UserError)(str(error)) from None
