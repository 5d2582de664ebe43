"""What the layout promises: where code lies, how long it is, and who reads the environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("inference", "adminapi", "platform")
LONGEST_FILE = 300
LONGEST_TEST_FILE = 500
LONGEST_FUNCTION = 30
READERS_OF_THE_ENVIRONMENT = {"platform/haltline/env.py", "inference/worker/config.py"}
EMPTY_PACKAGES = ("inference/__init__.py", "inference/engine/__init__.py")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def product_files() -> Iterator[Path]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions_of(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def length_of(function: Function) -> int:
    """Lines of code: neither decorators nor the docstring make a function hard to follow."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None and first.end_lineno is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_it_has_no_package_named_platform() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    import platform

    assert platform.python_version(), "the standard library's module is the one that is found"


@pytest.mark.parametrize("name", EMPTY_PACKAGES)
def test_it_imports_nothing_by_importing_a_package(name: str) -> None:
    assert ast.parse((ROOT / name).read_text()).body == []


def test_it_has_no_long_file() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in product_files()}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def test_it_has_no_long_test_file() -> None:
    paths = (ROOT / "tests").rglob("*.py")
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in paths}
    assert {name: n for name, n in lengths.items() if n > LONGEST_TEST_FILE} == {}


def test_it_has_no_long_function() -> None:
    long = {
        f"{name_of(path)}:{function.lineno} {function.name}": length_of(function)
        for path in product_files()
        for function in functions_of(path)
        if length_of(function) > LONGEST_FUNCTION
    }
    assert long == {}


def test_it_mostly_has_functions_of_eight_lines_at_most() -> None:
    lengths = sorted(length_of(f) for path in product_files() for f in functions_of(path))
    assert lengths[len(lengths) // 2] <= 8


def test_it_opens_every_module_by_saying_what_it_does() -> None:
    silent = []
    for path in product_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if tree.body and ast.get_docstring(tree) is None:
            silent.append(name_of(path))
    assert silent == []


def test_it_reads_the_environment_in_two_places_only() -> None:
    readers = {name_of(path) for path in product_files() if reads_the_environment(path)}
    assert readers <= READERS_OF_THE_ENVIRONMENT


def reads_the_environment(path: Path) -> bool:
    """Setting a default, or a variable for libraries that look there, is no reading."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    writes = {id(part) for node in ast.walk(tree) for part in written_environment(node)}
    names = {"environ", "environb", "getenv"}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=attr) if attr in names:
                if id(node) not in writes:
                    return True
            case ast.ImportFrom(module="os") if names & {alias.name for alias in node.names}:
                return True
    return False


def written_environment(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(func=ast.Attribute(value=environment, attr="setdefault")):
            yield environment
        case ast.Subscript(value=environment, ctx=ast.Store()):
            yield environment
