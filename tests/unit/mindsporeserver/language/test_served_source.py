"""A server that is given a published model imports it, serves it, and finds its import at the next start."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import OpenAI

from mindsporeserver.models.source_import import import_source
from tests.support.language.language_servers import LanguageServer
from tests.support.language.tiny_language_model import write_source

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]


def test_published_model_is_served(tmp_path: Path) -> None:
    source = write_source(tmp_path / "models")
    cache = tmp_path / "cache"
    flags = (f"--download-dir={cache}", "--max-num-seqs=1")
    with LanguageServer(tmp_path, *flags, bundle=source) as server:
        client = OpenAI(base_url=f"{server.url}/openai/v1", api_key="-", max_retries=0)
        messages = [{"role": "user", "content": "dog 1?"}]
        answer = client.chat.completions.create(model="chat", messages=messages, max_tokens=4, temperature=0)
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0
        log = server.log.read_text()
    assert f"{source}: no model bundle, importing it to {cache}" in log
    assert log.index("imported in") < log.index("ready in")
    (folder,) = (path for path in (cache / "mindsporeserver-models").iterdir() if path.is_dir())
    inode = folder.stat().st_ino
    assert import_source(source, folder.parent) == folder
    assert folder.stat().st_ino == inode
    # A damaged import is made again.
    (folder / "network.json").write_text("{}")
    assert import_source(source, folder.parent) == folder
    assert folder.stat().st_ino != inode
