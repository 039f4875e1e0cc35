from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.local import logs as log_files
from kfp_mindspore.local.logs import LogReader, read_last_lines


class TestReadLastLines:
    @pytest.mark.parametrize(
        ("content", "count", "lines"),
        [
            pytest.param(b"", 5, [], id="empty"),
            pytest.param(b"a\nb\nc\n", 0, [], id="none asked for"),
            pytest.param(b"a\nb\nc\n", 2, ["b", "c"], id="last two"),
            pytest.param(b"a\nb\nc", 2, ["b", "c"], id="no end of line"),
            pytest.param(b"a\nb\n", 9, ["a", "b"], id="fewer than asked for"),
            pytest.param(b"a\n\n\nb\n\n", 2, ["a", "b"], id="empty lines do not count"),
            pytest.param(b"1%\r50%\r100%\r\nend\r\n", 2, ["100%", "end"], id="progress bar"),
            pytest.param(b"\xff\xc3\xa4\n", 1, ["\ufffdä"], id="no UTF-8"),
            pytest.param(b"x" * 200_000 + b"\nb", 2, ["x" * 200_000, "b"], id="longer than a block"),
            pytest.param(b"a\n" + b"\n" * 200_000 + b"b\n", 2, ["a", "b"], id="blocks of empty lines"),
        ],
    )
    def test_cases(self, tmp_path: Path, content: bytes, count: int, lines: list[str]) -> None:
        (tmp_path / "log").write_bytes(content)
        assert read_last_lines(tmp_path / "log", count) == lines

    def test_missing_file(self, tmp_path: Path) -> None:
        assert read_last_lines(tmp_path / "log", 5) == []

    @settings(deadline=None)
    @given(st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r", b"\xc3\xa4"])), st.integers(1, 6), st.integers(1, 9))
    def test_any_block_size_gives_same(self, parts: list[bytes], count: int, block: int) -> None:
        content = b"".join(parts)
        with tempfile.TemporaryDirectory() as directory:
            log = Path(directory, "log")
            log.write_bytes(content)
            with mock.patch.object(log_files, "_BLOCK_BYTES", block):
                found = read_last_lines(log, count)
        whole = [line for line in content.split(b"\n") if line]
        assert found == [log_files._decode(line) for line in whole[-count:]]


class TestLogReader:
    def test_partial_lines_wait_for_their_end(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        reader = LogReader(log)
        assert reader.read() == [], "the file does not exist yet"
        with log.open("ab", buffering=0) as file:
            file.write(b"one\ntw")
            assert reader.read() == ["one"]
            assert reader.read() == []
            file.write(b"o\n\nthree \xc3")
            assert reader.read() == ["two", ""]
            file.write(b"\xa4")
            assert reader.read() == []
            assert reader.read(final=True) == ["three ä"]
            assert reader.read(final=True) == []

    def test_long_line_is_handed_out_in_pieces(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        reader = LogReader(log, limit=4)
        log.write_bytes(b"1234")
        assert reader.read() == []
        with log.open("ab") as file:
            file.write(b"5")
        assert reader.read() == ["12345"]
        with log.open("ab") as file:
            file.write(b"6\n")
        assert reader.read() == ["6"]

    @pytest.mark.parametrize("content", [b"new\n", b"a longer log than the old one was\n"], ids=["shorter", "longer"])
    def test_replaced_file_is_read_from_its_start(self, tmp_path: Path, content: bytes) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"first\nsecond\ncut o")
        reader = LogReader(log)
        assert reader.read() == ["first", "second"]
        log.rename(tmp_path / "log.1")
        assert reader.read() == [], "between the two there is none"
        log.write_bytes(content)
        assert reader.read() == ["cut o", content.decode().strip()]

    def test_emptied_file_is_read_from_its_start(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"first\nsecond\n")
        reader = LogReader(log)
        assert reader.read() == ["first", "second"]
        log.write_bytes(b"third\n")
        assert reader.read() == ["third"]

    @settings(deadline=None)
    @given(st.lists(st.binary(max_size=8)))
    def test_pieces_yield_lines_of_whole(self, pieces: list[bytes]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            log = Path(directory, "log")
            reader = LogReader(log)
            lines: list[str] = []
            with log.open("ab", buffering=0) as file:
                for piece in pieces:
                    file.write(piece)
                    lines += reader.read()
            lines += reader.read(final=True)
        *whole, rest = b"".join(pieces).split(b"\n")
        assert lines == [log_files._decode(line) for line in [*whole, *([rest] if rest else [])]]
