"""Metrics of language models under vLLM's names, so that its dashboards and endpoint pickers read them."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_FINISHES = ("stop", "length", "error")
# vLLM's buckets.
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_QUEUE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0)


class LanguageFamilies:
    """This process's metrics of language models.

    Args:
        registry: Default prometheus_client's own.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, labels or ("model_name",), registry=registry)

        def count(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"vllm:{name}", text, ("model_name", *labels), registry=registry)

        def observe(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", text, ("model_name",), buckets=buckets, registry=registry)

        self.running = gauge("num_requests_running", "Answers that are being computed.")
        self.waiting = gauge("num_requests_waiting", "Answers that wait for a slot.")
        self.cache_usage = gauge("kv_cache_usage_perc", "Used share of the cache of keys and values, 0 to 1.")
        self.loras = gauge(
            "lora_requests_info",
            "Adapters of running and waiting requests.",
            *("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
        )
        self.prefix_queries = count("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.prefix_hits = count("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.prompt_tokens = count("prompt_tokens", "Prompt tokens.")
        self.generation_tokens = count("generation_tokens", "Generated tokens.")
        self.finished = count("request_success", "Finished answers.", "finished_reason")
        self.first_token = observe("time_to_first_token_seconds", "Time from arrival to the first token.", _FIRST_TOKEN)
        self.token = observe("inter_token_latency_seconds", "Time between two tokens of an answer.", _TOKEN)
        self.queue = observe("request_queue_time_seconds", "Time from arrival to the first step.", _QUEUE)

    def for_model(self, name: str) -> LanguageMetrics:
        """Return a model's metrics."""
        return LanguageMetrics(self, name)


class LanguageMetrics:
    """One model's series."""

    def __init__(self, families: LanguageFamilies, name: str) -> None:
        self._running, self._waiting = families.running.labels(name), families.waiting.labels(name)
        self._cache_usage = families.cache_usage.labels(name)
        self._queries, self._hits = families.prefix_queries.labels(name), families.prefix_hits.labels(name)
        self._prompt_tokens = families.prompt_tokens.labels(name)
        self._generation_tokens = families.generation_tokens.labels(name)
        self._finished = {reason: families.finished.labels(name, reason) for reason in _FINISHES}
        self._first_token, self._token = families.first_token.labels(name), families.token.labels(name)
        self._queue = families.queue.labels(name)

    def set_running(self, count: int) -> None:
        """Set how many answers are being computed."""
        self._running.set(count)

    def set_waiting(self, count: int) -> None:
        """Set how many answers wait for a slot."""
        self._waiting.set(count)

    def set_cache_usage(self, share: float) -> None:
        """Set the used share of the cache, 0 to 1."""
        self._cache_usage.set(share)

    def count_prefix(self, tokens: int, cached: int) -> None:
        """Count a prompt's tokens and those found in the prefix cache."""
        self._queries.inc(tokens)
        self._hits.inc(cached)

    def count_prompt(self, tokens: int) -> None:
        """Count a computed prompt's tokens."""
        self._prompt_tokens.inc(tokens)

    def count_finish(self, reason: str) -> None:
        """Count a finished answer: stop, length or error."""
        self._finished[reason].inc()

    def observe_first_token(self, seconds: float) -> None:
        """Count an answer's first token, and observe the time since the request's arrival."""
        self._first_token.observe(seconds)
        self._generation_tokens.inc()

    def observe_token(self, seconds: float) -> None:
        """Count a further token, and observe the time since the one before."""
        self._token.observe(seconds)
        self._generation_tokens.inc()

    def observe_queue(self, seconds: float) -> None:
        """Observe the time from a request's arrival to its first step."""
        self._queue.observe(seconds)
