"""The files below deploy/serve: what can be checked without a container engine."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml
from serve_server import TOKEN, until

from ping_llm.cli import serve

DEPLOY = Path(__file__).parents[2] / "deploy" / "serve"
USER = 65532


def dockerfile(instruction: str) -> list[str]:
    """The arguments of an instruction in JSON form, the last one in the file."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return ast.literal_eval(re.findall(rf"^{instruction}\b.*?(\[.*\])$", text, re.MULTILINE)[-1])


def container(name: str) -> dict[str, Any]:
    documents = list(yaml.safe_load_all((DEPLOY / name).read_text()))
    if name == "compose.yaml":
        return documents[0]["services"]["ping-llm"]
    deployment = next(one for one in documents if one["kind"] == "Deployment")
    return deployment["spec"]["template"]["spec"]["containers"][0]


def options_of(words: list[str]) -> dict[str, Any]:
    """Options of `ping-llm serve`, as the command line reads them."""
    app = typer.Typer()
    serve.register(app)
    return typer.main.get_command(app).make_context("serve", list(words)).params


def test_commands_are_those_of_the_command_line():
    assert dockerfile("ENTRYPOINT") == ["ping-llm", "serve"]
    every = [dockerfile("CMD"), container("compose.yaml")["command"], container("kubernetes.yaml")["args"]]
    for words in every:
        options = options_of(words)
        assert (options["host"], options["port"], options["no_auth"]) == ("0.0.0.0", 8000, False)
        assert options["token_file"] is not None


def test_containers_have_neither_root_nor_a_writable_image():
    assert f"\nUSER {USER}:{USER}\n" in (DEPLOY / "Dockerfile").read_text()
    compose = container("compose.yaml")
    assert compose["read_only"] is True
    assert compose["user"] == f"{USER}:{USER}"
    assert compose["cap_drop"] == ["ALL"]
    assert all(one.get("read_only") for one in compose["volumes"] if isinstance(one, dict))
    pod = container("kubernetes.yaml")
    assert pod["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {one["mountPath"] for one in pod["volumeMounts"] if not one.get("readOnly")}
    assert writable == {"/tmp", "/var/cache/ping-llm"}


def test_probes_ask_paths_that_need_no_token(server):
    pod = container("kubernetes.yaml")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = pod[probe]["httpGet"]["path"]
        assert httpx.get(server.url + path).status_code == 200
    python, *words = dockerfile("HEALTHCHECK")
    assert python == "python"
    code = [word.replace("http://127.0.0.1:8000", server.url) for word in words]
    assert subprocess.run([sys.executable, *code], check=False).returncode == 0
    gone = [word.replace(":8000", ":1") for word in words]
    assert subprocess.run([sys.executable, *gone], check=False, capture_output=True).returncode == 1


AS_IN_A_CONTAINER = """
set -e
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/python /mnt/model /mnt/cache /mnt/secrets
mount --bind {python} /mnt/python
mount --bind {model} /mnt/model
mount --bind {cache} /mnt/cache
mount --bind {secrets} /mnt/secrets
for folder in {hidden}; do mount -t tmpfs -o mode=755 none $folder; done
mkdir -p {python}
mount --bind /mnt/python {python}
mount -t tmpfs -o mode=1777 none /tmp
mount -o remount,ro,bind /mnt/model
mount -o remount,ro,bind /
! touch /probe 2>/dev/null
exec setpriv --reuid={user} --regid={user} --clear-groups --no-new-privs \\
  env -i HOME=/tmp XDG_CACHE_HOME=/mnt/cache \\
  {program} -c 'from ping_llm.cli import main; main()' serve {words}
"""


@pytest.mark.long
def test_a_server_without_root_on_a_read_only_root(tmp_path, run, rows):
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this needs root and mount namespaces")
    model = tmp_path / "model"
    shutil.copytree(run, model)
    shutil.copytree(rows, model / "rows")
    for path in (model, *model.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name in ("cache", "secrets"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, USER, USER)
    (tmp_path / "secrets" / "tokens").write_text(f"tests: {TOKEN}\n")
    python = Path(sys.base_prefix)
    words = "/mnt/model --data /mnt/model/rows --host 127.0.0.1 --token-file /mnt/secrets/tokens --port 0"
    script = AS_IN_A_CONTAINER.format(
        python=python, model=model, cache=tmp_path / "cache", secrets=tmp_path / "secrets", user=USER,
        hidden="/root" if python.is_relative_to("/root") else "", program=sys.executable, words=words,
    )  # fmt: skip
    said, log = tmp_path / "said", tmp_path / "log"
    with said.open("wb") as out, log.open("wb") as errors:
        process = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=out, stderr=errors)
    try:
        until(lambda: process.poll() is not None or "serving" in said.read_text(), 280)
        found = re.search(r"at (http://\S+)", said.read_text())
        assert found, log.read_text()
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert f"Uid:\t{USER}" in status
        assert re.search(r"CapEff:\t0+\n", status)
        with httpx.Client(
            base_url=found[1], headers={"Authorization": f"Bearer {TOKEN}"}, timeout=250
        ) as client:
            until(lambda: client.get("/readyz").status_code == 200, 280)
            line = b'{"src": "192.0.2.1", "dst": "198.51.100.7"}\n'
            kind = {"Content-Type": "application/x-ndjson"}
            answers = client.post("/v1/rtt", content=line * 300, headers=kind).text.splitlines()
            assert len(answers) == 300
            assert client.get("/v1/ends").json()["known"]["complete"]
        assert list((tmp_path / "cache").rglob("*"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
