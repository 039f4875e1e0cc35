"""Language models: the OpenAI protocol, continuous batching and structured output."""
