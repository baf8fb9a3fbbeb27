"""What a public release needs to say of itself, in Maven and in Python."""

from __future__ import annotations

import configparser
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import pyspark_checkpoint

ROOT = Path(__file__).resolve().parents[1]
SPACE = {"m": "http://maven.apache.org/POM/4.0.0"}


@pytest.fixture(scope="module")
def pom() -> ET.Element:
    """The project's POM."""
    return ET.parse(ROOT / "jvm-shim" / "pom.xml").getroot()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("groupId", "io.github.pyspark-checkpoint"),
        ("artifactId", "ckpt-spark_2.13"),
        ("packaging", "jar"),
        ("licenses/m:license/m:name", "Apache-2.0"),
        ("licenses/m:license/m:url", "https://www.apache.org/licenses/LICENSE-2.0"),
    ],
)
def test_the_coordinates_and_the_licence_are_these(pom: ET.Element, path: str, value: str) -> None:
    """Users type the first two."""
    assert pom.findtext(f"m:{path}", namespaces=SPACE) == value


@pytest.mark.parametrize(
    "path",
    [
        "name",
        "description",
        "url",
        "developers/m:developer/m:name",
        "scm/m:connection",
        "scm/m:developerConnection",
        "scm/m:url",
    ],
)
def test_what_a_public_repository_asks_for_is_there(pom: ET.Element, path: str) -> None:
    """Maven Central refuses an artifact without."""
    assert (pom.findtext(f"m:{path}", namespaces=SPACE) or "").strip()


def test_nothing_comes_along_with_the_jar(pom: ET.Element) -> None:
    """Spark has everything: ``--packages`` resolves one file."""
    scopes = [found.text for found in pom.findall("m:dependencies/m:dependency/m:scope", SPACE)]
    assert len(scopes) == len(pom.findall("m:dependencies/m:dependency", SPACE))
    assert set(scopes) == {"provided", "test"}


def test_jar_package_and_distribution_have_one_version_and_one_licence(pom: ET.Element) -> None:
    """A jar and a package of different versions refuse each other."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    version = pom.findtext("m:version", namespaces=SPACE)
    assert version == setup["metadata"]["version"] == pyspark_checkpoint.__version__
    assert setup["metadata"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
