"""The request fields of the OpenAI protocol, each checked; an error names the field as `param`."""
