"""The code in the README and in docs/ runs, prints what stands below it, and names are documented.

The ```python blocks of a page are executed in order, in one namespace, as a script would be. A
```text block that follows one has to be what it prints; a block without one has to print nothing.
The line `<!-- gpu -->` before a block says that it needs a GPU.
"""

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rlbatch
import rlbatch.envs
import rlbatch.returns
import rlbatch.seeding

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
# Pages that are prose. Every other page has code, and all of it is executed.
PROSE = {f"docs/{name}.md" for name in ("changelog", "design", "reinforce", "a2c", "dqn", "ppo")}
PROSE |= {page for page in PAGES if page.startswith("docs/api/")}
# How many blocks need a GPU, by page: one that is skipped is known to be.
N_GPU_BLOCKS = {"docs/devices.md": 1, "docs/gpu.md": 2}

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)[^\n]*$")
LANGUAGES = {"python", "text", "console", "py"}  # The last one: a file, tested elsewhere.
GPU_MARK = "<!-- gpu -->"


class Block(NamedTuple):
    """A fenced block: its language, its text, the line it starts on, and whether it needs a GPU."""

    language: str
    text: str
    line: int
    needs_gpu: bool


def blocks_of(text: str) -> Iterator[Block]:
    """Yields the fenced blocks of a page."""
    lines = text.splitlines()
    number, mark = 0, ""
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence is None:
            mark = lines[number].strip() or mark
            number += 1
            continue
        first = number + 1
        last = next(n for n in range(first, len(lines)) if lines[n].strip() == "```")
        body = "\n".join(line.removeprefix(fence["indent"]) for line in lines[first:last])
        yield Block(fence["language"], body, first, mark == GPU_MARK)
        number, mark = last + 1, "```"


def scripts_of(text: str) -> Iterator[tuple[Block, str]]:
    """Yields the code blocks of a page, each with what it has to print."""
    blocks = list(blocks_of(text))
    lines = text.splitlines()
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language != "python":
            continue
        expected = ""
        if after is not None and after.language == "text":
            end = block.line + len(block.text.splitlines()) + 1
            if not "".join(lines[end : after.line - 1]).strip():  # Nothing in between.
                expected = after.text
        yield block, expected


