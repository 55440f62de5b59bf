"""The images of the tests: built with buildah on a Debian base made by debootstrap, loaded into a node only when their inputs changed."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from tests.cluster import layout, node
from tests.cluster.layout import NodeLayout
from tests.cluster.supervise import ClusterError

RELEASE = "bookworm"
BASE = f"localhost/{layout.NAME}/base:1"
_STORE = layout.BUILD / "images"
_BUILT = _STORE / "oci"
_CERTIFICATES = Path("/etc/ssl/certs")


@dataclass(frozen=True)
class Image:
    """A target of the project's Dockerfile, and the files of the project that go into it."""

    target: str
    inputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """What a pod asks for."""
        return f"localhost/{layout.NAME}/{self.target}:1"


_LOCKS = ("Dockerfile", "requirements/build.lock")
_TENSORFLOW = (*_LOCKS, "requirements/worker.lock")
_CONTROLLER = (*_LOCKS, "requirements/controller.lock", "pyproject.toml", "README.md", "LICENSE", "orchestrator", "worker_image", "k8s")
TENSORFLOW = Image("tensorflow", _TENSORFLOW)
WORKER = Image("worker", (*_TENSORFLOW, "worker_image"))
CONTROLLER = Image("controller", _CONTROLLER)
ALL = (CONTROLLER, TENSORFLOW, WORKER)
# Named, so that --prune leaves their layers for the next build.
STAGES = (Image("controller-packages", _CONTROLLER), Image("tensorflow-packages", _TENSORFLOW))


def build(say: Callable[[str], None]) -> None:
    """Build what has changed, and keep it as an OCI layout: layers that several images share are in it once."""
    _STORE.mkdir(parents=True, exist_ok=True)
    _build_base(say)
    built = "".join(_build(image, say) for image in (*STAGES, *ALL))
    stamp = _STORE / "layout.built"
    if _read(stamp) == built:
        return
    _buildah("rmi", "--prune")
    for image in ALL:
        _buildah("push", image.name, f"oci:{_BUILT}:{image.name}")
    _forget_old_layers()
    stamp.write_text(built)


def _build(image: Image, say: Callable[[str], None]) -> str:
    """Build one image if its inputs have changed; returns their digest."""
    digest, stamp = _digest(path for name in image.inputs for path in _files(layout.REPO / name)), _STORE / f"{image.target}.built"
    if _read(stamp) == digest:
        return digest
    say(f"building the image {image.target}")
    _buildah(
        *("build", "--isolation", "chroot", "--layers", "--pull=never"),
        *("--build-arg", f"BASE={BASE}", "--build-arg", f"TENSORFLOW={TENSORFLOW.name if image is WORKER else TENSORFLOW.target}"),
        *("--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"),  # this machine's authorities, for pip
        *("--target", image.target, "--tag", image.name, "--file", str(layout.REPO / "Dockerfile"), str(layout.REPO)),
    )
    stamp.write_text(digest)
    return digest


def load(to: NodeLayout, say: Callable[[str], None]) -> None:
    """Bring the images, unless the node has just these."""
    if not _has(to, node.PAUSE_IMAGE):
        with _single_program(layout.BIN / "pause", node.PAUSE_IMAGE).open("rb") as archive:
            _import(to, archive)
    index = (_BUILT / "index.json").read_text()
    stamp = to.folder / "images.json"
    if _read(stamp) == index and all(_has(to, image.name) for image in ALL):
        return
    say(f"loading the images into {to.name}")
    with subprocess.Popen(["tar", "--create", "--directory", str(_BUILT), "."], stdout=subprocess.PIPE) as packing:
        assert packing.stdout
        _import(to, packing.stdout)
    stamp.write_text(index)


def _build_base(say: Callable[[str], None]) -> None:
    if _buildah("images", "--quiet", "--filter", f"reference={BASE}").strip():
        return
    say(f"making the base image, Debian {RELEASE}")
    with TemporaryDirectory(dir=_STORE) as folder:
        root = Path(folder) / "root"
        _run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", RELEASE, str(root))
        for path in (root / "var/cache/apt", root / "var/lib/apt/lists", root / "usr/share/doc", root / "usr/share/man"):
            shutil.rmtree(path, ignore_errors=True)
        container = _buildah("from", "scratch").strip()
        _buildah("add", container, str(root), "/")
        _buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        _buildah("commit", "--rm", container, BASE)


def _forget_old_layers() -> None:
    """Remove what no image of the layout has any more."""
    blobs = _BUILT / "blobs" / "sha256"
    index = json.loads((_BUILT / "index.json").read_text())
    used = {manifest["digest"].partition(":")[2] for manifest in index["manifests"]}
    for manifest in list(used):
        parts = json.loads((blobs / manifest).read_text())
        used |= {part["digest"].partition(":")[2] for part in (parts["config"], *parts["layers"])}
    for path in blobs.iterdir():
        if path.name not in used:
            path.unlink()


def _files(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc") if path.is_dir() else [path]


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(repr((str(path.relative_to(layout.REPO)), path.read_bytes())).encode())
    return digest.hexdigest()


def _has(to: NodeLayout, name: str) -> bool:
    return name in node.ctr(to, "images", "list", "--quiet").stdout.decode().split()


def _read(stamp: Path) -> str:
    return stamp.read_text() if stamp.exists() else ""


def _import(to: NodeLayout, archive: IO[bytes]) -> None:
    done = node.ctr(to, "images", "import", "-", stdin=archive)
    if done.returncode:
        raise ClusterError(f"{to.name} does not take the images: {done.stderr.decode().strip()[-1000:]}")


def _single_program(program: Path, name: str) -> Path:
    """An image archive (docker's format) with one static program and nothing else."""
    layer = _tar({program.name: program.read_bytes()}, 0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    text = json.dumps(config).encode()
    file = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}]
    archive = _STORE / f"{program.name}.tar"
    archive.write_bytes(_tar({file: text, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}, 0o644))
    return archive


def _tar(members: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in members.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _buildah(*arguments: str) -> str:
    return _run("buildah", "--root", str(_STORE / "store"), "--runroot", str(_STORE / "run"), "--storage-driver", "overlay", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{command[0]}` failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
