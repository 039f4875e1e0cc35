"""Metrics of language models under vLLM's names, so that the dashboards and endpoint pickers read them."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_ADAPTERS = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
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
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, ("model_name",), registry=registry)

        def count(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"vllm:{name}", text, ("model_name", *labels), registry=registry)

        def observe(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", text, ("model_name",), buckets=buckets, registry=registry)

        self.running = gauge("num_requests_running", "Answers that are being computed.")
        self.waiting = gauge("num_requests_waiting", "Answers that wait for a slot.")
        self.cache_usage = gauge("kv_cache_usage_perc", "Used share of the key and value cache, 0 to 1.")
        self.prefix_queries = count("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.prefix_hits = count("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.prompt_tokens = count("prompt_tokens", "Prompt tokens.")
        self.generation_tokens = count("generation_tokens", "Generated tokens.")
        self.finished = count("request_success", "Finished answers.", "finished_reason")
        self.first_token = observe("time_to_first_token_seconds", "Time from arrival to the first token.", _FIRST_TOKEN)
        self.token = observe("inter_token_latency_seconds", "Time between two tokens of an answer.", _TOKEN)
        self.queue = observe("request_queue_time_seconds", "Time from arrival to the first step.", _QUEUE)
        # One series, whose labels change: a scrape finds the present adapters only.
        self._adapters = Gauge("vllm:lora_requests_info", "Adapters of requests.", _ADAPTERS, registry=registry)
        self._labels: tuple[str, ...] = ()

    def set_adapters(self, most: int, running: set[str], waiting: set[str]) -> None:
        """Replace the adapters' names.

        Args:
            most: Most adapters at once.
            running: Names of adapters with running answers; the base model's is empty and left out.
            waiting: Names of adapters with waiting answers.
        """
        labels = (str(most), *(",".join(sorted(names - {""})) for names in (running, waiting)))
        if labels != self._labels:
            self._adapters.clear()
            self._labels = labels
        self._adapters.labels(*labels).set_to_current_time()


class _Share:
    """One version's part in a gauge that all the model's versions share.

    Args:
        gauge: The sum.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._value = 0.0

    def set(self, value: float) -> None:
        """Replace this version's part."""
        self._gauge.inc(value - self._value)
        self._value = value


class LanguageMetrics:
    """One model's series, with labels resolved once.

    Args:
        families: The process's metrics.
        name: The model's name.
        max_loras: Most adapters at once; 0 without adapters.
    """

    def __init__(self, families: LanguageFamilies, name: str, max_loras: int = 0) -> None:
        self.families, self.max_loras = families, max_loras
        gauges = families.running, families.waiting, families.cache_usage
        self.running, self.waiting, self.cache_usage = (_Share(gauge.labels(name)) for gauge in gauges)
        self.prefix_queries, self.prefix_hits = families.prefix_queries.labels(name), families.prefix_hits.labels(name)
        self.prompt_tokens = families.prompt_tokens.labels(name)
        self.generation_tokens = families.generation_tokens.labels(name)
        self.finished = {reason: families.finished.labels(name, reason) for reason in _FINISHES}
        self.first_token, self.token = families.first_token.labels(name), families.token.labels(name)
        self.queue = families.queue.labels(name)
