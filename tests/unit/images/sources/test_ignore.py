from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.sources.ignore import IgnoreRules, read_ignore_rules

# Lines, what they leave out, what they keep: the examples of Docker's reference and of its matcher's own rules.
CASES = {
    "only at the root": (["temp"], ["temp", "temp/a"], ["a/temp", "temperature"]),
    "one folder down": (["*/temp*"], ["somedir/temporary.txt", "somedir/temp", "x/temp/y"], ["temp", "a/b/temp"]),
    "two folders down": (["*/*/temp*"], ["a/b/temp.txt"], ["a/temp.txt", "a/b/c/temp.txt"]),
    "one character": (["temp?"], ["tempa", "tempb"], ["temp", "tempab"]),
    "any depth": (["**/*.go"], ["a.go", "x/b.go", "x/y/c.go"], ["a.goo", "x/a.py"]),
    "below any depth": (["foo/**/bar"], ["foo/bar", "foo/a/bar", "foo/a/b/bar/c"], ["bar", "foo/barn"]),
    "everything below": (["foo/**"], ["foo/a", "foo/a/b"], ["foo", "food/a"]),
    "exception": (["*.md", "!README.md"], ["a.md"], ["README.md"]),
    "the last one wins": (["*.md", "!README*.md", "README-secret.md"], ["a.md", "README-secret.md"], ["README.md"]),
    "the last one keeps": (["*.md", "README-secret.md", "!README*.md"], ["a.md"], ["README.md", "README-secret.md"]),
    "an exception below a folder": (["data", "!data/keep"], ["data", "data/a"], ["data/keep", "data/keep/b"]),
    "all but one": (["*", "!src"], ["a", "b/c"], ["src", "src/a"]),
    "slashes at both ends": (["/foo/bar/", "a/"], ["foo/bar", "foo/bar/x", "a"], ["x/foo/bar"]),
    "cleaned": (["./foo/../bar", "  spaces  "], ["bar", "spaces"], ["foo"]),
    "comments": (["# foo", "", " #bar"], ["#bar"], ["foo", "# foo"]),
    "classes": (["[a-c].py", "x[!1]"], ["a.py", "xa"], ["d.py", "x1"]),
    "case": (["Data"], ["Data"], ["data"]),
    "below any depth and kept": (["**/private", "!private/ok"], ["private/x/y"], ["private/ok"]),
    "dots are dots": (["a.b"], ["a.b"], ["axb"]),
}


@pytest.mark.parametrize("name", CASES)
def test_patterns_match_as_in_docker(name: str) -> None:
    lines, ignored, kept = CASES[name]
    rules = IgnoreRules(lines)
    assert [path for path in [*ignored, *kept] if rules.ignores(path)] == ignored


@pytest.mark.parametrize(("line", "word"), [("!", "after !"), ("[z-a]", "is not a pattern")])
def test_invalid_pattern_is_named_with_its_line(line: str, word: str) -> None:
    with pytest.raises(UserError, match=rf"line 2.*{word}"):
        IgnoreRules(["ok", line])


@given(
    st.lists(st.text("ab*?/!.", min_size=1, max_size=6), max_size=5),
    st.lists(st.sampled_from("ab"), min_size=2, max_size=4),
)
def test_pruned_folders_hold_no_kept_file(lines: list[str], parts: list[str]) -> None:
    try:
        rules = IgnoreRules(lines)
    except UserError:
        return
    if rules.prunes("/".join(parts[:-1])):
        assert rules.ignores("/".join(parts))


def test_caches_are_ignored_without_dockerignore(tmp_path: Path) -> None:
    rules = read_ignore_rules(tmp_path)
    assert rules.ignores("a/__pycache__/x.pyc")
    assert rules.ignores(".git/config")
    assert not rules.ignores("train.py")
    (tmp_path / ".dockerignore").write_text("# nothing\n")
    assert not read_ignore_rules(tmp_path).ignores(".git/config")
