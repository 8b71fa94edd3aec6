"""Submodules: found before a ticket is worked on, checked out, and never delivered at a commit that nobody has.

Each repository that .gitmodules names is fetched into a copy of ours, `modules/`, that no agent is given; worktrees
are filled from these copies, without the network. So a credential never meets a file that an agent wrote, and what is
delivered is compared with what the submodule's own origin has.

Invariant: what .gitmodules names is reached only as the repository itself may be; the credential goes to its host only.

Knows worktrees; does not know who wants submodules.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from runner.worktree.bundle import Bundles
from runner.worktree.clone import checked_sha
from runner.worktree.command import Command
from runner.worktree.errors import (
    CommitRefused,
    GitFailed,
    RepositoryDenied,
    RepositoryMissing,
)
from runner.worktree.files import clear, read_small, write_whole
from runner.worktree.origin import checked, is_path, with_url
from runner.worktree.trees import Checkout, base_ref

LINK = "160000"
_INDEX = ""
"""In the place of a tree."""
_SHOWN = 5
_DEPTH = 5
"""Of submodules in submodules: one that contains itself has no end."""
_HEADS_AND_TAGS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_PLACE = re.compile(r"submodule\.(.*)\.(path|url)\n(.*)", re.DOTALL)


@dataclass(frozen=True)
class Module:
    """A submodule of a commit."""

    name: str
    """After which git names where it keeps it."""
    path: str
    sha: str
    """The commit that it is at."""
    url: str
    """As .gitmodules has it."""


class Modules(Bundles):
    """The submodules of a repository."""

    def fill(self, ticket_id: str, base_sha: str, *, update: bool) -> tuple[str, ...]:
        """Check out the submodules that are missing in a worktree, and theirs, at the commits that its index has.

        Args:
            ticket_id: Whose worktree.
            base_sha: The commit that says whether it can be worked on.
            update: What is wanted where there are.

        Returns:
            The paths of all that the worktree has and that are wanted; most repositories have none.

        Raises:
            WorktreeRefused: There are some and they are not wanted, or one of them cannot be had.
            RepositoryUnreachable: Try again later.
        """
        checkout = self.checkout(ticket_id)
        if (unfit := self.unfit(base_sha, update=update)) is not None:
            raise checkout.refused(f"cannot be worked on: {unfit}")
        try:
            with self._lock:
                return self._fill_whole(checkout) if update else ()
        except (GitFailed, RepositoryDenied, RepositoryMissing) as error:
            raise checkout.refused(f"has submodules that cannot be checked out: {error}") from error

    def unfit(self, base_sha: str, *, update: bool) -> str | None:
        """Return why no ticket can be worked on at a commit, None where nothing is known that keeps one from it."""
        modules = [] if update else _modules(self.outbox(), checked_sha(base_sha))
        if modules:
            names = ", ".join(module.path for module in modules[:_SHOWN])
            return f'its base has submodules ({names}): set git.submodules = "update" to have them checked out'
        return None

    def refuse_unknown_links(self, checkout: Checkout, sha: str) -> None:
        """Refuse a commit in which a submodule is at a commit that the submodule's own origin does not have.

        Raises:
            CommitRefused: There is one.
            RepositoryUnreachable: Try again later.
        """
        git = checkout.git
        changed = changed_links(git, self.base_tree(checkout), sha)
        for module in _modules(git, sha) if changed else ():
            if module.path not in changed:
                continue
            try:
                url = self._reached(module.url, self.shown)
                copy = self._command(self._fetched(url))
                has_it = copy.sha(module.sha) and copy.ask("for-each-ref", "--count=1", f"--contains={module.sha}").text
            except (GitFailed, RepositoryDenied, RepositoryMissing) as error:
                raise _not_had(checkout, module, str(error)) from error
            if not has_it:
                raise _not_had(checkout, module, f"{url} has it on no branch: push it there first")

    def edited_modules(self, checkout: Checkout) -> list[str]:
        """Return the submodules in which something is uncommitted; files that git does not know there do not count."""
        if not self.has_modules(checkout):
            return []
        status = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=untracked")
        places = _checked_out(checkout.git, checkout.path)
        return [str(place.relative_to(checkout.path)) for place in places if self._in_module(place).run(*status).stdout]

    def refuse_lost_modules(self, checkout: Checkout) -> None:
        """Refuse to go on where a submodule holds work that is uncommitted, or on no branch that it was fetched from.

        Raises:
            WorktreeRefused: One does.
        """
        repositories = {}
        for place in _checked_out(checkout.git, checkout.path):
            repositories[place] = git = self._in_module(place)
            if git.run("status", "--porcelain", "--ignore-submodules=none").stdout:
                raise checkout.refused(f"holds uncommitted work in its submodule {place.name}")
        for kept in _repositories(checkout.admin / "modules"):  # also of what is checked out, or in the index, no more
            repositories[kept] = self._command(kept).with_environment(GIT_WORK_TREE=str(kept))
        for place, git in repositories.items():
            if git.run("rev-list", "--max-count=1", "HEAD", "--all", "--not", "--remotes", "--tags").stdout:
                raise checkout.refused(f"holds commits of its submodule {place.name} that are pushed nowhere")

    def has_modules(self, checkout: Checkout) -> bool:
        """Return whether submodules are checked out in a worktree."""
        return (checkout.admin / "modules").is_dir()

    def base_tree(self, checkout: Checkout) -> str:
        """Return the commit that the work is compared with, else the empty tree."""
        base = self.outbox().sha(base_ref(checkout.ticket_id))
        return base or checkout.git.run("hash-object", "-t", "tree", os.devnull).text

    def _fill_whole(self, checkout: Checkout) -> tuple[str, ...]:
        """Fill what is missing; a submodule of which nothing was there is there with all that is in it, or not at all.

        A mark names what is being filled: git takes what a kill has left of it for the whole, and would go on there.
        """
        known, mark = _modules(checkout.git, _INDEX), checkout.admin / "filling"
        begun = os.fsdecode(read_small(mark) or b"").split("\0")
        for module in known:
            if module.name in begun:
                _drop(module, checkout)
        new = [module for module in known if not any(map(_holds, _of(module, checkout)))]
        write_whole(mark, os.fsencode("\0".join(module.name for module in new)))
        try:
            self._fill(checkout.git, checkout.path, self.shown, _DEPTH)
        except BaseException:
            for module in new:
                _drop(module, checkout)
            raise
        finally:
            mark.unlink()
        return tuple(module.path for module in known)

    def _fill(self, git: Command, path: Path, origin: str, depth: int) -> None:
        known = _modules(git, _INDEX)
        modules = [module for module in known if not os.path.lexists(path / module.path / ".git")]
        if modules and not depth:
            raise GitFailed(git.what, "submodule", f"submodules more than {_DEPTH} deep")
        settings = {"protocol.allow": "never", "protocol.file.allow": "always", "init.templateDir": ""}
        urls = {module.path: self._reached(module.url, origin) for module in modules}
        for url in urls.values():
            settings[f"url.file://{self._fetched(url)}.insteadOf"] = url
        if urls:
            git.with_environment(**_configured(settings)).run("submodule", "update", "--init", "--quiet", "--", *urls)
        for inside, url in urls.items():
            if os.path.lexists(path / inside / ".git"):  # .gitmodules can say that one is not wanted
                self._fill(self._in_module(path / inside), path / inside, url, depth - 1)

    def _in_module(self, path: Path) -> Command:
        return Command(str(path), path, self._timeout_s, self._identity, short_timeout_s=self._short_timeout_s)

    def _reached(self, url: str, origin: str) -> str:
        """Return the absolute URL of a submodule of `origin`.

        Raises:
            RepositoryMissing: It is none that we let git reach.
        """
        there = checked(resolved(url, origin))
        if _is_local(there) and not _is_local(self.origin):
            raise RepositoryMissing(there, "a directory of this machine, which only a repository on it may name")
        return there

    def _fetched(self, url: str) -> Path:
        """Return our copy of a submodule's repository, as it is just now."""
        copy = self.state / "modules" / f"{sha256(url.encode()).hexdigest()[:16]}.git"
        copy.parent.mkdir(exist_ok=True, mode=0o700)
        with self._lock:
            if not copy.exists():
                with self._new(copy):
                    pass
            for lock in copy.glob("*.lock"):  # of a git that was killed: nobody else works here, under our lock
                lock.unlink(missing_ok=True)
            fetch = ("fetch", "--quiet", "--prune", "--no-tags", "origin", *_HEADS_AND_TAGS)
            self._asked(self._outside_command(copy, self._outside_for(url), url), *fetch)
        return copy

    def _outside_for(self, url: str) -> dict[str, str]:
        ours = urlsplit(url)[:2] == urlsplit(self.origin)[:2]
        return with_url(self._credential_env if ours else {}, url)


