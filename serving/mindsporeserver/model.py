"""A model bundle as a kserve.Model: loaded and warmed off the event loop, computed in the runner's own thread."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kserve.errors import InvalidInput
from kserve.logging import logger
from kserve.model import Model
from kserve.protocol.infer_type import InferRequest, InferResponse

from kfp_mindspore.bundle import ModelBundle
from kfp_mindspore.errors import KfpMindSporeError, ValidationError
from kfp_mindspore.mindir.graph import GraphRunner, widen_inputs
from mindsporeserver.codec import decode_v1, decode_v2, describe, encode_v1, encode_v2

if TYPE_CHECKING:
    from numpy.typing import NDArray


class MindSporeModel(Model):  # type: ignore[misc]
    """Serves one bundle; ready means that its digests were checked, its graph loaded and its batch sizes compiled.

    Args:
        name: The name in the URL.
        bundle: A bundle that was opened, or its directory.
        max_batch: Most rows that are computed at once.

    Raises:
        UserError: It is no bundle.
    """

    def __init__(self, name: str, bundle: ModelBundle | Path | str, *, max_batch: int = 64) -> None:
        super().__init__(name)
        self.bundle = bundle if isinstance(bundle, ModelBundle) else ModelBundle.open(bundle, verify=False)
        self.max_batch = max_batch
        self._inputs = widen_inputs(self.bundle.signature)
        # With an engine kserve awaits `start_engine` beside its servers: they answer (live) while the graph loads.
        self.engine = True
        self._runner: GraphRunner | None = None

    def load(self) -> bool:
        """Check the digests, load the graph and compile its batch sizes.

        Raises:
            UserError: The bundle was changed or is not loadable.
        """
        start = time.perf_counter()
        self.bundle.verify()
        self._runner = GraphRunner(self.bundle, max_batch=self.max_batch)
        self.ready = True
        seconds = time.perf_counter() - start
        logger.info("model %s: ready in %.2f s, warm batch sizes %s", self.name, seconds, self._runner.sizes)
        return True

    def start(self) -> None:
        """Take part in a server that is about to start."""
        # kserve registers only models that say they are ready, so this one may have said so too early.
        self.ready = self._runner is not None

    async def start_engine(self) -> None:
        """Load, unless that was done before the server started; a bundle that cannot be loaded ends the process."""
        if self._runner is not None:
            return
        try:
            await asyncio.to_thread(self.load)
        except KfpMindSporeError as error:
            # Nothing was served yet. Raised here, it would end under four stack traces of the servers beside it.
            print(f"Error: {error}", file=sys.stderr, flush=True)
            os._exit(error.exit_code)

    def stop(self) -> None:
        """Answer no further request and end the runner's thread."""
        self.ready = False
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def stop_engine(self) -> None:
        """Do nothing more than `stop` did."""

    def get_input_types(self) -> list[dict[str, Any]]:
        """Return V2's metadata of the inputs, from the signature."""
        return describe(self.bundle.signature.inputs)

    def get_output_types(self) -> list[dict[str, Any]]:
        """Return V2's metadata of the outputs, from the signature."""
        return describe(self.bundle.signature.outputs)

    def validate(self, payload: Any) -> Any:
        """Leave it to `predict`, which says what was expected and what was found."""
        return payload

    async def predict(
        self,
        payload: Any,
        headers: dict[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> dict[str, Any] | InferResponse:
        """Compute the outputs of a V1 body or a V2 request.

        Raises:
            InvalidInput: The request does not fit the signature; kserve answers 400 or INVALID_ARGUMENT.
        """
        if isinstance(payload, InferRequest):
            inputs = decode_v2(payload, self._inputs, self.bundle.signature.outputs)
            return encode_v2(await self._run(inputs), payload, self.name)
        return encode_v1(await self._run(decode_v1(payload, self._inputs)))

    async def _run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        assert self._runner is not None
        try:
            future = self._runner.submit(inputs)
        except ValidationError as error:
            raise InvalidInput(error.message) from None
        return await asyncio.wrap_future(future)
