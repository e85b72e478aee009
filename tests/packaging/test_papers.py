"""The copyright file: every component that is compiled into a library has its notice and its licence's text."""

import json
import re
import tarfile
from email.message import Message
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.packaging.test_content import CHECKOUT, content, tarball

from deb import components, licences, papers
from deb.archive import Member
from deb.errors import BuildError
from deb.targets import ARCHITECTURES
from deb.vendor import Library, Sbom, Vendored

DEBIANS = [architecture.debian for architecture in ARCHITECTURES]
DOC = "./usr/share/doc/sparkd"
TEXTS = {file.stem: file.read_text() for file in (CHECKOUT / "packaging/debian/licences").glob("*.txt")}
OWN = "Format: x\n"


@pytest.fixture(params=DEBIANS)
def archive(packages: dict[str, Path], request: pytest.FixtureRequest) -> tarfile.TarFile:
    return tarball(packages[request.param], "fsys")


@pytest.fixture
def paragraphs(archive: tarfile.TarFile) -> list[dict[str, str]]:
    return parse(content(archive, f"{DOC}/copyright").decode())


def parse(text: str) -> list[dict[str, str]]:
    """The paragraphs of a DEP-5 file, each a dictionary of its fields."""
    parsed = []
    for paragraph in re.split(r"\n\n+", text.strip("\n")):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line.startswith(" "):
                assert line.strip(), paragraph
                fields[name] += f"\n{line[1:]}"
            else:
                name, colon, value = line.partition(":")
                assert colon, line
                assert name not in fields, paragraph
                fields[name] = value.strip()
        parsed.append(fields)
    return parsed