def changed_links(git: Command, base: str, tree: str) -> set[str]:
    """Return the links that `tree` has and `base` has not, or at another commit."""
    changes = git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--ignore-submodules=none", base, tree)
    fields = changes.paths  # ":<old mode> <new mode> <old> <new> <what>", path, and so on
    return {name for about, name in zip(fields[::2], fields[1::2], strict=True) if about.split()[1] == LINK}


def places(git: Command, tree: str) -> dict[str, tuple[str, str]]:
    """Return name and URL of each path that the .gitmodules of `tree` names; "" for a URL that it has not."""
    entries = git.ask("config", f"--blob={tree}:.gitmodules", "--null", "--get-regexp", r"^submodule\..*\.(path|url)$")
    said: dict[str, dict[str, str]] = {}
    for match in filter(None, map(_PLACE.fullmatch, entries.paths)):
        said.setdefault(match[1], {})[match[2]] = match[3]
    return {each["path"]: (name, each.get("url", "")) for name, each in said.items() if "path" in each}


def resolved(url: str, origin: str) -> str:
    """Return what a submodule's URL means beside `origin`, by the rules of git-submodule(1)."""
    if not url.startswith(("./", "../")):
        return url
    base, sign = origin.rstrip("/"), "/"
    while url.startswith(("./", "../")):
        if url.startswith("../"):
            sign = "/" if "/" in base else ":"
            base = base.rpartition(sign)[0]
        url = url.partition("/")[2]
    return f"{base}{sign}{url}"


