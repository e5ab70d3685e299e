"""Links this checkout into the environment that runs this, as an editable install would.

Writes what `pip install --no-deps -e .` writes (a path file, metadata, the `penstock` command),
without the build backend, which the lock would otherwise have to bring.
"""

from __future__ import annotations

import csv
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHEEL = "Wheel-Version: 1.0\nGenerator: link\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def main() -> None:
    """Links the project; does it anew where it was linked before."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    site = Path(sysconfig.get_path("purelib"))
    for old in site.glob(f"{project['name']}-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    info = site / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    written = {
        site / f"__editable__.{project['name']}.pth": f"{ROOT / 'src'}\n",
        info / "METADATA": metadata(project),
        info / "INSTALLER": "scripts/link.py\n",
        info / "WHEEL": WHEEL,
        info / "entry_points.txt": entry_points(project),
        **commands(project),
    }
    for path, text in written.items():
        path.write_text(text)
        if path.parent.name == "bin":
            path.chmod(0o755)
    with (info / "RECORD").open("w", newline="") as record:
        csv.writer(record).writerows([str(p), "", ""] for p in [*written, info / "RECORD"])


def metadata(project: dict[str, Any]) -> str:
    """The project's name, version and needs, those of its extras among them."""
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {need}" for need in project["dependencies"]]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {need}; extra == '{extra}'" for need in needs]
    return "\n".join(lines) + "\n"


def entry_points(project: dict[str, Any]) -> str:
    """The commands, as metadata."""
    pairs = [f"{name} = {target}" for name, target in project["scripts"].items()]
    return "\n".join(["[console_scripts]", *pairs]) + "\n"


def commands(project: dict[str, Any]) -> dict[Path, str]:
    """The commands, as files in the environment's `bin`."""
    folder = Path(sysconfig.get_path("scripts"))
    texts = {}
    for name, target in project["scripts"].items():
        module, function = target.split(":")
        call = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        texts[folder / name] = f"#!{sys.executable}\n{call}"
    return texts


if __name__ == "__main__":
    main()
