"""A real Slurm cluster of two nodes on this machine, as a pytest fixture.

    from slurm_cluster import slurm  # noqa: F401

    def test_something(slurm):
        job = slurm.sbatch("--wrap", "hostname")
        assert slurm.wait() == {job: "COMPLETED"}

Needs root and the packages slurm-wlm and munge; without them the tests that use it are skipped.
"""

import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/ctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SchedulerParameters=sched_interval=1,bf_interval=1
MinJobAge=3600
GresTypes=gpu
NodeName=DEFAULT CPUs={cpus} RealMemory=8000 Gres=gpu:4 State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2}
NodeName=large NodeHostname=large NodeAddr=127.0.0.1 Port=1 CPUs=64 RealMemory=256000 Gres=gpu:8 State=DOWN
PartitionName=large Nodes=large MaxTime=INFINITE State=UP
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


_GPUS = (("n[1-2]", 3), ("large", 7))


@dataclass(frozen=True)
class SlurmCluster:
    """Nodes n1 and n2 of two CPUs each, with devices for GPUs; jobs for the partition `large` only wait."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, **options) -> str:
        """Run a Slurm command; its output."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, check=False, **options
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def sbatch(self, *arguments: str, **options) -> str:
        """Submit a job; its number."""
        return self.run("sbatch", "--parsable", *arguments, **options).strip()

    def states(self) -> dict[str, str]:
        """Every job or array task so far, with its state."""
        lines = self.run("squeue", "--states=all", "--noheader", "--array", "--format=%i %T").split("\n")
        return dict(line.split() for line in lines if line)

    def wait(self, seconds: float = 240) -> dict[str, str]:
        """Wait until no job is waiting or running, and return the states."""
        deadline = time.monotonic() + seconds
        unfinished = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
        while time.monotonic() < deadline:
            states = self.states()
            if not unfinished & set(states.values()):
                return states
            time.sleep(0.5)
        raise AssertionError(f"jobs did not end within {seconds} s: {self.states()}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted((self.folder / "log").glob("*.log")))


def _missing() -> str | None:
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "runuser")
    absent = [name for name in programs if shutil.which(name) is None]
    if absent:
        return f"needs slurm-wlm and munge (no {', '.join(absent)})"
    return "needs root to start Slurm's daemons" if os.geteuid() != 0 else None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def slurm(tmp_path_factory) -> Iterator[SlurmCluster]:
    """Two idle nodes. Its own munge, ports and folders: several may run on one machine."""
    reason = _missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)  # munged runs as its own user and looks at the way to its socket
    for name in ("state", "log", "spool.n1", "spool.n2"):
        (folder / name).mkdir()
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    environment = {name: value for name, value in environment.items() if not name.startswith("SBATCH_")}
    munge = folder / "munge"
    munge.mkdir()
    (munge / "key").write_bytes(os.urandom(128))
    (munge / "key").chmod(0o400)
    processes: list[subprocess.Popen] = []

    def start(*command: str) -> None:
        with (folder / "log" / f"{Path(command[0]).name}-{len(processes)}.out").open("w") as log:
            processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )

    (folder / "slurm.conf").write_text(
        _CONFIG.format(
            host=socket.gethostname().split(".")[0],
            folder=folder,
            controller_port=_free_port(),
            port1=_free_port(),
            port2=_free_port(),
            cpus=min(2, os.cpu_count() or 1),
        )
    )
    for number in range(8):
        # Slurm hands out devices that it finds: these are /dev/null under other names.
        os.mknod(folder / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    gpus = "".join(f"NodeName={nodes} Name=gpu File={folder}/nvidia[0-{last}]\n" for nodes, last in _GPUS)
    (folder / "gres.conf").write_text(gpus)
    cluster = SlurmCluster(folder, environment)
    try:
        start(
            "munged", "--foreground", "--force", f"--key-file={munge / 'key'}",
            f"--socket={folder / 'munge.socket'}", f"--pid-file={munge / 'pid'}",
            f"--log-file={munge / 'log'}", f"--seed-file={munge / 'seed'}",
        )  # fmt: skip
        _wait_for(lambda: (folder / "munge.socket").exists(), cluster, "munge did not start")
        start("slurmctld", "-D")
        start("slurmd", "-D", "-N", "n1")
        start("slurmd", "-D", "-N", "n2")
        _wait_for(lambda: _idle_nodes(cluster) == 2, cluster, "the nodes did not come up")
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _idle_nodes(cluster: SlurmCluster) -> int:
    found = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%T"],
        env=cluster.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return found.stdout.split().count("idle")


def _wait_for(condition, cluster: SlurmCluster, complaint: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{complaint}:\n{cluster.logs()}"
        time.sleep(0.25)