def licence_paragraphs(paragraphs: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    """The paragraphs of licences, by short name."""
    alone = [fields for fields in paragraphs if "License" in fields and "Files" not in fields]
    by_name = {fields["License"].splitlines()[0]: fields for fields in alone}
    assert len(by_name) == len(alone)
    return by_name


def component_paragraph(paragraphs: list[dict[str, str]], name: str, version: str) -> dict[str, str]:
    known = licence_paragraphs(paragraphs).values()
    matches = [fields for fields in known if fields.get("Comment", "").startswith(f"{name} {version}, ")]
    assert len(matches) == 1, f"{name} {version}"
    return matches[0]


def library(**changes: object) -> Library:
    metadata = Message()
    metadata["License-Expression"] = "MIT"
    values = {"name": "thing", "version": "1.0", "metadata": metadata, "top_levels": ("thing",), "licences": ()}
    return Library(**{**values, "modules": (), "sboms": (), **changes})  # type: ignore[arg-type]  # values of a table


def sbom(**fields: object) -> Sbom:
    whole = {
        "name": "crate",
        "version": "1.2.3",
        "purl": "pkg:cargo/crate@1.2.3",
        "licenses": [{"expression": "MIT"}],
        **fields,
    }
    return Sbom("thing", json.dumps({"bomFormat": "CycloneDX", "components": [whole]}).encode())


def notices(*entries: str, linked: str = "") -> components.Notices:
    tables = "".join(f"[[notice]]\n{entry}\n" for entry in entries)
    return components.read(f"[linked]\n{linked}\n{tables}" if entries else f"notice = []\n[linked]\n{linked}\n")


def test_every_component_of_every_bill_of_materials_has_a_paragraph(
    archive: tarfile.TarFile, paragraphs: list[dict[str, str]]
) -> None:
    names = [name for name in archive.getnames() if name.startswith(f"{DOC}/sbom/") and name.endswith(".json")]
    entries = [
        component
        for name in names
        if not name.endswith("/sparkd.cdx.json")
        for component in json.loads(content(archive, name)).get("components", [])
    ]
    labels = {(component["name"], component["version"]) for component in entries}
    assert {("pyo3", "0.29.2"), ("openssl", "4.0.3")} & labels
    assert len(labels) > 100
    libraries = json.loads(content(archive, f"{DOC}/sbom/sparkd.cdx.json"))["components"]
    assert labels <= {(part["name"], part["version"]) for library in libraries for part in library["components"]}
    for component in entries:
        fields = component_paragraph(paragraphs, component["name"], component["version"])
        assert len(fields["License"].splitlines()) >= 4
        for licence in component.get("licenses", []):
            assert licence["expression"] in fields["Comment"]
        assert "https://" in fields["Comment"]


@pytest.mark.parametrize("name", ["openssl", "libffi", "libyaml", "rust-std", "yyjson", "ryu", "wuffs"])
def test_what_is_linked_statically_has_a_paragraph(paragraphs: list[dict[str, str]], name: str) -> None:
    assert any(fields.get("Comment", "").startswith(f"{name} ") for fields in licence_paragraphs(paragraphs).values())


def test_the_standard_library_of_every_compiler_has_a_paragraph(
    archive: tarfile.TarFile, paragraphs: list[dict[str, str]]
) -> None:
    modules = [content(archive, name) for name in archive.getnames() if name.endswith(".so")]
    versions = {version.decode() for module in modules for version in re.findall(rb"rustc version (\S+)", module)}
    assert versions
    for version in versions:
        assert "The Rust Project Developers" in component_paragraph(paragraphs, "rust-std", version)["License"]


def test_licences_that_want_their_text_with_the_binary_have_it(paragraphs: list[dict[str, str]]) -> None:
    for short, fields in licence_paragraphs(paragraphs).items():
        words = " ".join(fields["License"].split())
        if re.match(r"MIT~|Unlicense-OR-MIT~", short) and "component of" in fields.get("Comment", ""):
            assert "shall be included in all copies" in words, short
        if short.startswith("Unicode-3.0~"):
            assert "this copyright and permission notice appear with all copies" in words, short
    bsd = " ".join(component_paragraph(paragraphs, "asn1", "0.24.1")["License"].split())
    assert "Copyright (c) Alex Gaynor and individual contributors." in bsd
    assert "Neither the name of rust-asn1 nor the names of its contributors" in bsd


def test_the_format_is_dep_5(archive: tarfile.TarFile, paragraphs: list[dict[str, str]]) -> None:
    assert paragraphs[0]["Format"] == "https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    alone = licence_paragraphs(paragraphs)
    used = set()
    files = [name.removeprefix("./") for name in archive.getnames()]
    for fields in paragraphs[1:]:
        assert fields.keys() <= {"Files", "Copyright", "License", "Comment"}
        if "Files" in fields:
            assert fields["Copyright"]
            used |= set(fields["License"].split(" and "))
            for pattern in fields["Files"].split():
                assert any(fnmatch(name, pattern) for name in files), pattern
        else:
            assert "\n" in fields["License"], fields
    assert used == alone.keys()


def test_each_notice_is_of_a_component_that_a_library_has(paragraphs: list[dict[str, str]]) -> None:
    file = components.read((CHECKOUT / "packaging/debian/notices.toml").read_text())
    for component in file.components.values():
        component_paragraph(paragraphs, component.name, component.version)
    labels = {fields["Comment"].partition(",")[0] for fields in paragraphs if "Files" in fields and "Comment" in fields}
    assert file.linked.keys() <= labels


def test_a_component_without_a_notice_stops_the_build_and_is_named() -> None:
    other = notices('of = ["crate 1.2.2"]\ncopyright = ["Copyright 2020 A"]')
    with pytest.raises(BuildError, match=r"notices\.toml lacks crate 1\.2\.3 \(of thing 1\.0\)"):
        components.compiled_in([library(sboms=(sbom(),))], other)


def test_a_new_release_with_compiled_modules_stops_the_build_until_it_was_looked_at() -> None:
    module = Member("thing/core.so", b"\x7fELF")
    with pytest.raises(BuildError, match=r"notices\.toml lacks thing 1\.0 in \[linked\]"):
        components.compiled_in([library(modules=(module,))], notices(linked='"thing 0.9" = []'))


def test_a_new_compiler_stops_the_build() -> None:
    module = Member("thing/core.so", b"\0rustc version 1.98.1 (48a229cea 2026-09-01)\0")
    with pytest.raises(BuildError, match=r"lacks rust-std 1\.98\.1 \(of thing 1\.0\)"):
        components.compiled_in([library(modules=(module,))], notices(linked='"thing 1.0" = []'))


def test_a_component_without_a_licence_stops_the_build() -> None:
    bare = notices('of = ["crate 1.2.3"]\ncopyright = []')
    with pytest.raises(BuildError, match=r"lacks licence and source of crate 1\.2\.3"):
        components.compiled_in([library(sboms=(sbom(licenses=[]),))], bare)


@pytest.mark.parametrize("document", [b'{"spdxVersion": "SPDX-2.3"}', b"[]", b"not JSON"])
def test_a_bill_of_materials_of_another_kind_stops_the_build(document: bytes) -> None:
    with pytest.raises(BuildError, match="has to learn to read it"):
        components.compiled_in([library(sboms=(Sbom("thing", document),))], notices())


def test_two_notices_for_one_component_stop_the_build() -> None:
    with pytest.raises(BuildError, match=r"has crate 1\.2\.3 twice"):
        notices('of = ["crate 1.2.3"]\ncopyright = []', 'of = ["crate 1.2.3"]\ncopyright = ["Copyright 2020 A"]')


def test_a_component_of_two_libraries_has_one_paragraph() -> None:
    both = Vendored((library(sboms=(sbom(),)), library(name="other", sboms=(sbom(author="B"),))))
    notice = notices('of = ["crate 1.2.3"]\ncopyright = ["Copyright 2020 A"]')
    paragraphs = parse(papers.copyright_text(OWN, both, notice, TEXTS))
    assert "component of thing 1.0, other 1.0" in component_paragraph(paragraphs, "crate", "1.2.3")["Comment"]


def test_without_a_copyright_line_the_authors_are_named() -> None:
    vendored = Vendored((library(sboms=(sbom(author="Ann <ann@example.org>"),)),))
    paragraphs = parse(papers.copyright_text(OWN, vendored, notices('of = ["crate 1.2.3"]\ncopyright = []'), TEXTS))
    assert "Ann <ann@example.org>" in component_paragraph(paragraphs, "crate", "1.2.3")["License"]


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("MIT", ("MIT",)),
        ("MIT OR Apache-2.0", ("Apache-2.0",)),
        ("Unlicense OR MIT", ("MIT",)),
        ("Apache-2.0 WITH LLVM-exception", ("Apache-2.0 WITH LLVM-exception",)),
        ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", ("Apache-2.0",)),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", ("Apache-2.0", "Unicode-3.0")),
        ("MIT AND (MIT OR Zlib)", ("MIT",)),
    ],
)
def test_of_alternative_licences_one_is_kept_and_of_joined_ones_all(expression: str, kept: tuple[str, ...]) -> None:
    assert licences.chosen(expression) == kept


@pytest.mark.parametrize("expression", ["MIT OR Zlib AND BSD-3-Clause", "MIT/Apache-2.0", "((MIT OR Zlib) OR ISC)"])
def test_an_expression_that_is_not_read_stops_the_build(expression: str) -> None:
    with pytest.raises(BuildError, match="has to learn to read"):
        licences.chosen(expression)


@pytest.mark.parametrize("licence", ["ISC", "Apache-2.0 WITH Swift-exception"])
def test_a_licence_without_a_text_stops_the_build(licence: str) -> None:
    with pytest.raises(BuildError, match=r"has no (ISC|Swift-exception)\.txt"):
        licences.text(licence, "A", TEXTS)
