"""What the daemon leaves free, and how long it keeps what is over.

Each description is what `template` writes. Knows nothing of what the values are used for.
"""

from pydantic import ByteSize, Field

from runner.config.values import Days, Section


class Machine(Section):
    """What has to be free before a ticket is started; those that run go on. 0 is no floor."""

    min_free_disk: ByteSize = Field(
        default=ByteSize(1 << 30),
        description="Bytes on the disk of the state directory, for a user who is not root.",
    )
    min_free_files: int = Field(
        default=10_000,
        ge=0,
        description="How many more files its file system can hold, where that has a limit (`df -i`).",
    )
    min_free_memory: ByteSize = Field(
        default=ByteSize(512 << 20),
        description="Bytes of memory, in the machine and in the unit's MemoryMax=.",
    )


class Keep(Section):
    """For how many days is kept what done and cancelled tickets leave behind; or "forever"."""

    worktrees_days: Days = Field(
        default=7.0,
        description="Worktrees. One with work that is uncommitted or not in the repository is put aside, not removed.",
    )
    transcripts_days: Days = Field(default=30.0, description="What Claude Code wrote of their sessions.")
    messages_days: Days = Field(
        default=30.0, description="What was said in these, in the database. The log of events stays."
    )
