"""What `status --json` and `show --json` say, as far as tests read it: a name that is not there is an error."""

from pydantic import BaseModel, Field


class Ticket(BaseModel):
    """Of `show --json` and `status --json`: what a ticket's facts decided."""

    id: str
    state: str
    reason: str | None
    note: str
    token: int
    attempts: int
    waits: int
    not_before_us: int


class Cost(BaseModel):
    """What a run cost."""

    microusd: int
    kind: str
    cut: bool


class Run(BaseModel):
    """A row of a ticket's runs."""

    id: str
    session: str
    kind: str
    outcome: str | None
    cost: Cost | None
    allowance_microusd: int
    carried_microusd: int
    subtype: str | None
    api_error_status: int | None
    turns: int
    input_tokens: int
    output_tokens: int


class Session(BaseModel):
    """A row of a ticket's sessions."""

    id: str
    generation: int
    confirmed: bool
    closed_reason: str | None


class Row(BaseModel):
    """A ticket and where its work is."""

    ticket: Ticket
    branch: str | None
    base_sha: str | None


class Why(BaseModel):
    """Why a ticket is where it is."""

    sentence: str
    then: str
    until_us: int | None


class Shown(BaseModel):
    """`show --json`."""

    now_us: int
    because: Why = Field(alias="why")
    spent_microusd: int
    row: Row
    sessions: list[Session]
    runs: list[Run]

    @property
    def ticket(self) -> Ticket:
        """The ticket itself."""
        return self.row.ticket

    @property
    def why(self) -> str:
        """Why it is where it is."""
        return self.because.sentence

    @property
    def kinds(self) -> list[tuple[str, str | None]]:
        """Kind and outcome of every run."""
        return [(run.kind, run.outcome) for run in self.runs]


class Sums(BaseModel):
    """What a line adds up."""

    runs: int
    cost_microusd: int
    cut: bool


class Line(BaseModel):
    """A line of the table."""

    ticket: Ticket
    sums: Sums
    session: str | None
    generation: int | None


class Pause(BaseModel):
    """Why the queue waits."""

    reason: str
    note: str
    by: str
    since_us: int
    until_us: int | None
    waits: int
    probe: str | None


class Overview(BaseModel):
    """`status --json`."""

    lines: list[Line]
    why: dict[str, Why]
    waiting: list[str]
    pause: Pause | None

    def line(self, ticket: str) -> Line:
        """Return the line of one ticket."""
        return next(line for line in self.lines if line.ticket.id == ticket)
