"""The command line: `python -m tools VERB`. Each verb is a few lines over a module."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from . import (
    apply as apply_module,
    basewheel,
    check as check_module,
    export as export_module,
    negative,
    stats as stats_module,
    venv,
    wheel as wheel_module,
)
from .check_static import static
from .check_tree import tree
from .errors import ToolError
from .gitrepo import GitError, Repo
from .pins import add_base, load_pin
from .project import Project
from .ui import err, say


PATH = click.Path(path_type=Path)
EXISTING_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


class Group(click.Group):
    """Turns the errors we raise into one message and exit code 2."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (ToolError, GitError) as error:
            err.print(f"error: {error}", markup=False, style="red")
        except OSError as error:
            err.print(f"error: {error}", markup=False, style="red")
        ctx.exit(2)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(ctx: click.Context) -> None:
    """Build and check the torch-hooks wheel: pinned torch + patches + overlay."""
    ctx.obj = ctx.obj or Project.here()


@main.command()
@click.option("--wheel", type=PATH, help="Use this wheel of torch; no network.")
@click.pass_obj
def fetch(project: Project, wheel: Path | None) -> None:
    """Get and check the base wheel; commit its files in .work/torch."""
    pin = load_pin(project)
    base = basewheel.find(project, pin, wheel)
    moved = apply_module.fetch(project, pin, base)
    say(f"torch {base.upstream}, as pinned:")
    click.echo(base.path)
    say(f".work/torch: tag {pin.tag} {'written' if moved else 'is up to date'}")


@main.command()
@click.option("-3", "three_way", is_flag=True, help="Fall back on a 3-way merge.")
@click.option("--force", is_flag=True, help="Throw away unexported work.")
@click.option(
    "--checkout",
    type=EXISTING_FOLDER,
    help="Apply to this PyTorch checkout, on a new branch, instead of .work/torch.",
)
@click.pass_obj
def apply(
    project: Project, three_way: bool, force: bool, checkout: Path | None
) -> None:
    """Commit the overlay, then the patches, on branch work/VERSION."""
    pin = load_pin(project)
    if checkout:
        if three_way or force:
            raise click.UsageError("--checkout goes with neither -3 nor --force")
        branch = apply_module.apply_to_checkout(project, pin, checkout)
        say(f"{checkout}: on branch {branch}; build it as PyTorch's docs say")
        return
    apply_module.apply_to_work_tree(project, pin, three_way=three_way, force=force)
    say(f".work/torch: branch {pin.branch} holds the overlay and every patch")


@main.command()
@click.option("--dry-run", is_flag=True, help="Write nothing; fail on any difference.")
@click.pass_obj
def export(project: Project, dry_run: bool) -> None:
    """Write the commits of branch work/VERSION as patch files."""
    found = export_module.export(project, load_pin(project), dry_run=dry_run)
    for line in found:
        say(line if dry_run else f"{line.partition(':')[0]}: written")
    if dry_run and found:
        raise ToolError(
            f"{len(found)} files are not what export would write",
            "`python -m tools export` to write them, "
            "or `python -m tools apply` to rebuild .work/torch from them",
        )
    if not found:
        say("the patch files say just what the commits say")


@main.command()
@click.option("--out", type=PATH, help="Folder to build into (dist).")
@click.option("--wheel", type=PATH, help="Use this wheel of torch; no network.")
@click.pass_obj
def wheel(project: Project, out: Path | None, wheel: Path | None) -> None:
    """Build our wheel from the base wheel, the patches and the overlay."""
    built = wheel_module.build(project, out or project.dist, wheel)
    say("built and verified:")
    click.echo(project.show(built))


@main.command()
@click.argument("wheels", nargs=-1, required=True, type=PATH)
def verify(wheels: tuple[Path, ...]) -> None:
    """Check every hash and the version in WHEELS."""
    for path in wheels:
        wheel_module.verify(path)
        say(f"{path}: verified")


@main.command()
@click.option("--static", "only_static", is_flag=True, help="Only what needs no wheel.")
@click.option("--wheel", type=PATH, help="Use this wheel of torch; no network.")
@click.pass_obj
def check(project: Project, only_static: bool, wheel: Path | None) -> None:
    """Check pin, series, headers, budget, and that the patches make a wheel."""
    checks = static.all if only_static else static.all + tree.all
    results = check_module.run(checks, check_module.Context(project, wheel))
    if not check_module.show(results):
        raise SystemExit(1)


@main.command("negative-control")
@click.argument("patches", nargs=-1)
@click.option("--python", type=PATH, help="The venv to use (.venv/bin/python).")
@click.pass_obj
def negative_control(
    project: Project, patches: tuple[str, ...], python: Path | None
) -> None:
    """Prove that the tests of each patch (or of PATCHES) fail without it."""
    names = tuple(Path(patch).name for patch in patches)
    python = python or project.root / ".venv" / "bin" / "python"
    if not negative.run(project, python, names):
        raise SystemExit(1)


@main.command()
@click.argument("python", type=PATH)
@click.pass_obj
def sync(project: Project, python: Path) -> None:
    """Copy .work/torch and the overlay into the torch that PYTHON has."""
    stale = venv.sync(project, load_pin(project), Repo(project.tree), python)
    for name in stale:
        say(name)
    say(f"{len(stale)} files brought up to date")


@main.command()
@click.pass_obj
def stats(project: Project) -> None:
    """Show each patch with its size, seam and status."""
    stats_module.show(project)


@main.group()
def pin() -> None:
    """Work on the pin file."""


@pin.command("add")
@click.argument("files", nargs=-1, required=True)
@click.option("--wheel", type=PATH, help="Use this wheel of torch; no network.")
@click.pass_obj
def pin_add(project: Project, files: tuple[str, ...], wheel: Path | None) -> None:
    """Let patches touch FILES (paths inside the wheel): add their hashes."""
    pin = load_pin(project)
    base = basewheel.find(project, pin, wheel)
    found = base.read(list(files))
    for name in files:
        if name not in found:
            raise ToolError(f"{base.path}: has no {name}", "check the path")
    add_base(pin, found)
    apply_module.fetch(project, load_pin(project), base)
    say(f"{project.show(pin.path)}: {', '.join(files)} added")


def run() -> None:
    sys.exit(main(prog_name="python -m tools"))
