"""Update of outdated golden files: `make golden`."""

from __future__ import annotations

from tests.golden.goldens import ROOT, list_goldens


def main() -> None:
    """Write each file with a different content and print its path."""
    changed = 0
    for file, render in list_goldens().items():
        text = render()
        if not file.is_file() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            print(file.relative_to(ROOT))
            changed += 1
    print(f"{changed} files rewritten" if changed else "all golden files are up to date")


if __name__ == "__main__":
    main()
