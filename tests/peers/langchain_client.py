"""langchain-openai's structured outputs and agent in the peers' environment; prints JSON.

python langchain_client.py URL
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, SecretStr

QUESTION = "the quick brown fox"


class Closed(BaseModel):
    """The server's decoder has random weights: it would add properties until its context ends."""

    model_config = ConfigDict(extra="forbid")


class Place(Closed):
    """A place."""

    city: Literal["Bern", "Zürich"]
    is_open: bool


class Weather(Closed):
    """Arguments of the tool."""

    city: Literal["Bern", "Zürich"]


@tool(args_schema=Weather)
def get_weather(city: str) -> str:
    """Return the weather."""
    return f"rain in {city}"


def main(url: str) -> dict[str, Any]:
    """Return each way's answer as a mapping."""
    model = ChatOpenAI(base_url=f"{url}/v1", api_key=SecretStr("-"), model="chat", seed=1, max_retries=0)
    found = {
        method: model.with_structured_output(Place, method=method).invoke(QUESTION).model_dump()
        for method in ("json_schema", "function_calling")
    }
    called = model.bind_tools([get_weather], tool_choice="get_weather", parallel_tool_calls=False).invoke(QUESTION)
    (call,) = called.tool_calls
    found["tool"] = {"name": call["name"], **call["args"]}
    found["stream"] = {"text": "".join(str(chunk.content) for chunk in model.bind(max_tokens=8).stream(QUESTION))}
    request: Any = {"messages": [{"role": "user", "content": QUESTION}]}
    for name, strategy in (("agent_tool", ToolStrategy(Place)), ("agent_schema", ProviderStrategy(Place))):
        agent = create_agent(model, tools=[get_weather], response_format=strategy)
        state = agent.invoke(request)
        tools = [message.content for message in state["messages"] if message.type == "tool"]
        found[name] = {**state["structured_response"].model_dump(), "results": tools}
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
