"""Report on this machine: what it has, what each part is needed for, and how to get what is missing."""

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ping_llm.extras import how_to_install

_HERE = Path(__file__).parent

#: Extra → packages that must be present for the extra to be installed.
_EXTRAS = {
    "query": ("jax", "orbax-checkpoint", "safetensors"),
    "train": ("maxtext", "flax", "omegaconf", "pydantic", "tensorboardx"),
    "spark": ("pyspark",),
    "modal": ("modal",),
    "wandb": ("wandb",),
    "onnx": ("onnx",),
    "evaluate": ("scikit-learn",),
    "serve": ("fastapi", "uvicorn"),
    "edge": ("onnxruntime",),
    "mcp": ("mcp",),
    "mmdb": ("maxminddb",),
    "dev": ("pytest", "ruff", "mypy"),
}
_EXTRA_PURPOSES = {
    "query": "asking a model",
    "train": "training",
    "spark": "rows from data too large for one machine",
    "modal": "running on Modal",
    "wandb": "logging to Weights & Biases",
    "onnx": "export to ONNX",
    "evaluate": "the gradient-boosted baseline",
    "serve": "answers over HTTP",
    "edge": "asking an edge export, and checking exports to ONNX",
    "mcp": "tools for assistants",
    "mmdb": "places of addresses from a database",
    "dev": "make test, make lint",
}
#: Recommended limit of open files. ArrayRecord keeps one file descriptor per shard; 100–500 shards are usual.
_OPEN_FILES_WANTED = 4096
_MEMORY_WANTED_GIB = 4
_DISK_WANTED_GIB = 5


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    `state` is ok, missing (something optional), differs (from the pinned version or the recommended value) or
    broken (something required).
    """

    part: str
    found: str
    state: str
    needed_for: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def examine(folder: Path = Path()) -> list[Finding]:
    """Examine the machine; `folder` is where runs would be written."""
    return [_python(), *_packages(), *_machine(folder), _accelerators(), _java(), _slurm()]


def _python() -> Finding:
    good = sys.version_info >= (3, 12)
    return Finding(
        "Python",
        platform.python_version(),
        "ok" if good else "broken",
        "everything (MaxText needs 3.12)",
        "" if good else "scripts/bootstrap.sh finds one",
    )


def read_pins() -> dict[str, str]:
    """Package → version from constraints.txt of the checkout, or from its copy in the installed package."""
    for path in (_HERE.parents[1] / "constraints.txt", _HERE / "constraints.txt"):
        if path.is_file():
            lines = path.read_text().splitlines()
            return {
                _canonical(name): version
                for name, _, version in (line.partition("==") for line in lines)
                if version
            }
    return {}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _required_packages() -> list[str]:
    requirements = importlib.metadata.requires("ping-llm") or []
    names = [re.match(r"[\w.-]+", text) for text in requirements if "extra ==" not in text]
    return [match.group() for match in names if match]


def _packages() -> list[Finding]:
    pins = read_pins()
    findings = [_package(name, "the base", _install(""), True, pins) for name in _required_packages()]
    for extra, names in _EXTRAS.items():
        remedy = _install(extra)
        findings += [
            _package(name, f"{extra}: {_EXTRA_PURPOSES[extra]}", remedy, False, pins) for name in names
        ]
    return findings


def _install(extra: str) -> str:
    """The command that installs an extra: bootstrap.sh (pinned versions) in a checkout, pip elsewhere."""
    if (_HERE.parents[1] / "scripts" / "bootstrap.sh").is_file():
        return f"scripts/bootstrap.sh {extra}".rstrip()
    return how_to_install(extra) if extra else "pip install ping-llm"


def _package(name: str, purpose: str, remedy: str, required: bool, pins: dict[str, str]) -> Finding:
    version, pin = _installed_version(name), pins.get(_canonical(name))
    if version is None:
        return Finding(name, "not installed", "broken" if required else "missing", purpose, remedy)
    if pin and version != pin:
        return Finding(name, f"{version} (pinned {pin})", "differs", purpose, remedy)
    return Finding(name, version, "ok", purpose)


def _machine(folder: Path) -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    disk = shutil.disk_usage(folder).free / 2**30
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        Finding("cores", str(cores), "ok", "ingest, rows and the loader"),
        _at_least("memory", memory, _MEMORY_WANTED_GIB, "training the tiny model", "a larger machine"),
        _at_least(
            "free disk",
            disk,
            _DISK_WANTED_GIB,
            f"runs below {folder.resolve()}",
            "free some, or cd elsewhere",
        ),
        Finding(
            "open files",
            f"{files:,} (hard limit {hard:,})",
            "ok" if files >= min(_OPEN_FILES_WANTED, hard) else "differs",
            f"many shards; {_OPEN_FILES_WANTED:,} wanted",
            "" if files >= _OPEN_FILES_WANTED else f"ulimit -n {min(_OPEN_FILES_WANTED, hard)}",
        ),
    ]


def _at_least(part: str, gib: float, wanted: float, purpose: str, remedy: str) -> Finding:
    enough = gib >= wanted
    found = f"{gib:.1f} GiB"
    return Finding(
        part, found, "ok" if enough else "differs", f"{purpose}: {wanted} GiB", "" if enough else remedy
    )


def _first_line(*command: str) -> str | None:
    """The first line that a program prints, or None if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


#: Packages that `jax[cuda12]` adds to JAX.
_CUDA_WHEELS = ("jax-cuda12-plugin", "jax-cuda12-pjrt")


def _accelerators() -> Finding:
    purpose = "training more than the tiny model"
    gpu = _first_line("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    if gpu:
        return _gpu(gpu, purpose)
    if any(Path("/dev").glob("accel*")):
        return Finding("accelerator", "TPU", "ok", purpose)
    return Finding(
        "accelerator", "none", "missing", purpose, "deploy/slurm or deploy/modal run on machines with GPUs"
    )


def _gpu(name: str, purpose: str) -> Finding:
    """Check whether JAX can use the GPU that the driver lists."""
    missing = [wheel for wheel in _CUDA_WHEELS if _installed_version(wheel) is None]
    if missing:
        found = f"{name}, which JAX does not see: {', '.join(missing)} not installed"
        return Finding("accelerator", found, "missing", purpose, "make setup-cuda")
    devices = _first_line(sys.executable, "-c", "import jax; print(jax.default_backend())")
    if devices != "gpu":
        found = f"{name}, which JAX does not see"
        remedy = 'python -c "import jax; jax.devices()" says why; the driver may be too old for CUDA 12'
        return Finding("accelerator", found, "differs", purpose, remedy)
    return Finding("accelerator", f"{name}, which JAX sees", "ok", purpose)


def _java() -> Finding:
    version = _first_line("java", "-version")
    purpose = "the spark engine of rows (17 or newer)"
    if version is None:
        return Finding("Java", "none", "missing", purpose, "apt install openjdk-17-jre-headless")
    return Finding("Java", version, "ok", purpose)


def _slurm() -> Finding:
    version = _first_line("sbatch", "--version")
    if version is None:
        return Finding(
            "Slurm", "none", "missing", "deploy/slurm", "apt install slurm-wlm munge, or a login node"
        )
    return Finding("Slurm", version, "ok", "deploy/slurm")
