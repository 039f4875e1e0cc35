"""A served language model's answers to the bundle's verified prompts, by the OpenAI protocol."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import CorruptBundleError, ProcessFailedError
from kfp_mindspore.formats.bundle import CAUSAL_KIND, DUAL_KIND, EMBEDDING_KIND, PROMPTS_FILE, ModelBundle
from kfp_mindspore.inference import rest
from kfp_mindspore.inference.service import OPENAI_PATH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_EMBEDDERS = (EMBEDDING_KIND, DUAL_KIND)
# Overrides of the model's own sampling defaults: greedy, no token ends the answer.
_GREEDY = {
    "temperature": 0,
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "repetition_penalty": 1,
    "ignore_eos": True,
    "logprobs": 1,
}

# For log probabilities and embedding values that weights in 16 or 8 bits give.
OTHER_TOLERANCE = 0.1


@dataclass(frozen=True)
class PromptAnswer:
    """One prompt's answer.

    Args:
        difference: Largest difference from the verified values: embedding values, or logarithms of probabilities.
        text: The continuation; an embedding's first values.
    """

    difference: float
    text: str


def read_prompts(bundle: ModelBundle) -> list[Arrays]:
    """Read a language bundle's verified prompts.

    Args:
        bundle: The bundle.

    Returns:
        For each prompt `ids` (n,) with `embedding` (d,); or with the last position's `logits` (V,) and the continuation
        `greedy` (m,).

    Raises:
        CorruptBundleError: The file is not readable.
    """
    import numpy as np

    file = bundle.path / PROMPTS_FILE
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise CorruptBundleError(f"{file}: not readable ({error})") from None
    names = {name.partition(".")[0] for name in arrays}
    count = sum(name.startswith("ids.") for name in arrays)
    return [{name: arrays[f"{name}.{number}"] for name in names} for number in range(count)]


def answer_prompt(
    url: str, name: str, kind: str, prompt: Arrays, timeout: float, openai_path: str = ""
) -> PromptAnswer:
    """Send a verified prompt and compare the answer.

    A continuation is generated, and the verified one is scored: of two tokens that are nearly as probable, another
    machine may choose the other.

    Args:
        url: The service's HTTP address.
        name: Model name in requests.
        kind: The bundle's kind.
        prompt: As `read_prompts` returns it.
        timeout: Timeout for each request in seconds.
        openai_path: Another server's path: it scores no given answer, so that the first token's probability counts, or
            the tokens where llama.cpp does not list the first.

    Raises:
        RequestError: A request failed, or the response has no such values.
    """
    import numpy as np

    ids, address = prompt["ids"].tolist(), f"{url}{openai_path or OPENAI_PATH}"
    if kind in _EMBEDDERS:
        answer = _post(address, "embeddings", {"model": name, "input": [ids]}, timeout)
        found = np.array(_read(answer, "data", 0, "embedding"), np.float64)
        if found.shape != prompt["embedding"].shape:
            return PromptAnswer(np.inf, f"{len(found)} values")
        shown = ", ".join(f"{value:.4g}" for value in found[:3])
        return PromptAnswer(float(np.abs(found - prompt["embedding"]).max()), f"{shown}, …")
    greedy = prompt["greedy"].tolist()
    body = {**_GREEDY, "model": name, "prompt": ids, "max_tokens": len(greedy)}
    answer = _post(address, "completions", body, timeout)
    logits = prompt["logits"].astype(np.float64)
    expected = -np.log(np.exp(logits - logits[greedy[0]]).sum())
    if openai_path and "content" in (_read(answer, "choices", 0, "logprobs") or ()):
        # llama.cpp has the form of chat completions. It lists no token that ends within a character: when the first is
        # such a one, those listed must be the verified ones.
        listed = [token.get("id") for token in _read(answer, "choices", 0, "logprobs", "content") or ()]
        generated, later = (answer.get("usage") or {}).get("completion_tokens", 0), iter(greedy[1:])
        if 0 < len(listed) < generated and all(token in later for token in listed):
            return PromptAnswer(0.0, str(_read(answer, "choices", 0, "text")))
        chosen = np.array([_read(answer, "choices", 0, "logprobs", "content", 0, "logprob")], np.float64)
    else:
        chosen = np.array(_read(answer, "choices", 0, "logprobs", "token_logprobs"), np.float64)
    if openai_path or kind != CAUSAL_KIND:
        # An encoder-decoder scores no given answer.
        return PromptAnswer(float(abs(chosen[0] - expected)), str(_read(answer, "choices", 0, "text")))
    scored = _post(address, "completions", {**body, "prompt": ids + greedy, "max_tokens": 0, "echo": True}, timeout)
    scores = np.array(_read(scored, "choices", 0, "logprobs", "token_logprobs")[len(ids) :], np.float64)
    most = np.array([max(top.values()) for top in _read(scored, "choices", 0, "logprobs", "top_logprobs")[len(ids) :]])
    # The verified continuation has the largest probabilities, and generation begins with the first of them.
    differences = [*np.abs(np.array([chosen[0], scores[0]]) - expected), *(most - scores)]
    return PromptAnswer(float(np.max(differences)), str(_read(answer, "choices", 0, "text")))


def compare_prompts(
    url: str, name: str, bundle: ModelBundle, samples: int, tolerance: float, timeout: float, openai_path: str = ""
) -> list[PromptAnswer]:
    """Send the first verified prompts and compare the answers.

    Args:
        url: The service's HTTP address.
        name: Model name in requests.
        bundle: The bundle that is served.
        samples: Prompts to send.
        tolerance: Largest difference allowed, for logits and embedding values up to 1; in proportion for larger ones.
        timeout: Timeout for each request in seconds.
        openai_path: See `answer_prompt`; such a server may have rounded weights, and `OTHER_TOLERANCE` is allowed.

    Raises:
        ProcessFailedError: A request failed or an answer differs; the message names the prompt.
    """
    import numpy as np

    kind, answers = bundle.signature.kind, []
    for number, prompt in enumerate(read_prompts(bundle)[:samples]):
        try:
            answer = answer_prompt(url, name, kind, prompt, timeout, openai_path)
        except rest.ServiceRequestError as error:
            raise ProcessFailedError(
                f"smoke test of {name} by the OpenAI protocol: {error.message}",
                hint="Read the server's log: kfp-mindspore service logs NAME",
            ) from error
        # A probability depends on its own logit and on all others.
        allowed = 2 * tolerance * max(1.0, float(np.abs(prompt["embedding" if kind in _EMBEDDERS else "logits"]).max()))
        allowed = max(allowed, OTHER_TOLERANCE) if openai_path else allowed
        if not answer.difference <= allowed:
            raise ProcessFailedError(
                f"smoke test by the OpenAI protocol: prompt {number} differs by {answer.difference:g}, allowed is "
                f"{allowed:g}; the service answered {answer.text!r}",
                hint="The service serves another model than this bundle, or computes it differently.",
            )
        answers.append(answer)
    return answers


def _post(address: str, route: str, body: dict[str, Any], timeout: float) -> Any:
    return rest.request_json("POST", f"{address}/{route}", body, timeout=timeout)


def _read(answer: Any, *path: str | int) -> Any:
    found = answer
    for part in path:
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            raise rest.ServiceRequestError(f"the response has no {'.'.join(map(str, path))}: {answer!r:.300}") from None
    return found
