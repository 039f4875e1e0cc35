from __future__ import annotations

from collections.abc import Iterator

import pytest

from mindsporeserver.language.text import TokenVocabulary
from tests.support.language.language_servers import LanguageServer
from tests.support.language.numpy_decoder import write_tokenizer


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> TokenVocabulary:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return TokenVocabulary(file, write_tokenizer(file) + 3, [2, 0])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = ("--max-num-seqs=4", "--max-model-len=512", "--reasoning-parser=qwen3")
    with LanguageServer(tmp_path_factory.mktemp("language"), *flags) as server:
        yield server.url
