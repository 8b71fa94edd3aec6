"""The door to git: one clone, a worktree per ticket, and what is pushed.

Invariant: no work of an agent is deleted, and nothing is forced over a commit that is not ours.

command.py runs git; files.py reads and removes what an agent may have put in the place of something; origin.py
says what the repository is and why it did not answer; clone.py keeps our copies of it; trees.py makes worktrees,
work.py reads them, survey.py says whether they are there; bundle.py puts all of it into a file; modules.py has
submodules, large.py the files of git-lfs; leaving.py takes worktrees away; merge.py brings in what the base has got;
deliver.py commits and pushes. `Repository` is all of it; each file adds to the one before. It blocks: call it in a
thread. Knows git. Does not know tickets beyond their ids, sessions or the store.
"""

from runner.worktree.bundle import Saved
from runner.worktree.clone import Base
from runner.worktree.command import HangUp
from runner.worktree.deliver import Pushed, Repository
from runner.worktree.errors import (
    BaseMissing,
    BranchInTheWay,
    CommitRefused,
    GitFailed,
    NoRoomForTickets,
    PushRefused,
    RepositoryDenied,
    RepositoryEmpty,
    RepositoryMismatch,
    RepositoryMissing,
    RepositoryOfOtherHash,
    RepositoryUnreachable,
    WorktreeLocked,
    WorktreeRefused,
)
from runner.worktree.files import clear
from runner.worktree.merge import Merge
from runner.worktree.survey import Place, Survey, branch_ref
from runner.worktree.trees import Tree
from runner.worktree.work import Commit, Facts

__all__ = [
    "Base",
    "BaseMissing",
    "BranchInTheWay",
    "Commit",
    "CommitRefused",
    "Facts",
    "GitFailed",
    "HangUp",
    "Merge",
    "NoRoomForTickets",
    "Place",
    "PushRefused",
    "Pushed",
    "Repository",
    "RepositoryDenied",
    "RepositoryEmpty",
    "RepositoryMismatch",
    "RepositoryMissing",
    "RepositoryOfOtherHash",
    "RepositoryUnreachable",
    "Saved",
    "Survey",
    "Tree",
    "WorktreeLocked",
    "WorktreeRefused",
    "branch_ref",
    "clear",
]
