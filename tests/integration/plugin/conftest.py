"""One repository with the jar just built, and one Python without the package, for all applications."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.plugin.lab import Submitter, bare_python
from tests.support.servers.hadoop import ROOT, build_jar, run_maven


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Maven repository with nothing in it but what Maven deploys of the sources as they are now."""
    build_jar()
    target = tmp_path_factory.mktemp("repository")
    pom = str(ROOT / "jvm-shim" / "pom.xml")
    run_maven(["-f", pom, "deploy", f"-DaltDeploymentRepository=local::file://{target}"])
    return target


@pytest.fixture(scope="session")
def submitter(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Submitter:
    """Submits applications to the newest Spark."""
    home = tmp_path_factory.mktemp("submitter")
    (home / "private").mkdir()
    return Submitter(repository, home / "private", bare_python(home / "python"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory for one application."""
    return tmp_path