def run_page(name: str, text: str, with_gpu: bool, namespace: dict[str, Any] | None = None) -> int:
    """Executes a page, in a namespace if there is one; returns how many blocks were."""
    namespace = {} if namespace is None else namespace
    namespace["__name__"] = "__main__"  # As in a script: pickled by value.
    n_executed = 0
    for block, expected in scripts_of(text):
        if block.needs_gpu and not with_gpu:
            continue
        # So that a traceback shows the line of the page.
        code = compile("\n" * block.line + block.text, str(PAGES.get(name, name)), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        assert printed.getvalue().strip() == expected.strip(), f"{name}, line {block.line}"
        n_executed += 1
    return n_executed


def test_the_script_of_an_algorithm_trains(tmp_path):
    page = ROOT / "algos/reinforce/README.md"
    ((block, _),) = scripts_of(page.read_text())
    command = [sys.executable, "-c", block.text]
    search_path = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=search_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    mean, folder = done.stdout.split()[-2:]
    assert float(mean) > 100
    assert (tmp_path / folder / "checkpoint.pt").exists()


WITH_CODE = sorted(PAGES.keys() - PROSE - {"README.md"})


def test_the_script_of_the_readme_learns():
    namespace: dict[str, Any] = {}
    assert run_page("README.md", PAGES["README.md"].read_text(), False, namespace) == 1
    assert namespace["trajectories"].trajectories.lengths.float().mean() > 200


@pytest.mark.parametrize("name", WITH_CODE)
def test_the_code_of_a_page_runs(name):
    n_executed = run_page(name, PAGES[name].read_text(), with_gpu=False)
    assert n_executed, f"{name}: no block was executed; give it code or list it in PROSE"


@pytest.mark.gpu
@pytest.mark.parametrize("name", N_GPU_BLOCKS)
def test_the_code_of_a_page_runs_with_its_gpu_blocks(name):
    run_page(name, PAGES[name].read_text(), with_gpu=True)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_are_of_known_languages_and_only_known_ones_are_skipped(name):
    blocks = list(blocks_of(PAGES[name].read_text()))
    assert {block.language for block in blocks} <= LANGUAGES
    assert sum(block.needs_gpu for block in blocks) == N_GPU_BLOCKS.get(name, 0)
    if name in PROSE:
        assert not any(block.language == "python" for block in blocks), "take it out of PROSE"


def documented() -> dict[str, Any]:
    """Returns what stands on an API page, by the name it stands there under."""
    pages = [path.read_text() for name, path in PAGES.items() if name.startswith("docs/api/")]
    names = re.findall(r"^::: (\S+)$", "\n".join(pages), re.MULTILINE)
    assert len(names) == len(set(names)), "a name stands on two pages"
    return {name: resolve(name) for name in names}


def resolve(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(
    "package", [rlbatch, rlbatch.envs, rlbatch.envs.atari], ids=lambda package: package.__name__
)
def test_every_public_name_is_on_an_api_page(package):
    pages = documented()
    modules = {name for name, value in pages.items() if getattr(value, "__spec__", None)}
    for name in package.__all__:
        value = getattr(package, name)
        on_page = any(value is other for other in pages.values())
        assert on_page or value.__module__ in modules, f"{package.__name__}.{name}"


def test_the_modules_of_functions_are_on_api_pages():
    pages = list(documented().values())
    assert rlbatch.returns in pages
    assert rlbatch.frames in pages
    assert rlbatch.seeding in pages


def test_the_tree_of_the_readme_is_the_one_that_is_there():
    (tree,) = (b.text for b in blocks_of(PAGES["README.md"].read_text()) if "  errors.py" in b.text)
    folder, found = Path(), []
    for line in tree.splitlines():
        name, indent = line.split()[0], len(line) - len(line.lstrip())
        folder = Path(*folder.parts[: indent // 2])
        assert (ROOT / folder / name).exists(), folder / name
        found.append(str(folder / name))
        if name.endswith("/"):
            folder = folder / name
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "rlbatch").glob("[a-z]*.py")}
    assert modules <= set(found), "a public module is missing"


@pytest.mark.parametrize("page", ["changelog", "reinforce", "a2c", "dqn", "ppo"])
def test_a_page_that_includes_a_file_names_one_that_is_there(page):
    name = f"docs/{page}.md"
    (path,) = re.findall(r'^--8<-- "(.*)"$', PAGES[name].read_text(), re.MULTILINE)
    assert (ROOT / path).is_file()


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for name in PAGES.keys() - {"README.md"}:
        assert f": {name.removeprefix('docs/')}\n" in navigation, name


# --- The checks themselves. ---

PAGE = """
```python
x = 1
print(x)
```

```text
1
```

<!-- gpu -->
```python
x = 2
```

```python
assert x == 1
```
"""


def test_blocks_share_a_namespace_and_those_for_a_gpu_are_skipped():
    assert run_page("page", PAGE, with_gpu=False) == 2
    with pytest.raises(AssertionError):
        run_page("page", PAGE, with_gpu=True)


@pytest.mark.parametrize(
    "text", [PAGE.replace("text\n1", "text\n2"), PAGE.replace("\n```text\n1\n```\n", "")]
)
def test_a_wrong_or_missing_output_is_caught(text):
    with pytest.raises(AssertionError, match="page, line"):
        run_page("page", text, with_gpu=False)


def test_a_failing_block_is_reported_with_its_line():
    with pytest.raises(ZeroDivisionError) as error:
        run_page("page", "A page.\n\n```python\nx = 0\n1 / x\n```\n", with_gpu=False)
    assert error.traceback[-1].lineno + 1 == 5