def _modules(git: Command, tree: str) -> list[Module]:
    named = places(git, tree)
    if not named:
        return []
    index, whole_tree = ("ls-files", "--stage", "-z"), ("ls-tree", "-r", "-z", "--full-tree", tree)
    listing, sha_at = (index, 1) if tree == _INDEX else (whole_tree, 2)  # "160000 <sha> 0", or "160000 commit <sha>"
    lines = (line.partition("\t") for line in git.run(*listing).paths)
    links = {path: about.split()[sha_at] for about, _, path in lines if _is_link(about)}
    return [Module(name, path, links[path], url) for path, (name, url) in sorted(named.items()) if path in links]


def _of(module: Module, checkout: Checkout) -> tuple[Path, Path]:
    """Return where git keeps a submodule of a worktree, and where it checks it out."""
    return checkout.admin / "modules" / module.name, checkout.path / module.path


def _holds(path: Path) -> bool:
    """Return whether something is there, if not an empty directory."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir()))


def _drop(module: Module, checkout: Checkout) -> None:
    """Remove what there is of a submodule, unless an agent has put a symlink on the way to it."""
    for root, path in zip((checkout.admin, checkout.path), _of(module, checkout), strict=True):
        if path.resolve() == root.resolve() / path.relative_to(root):
            clear(path)


def _checked_out(git: Command, path: Path) -> Iterator[Path]:
    """Yield where submodules are checked out, theirs included."""
    for about, _, name in (line.partition("\t") for line in git.run("ls-files", "--stage", "-z").paths):
        place = path / name
        if _is_link(about) and os.path.lexists(place / ".git") and not place.is_symlink():
            yield place
            yield from _checked_out(Command(git.what, place, git.timeout_s), place)


def _repositories(directory: Path) -> Iterator[Path]:
    """Yield what git keeps of submodules below `modules`, and of theirs; a name may be a path."""
    for path in sorted(directory.iterdir()) if directory.is_dir() and not directory.is_symlink() else ():
        if (path / "HEAD").exists():
            yield path
            yield from _repositories(path / "modules")
        else:
            yield from _repositories(path)


def _is_link(about: str) -> bool:
    return about.startswith(f"{LINK} ")


def _is_local(url: str) -> bool:
    return is_path(url) or url.startswith("file:")


def _configured(settings: dict[str, str]) -> dict[str, str]:
    """Return the environment in which git, and each that it starts, has these settings."""
    environment = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return environment


def _not_had(checkout: Checkout, module: Module, why: str) -> CommitRefused:
    reason = f"is a submodule at {module.sha}, which nobody else may have: {why}"
    return CommitRefused(checkout.ticket_id, checkout.path / module.path, reason)
